// SPDX-License-Identifier: Apache-2.0
// The best parallel degrees of a planner for a number of devices, and why the others lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/degrees.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/time_split.hpp"

namespace slimpack::report {

/// What is searched, and with how much effort.
struct TuneOptions {
  std::int64_t devices = 1;  ///< that every choice of degrees uses, all of them
  /// What degrees may be; chunks and fewer last layers that the request fixes count instead.
  planners::DegreeBounds bounds;
  std::int32_t finalists = 3;  ///< degrees at least that are planned with the whole budget
  std::int32_t threads = 1;    ///< never changes the answer
  /// Called with candidates simulated so far and the most there will be, never by two threads at a
  /// time. May be empty.
  std::function<void(std::int64_t done, std::int64_t most)> progress;
};

/// What a planner made of all steps at one choice of degrees.
struct TunedDegrees {
  planners::Degrees degrees;  ///< dp, pp and tp
  bool skipped = false;       ///< the weights alone do not fit: nothing was planned
  planners::Effort effort = planners::Effort::fast;  ///< of the plans in `steps`
  std::int64_t budget = 0;                           ///< of each of these plans, in steps
  std::vector<ComparedPlan> steps;                   ///< an entry each step; none where skipped
  std::optional<Nanos> time;  ///< summed over steps; absent where one is infeasible
  std::string why;            ///< what is lacking then, else empty
  TimeSplit split;            ///< of `time`, by cause
};

/// A round: so many degrees were planned with one budget.
struct TuneRound {
  std::int64_t degrees = 0;      ///< that took part
  std::int64_t budget = 0;       ///< of each plan, in steps
  std::int64_t evaluations = 0;  ///< candidates and whole plans simulated
  double cpu_seconds = 0;        ///< processor time of all threads
  std::optional<Nanos> best;     ///< of all degrees after the round; absent where none is feasible
};

/// All degrees that were tried, the best first.
struct Tuning {
  std::string planner;              ///< its name in the registry
  std::int64_t devices = 0;         ///< that every choice uses
  std::vector<TunedDegrees> tried;  ///< feasible ones by time, infeasible ones, then skipped ones
  std::vector<TuneRound> rounds;    ///< in turn
  std::int64_t evaluations = 0;     ///< candidates and whole plans simulated in all
  std::int64_t simulated_devices = 0;  ///< devices that these simulated, summed
  double cpu_seconds = 0;              ///< processor time of all threads
  double seconds = 0;                  ///< of wall time

  /// The best degrees; null where none is feasible.
  [[nodiscard]] const TunedDegrees* best() const noexcept {
    return tried.empty() || !tried.front().time ? nullptr : &tried.front();
  }
};

/// Time that one cause adds to a loser over the winner; negative where the loser has less of it.
struct TimeDifference {
  std::size_t cause = 0;  ///< `time_cause` names it
  Nanos time;             ///< of the loser less that of the winner
  friend bool operator==(const TimeDifference&, const TimeDifference&) = default;
};

/// By cause, what a loser takes longer than the winner: falling, ties to the earlier cause. The sum
/// is the difference of their times. Both must have a time.
[[nodiscard]] std::vector<TimeDifference> time_differences(const TunedDegrees& winner,
                                                           const TunedDegrees& loser);

/// The gain of a round: by what part of the best time before it the best time fell, 0 or more.
/// Absent for the first round, and where there was no feasible plan before.
[[nodiscard]] std::optional<double> gain_of_round(const Tuning& tuning, std::size_t round);

/// Plans all `steps` with one planner at every choice of degrees for `options.devices` devices, and
/// sums iteration time over steps. `steps` are consecutive ones and differ in their batches; their
/// own degrees do not matter. Degrees whose weights alone do not fit are skipped.
///
/// All others are refined by successive halving: a first round plans every choice with a small
/// budget, each further one the better half with twice as much, the last one at least
/// `finalists` with all that the request allows; and each also those that take at most a tenth
/// longer than the best. No round has a budget below 32 steps, or the request's where that is
/// smaller. In each further round an infeasible choice that lacks no more than an eighth of what
/// there is, the one that lacks least, takes part besides: few candidates may have missed a plan
/// that fits. Rounds before the last plan at fast effort. Budgets and counts are the same for every
/// planner. A choice keeps its best answer, so that one which was planned again never ranks behind
/// one that was not. Ties go to the earlier choice. Throws InvalidInput as the planner and
/// `degree_choices` do, and if there is no step or a count is < 1.
[[nodiscard]] Tuning tune(const planners::PlannerInfo& planner,
                          std::span<const planners::PlanRequest> steps, const TuneOptions& options);

}  // namespace slimpack::report
