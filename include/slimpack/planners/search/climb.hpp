// SPDX-License-Identifier: Apache-2.0
// A search that climbs from a good guess, one setting at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/planners/search/setting_search.hpp"

namespace slimpack::planners {

/// Settings and points to begin at. On a ladder neighbouring values are alike. Further up on the
/// ladder `relief` less memory is needed. Settings that are `fixed` stay as a start has them.
struct ClimbSpace {
  std::vector<std::size_t> sizes;
  std::vector<bool> ladder;
  std::vector<SettingPoint> starts;
  std::size_t fewer_last_layers = 0;
  std::vector<bool> fixed = {};                                     ///< none if empty
  std::vector<std::pair<CandidateScore, SettingPoint>> known = {};  ///< scored before
};

/// Points with their scores, best first.
struct ClimbResult {
  std::vector<std::pair<CandidateScore, SettingPoint>> ranked;
  std::int64_t evaluations = 0;
};

template <CandidateEvaluator Evaluate>
class Climb {
 public:
  Climb(const ClimbSpace& space, const SearchLimits& limits, const Evaluate& evaluate)
      : space_(space), limits_(limits), evaluate_(evaluate) {
    for (const auto& [score, point] : space.known) seen_.emplace(point, score);
  }

  ClimbResult run() {
    std::vector<std::pair<CandidateScore, SettingPoint>> begins;
    // Those that need no relief first: what relief costs may leave the budget short.
    for (const SettingPoint& start : space_.starts) {
      if (start[space_.fewer_last_layers] + 1 < space_.sizes[space_.fewer_last_layers])
        consider({start});
    }
    for (const SettingPoint& start : space_.starts) {
      // With less than half of the budget left it is better to climb from what has been found.
      if (2 * left() < limits_.budget && !begins.empty() && score_.excess <= 0) break;
      if (const auto found = relieved(start)) begins.push_back(*found);
    }
    std::stable_sort(begins.begin(), begins.end());
    for (const auto& [score, point] : begins) {
      if (left() <= 0) break;
      std::tie(score_, best_) = std::tie(score, point);
      climb();
    }
    leap();
    ClimbResult result;
    result.evaluations = done_;
    for (const auto& [point, score] : seen_) result.ranked.push_back({score, point});
    std::stable_sort(result.ranked.begin(), result.ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return result;
  }

 private:
  /// Points that lack memory are not simulated: they cost little, but not nothing.
  [[nodiscard]] std::int64_t left() const noexcept {
    const std::int64_t tries = 4 * std::max(limits_.budget, done_ == 0 ? kTries : 0);
    return std::min(limits_.budget - done_, tries - tried_);
  }

  /// A start with about as little relief as makes it fit, or all; nothing where there is no
  /// candidate or no budget.
  [[nodiscard]] std::optional<std::pair<CandidateScore, SettingPoint>> relieved(
      SettingPoint point) {
    std::optional<std::pair<CandidateScore, SettingPoint>> found;
    std::size_t& fewer_last_layers = point[space_.fewer_last_layers];
    const auto fits = [&](std::size_t i) {
      fewer_last_layers = i;
      consider({point});
      const auto seen = seen_.find(point);
      if (seen == seen_.end()) return false;
      if (!found || seen->second < found->first) found = {seen->second, point};
      return seen->second.excess <= 0;
    };
    std::size_t low = fewer_last_layers, high = space_.sizes[space_.fewer_last_layers] - 1;
    if (fits(low) || low == high || !fits(high)) return found;
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return found;
  }

  void climb() {
    for (bool moved = true; moved && left() > 0;) {
      moved = false;
      for (std::size_t setting = 0; setting < space_.sizes.size(); ++setting) {
        moved = improve(setting) || moved;
      }
    }
  }

  /// From the best of all points, two settings at once, as long as that helps.
  void leap() {
    for (bool moved = true; moved && left() > 0;) {
      const auto best =
          std::min_element(seen_.begin(), seen_.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      if (best == seen_.end()) return;
      std::tie(best_, score_) = std::tie(best->first, best->second);
      const SettingPoint from = best_;
      for (std::size_t one = 0; one < from.size() && best_ == from; ++one) {
        for (std::size_t two = one + 1; two < from.size() && best_ == from; ++two) {
          std::vector<SettingPoint> points;
          for (const std::size_t a : neighbours(from, one)) {
            for (const std::size_t b : neighbours(from, two)) {
              points.push_back(from);
              points.back()[one] = a;
              points.back()[two] = b;
            }
          }
          consider(points);
        }
      }
      moved = best_ != from;
      if (moved) climb();
    }
  }

  [[nodiscard]] std::vector<std::size_t> neighbours(const SettingPoint& from,
                                                    std::size_t setting) const {
    std::vector<std::size_t> values;
    if (!space_.fixed.empty() && space_.fixed[setting]) return values;
    for (std::size_t value = 0; value < space_.sizes[setting]; ++value) {
      const bool near = value + 1 == from[setting] || value == from[setting] + 1;
      if (value != from[setting] && (near || !space_.ladder[setting])) values.push_back(value);
    }
    return values;
  }

  /// Tries the neighbours of the best point in one setting, on a ladder further while it helps.
  bool improve(std::size_t setting) {
    bool moved = false;
    while (left() > 0) {
      const SettingPoint from = best_;
      std::vector<SettingPoint> points;
      for (const std::size_t value : neighbours(from, setting)) {
        points.push_back(from);
        points.back()[setting] = value;
      }
      consider(points);
      if (best_ == from) break;
      moved = true;
      if (!space_.ladder[setting]) break;
    }
    return moved;
  }

  void consider(const std::vector<SettingPoint>& points) {
    std::vector<const SettingPoint*> fresh;
    for (const SettingPoint& point : points) {
      if (static_cast<std::int64_t>(fresh.size()) == left()) break;
      if (!seen_.contains(point) && evaluate_.exists(point)) fresh.push_back(&point);
    }
    std::vector<CandidateScore> scores(fresh.size());
    std::int64_t done = done_;
    Mutex mutex;
    parallel_for(fresh.size(), limits_.threads, [&](std::size_t i) {
      scores[i] = evaluate_(*fresh[i]);
      const Lock lock(mutex);
      ++done;
      if (limits_.progress) limits_.progress(done, limits_.budget);
    });
    tried_ += static_cast<std::int64_t>(fresh.size());
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (scores[i].excess <= 0) ++done_;
      if (seen_.empty() || std::tie(scores[i], *fresh[i]) < std::tie(score_, best_)) {
        best_ = *fresh[i];
        score_ = scores[i];
      }
      seen_.emplace(*fresh[i], scores[i]);
    }
  }

  static constexpr std::int64_t kTries = 16;

  const ClimbSpace& space_;
  const SearchLimits& limits_;
  const Evaluate& evaluate_;
  SettingPoint best_;
  CandidateScore score_;
  std::map<SettingPoint, CandidateScore> seen_;
  std::int64_t done_ = 0;  // that fitted into memory
  std::int64_t tried_ = 0;
};

/// Scores `space.starts`, as far as they exist, each with as little relief as lets it fit; then
/// climbs from each, the best first: the neighbours of the best point in one setting after the
/// other (all other values where it is no ladder; on a ladder on in the same way while that helps),
/// until no setting helps; last from the best of all, two settings at once. Ends when the budget is
/// used. Equal scores go to the lexicographically lowest point; `threads` never changes the answer.
/// Throws InvalidInput if the space is empty, the start does not exist or a limit < 1, and whatever
/// `evaluate` throws.
template <CandidateEvaluator Evaluate>
[[nodiscard]] ClimbResult climb_settings(const ClimbSpace& space, const SearchLimits& limits,
                                         const Evaluate& evaluate) {
  require(!space.sizes.empty(), "climb_settings: there must be a setting");
  require(space.ladder.size() == space.sizes.size(),
          "climb_settings: every setting must be a ladder or not");
  for (const SettingPoint& start : space.starts) {
    require(start.size() == space.sizes.size(), "climb_settings: a start must have every setting");
  }
  require(space.fewer_last_layers < space.sizes.size(), "climb_settings: relief must be a setting",
          static_cast<std::int64_t>(space.fewer_last_layers));
  require(limits.budget >= 1, "climb_settings: budget must be >= 1", limits.budget);
  require(limits.threads >= 1, "climb_settings: threads must be >= 1", limits.threads);
  require(std::any_of(space.starts.begin(), space.starts.end(),
                      [&](const SettingPoint& start) { return evaluate.exists(start); }),
          "climb_settings: a start must make a candidate");
  return Climb<Evaluate>(space, limits, evaluate).run();
}

}  // namespace slimpack::planners
