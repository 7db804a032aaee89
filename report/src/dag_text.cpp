// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/dag_text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/timeline.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

constexpr std::uint32_t kNoTurn = ~std::uint32_t{0};

}  // namespace

std::vector<sim::NodeId> execution_order(const sim::Dag& dag, const sim::Timeline& timeline) {
  require(timeline.start.size() == dag.size() && timeline.end.size() == dag.size(),
          "execution_order: the timeline must have one entry a node",
          static_cast<std::int64_t>(timeline.start.size()));
  std::vector<std::uint32_t> waiting = dag.predecessor_count;
  std::vector<std::uint32_t> turn_after(dag.size(), kNoTurn);
  const sim::NodeLists& turns = timeline.turns;
  for (std::size_t row = 0; row < turns.rows(); ++row) {
    for (std::size_t i = 1; i < turns[row].size(); ++i) {
      turn_after[index(turns[row][i - 1])] = static_cast<std::uint32_t>(turns[row][i]);
      ++waiting[index(turns[row][i])];
    }
  }
  std::vector<sim::NodeId> order;
  order.reserve(dag.size());
  for (std::size_t i = 0; i < dag.size(); ++i) {
    if (waiting[i] == 0) order.push_back(sim::NodeId{static_cast<std::uint32_t>(i)});
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t node = index(order[i]);
    for (const sim::NodeId next : dag.successors[node]) {
      if (--waiting[index(next)] == 0) order.push_back(next);
    }
    const std::uint32_t after = turn_after[node];
    if (after != kNoTurn && --waiting[after] == 0) order.push_back(sim::NodeId{after});
  }
  require(order.size() == dag.size(), "execution_order: edges and turns must be free of cycles",
          static_cast<std::int64_t>(dag.size() - order.size()));
  std::stable_sort(order.begin(), order.end(), [&](sim::NodeId a, sim::NodeId b) {
    return std::tie(timeline.start[index(a)], timeline.end[index(a)]) <
           std::tie(timeline.start[index(b)], timeline.end[index(b)]);
  });
  return order;
}

std::string to_string(const sim::Resource& resource) {
  const std::string dp = std::to_string(resource.dp);
  const std::string pp = std::to_string(resource.pp);
  switch (resource.kind) {
    case sim::ResourceKind::compute:
      return "compute dp " + dp + " pp " + pp;
    case sim::ResourceKind::link:
      return "link dp " + dp + " pp " + pp + " to pp " + std::to_string(resource.to_pp);
    case sim::ResourceKind::reduce:
      return "reduction links of pp " + pp;
    case sim::ResourceKind::port:
      return "links dp " + dp + " pp " + pp + " to both neighbours";
  }
  return "resource";
}

void write_dag(std::ostream& out, const sim::Dag& dag, const sim::Timeline& timeline,
               std::string_view title) {
  const std::vector<sim::NodeId> order = execution_order(dag, timeline);
  std::vector<std::uint32_t> number(dag.size());
  std::vector<bool> used(dag.resources.size(), false);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t node = index(order[i]);
    number[node] = static_cast<std::uint32_t>(i);
    if (dag.resource[node] != sim::kNoResource) used[index(dag.resource[node])] = true;
  }
  TextWriter text(out);
  if (!title.empty()) text << "# " << one_line(title) << '\n';
  text << "# " << dag.size() << " nodes, makespan " << seconds_text(timeline.makespan) << " s\n";
  std::vector<std::uint32_t> resource_number(dag.resources.size(), 0);
  std::uint32_t resources = 0;
  for (std::size_t i = 0; i < dag.resources.size(); ++i) {
    if (!used[i]) continue;
    text << "# resource " << resources << ' ' << to_string(dag.resources[i]) << '\n';
    resource_number[i] = resources++;
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t node = index(order[i]);
    text << "node " << i << ' ';
    if (dag.resource[node] == sim::kNoResource) {
      text << '-';
    } else {
      text << resource_number[index(dag.resource[node])];
    }
    text << ' ' << seconds_text(dag.duration[node]) << '\n';
  }
  std::vector<std::uint32_t> targets;
  for (std::size_t i = 0; i < order.size(); ++i) {
    targets.clear();
    for (const sim::NodeId next : dag.successors[index(order[i])]) {
      targets.push_back(number[index(next)]);
    }
    std::sort(targets.begin(), targets.end());
    for (const std::uint32_t to : targets) text << "edge " << i << ' ' << to << '\n';
  }
}

}  // namespace slimpack::report
