// SPDX-License-Identifier: Apache-2.0
// dag.txt: the bare graph that the simulator simulated, for other simulators.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/dag/dag.hpp"
#include "slimpack/report/detail/text.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack {

namespace detail {
inline constexpr std::uint32_t kNoTurn = ~std::uint32_t{0};
}  // namespace detail

/// The nodes of a simulated graph in an order in which every edge and every resource runs forward:
/// by start, then end, then a topological order of edges and turns. A node ends no later than its
/// successor starts, so this order is free of cycles even where durations are zero. Throws
/// InvalidInput if the timeline is not of this graph. O(n log n + edges).
[[nodiscard]] inline std::vector<NodeId> execution_order(const Dag& dag, const Timeline& timeline) {
  require(timeline.start.size() == dag.size() && timeline.end.size() == dag.size(),
          "execution_order: the timeline must have one entry a node",
          static_cast<std::int64_t>(timeline.start.size()));
  std::vector<std::uint32_t> waiting = dag.predecessor_count;
  std::vector<std::uint32_t> turn_after(dag.size(), detail::kNoTurn);
  const NodeLists& turns = timeline.turns;
  for (std::size_t row = 0; row < turns.rows(); ++row) {
    for (std::size_t at = 1; at < turns[row].size(); ++at) {
      turn_after[index(turns[row][at - 1])] = static_cast<std::uint32_t>(turns[row][at]);
      ++waiting[index(turns[row][at])];
    }
  }
  std::vector<NodeId> order;
  order.reserve(dag.size());
  for (std::size_t at = 0; at < dag.size(); ++at) {
    if (waiting[at] == 0) order.push_back(NodeId{static_cast<std::uint32_t>(at)});
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::size_t node = index(order[at]);
    for (const NodeId next : dag.successors[node]) {
      if (--waiting[index(next)] == 0) order.push_back(next);
    }
    const std::uint32_t after = turn_after[node];
    if (after != detail::kNoTurn && --waiting[after] == 0) order.push_back(NodeId{after});
  }
  require(order.size() == dag.size(), "execution_order: edges and turns must be free of cycles",
          static_cast<std::int64_t>(dag.size() - order.size()));
  std::stable_sort(order.begin(), order.end(), [&](NodeId a, NodeId b) {
    return std::tie(timeline.start[index(a)], timeline.end[index(a)]) <
           std::tie(timeline.start[index(b)], timeline.end[index(b)]);
  });
  return order;
}

/// What a resource is, in words: "compute dp 0 pp 1".
[[nodiscard]] inline std::string describe(const Resource& resource) {
  const std::string dp = std::to_string(resource.dp);
  const std::string pp = std::to_string(resource.pp);
  switch (resource.kind) {
    case ResourceKind::compute:
      return "compute dp " + dp + " pp " + pp;
    case ResourceKind::link:
      return "link dp " + dp + " pp " + pp + " to pp " + std::to_string(resource.to_pp);
    case ResourceKind::reduce:
      return "reduction links of pp " + pp;
  }
  return "resource";
}

/// Writes a simulated graph as dag.txt. Nodes are numbered in the order in which they ran, so edges
/// lead from lower to higher ids and each resource's nodes are listed in its order, that of shared
/// links as it was found; resources without a node are left out. The makespan of the file is that
/// of the simulation. Throws InvalidInput if the timeline is not of this graph.
inline void write_dag(std::ostream& out, const Dag& dag, const Timeline& timeline,
                      std::string_view title = {}) {
  const std::vector<NodeId> order = execution_order(dag, timeline);
  std::vector<std::uint32_t> number(dag.size());
  std::vector<bool> used(dag.resources.size(), false);
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::size_t node = index(order[at]);
    number[node] = static_cast<std::uint32_t>(at);
    if (dag.resource[node] != kNoResource) used[index(dag.resource[node])] = true;
  }
  detail::TextWriter text(out);
  if (!title.empty()) text << "# " << detail::one_line(title) << '\n';
  text << "# " << dag.size() << " nodes, makespan " << detail::seconds_text(timeline.makespan)
       << " s\n";
  std::vector<std::uint32_t> resource_number(dag.resources.size(), 0);
  std::uint32_t resources = 0;
  for (std::size_t at = 0; at < dag.resources.size(); ++at) {
    if (!used[at]) continue;
    text << "# resource " << resources << ' ' << describe(dag.resources[at]) << '\n';
    resource_number[at] = resources++;
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::size_t node = index(order[at]);
    text << "node " << at << ' ';
    if (dag.resource[node] == kNoResource) {
      text << '-';
    } else {
      text << resource_number[index(dag.resource[node])];
    }
    text << ' ' << detail::seconds_text(dag.duration[node]) << '\n';
  }
  std::vector<std::uint32_t> targets;
  for (std::size_t at = 0; at < order.size(); ++at) {
    targets.clear();
    for (const NodeId next : dag.successors[index(order[at])]) {
      targets.push_back(number[index(next)]);
    }
    std::sort(targets.begin(), targets.end());
    for (const std::uint32_t to : targets) text << "edge " << at << ' ' << to << '\n';
  }
}

}  // namespace slimpack
