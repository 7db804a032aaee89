// SPDX-License-Identifier: Apache-2.0
// A bounded search over settings, each with a few values.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners {

/// How good a candidate is; the lower the better. Feasible candidates, which exceed nothing, come
/// before all others and are compared by time.
struct CandidateScore {
  std::int64_t excess = 0;  ///< how much it needs beyond what there is; 0 or less where it fits
  Nanos time;               ///< simulated time of the step
  friend auto operator<=>(const CandidateScore&, const CandidateScore&) = default;
};
/// A candidate with its score. Of equal scores the lexicographically lowest point is the better.
using ScoredPoint = std::pair<CandidateScore, SettingPoint>;

/// Laws: pure, and may be called by several threads at a time; only points that exist are
/// evaluated.
template <class Evaluate>
concept CandidateEvaluator = requires(const Evaluate& evaluate, const SettingPoint& point) {
  { evaluate.exists(point) } -> std::same_as<bool>;
  { evaluate(point) } -> std::same_as<CandidateScore>;
};

/// What bounds a search and who hears of its progress.
struct SearchLimits {
  std::int64_t budget = 1;   ///< most candidates, at least 1; each search says which of them count
  std::int32_t threads = 1;  ///< that evaluate candidates, at least 1
  /// Called after each candidate with how many are done and the most there will be; never by two
  /// threads at a time. May be empty.
  std::function<void(std::int64_t done, std::int64_t most)> progress;
};

/// What `search_settings` found.
struct SearchResult {
  SettingPoint best;             ///< the best of the candidates evaluated
  CandidateScore score;          ///< of `best`
  std::int64_t evaluations = 0;  ///< candidates evaluated
};

namespace detail {

/// Refuses limits that allow no search.
inline void check_limits(const SearchLimits& limits, const std::string& search) {
  require(limits.budget >= 1, search + ": budget must be >= 1", limits.budget);
  require(limits.threads >= 1, search + ": threads must be >= 1", limits.threads);
}

/// Any evaluator, so that searches are compiled once. The evaluator must outlive it.
class EvaluatorRef {
 public:
  template <CandidateEvaluator Evaluate>
  explicit EvaluatorRef(const Evaluate& evaluate)
      : evaluate_(&evaluate),
        exists_([](const void* any, const SettingPoint& point) {
          return static_cast<const Evaluate*>(any)->exists(point);
        }),
        score_([](const void* any, const SettingPoint& point) {
          return (*static_cast<const Evaluate*>(any))(point);
        }) {}

  [[nodiscard]] bool exists(const SettingPoint& point) const { return exists_(evaluate_, point); }
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    return score_(evaluate_, point);
  }

 private:
  const void* evaluate_;
  bool (*exists_)(const void*, const SettingPoint&);
  CandidateScore (*score_)(const void*, const SettingPoint&);
};

/// Evaluates candidates, each once, remembers their scores and counts them. All searches count
/// here.
class CountedEvaluator {
 public:
  CountedEvaluator(const SearchLimits& limits, const EvaluatorRef& evaluate)
      : limits_(limits), evaluate_(evaluate) {}

  /// Evaluates the first `most` of those points that exist and are new, and returns them. Progress
  /// is told that `done` and these of `all` have been evaluated.
  std::vector<ScoredPoint> operator()(const std::vector<SettingPoint>& points, std::int64_t most,
                                      std::int64_t done, std::int64_t all) {
    std::vector<ScoredPoint> fresh;
    for (const SettingPoint& point : points) {
      if (static_cast<std::int64_t>(fresh.size()) == most) break;
      if (!scores_.contains(point) && evaluate_.exists(point)) fresh.push_back({{}, point});
    }
    Mutex mutex;
    parallel_for(fresh.size(), limits_.threads, [&](std::size_t i) {
      fresh[i].first = evaluate_(fresh[i].second);
      const Lock lock(mutex);
      ++done;
      if (limits_.progress) limits_.progress(done, all);
    });
    for (const auto& [score, point] : fresh) scores_.emplace(point, score);
    evaluated_ += static_cast<std::int64_t>(fresh.size());
    return fresh;
  }

  /// Takes over a score from an earlier search, without counting it.
  void remember(const ScoredPoint& known) { scores_.emplace(known.second, known.first); }
  [[nodiscard]] const std::map<SettingPoint, CandidateScore>& scores() const { return scores_; }
  [[nodiscard]] std::int64_t evaluated() const noexcept { return evaluated_; }

 private:
  const SearchLimits& limits_;
  EvaluatorRef evaluate_;
  std::map<SettingPoint, CandidateScore> scores_;
  std::int64_t evaluated_ = 0;
};

class SettingSearch {
 public:
  SettingSearch(std::span<const std::size_t> sizes, const SearchLimits& limits,
                const EvaluatorRef& evaluate)
      : sizes_(sizes), evaluate_(limits, evaluate) {
    for (const std::size_t size : sizes) {
      most_ =
          std::min(limits.budget, most_ * std::min(limits.budget, static_cast<std::int64_t>(size)));
    }
  }

  [[nodiscard]] SearchResult run() {
    consider({SettingPoint(sizes_.size())});
    descend();
    sweep();
    return {std::move(best_.second), best_.first, evaluate_.evaluated()};
  }

 private:
  [[nodiscard]] std::int64_t left() const noexcept { return most_ - evaluate_.evaluated(); }

  /// Evaluates those of `points` that are new, as far as the budget goes.
  void consider(const std::vector<SettingPoint>& points) {
    for (ScoredPoint& each : evaluate_(points, left(), evaluate_.evaluated(), most_)) {
      if (best_.second.empty() || each < best_) best_ = std::move(each);
    }
  }

  /// One setting after the other is set to its best value, until none changes.
  void descend() {
    for (bool changed = true; changed && left() > 0;) {
      changed = false;
      for (std::size_t setting = 0; setting < sizes_.size(); ++setting) {
        const SettingPoint from = best_.second;
        std::vector<SettingPoint> points(sizes_[setting], from);
        for (std::size_t value = 0; value < points.size(); ++value) points[value][setting] = value;
        consider(points);
        changed = changed || best_.second != from;
      }
    }
  }

  /// Spends what is left on the other points in their order.
  void sweep() {
    SettingPoint point(sizes_.size());
    while (left() > 0) {
      std::vector<SettingPoint> points;
      bool more = true;
      while (more && static_cast<std::int64_t>(points.size()) < left()) {
        if (!evaluate_.scores().contains(point)) points.push_back(point);
        std::size_t setting = sizes_.size();
        while (setting > 0 && ++point[setting - 1] == sizes_[setting - 1]) point[--setting] = 0;
        more = setting > 0;
      }
      consider(points);
      if (!more) break;
    }
  }

  std::span<const std::size_t> sizes_;
  CountedEvaluator evaluate_;
  std::int64_t most_ = 1;
  ScoredPoint best_;
};

}  // namespace detail

/// The best of at most `budget` points of a space in which setting i has `sizes[i]` values. Starts
/// at the first value of each, improves one setting at a time, then tries the remaining points in
/// lexicographic order; a space no larger than the budget is tried whole. Points that do not exist
/// are passed over. Equal scores go to the lexicographically lowest point; `threads` never changes
/// the answer. Throws InvalidInput if the space is empty, its first point does not exist or a limit
/// < 1, and whatever `evaluate` throws.
template <CandidateEvaluator Evaluate>
[[nodiscard]] SearchResult search_settings(std::span<const std::size_t> sizes,
                                           const SearchLimits& limits, const Evaluate& evaluate) {
  require(!sizes.empty(), "search_settings: there must be a setting");
  for (const std::size_t size : sizes) {
    require(size >= 1, "search_settings: every setting must have a value");
  }
  detail::check_limits(limits, "search_settings");
  require(evaluate.exists(SettingPoint(sizes.size())),
          "search_settings: the first value of every setting must make a candidate");
  return detail::SettingSearch(sizes, limits, detail::EvaluatorRef(evaluate)).run();
}

}  // namespace slimpack::planners
