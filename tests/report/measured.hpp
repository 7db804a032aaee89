// SPDX-License-Identifier: Apache-2.0
// A simulated plan's times as if they had been measured.
#pragma once

#include <cstddef>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/trace.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::test {

/// F, B, H and O in the order of the graph's nodes; reductions are left out.
inline std::vector<report::MeasuredUnit> measured_units(const sim::PlanSimulation& simulation) {
  const auto stages = [&] {
    std::size_t count = 0;
    for (const sim::DagDevice& device : simulation.dag.devices) count += device.dp == 0 ? 1U : 0U;
    return count;
  }();
  std::vector<report::MeasuredUnit> units;
  for (std::size_t i = 0; i < simulation.dag.size(); ++i) {
    const sim::NodeLabel& label = simulation.dag.label[i];
    if (!sim::is_compute(label.kind)) continue;
    units.push_back(
        {static_cast<std::size_t>(label.dp) * stages + static_cast<std::size_t>(label.pp),
         label.unit, simulation.timeline.start[i], simulation.timeline.end[i]});
  }
  return units;
}

}  // namespace slimpack::test
