// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes: work that had to be done, work that was added, and each gap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "slimpack/core/units.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"

namespace slimpack::report {

/// What time goes to while a device computes; gaps come after these (`TimeSplit`).
enum class TimeShare : std::uint8_t {
  ideal,          ///< the work itself, at the rates that large units approach
  recompute,      ///< what the backward pass computes a second time
  communication,  ///< collectives and exchanges inside units, as far as compute does not hide them
  overhead,       ///< launches, segments, tiles, regrouping; uneven parts of context-parallel ranks
  optimizer       ///< the optimizer step and the gathering of weights
};

/// How many values TimeShare has.
inline constexpr std::size_t kTimeShares = 5;

/// The ways in which a step's time is spent: `TimeShare`, then `GapCause`.
inline constexpr std::size_t kTimeCauses = kTimeShares + sim::kGapCauses;

/// The name of a share, as files have it.
[[nodiscard]] constexpr std::string_view to_string(TimeShare share) noexcept {
  constexpr std::array<std::string_view, kTimeShares> kNames = {
      "ideal", "recompute", "communication", "overhead", "optimizer"};
  return kNames[static_cast<std::size_t>(share)];
}

/// The name of entry `cause` of a TimeSplit.
[[nodiscard]] constexpr std::string_view time_cause(std::size_t cause) noexcept {
  return cause < kTimeShares ? to_string(static_cast<TimeShare>(cause))
                             : sim::to_string(static_cast<sim::GapCause>(cause - kTimeShares));
}

/// Time by cause, the mean over a step's devices. Entries sum exactly to the iteration time; that
/// is why `overhead` has what rounding leaves and may be negative for a SimulationOnlyPlan.
struct TimeSplit {
  std::array<Nanos, kTimeCauses> time{};  ///< by TimeShare, then GapCause (`time_cause` names each)
  /// Time of devices that compute, by what for.
  [[nodiscard]] constexpr Nanos operator[](TimeShare share) const noexcept {
    return time[static_cast<std::size_t>(share)];
  }
  /// Time of gaps, by cause.
  [[nodiscard]] constexpr Nanos operator[](sim::GapCause cause) const noexcept {
    return time[kTimeShares + static_cast<std::size_t>(cause)];
  }
  /// The iteration time.
  [[nodiscard]] constexpr Nanos total() const noexcept {
    Nanos sum;
    for (const Nanos one : time) sum += one;
    return sum;
  }
  /// Adds another step's times, cause by cause.
  constexpr TimeSplit& operator+=(const TimeSplit& other) noexcept {
    for (std::size_t i = 0; i < time.size(); ++i) time[i] += other.time[i];
    return *this;
  }
  friend bool operator==(const TimeSplit&, const TimeSplit&) = default;
};

/// The split of one simulated step whose figures are `metrics`. Recomputation and communication are
/// differences of the plan's own prices: with the plan as it is, over links that take no time, and
/// with nothing recomputed besides. A SimulationOnlyPlan, which has times of its own, is split by
/// the prices of its plan; what it takes beyond or below them is `overhead`. Throws as PricedPlan
/// does. O(n log n) in slices, plus nodes.
[[nodiscard]] TimeSplit time_split(const ComparedTimeline& step, const Metrics& metrics);

}  // namespace slimpack::report
