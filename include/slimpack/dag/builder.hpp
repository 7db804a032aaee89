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
#include "slimpack/dag/dag.hpp"

namespace slimpack {

/// Ids are given in the order of the calls. Everything is checked in `finish`.
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
  ResourceId add_resource(const Resource& resource) {
    dag_.resources.push_back(resource);
    return ResourceId{static_cast<std::uint32_t>(dag_.resources.size() - 1)};
  }
  DeviceId add_device(const DagDevice& device) {
    dag_.devices.push_back(device);
    return DeviceId{static_cast<std::uint32_t>(dag_.devices.size() - 1)};
  }
  ChannelId add_channel(const Channel& channel) {
    dag_.channels.push_back(channel);
    return ChannelId{static_cast<std::uint32_t>(dag_.channels.size() - 1)};
  }
  NodeId add_node(Nanos duration, ResourceId resource, const NodeLabel& label = {}) {
    dag_.duration.push_back(duration);
    dag_.resource.push_back(resource);
    dag_.label.push_back(label);
    return NodeId{static_cast<std::uint32_t>(dag_.duration.size() - 1)};
  }
  /// `to` starts when `from` has ended, or later.
  void add_edge(NodeId from, NodeId to) { edges_.emplace_back(from, to); }
  void add_memory(NodeId node, Moment moment, const MemoryEvent& event) {
    if (event.bytes == Bytes{}) return;
    rows_.push_back(2 * static_cast<std::uint32_t>(node) + static_cast<std::uint32_t>(moment));
    events_.push_back(event);
  }
  void add_initial_memory(const MemoryEvent& event) {
    if (event.bytes != Bytes{}) dag_.initial_memory.push_back(event);
  }
  /// The nodes start and end together; their durations must be equal, and edges must make them
  /// start together.
  void add_meeting(std::span<const NodeId> nodes) {
    dag_.meetings.node.insert(dag_.meetings.node.end(), nodes.begin(), nodes.end());
    dag_.meetings.offset.push_back(static_cast<std::uint32_t>(dag_.meetings.node.size()));
  }
  void add_part(const Part& part) { dag_.parts.push_back(part); }

  [[nodiscard]] std::size_t size() const noexcept { return dag_.size(); }
  /// What has been added so far; edges and memory are laid out by `finish` alone.
  [[nodiscard]] Dag& draft() noexcept { return dag_; }

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
    for (std::size_t at = 0; at < nodes; ++at) {
      require(dag_.duration[at] >= Nanos{}, "DagBuilder: a duration must be >= 0",
              dag_.duration[at].value);
      require(dag_.resource[at] == kNoResource || index(dag_.resource[at]) < dag_.resources.size(),
              "DagBuilder: no such resource", static_cast<std::int64_t>(dag_.resource[at]));
    }
    for (const auto& [from, to] : edges_) {
      require(index(from) < nodes, "DagBuilder: an edge leaves no node",
              static_cast<std::int64_t>(from));
      require(index(to) < nodes, "DagBuilder: an edge leads to no node",
              static_cast<std::int64_t>(to));
    }
    for (std::size_t at = 0; at < rows_.size(); ++at) {
      require(rows_[at] < 2 * nodes, "DagBuilder: a memory event belongs to no node",
              static_cast<std::int64_t>(rows_[at] / 2));
      check_device(events_[at]);
    }
    for (const MemoryEvent& event : dag_.initial_memory) check_device(event);
    for (const NodeId node : dag_.meetings.node) {
      require(index(node) < nodes, "DagBuilder: no such node in a meeting",
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
    for (std::size_t at = 0; at < dag_.size(); ++at) {
      if (dag_.resource[at] == kNoResource) continue;
      const std::size_t resource = index(dag_.resource[at]);
      if (dag_.resources[resource].first_come) continue;
      before[at] = last[resource];
      last[resource] = NodeId{static_cast<std::uint32_t>(at)};
    }
    dag_.order_only.assign(dag_.size(), true);
    for (const auto& [from, to] : edges_) {
      if (before[index(to)] == from) dag_.order_only[index(to)] = false;
    }
    for (std::size_t at = 0; at < dag_.size(); ++at) {
      if (before[at] != none)
        edges_.emplace_back(before[at], NodeId{static_cast<std::uint32_t>(at)});
    }
  }

  void lay_out_edges() {
    const std::size_t nodes = dag_.size();
    require(edges_.size() < std::numeric_limits<std::uint32_t>::max(), "DagBuilder: too many edges",
            static_cast<std::int64_t>(edges_.size()));
    std::vector<std::uint32_t> offset(nodes + 2, 0);
    for (const auto& [from, to] : edges_) ++offset[index(from) + 2];
    for (std::size_t at = 2; at < offset.size(); ++at) offset[at] += offset[at - 1];
    std::vector<NodeId> rows(edges_.size());
    for (const auto& [from, to] : edges_) rows[offset[index(from) + 1]++] = to;
    edges_ = {};
    NodeLists& lists = dag_.successors;
    lists.offset.assign(1, 0);
    lists.offset.reserve(nodes + 1);
    lists.node.reserve(rows.size());
    dag_.predecessor_count.assign(nodes, 0);
    for (std::size_t at = 0; at < nodes; ++at) {
      const auto begin = rows.begin() + offset[at];
      auto end = rows.begin() + offset[at + 1];
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
    for (std::size_t at = 2; at < next.size(); ++at) next[at] += next[at - 1];
    dag_.memory.resize(events_.size());
    for (std::size_t at = 0; at < rows_.size(); ++at)
      dag_.memory[next[rows_[at] + 1]++] = events_[at];
    next.pop_back();
    dag_.memory_offset = std::move(next);

    dag_.net_offset.assign(1, 0);
    dag_.net_offset.reserve(dag_.memory_offset.size());
    std::vector<Dag::Net>& net = dag_.net;
    for (std::size_t row = 0; row + 1 < dag_.memory_offset.size(); ++row) {
      const std::size_t first = net.size();
      for (std::uint32_t at = dag_.memory_offset[row]; at < dag_.memory_offset[row + 1]; ++at) {
        const MemoryEvent& event = dag_.memory[at];
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

}  // namespace slimpack
