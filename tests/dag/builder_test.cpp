// SPDX-License-Identifier: Apache-2.0
#include "slimpack/dag/builder.hpp"

#include <doctest/doctest.h>
#include <utility>
#include <vector>

using namespace slimpack;

namespace {

std::vector<NodeId> row(const NodeLists& lists, std::size_t at) {
  return {lists[at].begin(), lists[at].end()};
}

}  // namespace

TEST_CASE("DagBuilder: rows ascend, repeated edges count once, fixed orders become edges") {
  DagBuilder builder;
  const ResourceId fixed = builder.add_resource({ResourceKind::compute, 0, 0, 0, false});
  const ResourceId shared = builder.add_resource({ResourceKind::link, 0, 0, 1, true});
  const NodeId a = builder.add_node(Nanos{1}, fixed);
  const NodeId b = builder.add_node(Nanos{2}, shared);
  const NodeId c = builder.add_node(Nanos{3}, fixed);
  const NodeId d = builder.add_node(Nanos{4}, shared);
  const NodeId e = builder.add_node(Nanos{5}, fixed);
  builder.add_edge(a, d);
  builder.add_edge(a, b);
  builder.add_edge(a, d);
  builder.add_edge(c, e);
  const Dag dag = std::move(builder).finish();
  CHECK(row(dag.successors, 0) == std::vector<NodeId>{b, c, d});
  CHECK(row(dag.successors, 1).empty());
  CHECK(row(dag.successors, 2) == std::vector<NodeId>{e});
  CHECK(dag.predecessor_count == std::vector<std::uint32_t>{0, 1, 1, 1, 1});
  CHECK(dag.order_only[index(c)]);
  CHECK_FALSE(dag.order_only[index(e)]);
  const NodeLists before = predecessors(dag);
  CHECK(row(before, index(d)) == std::vector<NodeId>{a});
  CHECK(row(before, index(e)) == std::vector<NodeId>{c});
}

TEST_CASE("DagBuilder: memory events keep their kinds, and are summed by device") {
  DagBuilder builder;
  const ResourceId compute = builder.add_resource({});
  builder.add_device({0, 0, compute, {}});
  builder.add_device({0, 1, compute, {}});
  const NodeId node = builder.add_node(Nanos{1}, compute);
  const DeviceId first{0}, second{1};
  builder.add_memory(node, Moment::end, {first, MemoryKind::send, Bytes{-3}});
  builder.add_memory(node, Moment::start, {first, MemoryKind::kept, Bytes{5}});
  builder.add_memory(node, Moment::start, {second, MemoryKind::kept, Bytes{7}});
  builder.add_memory(node, Moment::start, {first, MemoryKind::send, Bytes{3}});
  builder.add_memory(node, Moment::start, {first, MemoryKind::workspace, Bytes{0}});
  builder.add_initial_memory({second, MemoryKind::receive, Bytes{2}});
  const Dag dag = std::move(builder).finish();
  CHECK(dag.memory_at(node, Moment::start).size() == 3);
  REQUIRE(dag.memory_at(node, Moment::end).size() == 1);
  CHECK(dag.memory_at(node, Moment::end)[0] == MemoryEvent{first, MemoryKind::send, Bytes{-3}});
  CHECK(dag.net_offset == std::vector<std::uint32_t>{0, 2, 3});
  CHECK(dag.net[0] == Dag::Net{first, Bytes{8}});
  CHECK(dag.net[1] == Dag::Net{second, Bytes{7}});
  CHECK(dag.net[2] == Dag::Net{first, Bytes{-3}});
  CHECK(dag.initial_memory.size() == 1);
}

TEST_CASE("DagBuilder: refuses what does not exist") {
  const auto refused = [](const char* what, auto&& fill) {
    DagBuilder builder;
    builder.add_node(Nanos{1}, kNoResource);
    fill(builder);
    CHECK_THROWS_WITH_AS(static_cast<void>(std::move(builder).finish()), what, InvalidInput);
  };
  refused("DagBuilder: a duration must be >= 0, got -1",
          [](DagBuilder& builder) { builder.add_node(Nanos{-1}, kNoResource); });
  refused("DagBuilder: no such resource, got 0",
          [](DagBuilder& builder) { builder.add_node(Nanos{1}, ResourceId{0}); });
  refused("DagBuilder: an edge leaves no node, got 4",
          [](DagBuilder& builder) { builder.add_edge(NodeId{4}, NodeId{0}); });
  refused("DagBuilder: an edge leads to no node, got 1",
          [](DagBuilder& builder) { builder.add_edge(NodeId{0}, NodeId{1}); });
  const MemoryEvent event{DeviceId{0}, MemoryKind::kept, Bytes{1}};
  refused("DagBuilder: no such device, got 0",
          [&](DagBuilder& builder) { builder.add_memory(NodeId{0}, Moment::start, event); });
  refused("DagBuilder: no such device, got 0",
          [&](DagBuilder& builder) { builder.add_initial_memory(event); });
  refused("DagBuilder: a memory event belongs to no node, got 3",
          [&](DagBuilder& builder) { builder.add_memory(NodeId{3}, Moment::start, event); });
  refused("DagBuilder: no such node in a meeting, got 2", [](DagBuilder& builder) {
    const std::vector<NodeId> nodes{NodeId{0}, NodeId{2}};
    builder.add_meeting(nodes);
  });
  refused("DagBuilder: no such node in a part, got 9", [](DagBuilder& builder) {
    builder.add_part({NodeId{0}, NodeId{9}, 1, 2});
  });
  refused("DagBuilder: a part must have a denominator > 0", [](DagBuilder& builder) {
    builder.add_part({NodeId{0}, NodeId{0}, 1, 0});
  });
}
