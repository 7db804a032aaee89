// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "report/read_dag.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/dag/builder.hpp"
#include "slimpack/report/dag_text.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

std::string text_of(const Dag& dag, const Timeline& timeline, std::string_view title = {}) {
  std::ostringstream out;
  write_dag(out, dag, timeline, title);
  return out.str();
}

/// Random layers of nodes on fixed, shared and no resources; two in three take no time.
Dag random_dag(std::uint64_t seed) {
  Random random(seed);
  DagBuilder builder;
  std::vector<ResourceId> resources{kNoResource};
  for (std::int32_t at = 0; at < 5; ++at) {
    const ResourceKind kind = at < 2 ? ResourceKind::compute : ResourceKind::link;
    resources.push_back(builder.add_resource({kind, at, 0, 1, at >= 2}));
  }
  builder.add_device({0, 0, resources[1], {}});
  std::vector<NodeId> nodes;
  for (std::int64_t left = random.between(1, 80); left > 0; --left) {
    const Nanos duration{random.chance(2, 3) ? 0 : random.between(1, 20)};
    const NodeId node = builder.add_node(duration, resources[random.below(resources.size())]);
    for (std::uint64_t edge = nodes.empty() ? 0 : random.below(3); edge > 0; --edge) {
      builder.add_edge(nodes[random.below(nodes.size())], node);
    }
    nodes.push_back(node);
  }
  return std::move(builder).finish();
}

TEST_CASE("dag.txt: run again, it takes as long, even where most nodes take no time") {
  for (std::uint64_t seed = 0; seed < test::draws(400U); ++seed) {
    CAPTURE(seed);
    const Dag dag = random_dag(seed);
    const Timeline timeline = simulate(dag);
    const test::DagFile file = test::read_dag(text_of(dag, timeline));
    REQUIRE(file.nanos.size() == dag.size());
    CHECK(test::makespan_of(file) == timeline.makespan.value);
    for (const auto& [from, to] : file.edges) CHECK(from < to);
  }
}

TEST_CASE("dag.txt: run again, a plan takes as long as predicted") {
  std::size_t shared = 0;
  for (std::uint64_t seed = 0; seed < test::draws(150U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const PlanSimulation simulation = simulate_plan(plan);
    const test::DagFile file = test::read_dag(text_of(simulation.dag, simulation.timeline));
    CHECK(file.nanos.size() == simulation.dag.size());
    CHECK(file.edges.size() == simulation.dag.successors.node.size());
    CHECK(test::makespan_of(file) == simulation.timeline.makespan.value);
    for (const Resource& resource : simulation.dag.resources) {
      if (resource.first_come) ++shared;
    }
  }
  CHECK(shared > test::draws(100U));
}

TEST_CASE("execution_order: shared resources in the order that was found") {
  for (std::uint64_t seed = 0; seed < test::draws(200U); ++seed) {
    CAPTURE(seed);
    const Dag dag = random_dag(seed);
    const Timeline timeline = simulate(dag);
    std::map<ResourceId, std::vector<NodeId>> found;
    for (const NodeId node : execution_order(dag, timeline)) {
      found[dag.resource[index(node)]].push_back(node);
    }
    for (std::size_t row = 0; row < timeline.turns.rows(); ++row) {
      const auto turns = timeline.turns[row];
      if (turns.empty()) continue;
      CHECK(found[ResourceId{static_cast<std::uint32_t>(row)}] ==
            std::vector<NodeId>(turns.begin(), turns.end()));
    }
  }
}

TEST_CASE("dag.txt: resources are named, dense, and those without a node left out") {
  DagBuilder builder;
  builder.add_resource({ResourceKind::compute, 0, 0, 0, false});
  const ResourceId compute = builder.add_resource({ResourceKind::compute, 1, 2, 0, false});
  const ResourceId link = builder.add_resource({ResourceKind::link, 1, 2, 3, true});
  const ResourceId reduce = builder.add_resource({ResourceKind::reduce, 0, 2, 0, false});
  builder.add_device({1, 2, compute, {}});
  const NodeId last = builder.add_node(Nanos{1}, reduce);
  const NodeId first = builder.add_node(Nanos{2000000001}, compute);
  const NodeId sent = builder.add_node(Nanos{30}, link);
  const NodeId free = builder.add_node(Nanos{0}, kNoResource);
  builder.add_edge(first, sent);
  builder.add_edge(first, free);
  builder.add_edge(sent, last);
  const Dag dag = std::move(builder).finish();
  CHECK(text_of(dag, simulate(dag), "a title\nof two lines") ==
        "# a title of two lines\n"
        "# 4 nodes, makespan 2.000000032 s\n"
        "# resource 0 compute dp 1 pp 2\n"
        "# resource 1 link dp 1 pp 2 to pp 3\n"
        "# resource 2 reduction links of pp 2\n"
        "node 0 0 2.000000001\n"
        "node 1 - 0.000000000\n"
        "node 2 1 0.000000030\n"
        "node 3 2 0.000000001\n"
        "edge 0 1\n"
        "edge 0 2\n"
        "edge 2 3\n");
}

TEST_CASE("dag.txt: a timeline of another graph is refused") {
  const Dag dag = random_dag(1);
  CHECK_THROWS_WITH_AS(text_of(dag, Timeline{}),
                       "execution_order: the timeline must have one entry a node, got 0",
                       InvalidInput);
  Timeline timeline = simulate(dag);
  DagBuilder builder;
  const NodeId a = builder.add_node({}, kNoResource);
  const NodeId b = builder.add_node({}, kNoResource);
  builder.add_edge(a, b);
  builder.add_edge(b, a);
  const Dag cycle = std::move(builder).finish();
  timeline.start.assign(2, {});
  timeline.end.assign(2, {});
  timeline.turns = {};
  CHECK_THROWS_WITH_AS(text_of(cycle, timeline),
                       "execution_order: edges and turns must be free of cycles, got 2",
                       InvalidInput);
}

}  // namespace
}  // namespace slimpack
