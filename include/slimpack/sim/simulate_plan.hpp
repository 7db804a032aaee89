// SPDX-License-Identifier: Apache-2.0
// From a plan to its timeline: prices, DAG, simulation, and the figures a plan carries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulator.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// A simulated plan: everything that reports are made of.
struct PlanSimulation {
  Dag dag;                            ///< of the plan's units, transfers and reductions
  Timeline timeline;                  ///< when its nodes ran
  std::vector<MemoryByKind> at_peak;  ///< one a device: what it held at its peak
};

/// Simulates a plan whose units take `times`; `observer` sees memory change.
///
///     const PlanSimulation simulation = simulate_plan(plan, PricedPlan(plan));
///     fill_prediction(plan.prediction, simulation);
///
/// Throws InvalidInput as `build_dag` does, and Deadlock where units wait for each other.
template <UnitTimes Times, MemoryObserver Observer>
[[nodiscard]] PlanSimulation simulate_plan(const Plan& plan, const Times& times,
                                           Observer& observer) {
  PlanSimulation simulation;
  simulation.dag = build_dag(plan, times);
  simulation.timeline = simulate(simulation.dag, observer);
  simulation.at_peak = memory_at_peaks(simulation.dag, simulation.timeline);
  return simulation;
}
/// The same without an observer.
template <UnitTimes Times>
[[nodiscard]] PlanSimulation simulate_plan(const Plan& plan, const Times& times) {
  IgnoreMemory ignore;
  return simulate_plan(plan, times, ignore);
}

#ifdef SLIMPACK_COMPILED_PLANNERS
extern template Dag build_dag(const Plan&, const PricedPlan&);
extern template Timeline simulate(const Dag&, IgnoreMemory&);
#endif

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

/// Where in a device's order the messages that it sends have arrived, by device and unit as in
/// `Plan::schedule`. For a unit that sends, the entry is the position of the first unit that begins
/// when the transfer has ended, or the number of units where none does. It is 0 for other units. It
/// never names R, which allocates nothing. O(n log n) in the nodes.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> send_ends(
    const Plan& plan, const PlanSimulation& simulation) {
  const Dag& dag = simulation.dag;
  const auto device_of = [&](const NodeLabel& label) {
    return device_index(plan, label.dp, label.pp);
  };
  std::vector<std::vector<std::size_t>> ends;
  for (const DeviceSchedule& device : plan.schedule) ends.emplace_back(device.order.size());
  std::vector<std::vector<std::pair<Nanos, std::size_t>>> starts(ends.size());  // and positions
  for (std::size_t node = 0; node < dag.size(); ++node) {
    const NodeLabel& label = dag.label[node];
    if (!is_compute(label.kind)) continue;
    starts[device_of(label)].emplace_back(simulation.timeline.start[node], label.unit);
  }
  for (auto& device : starts) std::sort(device.begin(), device.end());
  for (std::size_t node = 0; node < dag.size(); ++node) {
    const NodeLabel& label = dag.label[node];
    if (label.kind != NodeKind::transfer) continue;
    const std::size_t device = device_of(label);
    const auto after = std::lower_bound(starts[device].begin(), starts[device].end(),
                                        std::pair{simulation.timeline.end[node], std::size_t{0}});
    ends[device][label.unit] = after == starts[device].end() ? ends[device].size() : after->second;
  }
  return ends;
}

}  // namespace slimpack::sim
