// SPDX-License-Identifier: Apache-2.0
// The search of all planners: over settings, each with a few values, within a counted budget.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/detail/evaluator_ref.hpp"
#include "slimpack/planners/search/detail/scattered_points.hpp"
#include "slimpack/planners/search/search_space.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"

namespace slimpack::planners {

namespace detail {

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
    if (space_.kicks) {
      kick();
    } else {
      if (space_.everywhere) {
        const std::vector<ScoredPoint> all = begins();
        only_better_ = !limits_.fitting;
        for (const ScoredPoint& begin : all) {
          if (!more()) break;
          best_ = begin;
          climb();
        }
      } else {
        explore();
      }
      leap();
      if (space_.everywhere) scatter();
    }
    SearchResult result{{}, fitted_};
    for (const auto& [point, score] : scores_) result.ranked.push_back({score, point});
    std::sort(result.ranked.begin(), result.ranked.end());
    return result;
  }

 private:
  [[nodiscard]] bool more() const noexcept {
    return limits_.counter->left() > limits_.keep &&
           (!limits_.fitting || fitted_ < *limits_.fitting) && !tired();
  }
  /// What has been spent.
  [[nodiscard]] std::int64_t spent() const noexcept {
    return allowed_ - (limits_.counter->left() - limits_.keep);
  }
  /// The second half of what has been spent has found nothing better.
  [[nodiscard]] bool tired() const noexcept {
    return limits_.patience && spent() >= *limits_.patience && spent() >= 2 * spent_at_best_;
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
    for (std::size_t i = 0; i < space_.starts.size(); ++i) {
      if (i >= space_.first && fits(best_)) break;
      const SettingPoint& given = space_.starts[i];
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
    for (std::size_t i = 0; i < space_.starts.size(); ++i) {
      const SettingPoint& start = space_.starts[i];
      if (i >= space_.first && fits(best_) && !scores_.contains(start)) break;
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

  /// Climbs from each start, the best first, as long as a round gains something worth its budget
  /// and a part of the budget is left, then to the end from the best of all.
  void explore() {
    for (const ScoredPoint& begin : begins()) {
      if (!more() || mostly_spent()) break;
      best_ = begin;
      while (more() && !mostly_spent() && climb_on()) {
      }
    }
    if (scores_.empty()) return;
    best_ = best_of_all();
    climb();
  }
  /// One round over all settings; whether it has gained so much that another one may.
  bool climb_on() {
    const CandidateScore before = best_.first;
    for (std::size_t setting = 0; setting < space_.sizes.size(); ++setting) improve(setting, true);
    return worth_another(before, best_.first);
  }
  /// The best point that has been scored; there is one.
  [[nodiscard]] ScoredPoint best_of_all() const {
    const auto best =
        std::min_element(scores_.begin(), scores_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return {best->second, best->first};
  }
  /// Whether a round has gained so much that another one may.
  [[nodiscard]] static bool worth_another(const CandidateScore& before,
                                          const CandidateScore& after) noexcept {
    return before.excess > 0 ? after < before : after.time.value < before.time.value / 1000 * 998;
  }
  /// Three quarters of what may be spent have been.
  [[nodiscard]] bool mostly_spent() const noexcept {
    return 4 * (limits_.counter->left() - limits_.keep) < allowed_ ||
           (limits_.fitting && 4 * fitted_ > 3 * *limits_.fitting);
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
    for (bool moved = true; moved && more() && !scores_.empty();) {
      best_ = best_of_all();
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

  /// From points that differ from the best in up to four settings, drawn, but not in what saves
  /// memory: climbs from each that fits and is not far longer, and takes a better one for the best
  /// (Lourenco, Martin, Stuetzle, "Iterated local search", 2003). Ends with the budget, or where
  /// many in a row bring nothing.
  void kick() {
    constexpr std::int64_t kIdle = 200, kMostSettings = 4;
    if (scores_.empty()) return;
    Random random(0);
    ScoredPoint all = best_of_all();
    for (std::int64_t idle = 0; idle < kIdle && more(); ++idle) {
      SettingPoint point = all.second;
      for (std::int64_t i = random.between(2, kMostSettings); i > 0; --i) {
        const std::size_t setting = random.below(point.size());
        if (setting == space_.memory || (!space_.fixed.empty() && space_.fixed[setting])) continue;
        point[setting] = random.below(space_.sizes[setting]);
      }
      if (space_.canonical) point = space_.canonical(std::move(point));
      if (scores_.contains(point)) continue;
      best_ = {};
      consider({point});
      if (best_.second.empty() || !fits(best_) || far_longer(best_.first, all.first)) continue;
      while (more() && climb_on()) {
      }
      if (!(best_ < all)) continue;
      climb();
      all = best_;
      idle = 0;
    }
  }
  [[nodiscard]] static bool far_longer(const CandidateScore& score,
                                       const CandidateScore& best) noexcept {
    return score.time.value > best.time.value / 100 * 108;
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
  /// With `promising`, values that made the step far longer elsewhere are left out.
  bool improve(std::size_t setting, bool promising = false) {
    bool moved = false;
    while (more()) {
      const SettingPoint from = best_.second;
      const CandidateScore score = best_.first;
      std::vector<SettingPoint> points;
      for (const std::size_t value : neighbours(from, setting)) {
        if (promising && longer_.contains({setting, from[setting], value})) continue;
        points.push_back(from);
        points.back()[setting] = value;
      }
      consider(points);
      for (const SettingPoint& point : points) {
        const auto seen = scores_.find(point);
        if (seen == scores_.end() || seen->second.excess > 0 || score.excess > 0) continue;
        if (seen->second.time.value > score.time.value / 100 * 101) {
          longer_.insert({setting, from[setting], point[setting]});
        }
      }
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
    std::optional<Nanos> limit;
    if (only_better_ && fits(best_)) limit = best_.first.time;
    const auto started = limits_.counter->run(costs, limits_.keep, [&](std::size_t i) {
      fresh[i].first = evaluate_(fresh[i].second, limit);
    });
    confirm(fresh, started);
    for (const std::size_t i : started) {
      ScoredPoint& each = fresh[i];
      scores_.emplace(each.second, each.first);
      if (each.first.excess <= 0) ++fitted_;
      if (best_.second.empty() || each < best_) {
        best_ = std::move(each);
        spent_at_best_ = spent();
      }
    }
  }

  /// Asks the witnesses of each of these points that would be the best.
  void confirm(std::vector<ScoredPoint>& fresh, const std::vector<std::size_t>& started) {
    std::vector<std::pair<std::size_t, std::size_t>> asked;  // point, number of the witness
    std::vector<std::int64_t> costs;
    for (const std::size_t i : started) {
      const ScoredPoint& each = fresh[i];
      if (each.first.excess > 0 || (!best_.second.empty() && best_ < each)) continue;
      const std::vector<std::int64_t> witnesses = evaluate_.witness_devices(each.second);
      for (std::size_t number = 0; number < witnesses.size(); ++number) {
        asked.emplace_back(i, number);
        costs.push_back(witnesses[number]);
      }
    }
    std::vector<CandidateScore> said(asked.size());
    const auto heard = limits_.counter->run(costs, limits_.keep, [&](std::size_t i) {
      said[i] = evaluate_.witness(fresh[asked[i].first].second, asked[i].second);
    });
    for (const std::size_t i : heard) {
      CandidateScore& score = fresh[asked[i].first].first;
      score = std::max(score, said[i]);
    }
  }

  static constexpr std::size_t kFiner = 3;  // values of `finer` that a start without room moves up

  const SearchSpace& space_;
  const SearchLimits& limits_;
  EvaluatorRef evaluate_;
  std::int64_t allowed_, spent_at_best_ = 0;
  std::map<SettingPoint, CandidateScore> scores_;
  ScoredPoint best_;
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> longer_;  // setting, from, to
  std::int64_t fitted_ = 0;   // candidates that fitted into memory
  bool only_better_ = false;  // points count that are better than the best, no others
};

}  // namespace detail

/// The best of the points that a budget pays for. Scores `space.starts` in their order, as far as
/// they exist, each with as little moved up in the setting `memory` as lets it fit; then climbs
/// from each, the best first: to the neighbours of the best point in one setting after the other
/// (to all other values where it is not ordered, on in the same way while that helps where it is),
/// until no setting helps. Then it goes on from the best of all, two settings at once. Last, with
/// `space.everywhere`, it scores points that are far apart and climbs from any that is better; so a
/// space that the budget pays for is tried whole. With `space.kicks` it does nothing of this, but
/// climbs again and again from points near the best that is known. Points that do not exist are
/// passed over. Equal scores go to the lexicographically lowest point; threads never change the
/// answer. `ranked` is empty only where the budget pays for no start. Throws InvalidInput if the
/// space is empty, a setting has no value or no start exists, and whatever `evaluate` throws.
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
