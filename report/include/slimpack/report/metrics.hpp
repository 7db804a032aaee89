// SPDX-License-Identifier: Apache-2.0
// The figures by which simulated plans are compared.
#pragma once

#include <array>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack {
class JsonWriter;
}

namespace slimpack::report {

/// Figures of one simulated step (docs/reports.md). A ratio whose denominator is zero is zero.
struct Metrics {
  Nanos iteration;           ///< simulated time of the step
  Nanos ideal;               ///< bare compute, spread evenly over all devices (`ideal_time`)
  Nanos lower_bound;         ///< as the plan's prediction has it, 0 where it has none
  double efficiency = 0;     ///< ideal over iteration
  double tokens_per_s = 0;   ///< tokens of all samples
  double mfu = 0;            ///< `model_flops` over what all devices could do at peak
  double bubble = 0;         ///< part of the devices' time in which they do not compute
  double dp_imbalance = 0;   ///< most over mean compute of a data-parallel rank
  double dp_over_least = 0;  ///< fullest rank over the least that any assignment has of it
  double forward_cv = 0;     ///< standard deviation over mean of forward MicroPacks' compute times
  double backward_cv = 0;    ///< the same of backward MicroPacks
  std::array<Nanos, sim::kGapCauses> gaps{};  ///< sums over devices
  Bytes peak;                                 ///< most of any device
  sim::DeviceId peak_device{};                ///< the first that holds it
  sim::MemoryByKind at_peak{};                ///< what it holds then
  CommunicationBytes communication;           ///< sent by all devices together
  std::int64_t samples = 0;                   ///< in the plan
  Tokens tokens;                              ///< of all samples
  Tokens merged_tokens;                       ///< of samples whose group has several ranks
  std::int64_t forward_packs = 0;             ///< forward MicroPacks
  std::int64_t backward_packs = 0;            ///< backward MicroPacks
};

/// FLOPs of the model itself: 2 for each weight of a matrix product and token, vocabulary
/// projection included; attention over causal pairs, a sample of n tokens having n^2 / 2; backward
/// twice the forward; nothing recomputed.
[[nodiscard]] double model_flops(const Plan& plan);

/// What a device may hold.
[[nodiscard]] constexpr Bytes memory_limit(const Plan& plan) noexcept {
  return plan.memory.capacity - plan.memory.reserved;
}

/// The figures of a simulated plan. `gaps` are those of the same simulation. Throws InvalidInput if
/// the simulation is of another number of devices, or the cost model has no rates. O(nodes + slices
/// x ranks).
[[nodiscard]] Metrics metrics_of(const Plan& plan, const sim::PlanSimulation& simulation,
                                 const sim::Gaps& gaps);

/// The same, finding the gaps first: further O(events log events).
[[nodiscard]] Metrics metrics_of(const Plan& plan, const sim::PlanSimulation& simulation);

/// The same for a plan that can only be simulated, at its own bytes of exchange where it has them.
[[nodiscard]] Metrics metrics_of(const planners::SimulationOnlyPlan& step,
                                 const sim::PlanSimulation& simulation);

/// The figures as members of the object that is open: keys and units as in `slimpack compare
/// --json` (docs/reports.md). A lower bound that does not exist is null.
void write_metrics(JsonWriter& json, const Metrics& metrics);

}  // namespace slimpack::report
