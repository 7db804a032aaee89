// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes: work that had to be done, work that was added, and each gap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare_step.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

/// What time goes to while a device computes; gaps come after these (`TimeSplit`).
enum class TimeShare : std::uint8_t {
  ideal,          ///< the work itself, at the rates that large units approach
  recompute,      ///< what the backward pass computes a second time
  communication,  ///< collectives and exchanges inside units, as far as compute does not hide them
  overhead,       ///< launches, segments, tiles, regrouping; uneven parts of merged ranks
  optimizer       ///< the optimizer step and the gathering of weights
};
inline constexpr std::size_t kTimeShares = 5;
/// The ways in which a step's time is spent: `TimeShare`, then `GapCause`.
inline constexpr std::size_t kTimeCauses = kTimeShares + sim::kGapCauses;

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
/// is why `overhead` has what rounding leaves and may be negative in a modelled step.
struct TimeSplit {
  std::array<Nanos, kTimeCauses> time{};
  [[nodiscard]] constexpr Nanos operator[](TimeShare share) const noexcept {
    return time[static_cast<std::size_t>(share)];
  }
  [[nodiscard]] constexpr Nanos operator[](sim::GapCause cause) const noexcept {
    return time[kTimeShares + static_cast<std::size_t>(cause)];
  }
  [[nodiscard]] constexpr Nanos total() const noexcept {
    Nanos sum;
    for (const Nanos one : time) sum += one;
    return sum;
  }
  constexpr TimeSplit& operator+=(const TimeSplit& other) noexcept {
    for (std::size_t i = 0; i < time.size(); ++i) time[i] += other.time[i];
    return *this;
  }
  friend bool operator==(const TimeSplit&, const TimeSplit&) = default;
};

namespace detail {

/// F, B and H of all devices at a plan's prices.
[[nodiscard]] inline Nanos priced_compute(const Plan& plan) {
  const PricedPlan prices(plan);
  const std::int32_t places = virtual_stages_of(plan).size();
  const bool shard = plan.parallel.head == LmHead::shard;
  Nanos sum;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const auto id = static_cast<PackId>(i);
    const MicroPack& pack = plan.micropacks[i];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    Nanos line;
    for (std::int32_t place = 0; place < places; ++place) line += prices.compute(id, place);
    sum += line * static_cast<std::int64_t>(ranks);
    if (pack.pass == Pass::backward) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sum += prices.head(id, rank, plan.parallel.pp - 1) * (shard ? plan.parallel.pp : 1);
    }
  }
  return sum;
}

}  // namespace detail

/// The split of one simulated step whose figures are `metrics`. Recomputation and communication are
/// differences of the plan's own prices: with the plan as it is, over links that take no time, and
/// with nothing recomputed besides. A modelled step, which has times of its own, is split by the
/// prices of its plan; what it takes beyond or below them is `overhead`. Throws as PricedPlan does.
/// O(n log n) in slices, plus nodes.
[[nodiscard]] inline TimeSplit time_split(const ComparedTimeline& step, const Metrics& metrics) {
  const auto devices = static_cast<std::int64_t>(step.plan.schedule.size());
  const auto mean = [&](Nanos sum) { return Nanos{sum.value / devices}; };
  TimeSplit split;
  const auto set = [&](TimeShare share, Nanos time) {
    split.time[static_cast<std::size_t>(share)] = time;
  };
  const Nanos priced = detail::priced_compute(step.plan);
  Plan changed = step.plan;
  changed.cluster.inside = changed.cluster.between = Link{1e30, 0};
  const Nanos alone = detail::priced_compute(changed);
  for (MicroPack& pack : changed.micropacks) pack.recompute = Recompute::none;
  const Nanos once = detail::priced_compute(changed);
  Nanos optimizer;
  const sim::Dag& dag = step.simulation.dag;
  for (std::size_t i = 0; i < dag.size(); ++i) {
    if (dag.label[i].kind == sim::NodeKind::optimizer) optimizer += dag.duration[i];
  }
  set(TimeShare::ideal, metrics.ideal);
  set(TimeShare::communication, mean(priced - alone));
  set(TimeShare::recompute, mean(alone - once));
  set(TimeShare::optimizer, mean(optimizer));
  for (std::size_t cause = 0; cause < sim::kGapCauses; ++cause) {
    split.time[kTimeShares + cause] = mean(metrics.gaps[cause]);
  }
  set(TimeShare::overhead, metrics.iteration - split.total());
  return split;
}

}  // namespace slimpack::report
