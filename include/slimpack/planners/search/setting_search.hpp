// SPDX-License-Identifier: Apache-2.0
// A bounded search over settings, each with a few values.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack::planners {

/// One value of every setting, by number.
using SettingPoint = std::vector<std::size_t>;

/// How good a candidate is: a feasible one has no excess and is compared by time, others by how
/// much they exceed what there is.
struct CandidateScore {
  std::int64_t excess = 0;
  Nanos time;
  friend auto operator<=>(const CandidateScore&, const CandidateScore&) = default;
};

/// Laws: pure, and may be called by several threads at a time; only points that exist are
/// evaluated.
template <class Evaluate>
concept CandidateEvaluator = requires(const Evaluate& evaluate, const SettingPoint& point) {
  { evaluate.exists(point) } -> std::same_as<bool>;
  { evaluate(point) } -> std::same_as<CandidateScore>;
};

/// What bounds a search and who hears of its progress.
struct SearchLimits {
  std::int64_t budget = 1;
  std::int32_t threads = 1;
  std::function<void(std::int64_t done, std::int64_t most)> progress;
};

struct SearchResult {
  SettingPoint best;
  CandidateScore score;
  std::int64_t evaluations = 0;
};

namespace detail {

template <CandidateEvaluator Evaluate>
class SettingSearch {
 public:
  SettingSearch(std::span<const std::size_t> sizes, const SearchLimits& limits,
                const Evaluate& evaluate)
      : sizes_(sizes), limits_(limits), evaluate_(evaluate) {
    std::int64_t all = 1;
    for (const std::size_t size : sizes) {
      all = std::min(limits.budget, all * std::min(limits.budget, static_cast<std::int64_t>(size)));
    }
    most_ = all;
  }

  SearchResult run() {
    consider({SettingPoint(sizes_.size())});
    descend();
    sweep();
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::int64_t left() const noexcept { return most_ - result_.evaluations; }

  /// Evaluates those of `points` that are new, as far as the budget goes.
  void consider(const std::vector<SettingPoint>& points) {
    std::vector<const SettingPoint*> fresh;
    for (const SettingPoint& point : points) {
      if (static_cast<std::int64_t>(fresh.size()) == left()) break;
      if (seen_.insert(point).second && evaluate_.exists(point)) fresh.push_back(&point);
    }
    std::vector<CandidateScore> scores(fresh.size());
    std::int64_t done = result_.evaluations;
    Mutex mutex;
    parallel_for(fresh.size(), limits_.threads, [&](std::size_t i) {
      scores[i] = evaluate_(*fresh[i]);
      const Lock lock(mutex);
      ++done;
      if (limits_.progress) limits_.progress(done, most_);
    });
    result_.evaluations = done;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (result_.best.empty() ||
          std::tie(scores[i], *fresh[i]) < std::tie(result_.score, result_.best)) {
        result_.best = *fresh[i];
        result_.score = scores[i];
      }
    }
  }

  /// One setting after the other is set to its best value, until none changes.
  void descend() {
    for (bool changed = true; changed && left() > 0;) {
      changed = false;
      for (std::size_t setting = 0; setting < sizes_.size(); ++setting) {
        const SettingPoint from = result_.best;
        std::vector<SettingPoint> points(sizes_[setting], from);
        for (std::size_t value = 0; value < points.size(); ++value) points[value][setting] = value;
        consider(points);
        changed = changed || result_.best != from;
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
        if (!seen_.contains(point)) points.push_back(point);
        std::size_t setting = sizes_.size();
        while (setting > 0 && ++point[setting - 1] == sizes_[setting - 1]) point[--setting] = 0;
        more = setting > 0;
      }
      consider(points);
      if (!more) break;
    }
  }

  std::span<const std::size_t> sizes_;
  const SearchLimits& limits_;
  const Evaluate& evaluate_;
  std::int64_t most_ = 1;
  std::set<SettingPoint> seen_;
  SearchResult result_;
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
  require(limits.budget >= 1, "search_settings: budget must be >= 1", limits.budget);
  require(limits.threads >= 1, "search_settings: threads must be >= 1", limits.threads);
  require(evaluate.exists(SettingPoint(sizes.size())),
          "search_settings: the first value of every setting must make a candidate");
  return detail::SettingSearch<Evaluate>(sizes, limits, evaluate).run();
}

}  // namespace slimpack::planners
