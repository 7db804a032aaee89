// SPDX-License-Identifier: Apache-2.0
// Execution traces in the schema of MLCommons Chakra, for network simulators.
#pragma once

#include <functional>
#include <string>

#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// Takes a file by its name and its bytes.
using TakeFile = std::function<void(const std::string& name, const std::string& bytes)>;

/// Makes a simulated plan's Chakra traces (docs/chakra.md): `rank.N.et` of every device, N its
/// number in the cluster, and `comm_groups.json` with the devices of each process group. Compute
/// nodes are the units; sends, receives and collectives have the bytes that `communication_of`
/// counts. Executed with the times it records, a trace repeats the simulation to the nanosecond.
///
///     const sim::PlanSimulation simulation = sim::simulate_plan(plan);
///     write_chakra(plan, simulation, [](const std::string& name, const std::string& bytes) {
///       write_file("traces/" + name, bytes);
///     });
///
/// Files come in the order of `Plan::schedule`, the devices of a stage one after the other, the
/// groups last. Throws InvalidInput if the simulation is not of this plan. O(n log n + edges) in
/// the nodes, times tensor-parallel devices.
void write_chakra(const Plan& plan, const sim::PlanSimulation& simulation, const TakeFile& take);

}  // namespace slimpack::report
