// SPDX-License-Identifier: Apache-2.0
// What a search is over: a space of points, who scores them, what may be spent, what was found.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

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

/// Scores points within a limit: one that takes longer may get any score that exceeds something,
/// which costs less to find out.
template <class Evaluate>
concept LimitedEvaluator = requires(const Evaluate& evaluate, const SettingPoint& point) {
  requires CandidateEvaluator<Evaluate>;
  { evaluate(point, std::optional<Nanos>{}) } -> std::same_as<CandidateScore>;
};

/// Scores points by a part of them, and those that would be the best so far by some other parts
/// too, the witnesses: the worst score counts. `witness_devices` is what each of them costs.
template <class Evaluate>
concept WitnessedEvaluator = requires(const Evaluate& evaluate, const SettingPoint& point) {
  requires CandidateEvaluator<Evaluate>;
  { evaluate.witness_devices(point) } -> std::same_as<std::vector<std::int64_t>>;
  { evaluate.witness(point, std::size_t{}) } -> std::same_as<CandidateScore>;
};

/// The settings of a search and the points to begin at.
struct SearchSpace {
  std::vector<std::size_t> sizes;    ///< how many values each setting has
  std::vector<bool> ordered = {};    ///< of each setting: neighbouring values are alike
  std::vector<SettingPoint> starts;  ///< the best guess first; at least one exists
  /// Starts that are scored in any case; further ones only while none has been found that fits.
  std::size_t first = std::numeric_limits<std::size_t>::max();
  std::optional<std::size_t> memory;  ///< a setting: higher values need less memory
  /// Another setting of which higher values need less memory, at less cost: a start that lacks some
  /// gets a higher value of it before it is moved up in `memory`.
  std::optional<std::size_t> finer = {};
  std::vector<bool> fixed = {};         ///< settings that stay as a start has them; none if empty
  std::vector<ScoredPoint> known = {};  ///< scores of an earlier search, not counted again
  bool everywhere = true;               ///< spend what is left on points far from the best
  /// Only climb from points a few settings away from the best of `known`, again and again.
  bool kicks = false;
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
  space.first = settings.first_starts();
  return space;
}

/// What a search may spend.
struct SearchLimits {
  SimulationCounter* counter = nullptr;  ///< that all simulations of the request share
  std::int64_t keep = 0;                 ///< devices of its budget that the search leaves
  /// Ends after so many candidates that fit, to save time; absent: the budget alone counts.
  std::optional<std::int64_t> fitting = {};
  /// Ends, once so many devices have been spent, where the second half of all that have been found
  /// nothing better; absent: goes on.
  std::optional<std::int64_t> patience = {};
};

/// What a search found.
struct SearchResult {
  /// All points scored, best first. Of an evaluator that knows limits, points that took longer than
  /// the best of their time may exceed something.
  std::vector<ScoredPoint> ranked;
  std::int64_t fitting = 0;  ///< candidates among them that fit, without known ones
};

}  // namespace slimpack::planners
