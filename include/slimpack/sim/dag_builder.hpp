// SPDX-License-Identifier: Apache-2.0
// Collects nodes, edges and memory events in any order and lays them out as a Dag.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::sim {

/// Collects a Dag. Ids are given in the order of the calls; everything is checked in `finish`.
///
///     DagBuilder builder;
///     const ResourceId compute = builder.add_resource({});
///     const NodeId first = builder.add_node(Nanos{3}, compute);
///     const NodeId second = builder.add_node(Nanos{2}, kNoResource);
///     builder.add_edge(first, second);
///     const Dag dag = std::move(builder).finish();
class DagBuilder {
 public:
  /// Room for so many nodes, edges and memory events; more may come.
  void reserve(std::size_t nodes, std::size_t edges, std::size_t events) {
    dag_.duration.reserve(nodes);
    dag_.resource.reserve(nodes);
    dag_.label.reserve(nodes);
    edges_.reserve(edges);
    rows_.reserve(events);
    events_.reserve(events);
  }
  /// Adds a resource.
  ResourceId add_resource(const Resource& resource) {
    dag_.resources.push_back(resource);
    return ResourceId{static_cast<std::uint32_t>(dag_.resources.size() - 1)};
  }
  /// Adds a device; its compute is a resource.
  DeviceId add_device(const DagDevice& device) {
    dag_.devices.push_back(device);
    return DeviceId{static_cast<std::uint32_t>(dag_.devices.size() - 1)};
  }
  /// Adds a channel, without messages.
  ChannelId add_channel(const Channel& channel) {
    dag_.channels.push_back(channel);
    return ChannelId{static_cast<std::uint32_t>(dag_.channels.size() - 1)};
  }
  /// Adds a node that takes `duration` on `resource`, or occupies nothing (kNoResource).
  NodeId add_node(Nanos duration, ResourceId resource, const NodeLabel& label = {}) {
    dag_.duration.push_back(duration);
    dag_.resource.push_back(resource);
    dag_.label.push_back(label);
    return NodeId{static_cast<std::uint32_t>(dag_.duration.size() - 1)};
  }
  /// `to` starts when `from` has ended, or later.
  void add_edge(NodeId from, NodeId to) { edges_.emplace_back(from, to); }
  /// Bytes that come or go at the start or end of a node; an event of no bytes is left out.
  void add_memory(NodeId node, Moment moment, const MemoryEvent& event) {
    if (event.bytes == Bytes{}) return;
    rows_.push_back(2 * static_cast<std::uint32_t>(node) + static_cast<std::uint32_t>(moment));
    events_.push_back(event);
  }
  /// Bytes that are there from the start of the step.
  void add_initial_memory(const MemoryEvent& event) {
    if (event.bytes != Bytes{}) dag_.initial_memory.push_back(event);
  }
  /// The nodes start and end together; their durations must be equal, and edges must make them
  /// start together.
  void add_collective(std::span<const NodeId> nodes) {
    dag_.collectives.node.insert(dag_.collectives.node.end(), nodes.begin(), nodes.end());
    dag_.collectives.offset.push_back(static_cast<std::uint32_t>(dag_.collectives.node.size()));
  }
  /// The duration of `part.node` is a part of another node's.
  void add_part(const Part& part) { dag_.parts.push_back(part); }

  /// Lets a resource serve its nodes first come, first served, instead of in the order of their
  /// ids.
  void serve_first_come(ResourceId resource) { dag_.resources[index(resource)].first_come = true; }
  /// Counts one more message of a channel; returns its place in the channel.
  std::uint32_t add_message(ChannelId channel) { return dag_.channels[index(channel)].messages++; }
  /// Replaces the duration of a node.
  void set_duration(NodeId node, Nanos duration) { dag_.duration[index(node)] = duration; }

  /// The number of nodes so far.
  [[nodiscard]] std::size_t size() const noexcept { return dag_.size(); }
  /// The duration of a node that was added.
  [[nodiscard]] Nanos duration(NodeId node) const noexcept { return dag_.duration[index(node)]; }
  /// The label of a node that was added.
  [[nodiscard]] NodeLabel label(NodeId node) const noexcept { return dag_.label[index(node)]; }
  /// The channels so far, in the order of their ids.
  [[nodiscard]] const std::vector<Channel>& channels() const noexcept { return dag_.channels; }

  /// Adds the edges of fixed orders, drops repeated edges. Throws InvalidInput where a duration is
  /// negative or an id does not exist. O(nodes + edges + events) and the sorting of each row.
  [[nodiscard]] Dag finish() && {
    check();
    add_fixed_orders();
    lay_out_edges();
    lay_out_memory();
    return std::move(dag_);
  }

 private:
  void check() const {
    const std::size_t nodes = dag_.size();
    require(nodes < std::numeric_limits<std::uint32_t>::max() / 2, "DagBuilder: too many nodes",
            static_cast<std::int64_t>(nodes));
    for (std::size_t i = 0; i < nodes; ++i) {
      require(dag_.duration[i] >= Nanos{}, "DagBuilder: a duration must be >= 0",
              dag_.duration[i].value);
      require(dag_.resource[i] == kNoResource || index(dag_.resource[i]) < dag_.resources.size(),
              "DagBuilder: no such resource", static_cast<std::int64_t>(dag_.resource[i]));
    }
    for (const auto& [from, to] : edges_) {
      require(index(from) < nodes, "DagBuilder: an edge leaves no node",
              static_cast<std::int64_t>(from));
      require(index(to) < nodes, "DagBuilder: an edge leads to no node",
              static_cast<std::int64_t>(to));
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      require(rows_[i] < 2 * nodes, "DagBuilder: a memory event belongs to no node",
              static_cast<std::int64_t>(rows_[i] / 2));
      check_device(events_[i]);
    }
    for (const MemoryEvent& event : dag_.initial_memory) check_device(event);
    for (const NodeId node : dag_.collectives.node) {
      require(index(node) < nodes, "DagBuilder: no such node in a collective",
              static_cast<std::int64_t>(node));
    }
    for (const Part& part : dag_.parts) {
      for (const NodeId node : {part.node, part.whole}) {
        require(index(node) < nodes, "DagBuilder: no such node in a part",
                static_cast<std::int64_t>(node));
      }
      require(part.denominator > 0, "DagBuilder: a part must have a denominator > 0");
    }
  }
  void check_device(const MemoryEvent& event) const {
    require(index(event.device) < dag_.devices.size(), "DagBuilder: no such device",
            static_cast<std::int64_t>(event.device));
  }

  void add_fixed_orders() {
    const NodeId none{~std::uint32_t{0}};
    std::vector<NodeId> last(dag_.resources.size(), none);
    std::vector<NodeId> before(dag_.size(), none);
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (dag_.resource[i] == kNoResource) continue;
      const std::size_t resource = index(dag_.resource[i]);
      if (dag_.resources[resource].first_come) continue;
      before[i] = last[resource];
      last[resource] = NodeId{static_cast<std::uint32_t>(i)};
    }
    dag_.order_only.assign(dag_.size(), true);
    for (const auto& [from, to] : edges_) {
      if (before[index(to)] == from) dag_.order_only[index(to)] = false;
    }
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (before[i] != none) edges_.emplace_back(before[i], NodeId{static_cast<std::uint32_t>(i)});
    }
  }

  void lay_out_edges() {
    const std::size_t nodes = dag_.size();
    require(edges_.size() < std::numeric_limits<std::uint32_t>::max(), "DagBuilder: too many edges",
            static_cast<std::int64_t>(edges_.size()));
    std::vector<std::uint32_t> offset(nodes + 2, 0);
    for (const auto& [from, to] : edges_) ++offset[index(from) + 2];
    for (std::size_t i = 2; i < offset.size(); ++i) offset[i] += offset[i - 1];
    std::vector<NodeId> rows(edges_.size());
    for (const auto& [from, to] : edges_) rows[offset[index(from) + 1]++] = to;
    edges_ = {};
    NodeLists& lists = dag_.successors;
    lists.offset.assign(1, 0);
    lists.offset.reserve(nodes + 1);
    lists.node.reserve(rows.size());
    dag_.predecessor_count.assign(nodes, 0);
    for (std::size_t i = 0; i < nodes; ++i) {
      const auto begin = rows.begin() + offset[i];
      auto end = rows.begin() + offset[i + 1];
      std::sort(begin, end);
      end = std::unique(begin, end);
      for (auto to = begin; to != end; ++to) ++dag_.predecessor_count[index(*to)];
      lists.node.insert(lists.node.end(), begin, end);
      lists.offset.push_back(static_cast<std::uint32_t>(lists.node.size()));
    }
  }

  void lay_out_memory() {
    std::vector<std::uint32_t> next(2 * dag_.size() + 2, 0);
    for (const std::uint32_t row : rows_) ++next[row + 2];
    for (std::size_t i = 2; i < next.size(); ++i) next[i] += next[i - 1];
    dag_.memory.resize(events_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) dag_.memory[next[rows_[i] + 1]++] = events_[i];
    next.pop_back();
    dag_.memory_offset = std::move(next);

    dag_.net_offset.assign(1, 0);
    dag_.net_offset.reserve(dag_.memory_offset.size());
    std::vector<Dag::Net>& net = dag_.net;
    for (std::size_t row = 0; row + 1 < dag_.memory_offset.size(); ++row) {
      const std::size_t first = net.size();
      for (std::uint32_t i = dag_.memory_offset[row]; i < dag_.memory_offset[row + 1]; ++i) {
        const MemoryEvent& event = dag_.memory[i];
        auto same = std::find_if(net.begin() + static_cast<std::ptrdiff_t>(first), net.end(),
                                 [&](const Dag::Net& sum) { return sum.device == event.device; });
        if (same == net.end()) {
          net.push_back({event.device, event.bytes});
        } else {
          same->bytes += event.bytes;
        }
      }
      dag_.net_offset.push_back(static_cast<std::uint32_t>(net.size()));
    }
  }

  Dag dag_;
  std::vector<std::pair<NodeId, NodeId>> edges_;
  std::vector<std::uint32_t> rows_;
  std::vector<MemoryEvent> events_;
};

}  // namespace slimpack::sim
