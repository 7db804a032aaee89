// SPDX-License-Identifier: Apache-2.0
// From a plan to its timeline: prices, DAG, simulation, and the figures a plan carries.
#pragma once

#include <utility>
#include <vector>

#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/memory.hpp"
#include "slimpack/sim/simulator.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// A simulated plan: everything that reports are made of.
struct PlanSimulation {
  Dag dag;
  Timeline timeline;
  std::vector<MemoryByKind> at_peak;  ///< one a device: what it held at its peak
};

/// Simulates a plan whose units take `times`; `observer` sees memory change. Throws InvalidInput as
/// `build_dag` does, and Deadlock.
template <UnitTimes Times, MemoryObserver Observer>
[[nodiscard]] PlanSimulation simulate_plan(const Plan& plan, const Times& times,
                                           Observer& observer) {
  PlanSimulation simulation;
  simulation.dag = build_dag(plan, times);
  simulation.timeline = simulate(simulation.dag, observer);
  simulation.at_peak = memory_at_peaks(simulation.dag, simulation.timeline);
  return simulation;
}
template <UnitTimes Times>
[[nodiscard]] PlanSimulation simulate_plan(const Plan& plan, const Times& times) {
  IgnoreMemory ignore;
  return simulate_plan(plan, times, ignore);
}

/// Simulates a plan at the prices of its own `cost` and `cluster`.
[[nodiscard]] inline PlanSimulation simulate_plan(const Plan& plan) {
  return simulate_plan(plan, PricedPlan(plan));
}

/// Writes the simulated iteration time, and each device's busy time and peak, into a prediction;
/// `ideal` and `lower_bound` stay as they are.
inline void fill_prediction(Prediction& prediction, const PlanSimulation& simulation) {
  prediction.iteration = simulation.timeline.makespan;
  prediction.devices.clear();
  for (std::size_t i = 0; i < simulation.dag.devices.size(); ++i) {
    const DagDevice& device = simulation.dag.devices[i];
    prediction.devices.push_back(
        {device.dp, device.pp, simulation.timeline.busy[i], simulation.timeline.peak[i].bytes});
  }
}

}  // namespace slimpack::sim
