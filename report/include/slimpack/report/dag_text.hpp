// SPDX-License-Identifier: Apache-2.0
// dag.txt: the bare graph that the simulator simulated, for other simulators.
#pragma once

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::report {

/// The nodes of a simulated graph in an order in which every edge and every resource runs forward:
/// by start, then end, then a topological order of edges and turns. A node ends no later than its
/// successor starts, so this order is free of cycles even where durations are zero. Throws
/// InvalidInput if the timeline is not of this graph. O(n log n + edges).
[[nodiscard]] std::vector<sim::NodeId> execution_order(const sim::Dag& dag,
                                                       const sim::Timeline& timeline);

/// What a resource is, in words: "compute dp 0 pp 1".
[[nodiscard]] std::string to_string(const sim::Resource& resource);

/// Writes a simulated graph as dag.txt. Nodes are numbered in the order in which they ran, so edges
/// lead from lower to higher ids and each resource's nodes are listed in its order, that of shared
/// links as it was found; resources without a node are left out. The makespan of the file is that
/// of the simulation. Throws InvalidInput if the timeline is not of this graph.
void write_dag(std::ostream& out, const sim::Dag& dag, const sim::Timeline& timeline,
               std::string_view title = {});

}  // namespace slimpack::report
