// SPDX-License-Identifier: Apache-2.0
// Judges a candidate plan: how long does it take, and does it fit?
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/dag/build.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/worst_memory.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/simulator.hpp"

namespace slimpack {

/// The most MicroPacks of one pass that a group has. O(packs).
[[nodiscard]] inline std::int64_t most_units(const Plan& plan) {
  std::vector<std::int64_t> forward(plan.groups.size());
  std::vector<std::int64_t> backward(plan.groups.size());
  std::int64_t most = 0;
  for (const MicroPack& pack : plan.micropacks) {
    auto& units = pack.pass == Pass::forward ? forward : backward;
    most = std::max(most, ++units[index(pack.group)]);
  }
  return most;
}

/// Simulates a plan by its own cost model, writes iteration and ideal time, busy times and peaks
/// into its prediction, and says what it lacks, if anything: a device's memory, at any times of its
/// units and transfers, must not exceed capacity - reserved, nor a rank's MicroPacks of a pass the
/// request's bound. Throws as `PricedPlan` and `build_dag` do, and Deadlock.
[[nodiscard]] inline std::optional<Infeasible> predict(Plan& plan, const PlanRequest& request) {
  PlanSimulation simulation;
  simulation.dag = build_dag(plan, PricedPlan(plan));
  simulation.timeline = simulate(simulation.dag);
  fill_prediction(plan.prediction, simulation);
  plan.prediction.ideal = ideal_time(plan);
  if (const std::int64_t units = most_units(plan);
      request.max_units && units > *request.max_units) {
    return Infeasible{"MicroPacks of a pass and rank", units, *request.max_units};
  }
  const std::vector<Bytes> worst = worst_memory(plan, simulation.dag);
  const auto fullest = std::max_element(worst.begin(), worst.end());
  const Bytes available = plan.memory.capacity - plan.memory.reserved;
  if (*fullest <= available) return std::nullopt;
  const DagDevice& device =
      simulation.dag.devices[static_cast<std::size_t>(fullest - worst.begin())];
  return Infeasible{"bytes of memory on device dp " + std::to_string(device.dp) + ", pp " +
                        std::to_string(device.pp),
                    fullest->value, available.value};
}

}  // namespace slimpack
