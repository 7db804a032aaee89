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
#include "slimpack/report/dag_text.hpp"
#include "slimpack/sim/dag_builder.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

std::string text_of(const sim::Dag& dag, const sim::Timeline& timeline,
                    std::string_view title = {}) {
  std::ostringstream out;
  report::write_dag(out, dag, timeline, title);
  return out.str();
}

/// Random layers of nodes on fixed, shared and no resources; two in three take no time.
sim::Dag random_dag(std::uint64_t seed) {
  Random random(seed);
  sim::DagBuilder builder;
  std::vector<sim::ResourceId> resources{sim::kNoResource};
  for (std::int32_t i = 0; i < 5; ++i) {
    const sim::ResourceKind kind = i < 2 ? sim::ResourceKind::compute : sim::ResourceKind::link;
    resources.push_back(builder.add_resource({kind, i, 0, 1, i >= 2}));
  }
  builder.add_device({0, 0, resources[1], {}});
  std::vector<sim::NodeId> nodes;
  for (std::int64_t left = random.between(1, 80); left > 0; --left) {
    const Nanos duration{random.chance(2, 3) ? 0 : random.between(1, 20)};
    const sim::NodeId node = builder.add_node(duration, resources[random.below(resources.size())]);
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
    const sim::Dag dag = random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
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
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const test::DagFile file = test::read_dag(text_of(simulation.dag, simulation.timeline));
    CHECK(file.nanos.size() == simulation.dag.size());
    CHECK(file.edges.size() == simulation.dag.successors.node.size());
    CHECK(test::makespan_of(file) == simulation.timeline.makespan.value);
    for (const sim::Resource& resource : simulation.dag.resources) {
      if (resource.first_come) ++shared;
    }
  }
  CHECK(shared > test::draws(100U));
}

TEST_CASE("execution_order: shared resources in the order that was found") {
  for (std::uint64_t seed = 0; seed < test::draws(200U); ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
    std::map<sim::ResourceId, std::vector<sim::NodeId>> found;
    for (const sim::NodeId node : report::execution_order(dag, timeline)) {
      found[dag.resource[index(node)]].push_back(node);
    }
    for (std::size_t row = 0; row < timeline.turns.rows(); ++row) {
      const auto turns = timeline.turns[row];
      if (turns.empty()) continue;
      CHECK(found[sim::ResourceId{static_cast<std::uint32_t>(row)}] ==
            std::vector<sim::NodeId>(turns.begin(), turns.end()));
    }
  }
}

TEST_CASE("dag.txt: resources are named, dense, and those without a node left out") {
  sim::DagBuilder builder;
  builder.add_resource({sim::ResourceKind::compute, 0, 0, 0, false});
  const sim::ResourceId compute =
      builder.add_resource({sim::ResourceKind::compute, 1, 2, 0, false});
  const sim::ResourceId link = builder.add_resource({sim::ResourceKind::link, 1, 2, 3, true});
  const sim::ResourceId reduce = builder.add_resource({sim::ResourceKind::reduce, 0, 2, 0, false});
  builder.add_device({1, 2, compute, {}});
  const sim::NodeId last = builder.add_node(Nanos{1}, reduce);
  const sim::NodeId first = builder.add_node(Nanos{2000000001}, compute);
  const sim::NodeId sent = builder.add_node(Nanos{30}, link);
  const sim::NodeId free = builder.add_node(Nanos{0}, sim::kNoResource);
  builder.add_edge(first, sent);
  builder.add_edge(first, free);
  builder.add_edge(sent, last);
  const sim::Dag dag = std::move(builder).finish();
  CHECK(text_of(dag, sim::simulate(dag), "a title\nof two lines") ==
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
  const sim::Dag dag = random_dag(1);
  CHECK_THROWS_WITH_AS(text_of(dag, sim::Timeline{}),
                       "execution_order: the timeline must have one entry a node, got 0",
                       InvalidInput);
  sim::Timeline timeline = sim::simulate(dag);
  sim::DagBuilder builder;
  const sim::NodeId a = builder.add_node({}, sim::kNoResource);
  const sim::NodeId b = builder.add_node({}, sim::kNoResource);
  builder.add_edge(a, b);
  builder.add_edge(b, a);
  const sim::Dag cycle = std::move(builder).finish();
  timeline.start.assign(2, {});
  timeline.end.assign(2, {});
  timeline.turns = {};
  CHECK_THROWS_WITH_AS(text_of(cycle, timeline),
                       "execution_order: edges and turns must be free of cycles, got 2",
                       InvalidInput);
}

}  // namespace
}  // namespace slimpack
