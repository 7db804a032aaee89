// SPDX-License-Identifier: Apache-2.0
// Where in a device's order the messages that it sends have arrived, as simulated.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::sim {

/// By device and unit, as in `Plan::schedule`: of a unit that sends, the place of the first unit
/// that begins when the transfer has ended, or the number of units where none does; 0 of others.
/// Units of R are never that place: nothing is allocated by them. O(n log n) in the nodes.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> send_ends(
    const Plan& plan, const PlanSimulation& simulation) {
  const Dag& dag = simulation.dag;
  const auto device_of = [&](const NodeLabel& label) {
    return device_index(plan, label.dp, label.pp);
  };
  std::vector<std::vector<std::size_t>> ends;
  for (const DeviceSchedule& device : plan.schedule) ends.emplace_back(device.order.size());
  std::vector<std::vector<std::pair<Nanos, std::size_t>>> starts(ends.size());  // and places
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
