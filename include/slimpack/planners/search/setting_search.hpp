// SPDX-License-Identifier: Apache-2.0
// The search of all planners: over settings, each with a few values, within a counted budget.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"

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

/// Scores points; `devices` says how many devices that simulates.
/// Laws: all are pure; points may be scored by several threads at a time; only points that exist
/// are scored.
template <class Evaluate>
concept CandidateEvaluator = requires(const Evaluate& evaluate, const SettingPoint& point) {
  { evaluate.exists(point) } -> std::same_as<bool>;
  { evaluate.devices(point) } -> std::same_as<std::int64_t>;
  { evaluate(point) } -> std::same_as<CandidateScore>;
};

/// Scores points by a part of them, and those that would be the best so far by another part too:
/// the worse score counts. `witness_devices` is what that other part costs, 0 where there is none.
template <class Evaluate>
concept WitnessedEvaluator =
    CandidateEvaluator<Evaluate> && requires(const Evaluate& evaluate, const SettingPoint& point) {
      { evaluate.witness_devices(point) } -> std::same_as<std::int64_t>;
      { evaluate.witness(point) } -> std::same_as<CandidateScore>;
    };

/// The settings of a search and the points to begin at.
struct SearchSpace {
  std::vector<std::size_t> sizes;     ///< how many values each setting has
  std::vector<bool> ordered = {};     ///< of each setting: neighbouring values are alike
  std::vector<SettingPoint> starts;   ///< the best guess first; at least one exists
  std::optional<std::size_t> memory;  ///< a setting: higher values need less memory
  /// Another setting of which higher values need less memory, at less cost: a start that lacks some
  /// gets a higher value of it before it is moved up in `memory`.
  std::optional<std::size_t> finer = {};
  std::vector<bool> fixed = {};         ///< settings that stay as a start has them; none if empty
  std::vector<ScoredPoint> known = {};  ///< scores of an earlier search, not counted again
  bool everywhere = true;               ///< spend what is left on points far from the best
  /// The one point that stands for all of a candidate; empty: each point is another candidate.
  /// Starts and known points must be such.
  std::function<SettingPoint(SettingPoint)> canonical = {};
};

/// The space of a search over all settings of a planner.
template <class Settings>
[[nodiscard]] SearchSpace search_space(const SettingSpace<Settings>& settings) {
  SearchSpace space;
  space.sizes = settings.sizes();
  space.ordered = settings.flags(&SettingTraits<Settings>::ordered);
  const std::vector<bool> memory = settings.flags(&SettingTraits<Settings>::memory);
  const auto found = std::find(memory.begin(), memory.end(), true);
  if (found != memory.end()) space.memory = static_cast<std::size_t>(found - memory.begin());
  space.starts = settings.starts();
  return space;
}

/// What a search may spend.
struct SearchLimits {
  SimulationCounter* counter = nullptr;  ///< that all simulations of the request share
  std::int64_t keep = 0;                 ///< devices of its budget that the search leaves
  /// Ends after so many candidates that fit, to save time; absent: the budget alone counts.
  std::optional<std::int64_t> fitting = {};
};

/// What a search found.
struct SearchResult {
  std::vector<ScoredPoint> ranked;  ///< all points scored, best first
  std::int64_t fitting = 0;         ///< candidates among them that fit, without known ones
};

namespace detail {

/// Any evaluator, so that searches are compiled once. The evaluator must outlive it.
class EvaluatorRef {
 public:
  template <CandidateEvaluator Evaluate>
  explicit EvaluatorRef(const Evaluate& evaluate)
      : evaluate_(&evaluate),
        exists_([](const void* any, const SettingPoint& point) {
          return static_cast<const Evaluate*>(any)->exists(point);
        }),
        devices_([](const void* any, const SettingPoint& point) {
          return static_cast<const Evaluate*>(any)->devices(point);
        }),
        score_([](const void* any, const SettingPoint& point) {
          return (*static_cast<const Evaluate*>(any))(point);
        }) {
    if constexpr (WitnessedEvaluator<Evaluate>) {
      witness_devices_ = [](const void* any, const SettingPoint& point) {
        return static_cast<const Evaluate*>(any)->witness_devices(point);
      };
      witness_ = [](const void* any, const SettingPoint& point) {
        return static_cast<const Evaluate*>(any)->witness(point);
      };
    }
  }

  [[nodiscard]] bool exists(const SettingPoint& point) const { return exists_(evaluate_, point); }
  [[nodiscard]] std::int64_t devices(const SettingPoint& point) const {
    return devices_(evaluate_, point);
  }
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    return score_(evaluate_, point);
  }
  [[nodiscard]] std::int64_t witness_devices(const SettingPoint& point) const {
    return witness_devices_ == nullptr ? 0 : witness_devices_(evaluate_, point);
  }
  [[nodiscard]] CandidateScore witness(const SettingPoint& point) const {
    return witness_(evaluate_, point);
  }

 private:
  const void* evaluate_;
  bool (*exists_)(const void*, const SettingPoint&);
  std::int64_t (*devices_)(const void*, const SettingPoint&);
  CandidateScore (*score_)(const void*, const SettingPoint&);
  std::int64_t (*witness_devices_)(const void*, const SettingPoint&) = nullptr;
  CandidateScore (*witness_)(const void*, const SettingPoint&) = nullptr;
};

/// Points of a space in an order in which neighbours are far apart: every k-th by turns. Each once.
class ScatteredPoints {
 public:
  /// Of settings with so many values each.
  explicit ScatteredPoints(std::span<const std::size_t> sizes) : sizes_(sizes) {
    for (const std::size_t size : sizes) {
      // Nobody tries so many points; what lies beyond is left out.
      if (count_ < (std::uint64_t{1} << 40)) count_ *= size;
    }
    step_ = std::max<std::uint64_t>(1, count_ / 1000 * 618 + count_ % 1000 * 618 / 1000);
    while (std::gcd(step_, count_) != 1) ++step_;
  }

  /// The next point; absent where all have been given.
  [[nodiscard]] std::optional<SettingPoint> next() {
    if (given_ == count_) return std::nullopt;
    ++given_;
    SettingPoint point(sizes_.size());
    std::uint64_t rest = place_;
    for (std::size_t i = 0; i < point.size(); ++i) {
      point[i] = rest % sizes_[i];
      rest /= sizes_[i];
    }
    place_ = (place_ + step_) % count_;
    return point;
  }

 private:
  std::span<const std::size_t> sizes_;
  std::uint64_t count_ = 1, step_ = 1, place_ = 0, given_ = 0;
};

/// One search.
class SettingSearch {
 public:
  SettingSearch(const SearchSpace& space, const SearchLimits& limits, const EvaluatorRef& evaluate)
      : space_(space),
        limits_(limits),
        evaluate_(evaluate),
        allowed_(limits.counter->left() - limits.keep) {
    for (const auto& [score, point] : space.known) scores_.emplace(point, score);
  }

  [[nodiscard]] SearchResult run() {
    for (const ScoredPoint& begin : begins()) {
      if (!more()) break;
      best_ = begin;
      climb();
    }
    leap();
    if (space_.everywhere) scatter();
    SearchResult result{{}, fitted_};
    for (const auto& [point, score] : scores_) result.ranked.push_back({score, point});
    std::sort(result.ranked.begin(), result.ranked.end());
    return result;
  }

 private:
  [[nodiscard]] bool more() const noexcept {
    return limits_.counter->left() > limits_.keep &&
           (!limits_.fitting || fitted_ < *limits_.fitting);
  }
  /// More than half of what may be spent has been.
  [[nodiscard]] bool half_spent() const noexcept {
    return 2 * (limits_.counter->left() - limits_.keep) < allowed_ ||
           (limits_.fitting && 2 * fitted_ > *limits_.fitting);
  }
  /// The values of the setting that saves memory; one where there is none.
  [[nodiscard]] std::size_t leannesses() const noexcept {
    return space_.memory ? space_.sizes[*space_.memory] : 1;
  }
  [[nodiscard]] std::size_t leanness(const SettingPoint& point) const noexcept {
    return space_.memory ? point[*space_.memory] : 0;
  }

  /// Scores the starts as they are given. Where all need as much memory and the first one lacks
  /// some, the others begin where that one fits, or at the leanest value. Where they differ, only
  /// what is left of a budget at its end goes to the leanest value.
  void score_starts() {
    const std::size_t first = leanness(space_.starts.front());
    const bool alike =
        std::all_of(space_.starts.begin(), space_.starts.end(),
                    [&](const SettingPoint& start) { return leanness(start) == first; });
    bool lacking = false;
    for (const SettingPoint& given : space_.starts) {
      // Starts that may already fit first: to find what the others lack may end the budget.
      if (leannesses() > 1 && leanness(given) + 1 == leannesses()) continue;
      SettingPoint start = given;
      if (lacking && fits(best_)) {
        start[*space_.memory] = leanness(best_.second);
      } else if (lacking || (!alike && !fits(best_) && nearly_spent(start))) {
        start[*space_.memory] = leannesses() - 1;
      }
      consider({start});
      if (!alike || lacking || leannesses() == 1 || fits(best_) || !scores_.contains(start)) {
        continue;
      }
      lacking = true;
      for (const std::size_t leaner : {first + 1, leannesses() - 1}) {
        start[*space_.memory] = leaner;
        if (!fits(best_)) consider({start});
      }
    }
  }
  /// What may still be spent does not pay for three points like this one.
  [[nodiscard]] bool nearly_spent(const SettingPoint& point) const {
    return evaluate_.exists(point) &&
           limits_.counter->left() - limits_.keep < 3 * evaluate_.devices(point);
  }

  /// The starts, each moved up to fit, the best first.
  [[nodiscard]] std::vector<ScoredPoint> begins() {
    score_starts();
    std::vector<ScoredPoint> begins;
    for (const SettingPoint& start : space_.starts) {
      // With less than half of the budget left it is better to climb from what has been found.
      if (half_spent() && !begins.empty() && fits(best_)) break;
      // What is leanest from the beginning is for where nothing else fits.
      if (space_.finer && leanness(start) + 1 == leannesses() && leannesses() > 1 && fits(best_)) {
        continue;
      }
      if (const auto found = fitting(start)) begins.push_back(*found);
    }
    std::stable_sort(begins.begin(), begins.end());
    return begins;
  }

  [[nodiscard]] static bool fits(const ScoredPoint& scored) noexcept {
    return !scored.second.empty() && scored.first.excess <= 0;
  }

  /// A start with about as little moved up in `memory` as makes it fit, or all; nothing where there
  /// is no candidate or no budget.
  [[nodiscard]] std::optional<ScoredPoint> fitting(SettingPoint point) {
    std::optional<ScoredPoint> found;
    const auto fits_with = [&](std::size_t value) {
      if (space_.memory) point[*space_.memory] = value;
      consider({point});
      const auto seen = scores_.find(point);
      if (seen == scores_.end()) return false;
      if (!found || seen->second < found->first) found = {seen->second, point};
      return seen->second.excess <= 0;
    };
    std::size_t low = leanness(point), high = leannesses() - 1;
    if (fits_with(low)) return found;
    if (space_.finer) {
      std::size_t& finer = point[*space_.finer];
      const std::size_t before = finer;
      finer = std::min(finer + kFiner, space_.sizes[*space_.finer] - 1);
      if (finer != before && fits_with(low)) return found;
      for (++low; low <= high;) {
        const std::size_t middle = low + (high - low) / 2;
        if (fits_with(middle)) {
          if (middle == low) break;
          high = middle - 1;
        } else {
          low = middle + 1;
        }
      }
      return found;
    }
    if (low == high || !fits_with(high)) return found;
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (fits_with(middle) ? high : low) = middle;
    }
    return found;
  }

  void climb() {
    for (bool moved = true; moved && more();) {
      moved = false;
      for (std::size_t setting = 0; setting < space_.sizes.size(); ++setting) {
        moved = improve(setting) || moved;
      }
    }
  }

  /// From the best of all points, two settings at once, as long as that helps.
  void leap() {
    for (bool moved = true; moved && more();) {
      const auto best =
          std::min_element(scores_.begin(), scores_.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      if (best == scores_.end()) return;
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

  /// Spends what is left on points that are far apart, and climbs from each that is the best so
  /// far; in the end on every point.
  void scatter() {
    constexpr std::size_t kAtOnce = 8;
    ScatteredPoints scattered(space_.sizes);
    std::optional<SettingPoint> point = scattered.next();
    while (point && more()) {
      std::vector<SettingPoint> points;
      for (; point && points.size() < kAtOnce; point = scattered.next()) {
        if (!scores_.contains(*point) && evaluate_.exists(*point)) points.push_back(*point);
      }
      const SettingPoint from = best_.second;
      consider(points);
      if (best_.second == from) continue;
      climb();
      leap();
    }
  }

  [[nodiscard]] std::vector<std::size_t> neighbours(const SettingPoint& from,
                                                    std::size_t setting) const {
    std::vector<std::size_t> values;
    if (!space_.fixed.empty() && space_.fixed[setting]) return values;
    const bool ordered = !space_.ordered.empty() && space_.ordered[setting];
    for (std::size_t value = 0; value < space_.sizes[setting]; ++value) {
      const bool near = value + 1 == from[setting] || value == from[setting] + 1;
      if (value != from[setting] && (near || !ordered)) values.push_back(value);
    }
    return values;
  }

  /// Tries the neighbours of the best point in one setting, of an ordered one on while it helps.
  bool improve(std::size_t setting) {
    bool moved = false;
    while (more()) {
      const SettingPoint from = best_.second;
      std::vector<SettingPoint> points;
      for (const std::size_t value : neighbours(from, setting)) {
        points.push_back(from);
        points.back()[setting] = value;
      }
      consider(points);
      if (best_.second == from) break;
      moved = true;
      if (space_.ordered.empty() || !space_.ordered[setting]) break;
    }
    return moved;
  }

  /// Scores those of these points that exist and are new, as far as the budget goes.
  void consider(const std::vector<SettingPoint>& points) {
    std::vector<ScoredPoint> fresh;
    std::vector<std::int64_t> costs;
    const std::int64_t most =
        limits_.fitting ? *limits_.fitting - fitted_ : std::numeric_limits<std::int64_t>::max();
    for (const SettingPoint& given : points) {
      if (static_cast<std::int64_t>(fresh.size()) >= most) break;
      const SettingPoint point = space_.canonical ? space_.canonical(given) : given;
      const auto same = [&](const ScoredPoint& other) { return other.second == point; };
      if (scores_.contains(point) || std::any_of(fresh.begin(), fresh.end(), same) ||
          !evaluate_.exists(point)) {
        continue;
      }
      fresh.push_back({{}, point});
      costs.push_back(evaluate_.devices(point));
    }
    const auto started = limits_.counter->run(
        costs, limits_.keep, [&](std::size_t i) { fresh[i].first = evaluate_(fresh[i].second); });
    confirm(fresh, started);
    for (const std::size_t i : started) {
      ScoredPoint& each = fresh[i];
      scores_.emplace(each.second, each.first);
      if (each.first.excess <= 0) ++fitted_;
      if (best_.second.empty() || each < best_) best_ = std::move(each);
    }
  }

  /// Asks the witness of each of these points that would be the best.
  void confirm(std::vector<ScoredPoint>& fresh, const std::vector<std::size_t>& started) {
    std::vector<std::size_t> asked;
    std::vector<std::int64_t> costs;
    for (const std::size_t i : started) {
      const ScoredPoint& each = fresh[i];
      if (each.first.excess > 0 || (!best_.second.empty() && best_ < each)) continue;
      const std::int64_t cost = evaluate_.witness_devices(each.second);
      if (cost == 0) continue;
      asked.push_back(i);
      costs.push_back(cost);
    }
    limits_.counter->run(costs, limits_.keep, [&](std::size_t i) {
      ScoredPoint& each = fresh[asked[i]];
      each.first = std::max(each.first, evaluate_.witness(each.second));
    });
  }

  static constexpr std::size_t kFiner = 3;  // values of `finer` that a start without room moves up

  const SearchSpace& space_;
  const SearchLimits& limits_;
  EvaluatorRef evaluate_;
  std::int64_t allowed_;
  std::map<SettingPoint, CandidateScore> scores_;
  ScoredPoint best_;
  std::int64_t fitted_ = 0;  // candidates that fitted into memory
};

}  // namespace detail

/// The best of the points that a budget pays for. Scores `space.starts` in their order, as far as
/// they exist, each with as little moved up in the setting `memory` as lets it fit; then climbs
/// from each, the best first: to the neighbours of the best point in one setting after the other
/// (to all other values where it is not ordered, on in the same way while that helps where it is),
/// until no setting helps. Then it goes on from the best of all, two settings at once. Last, with
/// `space.everywhere`, it scores points that are far apart and climbs from any that is better; so a
/// space that the budget pays for is tried whole. Points that do not exist are passed over. Equal
/// scores go to the lexicographically lowest point; threads never change the answer. `ranked` is
/// empty only where the budget pays for no start. Throws InvalidInput if the space is empty, a
/// setting has no value or no start exists, and whatever `evaluate` throws.
template <CandidateEvaluator Evaluate>
[[nodiscard]] SearchResult search_settings(const SearchSpace& space, const SearchLimits& limits,
                                           const Evaluate& evaluate) {
  require(!space.sizes.empty(), "search_settings: there must be a setting");
  for (const std::size_t size : space.sizes) {
    require(size >= 1, "search_settings: every setting must have a value");
  }
  for (const SettingPoint& start : space.starts) {
    require(start.size() == space.sizes.size(), "search_settings: a start must have every setting");
  }
  require(limits.counter != nullptr, "search_settings: there must be a counter");
  require(std::any_of(space.starts.begin(), space.starts.end(),
                      [&](const SettingPoint& start) { return evaluate.exists(start); }),
          "search_settings: a start must make a candidate");
  return detail::SettingSearch(space, limits, detail::EvaluatorRef(evaluate)).run();
}

}  // namespace slimpack::planners
