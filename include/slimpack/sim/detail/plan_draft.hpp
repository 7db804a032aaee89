// SPDX-License-Identifier: Apache-2.0
// The growing graph on the way from a plan to its DAG, and where each unit is in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/structure.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/dag_builder.hpp"
#include "slimpack/sim/detail/pack_needs.hpp"

namespace slimpack::sim::detail {

/// Throws InvalidInput with "build_dag: " and text() unless `condition` holds: no text is made for
/// units that are well.
template <class Text>
void require_built(bool condition, const Text& text) {
  if (!condition) throw InvalidInput("build_dag: " + text());
}

inline constexpr NodeId kNoNode{~std::uint32_t{0}};

[[nodiscard]] inline std::string unit_place(const DeviceSchedule& schedule, const Unit& unit) {
  return device_name(schedule.dp, schedule.pp) + " " + unit_name(unit);
}

template <class Text>
void require_time(Nanos time, const Text& text) {
  require_built(time >= Nanos{}, [&] {
    return "the time of " + text() + " must be >= 0 ns, got " + std::to_string(time.value);
  });
}

/// Plain data and look-ups; every step adds its part.
struct PlanDraft {
  /// Throws InvalidInput where the plan's arrays do not fit together.
  explicit PlanDraft(const Plan& of)
      : plan(checked(of)), virtual_stages(virtual_stages_of(of)), memory(of), needs(of) {
    unit_nodes.assign(needs.rows() * static_cast<std::size_t>(virtual_stages.size()), kNoNode);
    head_nodes.assign(needs.rows() * static_cast<std::size_t>(plan.parallel.pp), kNoNode);
    std::size_t units = 0;
    for (const DeviceSchedule& schedule : plan.schedule) units += schedule.order.size();
    // A transfer follows most units.
    out.reserve(2 * units, 6 * units, 8 * units);
    placed.reserve(units);
    before.reserve(2 * units);
    entries.reserve(2 * units);
    messages.reserve(units);
  }

  static const Plan& checked(const Plan& of) {
    require_structure(of, "build_dag");
    require_partition(of, Pass::forward);
    require_partition(of, Pass::backward);
    require_weight_partition(of);
    return of;  // NOLINT(bugprone-return-const-ref-from-parameter): outlives the draft
  }

  const Plan& plan;
  VirtualStages virtual_stages;
  MemoryModel memory;
  PackNeeds needs;
  DagBuilder out;
  std::vector<NodeId> unit_nodes;  // row (pack, rank), column virtual stage
  std::vector<NodeId> head_nodes;  // row (pack, rank), column stage
  std::vector<NodeId> placed;      // by device and place; of R the unit before it
  std::vector<std::size_t> place_offset{0};
  std::vector<NodeId> before;    // by node: the one before it on its resource, as far as needed
  std::vector<NodeId> entries;   // by node
  std::vector<NodeId> messages;  // transfers, device by device

  [[nodiscard]] std::size_t rank_of(PackId pack, std::int32_t dp) const {
    return place_in_group(plan, plan.micropacks[index(pack)].group, dp);
  }
  [[nodiscard]] NodeId& unit_node(PackId pack, std::size_t rank, std::int32_t i) noexcept {
    return unit_nodes[needs.row(pack, rank) * static_cast<std::size_t>(virtual_stages.size()) +
                      static_cast<std::size_t>(i)];
  }
  [[nodiscard]] NodeId& head_node(PackId pack, std::size_t rank, std::int32_t pp) noexcept {
    return head_nodes[needs.row(pack, rank) * static_cast<std::size_t>(plan.parallel.pp) +
                      static_cast<std::size_t>(pp)];
  }
  [[nodiscard]] NodeId node_at(std::size_t device, std::size_t place) const noexcept {
    return placed[place_offset[device] + place];
  }
  [[nodiscard]] DeviceId device(std::int32_t dp, std::int32_t pp) const noexcept {
    return DeviceId{static_cast<std::uint32_t>(device_index(plan, dp, pp))};
  }
  [[nodiscard]] std::int64_t layers(std::int32_t i) const noexcept {
    return plan.stages[static_cast<std::size_t>(i)].layers();
  }
  /// The virtual stage that consumes the output of a unit on virtual stage `i`; may not exist.
  [[nodiscard]] static std::int32_t consumer_stage(Pass pass, std::int32_t i) noexcept {
    return pass == Pass::forward ? i + 1 : i - 1;
  }
  [[nodiscard]] bool exists(std::int32_t i) const noexcept {
    return i >= 0 && i < virtual_stages.size();
  }

  NodeId add_node(Nanos time, ResourceId resource, const NodeLabel& label, NodeId after = kNoNode) {
    const NodeId node = out.add_node(time, resource, label);
    before.push_back(after);
    entries.push_back(node);
    return node;
  }

  /// The node whose start is the unit's start: all that the unit awaits is awaited there.
  [[nodiscard]] NodeId entry(NodeId node) const noexcept { return entries[index(node)]; }
  [[nodiscard]] NodeId add_join(NodeId first) {
    NodeLabel join = out.label(first);
    join.kind = NodeKind::join;
    return add_node(Nanos{}, kNoResource, join);
  }
  void enter_by(NodeId join, NodeId node) {
    entries[index(node)] = join;
    if (before[index(node)] != kNoNode) out.add_edge(before[index(node)], join);
    out.add_edge(join, node);
  }
  /// Nodes that end together take as long as the slowest.
  void end_together(std::span<const NodeId> nodes) {
    Nanos longest;
    for (const NodeId node : nodes) longest = std::max(longest, out.duration(node));
    for (const NodeId node : nodes) out.set_duration(node, longest);
    out.add_collective(nodes);
  }
};

}  // namespace slimpack::sim::detail
