// SPDX-License-Identifier: Apache-2.0
#include "slimpack/sim/dag_builder.hpp"

#include <doctest/doctest.h>
#include <utility>
#include <vector>

using namespace slimpack;

namespace {

std::vector<sim::NodeId> row(const sim::NodeLists& lists, std::size_t i) {
  return {lists[i].begin(), lists[i].end()};
}

}  // namespace

TEST_CASE("DagBuilder: rows ascend, repeated edges count once, fixed orders become edges") {
  sim::DagBuilder builder;
  const sim::ResourceId fixed = builder.add_resource({sim::ResourceKind::compute, 0, 0, 0, false});
  const sim::ResourceId shared = builder.add_resource({sim::ResourceKind::link, 0, 0, 1, true});
  const sim::NodeId a = builder.add_node(Nanos{1}, fixed);
  const sim::NodeId b = builder.add_node(Nanos{2}, shared);
  const sim::NodeId c = builder.add_node(Nanos{3}, fixed);
  const sim::NodeId d = builder.add_node(Nanos{4}, shared);
  const sim::NodeId e = builder.add_node(Nanos{5}, fixed);
  builder.add_edge(a, d);
  builder.add_edge(a, b);
  builder.add_edge(a, d);
  builder.add_edge(c, e);
  const sim::Dag dag = std::move(builder).finish();
  CHECK(row(dag.successors, 0) == std::vector<sim::NodeId>{b, c, d});
  CHECK(row(dag.successors, 1).empty());
  CHECK(row(dag.successors, 2) == std::vector<sim::NodeId>{e});
  CHECK(dag.predecessor_count == std::vector<std::uint32_t>{0, 1, 1, 1, 1});
  CHECK(dag.order_only[index(c)]);
  CHECK_FALSE(dag.order_only[index(e)]);
  const sim::NodeLists before = sim::predecessors(dag);
  CHECK(row(before, index(d)) == std::vector<sim::NodeId>{a});
  CHECK(row(before, index(e)) == std::vector<sim::NodeId>{c});
}

TEST_CASE("DagBuilder: memory events keep their kinds, and are summed by device") {
  sim::DagBuilder builder;
  const sim::ResourceId compute = builder.add_resource({});
  builder.add_device({0, 0, compute, {}});
  builder.add_device({0, 1, compute, {}});
  const sim::NodeId node = builder.add_node(Nanos{1}, compute);
  const sim::DeviceId first{0}, second{1};
  builder.add_memory(node, sim::Moment::end, {first, sim::MemoryKind::send, Bytes{-3}});
  builder.add_memory(node, sim::Moment::start, {first, sim::MemoryKind::kept, Bytes{5}});
  builder.add_memory(node, sim::Moment::start, {second, sim::MemoryKind::kept, Bytes{7}});
  builder.add_memory(node, sim::Moment::start, {first, sim::MemoryKind::send, Bytes{3}});
  builder.add_memory(node, sim::Moment::start, {first, sim::MemoryKind::workspace, Bytes{0}});
  builder.add_initial_memory({second, sim::MemoryKind::receive, Bytes{2}});
  const sim::Dag dag = std::move(builder).finish();
  CHECK(dag.memory_at(node, sim::Moment::start).size() == 3);
  REQUIRE(dag.memory_at(node, sim::Moment::end).size() == 1);
  CHECK(dag.memory_at(node, sim::Moment::end)[0] ==
        sim::MemoryEvent{first, sim::MemoryKind::send, Bytes{-3}});
  CHECK(dag.net_offset == std::vector<std::uint32_t>{0, 2, 3});
  CHECK(dag.net[0] == sim::Dag::Net{first, Bytes{8}});
  CHECK(dag.net[1] == sim::Dag::Net{second, Bytes{7}});
  CHECK(dag.net[2] == sim::Dag::Net{first, Bytes{-3}});
  CHECK(dag.initial_memory.size() == 1);
}

TEST_CASE("DagBuilder: refuses what does not exist") {
  const auto refused = [](const char* what, auto&& fill) {
    sim::DagBuilder builder;
    builder.add_node(Nanos{1}, sim::kNoResource);
    fill(builder);
    CHECK_THROWS_WITH_AS(static_cast<void>(std::move(builder).finish()), what, InvalidInput);
  };
  refused("DagBuilder: a duration must be >= 0, got -1",
          [](sim::DagBuilder& builder) { builder.add_node(Nanos{-1}, sim::kNoResource); });
  refused("DagBuilder: no such resource, got 0",
          [](sim::DagBuilder& builder) { builder.add_node(Nanos{1}, sim::ResourceId{0}); });
  refused("DagBuilder: an edge leaves no node, got 4",
          [](sim::DagBuilder& builder) { builder.add_edge(sim::NodeId{4}, sim::NodeId{0}); });
  refused("DagBuilder: an edge leads to no node, got 1",
          [](sim::DagBuilder& builder) { builder.add_edge(sim::NodeId{0}, sim::NodeId{1}); });
  const sim::MemoryEvent event{sim::DeviceId{0}, sim::MemoryKind::kept, Bytes{1}};
  refused("DagBuilder: no such device, got 0", [&](sim::DagBuilder& builder) {
    builder.add_memory(sim::NodeId{0}, sim::Moment::start, event);
  });
  refused("DagBuilder: no such device, got 0",
          [&](sim::DagBuilder& builder) { builder.add_initial_memory(event); });
  refused("DagBuilder: a memory event belongs to no node, got 3", [&](sim::DagBuilder& builder) {
    builder.add_memory(sim::NodeId{3}, sim::Moment::start, event);
  });
  refused("DagBuilder: no such node in a collective, got 2", [](sim::DagBuilder& builder) {
    const std::vector<sim::NodeId> nodes{sim::NodeId{0}, sim::NodeId{2}};
    builder.add_collective(nodes);
  });
  refused("DagBuilder: no such node in a part, got 9", [](sim::DagBuilder& builder) {
    builder.add_part({sim::NodeId{0}, sim::NodeId{9}, 1, 2});
  });
  refused("DagBuilder: a part must have a denominator > 0", [](sim::DagBuilder& builder) {
    builder.add_part({sim::NodeId{0}, sim::NodeId{0}, 1, 0});
  });
}
