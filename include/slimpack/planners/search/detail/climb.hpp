// SPDX-License-Identifier: Apache-2.0
// A search that climbs from a good guess, one setting at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/planners/search/setting_search.hpp"

namespace slimpack::planners {

/// The settings of a climb and the points to begin at.
struct ClimbSpace {
  std::vector<std::size_t> sizes;       ///< how many values each setting has
  std::vector<bool> ordered;            ///< of each setting: neighbouring values are alike
  std::vector<SettingPoint> starts;     ///< at least one that exists
  std::size_t memory = 0;               ///< an ordered setting: higher values need less memory
  std::vector<bool> fixed = {};         ///< settings that stay as a start has them; none if empty
  std::vector<ScoredPoint> known = {};  ///< scores of an earlier search, not counted again
};

/// What a climb found.
struct ClimbResult {
  std::vector<ScoredPoint> ranked;  ///< all points scored, best first
  std::int64_t evaluations = 0;     ///< of candidates that fit into memory
};

namespace detail {

/// One search.
class Climb {
 public:
  Climb(const ClimbSpace& space, const SearchLimits& limits, const EvaluatorRef& evaluate)
      : space_(space), limits_(limits), evaluate_(limits, evaluate) {
    for (const ScoredPoint& known : space.known) evaluate_.remember(known);
  }

  ClimbResult run() {
    std::vector<ScoredPoint> begins;
    // Starts that may already fit first: to find what the others lack may leave the budget short.
    for (const SettingPoint& start : space_.starts) {
      if (start[space_.memory] + 1 < space_.sizes[space_.memory]) consider({start});
    }
    for (const SettingPoint& start : space_.starts) {
      // With less than half of the budget left it is better to climb from what has been found.
      if (2 * left() < limits_.budget && !begins.empty() && best_.first.excess <= 0) break;
      if (const auto found = fitting(start)) begins.push_back(*found);
    }
    std::stable_sort(begins.begin(), begins.end());
    for (const ScoredPoint& begin : begins) {
      if (left() <= 0) break;
      best_ = begin;
      climb();
    }
    leap();
    ClimbResult result{{}, fitted_};
    for (const auto& [point, score] : evaluate_.scores()) result.ranked.push_back({score, point});
    std::sort(result.ranked.begin(), result.ranked.end());
    return result;
  }

 private:
  /// Points that lack memory are not simulated: they cost little, but not nothing.
  [[nodiscard]] std::int64_t left() const noexcept {
    const std::int64_t tries = 4 * std::max(limits_.budget, fitted_ == 0 ? kTries : 0);
    return std::min(limits_.budget - fitted_, tries - evaluate_.evaluated());
  }

  /// A start with about as little moved up in `memory` as makes it fit, or all; nothing where there
  /// is no candidate or no budget.
  [[nodiscard]] std::optional<ScoredPoint> fitting(SettingPoint point) {
    std::optional<ScoredPoint> found;
    std::size_t& memory = point[space_.memory];
    const auto fits = [&](std::size_t value) {
      memory = value;
      consider({point});
      const auto seen = evaluate_.scores().find(point);
      if (seen == evaluate_.scores().end()) return false;
      if (!found || seen->second < found->first) found = {seen->second, point};
      return seen->second.excess <= 0;
    };
    std::size_t low = memory, high = space_.sizes[space_.memory] - 1;
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
      const auto& scores = evaluate_.scores();
      const auto best =
          std::min_element(scores.begin(), scores.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      if (best == scores.end()) return;
      best_ = {best->second, best->first};
      const SettingPoint from = best_.second;
      for (std::size_t one = 0; one < from.size() && best_.second == from; ++one) {
        for (std::size_t two = one + 1; two < from.size() && best_.second == from; ++two) {
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
      moved = best_.second != from;
      if (moved) climb();
    }
  }

  [[nodiscard]] std::vector<std::size_t> neighbours(const SettingPoint& from,
                                                    std::size_t setting) const {
    std::vector<std::size_t> values;
    if (!space_.fixed.empty() && space_.fixed[setting]) return values;
    for (std::size_t value = 0; value < space_.sizes[setting]; ++value) {
      const bool near = value + 1 == from[setting] || value == from[setting] + 1;
      if (value != from[setting] && (near || !space_.ordered[setting])) values.push_back(value);
    }
    return values;
  }

  /// Tries the neighbours of the best point in one setting, of an ordered one on while it helps.
  bool improve(std::size_t setting) {
    bool moved = false;
    while (left() > 0) {
      const SettingPoint from = best_.second;
      std::vector<SettingPoint> points;
      for (const std::size_t value : neighbours(from, setting)) {
        points.push_back(from);
        points.back()[setting] = value;
      }
      consider(points);
      if (best_.second == from) break;
      moved = true;
      if (!space_.ordered[setting]) break;
    }
    return moved;
  }

  void consider(const std::vector<SettingPoint>& points) {
    for (ScoredPoint& each : evaluate_(points, left(), fitted_, limits_.budget)) {
      if (each.first.excess <= 0) ++fitted_;
      if (best_.second.empty() || each < best_) best_ = std::move(each);
    }
  }

  static constexpr std::int64_t kTries = 16;

  const ClimbSpace& space_;
  const SearchLimits& limits_;
  CountedEvaluator evaluate_;
  ScoredPoint best_;
  std::int64_t fitted_ = 0;  // candidates that fitted into memory
};

}  // namespace detail

/// Scores `space.starts`, as far as they exist, each with as little moved up in the setting
/// `memory` as lets it fit; then climbs from each, the best first: to the neighbours of the best
/// point in one setting after the other (to all other values where it is not ordered, on in the
/// same way while that helps where it is), until no setting helps; last from the best of all, two
/// settings at once. Ends when the budget is used, which counts candidates that fit. Equal scores
/// go to the lexicographically lowest point; `threads` never changes the answer. Throws
/// InvalidInput if the space is empty, no start exists or a limit is < 1, and whatever `evaluate`
/// throws.
template <CandidateEvaluator Evaluate>
[[nodiscard]] ClimbResult climb_settings(const ClimbSpace& space, const SearchLimits& limits,
                                         const Evaluate& evaluate) {
  require(!space.sizes.empty(), "climb_settings: there must be a setting");
  require(space.ordered.size() == space.sizes.size(),
          "climb_settings: every setting must be ordered or not");
  for (const SettingPoint& start : space.starts) {
    require(start.size() == space.sizes.size(), "climb_settings: a start must have every setting");
  }
  require(space.memory < space.sizes.size(), "climb_settings: memory must be a setting",
          static_cast<std::int64_t>(space.memory));
  detail::check_limits(limits, "climb_settings");
  require(std::any_of(space.starts.begin(), space.starts.end(),
                      [&](const SettingPoint& start) { return evaluate.exists(start); }),
          "climb_settings: a start must make a candidate");
  return detail::Climb(space, limits, detail::EvaluatorRef(evaluate)).run();
}

}  // namespace slimpack::planners
