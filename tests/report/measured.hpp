// SPDX-License-Identifier: Apache-2.0
// A simulated plan's times as if they had been measured.
#pragma once

#include <cstddef>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/measured_trace.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::test {

/// F, B, H and O in the order of the graph's nodes; reductions are left out.
inline std::vector<MeasuredUnit> measured_units(const PlanSimulation& simulation) {
  const auto stages = [&] {
    std::size_t count = 0;
    for (const DagDevice& device : simulation.dag.devices) count += device.dp == 0 ? 1U : 0U;
    return count;
  }();
  std::vector<MeasuredUnit> units;
  for (std::size_t at = 0; at < simulation.dag.size(); ++at) {
    const NodeLabel& label = simulation.dag.label[at];
    if (!is_compute(label.kind)) continue;
    units.push_back(
        {static_cast<std::size_t>(label.dp) * stages + static_cast<std::size_t>(label.pp),
         label.unit, simulation.timeline.start[at], simulation.timeline.end[at]});
  }
  return units;
}

}  // namespace slimpack::test
