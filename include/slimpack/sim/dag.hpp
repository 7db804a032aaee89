// SPDX-License-Identifier: Apache-2.0
// What the simulator simulates: nodes with durations on resources, edges, memory events, and names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::sim {

/// The words of the enumerations here: `kWords` in plan/names.hpp.
using slimpack::from_string;
using slimpack::to_string;

/// Index of a node in the arrays of a Dag.
enum class NodeId : std::uint32_t {};
/// Index of a resource in `Dag::resources`.
enum class ResourceId : std::uint32_t {};
/// Index of a device in `Dag::devices`; in a plan's DAG also its index in `Plan::schedule`.
enum class DeviceId : std::uint32_t {};
/// Index of a channel in `Dag::channels`.
enum class ChannelId : std::uint32_t {};

/// The resource of a node that takes its duration and occupies nothing.
inline constexpr ResourceId kNoResource{~std::uint32_t{0}};

/// Rows of nodes behind one array of offsets.
struct NodeLists {
  std::vector<std::uint32_t> offset{0};  ///< one more than there are rows
  std::vector<NodeId> node;              ///< all rows, one behind the other
  /// The number of rows.
  [[nodiscard]] std::size_t rows() const noexcept { return offset.size() - 1; }
  /// The nodes of one row.
  [[nodiscard]] std::span<const NodeId> operator[](std::size_t row) const noexcept {
    return {node.data() + offset[row], node.data() + offset[row + 1]};
  }
  friend bool operator==(const NodeLists&, const NodeLists&) = default;
};

/// What a node is.
enum class NodeKind : std::uint8_t {
  forward,    ///< F
  backward,   ///< B
  head,       ///< H
  optimizer,  ///< O
  transfer,   ///< a message between stages
  reduce,     ///< a gradient bucket of R
  join,       ///< the instant at which a collective starts; occupies no resource
  release,    ///< the part of a B or W after which a gradient bucket may go; occupies no resource
  weight      ///< W
};

}  // namespace slimpack::sim

namespace slimpack {
// The words of `sim::NodeKind`.
template <>
inline constexpr std::array<std::string_view, 9> kWords<sim::NodeKind>{
    "F", "B", "H", "O", "transfer", "R", "join", "release", "W"};
}  // namespace slimpack

namespace slimpack::sim {

/// The number of values of `NodeKind`.
inline constexpr int kNodeKinds = static_cast<int>(kWords<NodeKind>.size());

/// Whether nodes of this kind are entries of a schedule that occupy a device's compute.
[[nodiscard]] constexpr bool is_compute(NodeKind kind) noexcept {
  return kind <= NodeKind::optimizer || kind == NodeKind::weight;
}

/// The kind of the nodes of a unit, and of R that of its buckets.
[[nodiscard]] constexpr NodeKind node_kind(UnitKind kind) noexcept {
  switch (kind) {
    case UnitKind::forward:
      return NodeKind::forward;
    case UnitKind::backward:
      return NodeKind::backward;
    case UnitKind::head:
      return NodeKind::head;
    case UnitKind::reduce:
      return NodeKind::reduce;
    case UnitKind::weight:
      return NodeKind::weight;
    case UnitKind::optimizer:
      break;
  }
  return NodeKind::optimizer;
}
/// The unit whose nodes are of a kind that is compute, or of R; O for others.
[[nodiscard]] constexpr UnitKind unit_kind(NodeKind kind) noexcept {
  for (const UnitKind unit : {UnitKind::forward, UnitKind::backward, UnitKind::head,
                              UnitKind::reduce, UnitKind::weight}) {
    if (node_kind(unit) == kind) return unit;
  }
  return UnitKind::optimizer;
}

/// What a node is in its plan. Members without a meaning for the kind are zero.
struct NodeLabel {
  NodeKind kind = NodeKind::forward;  ///< what the node is
  std::int32_t dp = 0;     ///< of the device; of the sender of a transfer; 0 in an R of all ranks
  std::int32_t pp = 0;     ///< of the device; of the sender of a transfer; of the stage of an R
  std::uint32_t unit = 0;  ///< place in the device's schedule: of the sending unit of a transfer,
                           ///< of the B or W of a release, of the first participant of a join or R
  PackId pack{};           ///< F, B, W, H, and transfers, joins, releases of such a unit
  std::int32_t chunk = 0;  ///< F, B, W, R, and transfers, joins, releases of such a unit
  ChannelId channel{};     ///< transfers
  std::uint32_t message = 0;  ///< transfers: place in the channel
  std::uint32_t bucket = 0;   ///< R and releases: from 0, in the order in which they go
  friend bool operator==(const NodeLabel&, const NodeLabel&) = default;
};

/// What a resource is: a device's compute, a link between stages, the links that reduce a stage, or
/// the one port through which a device sends to both its neighbours.
enum class ResourceKind : std::uint8_t { compute, link, reduce, port };

/// What executes one node at a time. With a fixed order it executes its nodes in the order of their
/// ids, and edges say so. With `first_come` the node that became possible first goes first, ties to
/// the lower id.
struct Resource {
  ResourceKind kind = ResourceKind::compute;  ///< what executes
  std::int32_t dp = 0;                        ///< 0 for the links that reduce a stage's gradients
  std::int32_t pp = 0;      ///< of the device, the sender, or the stage that reduces
  std::int32_t to_pp = 0;   ///< of a link: the receiver
  bool first_come = false;  ///< serves first come, first served
  friend bool operator==(const Resource&, const Resource&) = default;
};

/// One direction of data between neighbouring stages for one group (docs/equations.md).
struct Channel {
  GroupId group{};             ///< whose packs it carries
  std::int32_t rank = 0;       ///< place of the rank `dp` in its group
  std::int32_t dp = 0;         ///< the data-parallel rank
  Pass pass = Pass::forward;   ///< F or B messages
  std::int32_t from_pp = 0;    ///< the sending stage
  std::int32_t to_pp = 0;      ///< the receiving stage
  ResourceId link{};           ///< the resource that transfers occupy
  std::uint32_t messages = 0;  ///< the number of its messages
  friend bool operator==(const Channel&, const Channel&) = default;
};

/// What memory holds. The last three are there for the whole step.
enum class MemoryKind : std::uint8_t {
  kept,              ///< activations kept from F to B, and what B leaves to W
  keys_values,       ///< pages of keys and values
  kv_gradients,      ///< their gradients
  last_output,       ///< hidden states behind the last virtual stage, until H
  hidden_gradients,  ///< their gradients, from H to B
  receive,           ///< buffers of receives that are posted, and inputs in use
  send,              ///< buffers of sends that have not ended
  workspace,         ///< of the unit that runs
  weights,
  gradients,
  optimizer
};

}  // namespace slimpack::sim

namespace slimpack {
// The words of `sim::MemoryKind`.
template <>
inline constexpr std::array<std::string_view, 11> kWords<sim::MemoryKind>{
    "kept activations", "keys and values",  "gradients of keys and values",
    "last output",      "hidden gradients", "receive buffers",
    "send buffers",     "workspace",        "weights",
    "gradients",        "optimizer state"};
}  // namespace slimpack

namespace slimpack::sim {

/// The number of values of `MemoryKind`.
inline constexpr int kMemoryKinds = static_cast<int>(kWords<MemoryKind>.size());
/// Bytes by MemoryKind.
using MemoryByKind = std::array<Bytes, kMemoryKinds>;
/// The sum over all kinds.
[[nodiscard]] constexpr Bytes total(const MemoryByKind& bytes) noexcept {
  Bytes sum;
  for (const Bytes part : bytes) sum += part;
  return sum;
}

/// Bytes that come (positive) or go (negative) on a device.
struct MemoryEvent {
  DeviceId device{};                   ///< whose memory changes
  MemoryKind kind = MemoryKind::kept;  ///< what the bytes hold
  Bytes bytes;                         ///< allocated (positive) or freed (negative)
  friend bool operator==(const MemoryEvent&, const MemoryEvent&) = default;
};

/// The two instants of a node to which memory events belong.
enum class Moment : std::uint8_t { start, end };

/// A node whose duration is a part of another's: numerator / denominator of `whole`, rounded down.
struct Part {
  NodeId node{};                  ///< whose duration is a part
  NodeId whole{};                 ///< of which it is a part
  std::uint32_t numerator = 0;    ///< of the part
  std::uint32_t denominator = 1;  ///< > 0
  friend bool operator==(const Part&, const Part&) = default;
};

/// A device of a Dag.
struct DagDevice {
  std::int32_t dp = 0;    ///< data-parallel rank
  std::int32_t pp = 0;    ///< pipeline rank
  ResourceId compute{};   ///< executes its units
  MemoryByKind always{};  ///< weights, gradients, optimizer state
  friend bool operator==(const DagDevice&, const DagDevice&) = default;
};

/// Plain arrays, one entry a node where nothing else is said. Made by `build_dag` or a DagBuilder,
/// which adds the edges of fixed orders and sums the memory events.
///
///     const Dag dag = build_dag(plan, PricedPlan(plan));
///     for (const NodeId next : dag.successors[index(node)]) visit(next);
struct Dag {
  std::vector<Nanos> duration;                   ///< >= 0
  std::vector<ResourceId> resource;              ///< kNoResource where a node occupies nothing
  std::vector<NodeLabel> label;                  ///< what the node is in its plan
  std::vector<std::uint32_t> predecessor_count;  ///< edges that lead to the node
  /// The edge from the node before it in its resource's fixed order stands for that order alone.
  std::vector<bool> order_only;
  NodeLists successors;  ///< edges, each row ascending and without repetition

  std::vector<Resource> resources;  ///< by ResourceId
  std::vector<DagDevice> devices;   ///< by DeviceId
  std::vector<Channel> channels;    ///< by ChannelId
  NodeLists collectives;            ///< nodes that start and end together, two or more a row
  std::vector<Part> parts;          ///< nodes whose durations follow another's

  std::vector<MemoryEvent> initial_memory;   ///< at step start: receives that are posted
  std::vector<std::uint32_t> memory_offset;  ///< row 2 node + moment of `memory`
  std::vector<MemoryEvent> memory;           ///< by row; see `memory_at`

  /// The same summed over kinds, one entry a device of the row, for the simulator's loop.
  struct Net {
    DeviceId device{};  ///< whose memory changes
    Bytes bytes;        ///< the sum over kinds
    friend bool operator==(const Net&, const Net&) = default;
  };
  std::vector<std::uint32_t> net_offset;  ///< row 2 node + moment of `net`
  std::vector<Net> net;                   ///< by row

  /// The number of nodes.
  [[nodiscard]] std::size_t size() const noexcept { return duration.size(); }
  /// The memory events at the start or end of a node.
  [[nodiscard]] std::span<const MemoryEvent> memory_at(NodeId node, Moment moment) const noexcept {
    const std::size_t row = 2 * index(node) + static_cast<std::size_t>(moment);
    return {memory.data() + memory_offset[row], memory.data() + memory_offset[row + 1]};
  }
  friend bool operator==(const Dag&, const Dag&) = default;
};

/// The transposed successors, each row ascending. O(nodes + edges).
[[nodiscard]] inline NodeLists predecessors(const Dag& dag) {
  NodeLists lists;
  lists.offset.assign(dag.size() + 1, 0);
  for (std::size_t i = 0; i < dag.size(); ++i) {
    lists.offset[i + 1] = lists.offset[i] + dag.predecessor_count[i];
  }
  lists.node.resize(dag.successors.node.size());
  std::vector<std::uint32_t> next(lists.offset.begin(), lists.offset.end() - 1);
  for (std::size_t from = 0; from < dag.size(); ++from) {
    for (const NodeId to : dag.successors[from]) {
      lists.node[next[index(to)]++] = NodeId{static_cast<std::uint32_t>(from)};
    }
  }
  return lists;
}

/// "dp 0 pp 1".
[[nodiscard]] inline std::string device_name(std::int32_t dp, std::int32_t pp) {
  return "dp " + std::to_string(dp) + " pp " + std::to_string(pp);
}

/// "F 3 chunk 0", "H 3", "R chunk 0", "O", "W 4 chunk 0".
[[nodiscard]] inline std::string unit_name(const Unit& unit) {
  const std::string pack = std::to_string(index(unit.pack));
  const std::string chunk = "chunk " + std::to_string(unit.chunk);
  switch (unit.kind) {
    case UnitKind::forward:
      return "F " + pack + " " + chunk;
    case UnitKind::backward:
      return "B " + pack + " " + chunk;
    case UnitKind::head:
      return "H " + pack;
    case UnitKind::reduce:
      return "R " + chunk;
    case UnitKind::weight:
      return "W " + pack + " " + chunk;
    case UnitKind::optimizer:
      break;
  }
  return "O";
}

namespace detail {
/// The unit that a node or its message belongs to.
[[nodiscard]] inline std::string labelled_unit(const NodeLabel& label, UnitKind kind) {
  return unit_name({kind, label.pack, label.chunk});
}
}  // namespace detail

/// "dp 0 pp 1 F 3 chunk 0"; "message 2 from dp 0 pp 0 to pp 1, group 0 (F 3 chunk 0)";
/// "pp 1 R chunk 0 bucket 2".
[[nodiscard]] inline std::string node_name(const Dag& dag, NodeId node) {
  const NodeLabel& label = dag.label[index(node)];
  const std::string device = device_name(label.dp, label.pp);
  switch (label.kind) {
    case NodeKind::forward:
      return device + " " + detail::labelled_unit(label, UnitKind::forward);
    case NodeKind::backward:
      return device + " " + detail::labelled_unit(label, UnitKind::backward);
    case NodeKind::head:
      return device + " " + detail::labelled_unit(label, UnitKind::head);
    case NodeKind::weight:
      return device + " " + detail::labelled_unit(label, UnitKind::weight);
    case NodeKind::optimizer:
      return device + " O";
    case NodeKind::transfer: {
      std::string name = "message " + std::to_string(label.message) + " from " + device;
      if (index(label.channel) >= dag.channels.size()) return name;
      const Channel& channel = dag.channels[index(label.channel)];
      const UnitKind kind = channel.pass == Pass::forward ? UnitKind::forward : UnitKind::backward;
      return name + " to pp " + std::to_string(channel.to_pp) + ", group " +
             std::to_string(index(channel.group)) + " (" + detail::labelled_unit(label, kind) + ")";
    }
    case NodeKind::reduce:
      return "pp " + std::to_string(label.pp) + " R chunk " + std::to_string(label.chunk) +
             " bucket " + std::to_string(label.bucket);
    case NodeKind::join:
      return "the start of a collective on " + device;
    case NodeKind::release:
      break;
  }
  UnitKind released = UnitKind::backward;
  for (const Part& part : dag.parts) {
    if (part.node == node) released = unit_kind(dag.label[index(part.whole)].kind);
  }
  return "bucket " + std::to_string(label.bucket) + " of " + device + " " +
         detail::labelled_unit(label, released);
}

}  // namespace slimpack::sim
