// SPDX-License-Identifier: Apache-2.0
// A slow and plain simulation of a Dag, and random graphs to compare on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/dag_builder.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::test {

/// Starts whatever can start, instant by instant, asking every node every time.
class Reference {
 public:
  explicit Reference(const sim::Dag& dag)
      : dag_(dag),
        start(dag.size()),
        end(dag.size()),
        possible_(dag.size()),
        before_(sim::predecessors(dag)) {
    run();
  }

  std::int64_t makespan = 0;

 private:
  const sim::Dag& dag_;

 public:
  std::vector<std::optional<std::int64_t>> start, end;

 private:
  std::vector<std::optional<std::int64_t>> possible_;
  sim::NodeLists before_;
  std::int64_t now_ = 0;

  [[nodiscard]] bool ended(std::size_t node) const { return end[node] && *end[node] <= now_; }
  [[nodiscard]] bool is_possible(std::size_t node) const {
    return std::all_of(before_[node].begin(), before_[node].end(),
                       [&](sim::NodeId from) { return ended(index(from)); });
  }
  void begin(std::size_t node) {
    start[node] = now_;
    end[node] = now_ + dag_.duration[node].value;
    makespan = std::max(makespan, *end[node]);
  }
  [[nodiscard]] bool first_come(std::size_t node) const {
    return dag_.resource[node] != sim::kNoResource &&
           dag_.resources[index(dag_.resource[node])].first_come;
  }
  bool start_free_ones() {
    bool any = false;
    for (std::size_t node = 0; node < dag_.size(); ++node) {
      if (possible_[node] || !is_possible(node)) continue;
      possible_[node] = now_;
      if (!first_come(node)) begin(node);
      any = true;
    }
    return any;
  }
  bool start_queued_ones() {
    std::vector<std::size_t> chosen;
    for (std::size_t resource = 0; resource < dag_.resources.size(); ++resource) {
      if (!dag_.resources[resource].first_come) continue;
      bool busy = false;
      std::optional<std::size_t> best;
      for (std::size_t node = 0; node < dag_.size(); ++node) {
        if (index(dag_.resource[node]) != resource || !possible_[node]) continue;
        if (start[node]) {
          busy = busy || !ended(node);
        } else if (!best || *possible_[node] < *possible_[*best]) {
          best = node;
        }
      }
      if (!busy && best) chosen.push_back(*best);
    }
    for (const std::size_t node : chosen) begin(node);
    return !chosen.empty();
  }
  void run() {
    for (;;) {
      do {
        while (start_free_ones()) {
        }
      } while (start_queued_ones());
      std::optional<std::int64_t> next;
      for (std::size_t node = 0; node < dag_.size(); ++node) {
        if (end[node] && *end[node] > now_ && (!next || *end[node] < *next)) next = *end[node];
      }
      if (!next) return;
      now_ = *next;
    }
  }
};

/// Bytes of a device at an instant: what has started and not yet been given back.
[[nodiscard]] inline std::int64_t bytes_at(const sim::Dag& dag, const sim::Timeline& timeline,
                                           sim::DeviceId device, Nanos time) {
  std::int64_t sum = sim::total(dag.devices[index(device)].always).value;
  for (const sim::MemoryEvent& event : dag.initial_memory) {
    if (event.device == device) sum += event.bytes.value;
  }
  for (std::size_t node = 0; node < dag.size(); ++node) {
    const sim::NodeId id{static_cast<std::uint32_t>(node)};
    for (const sim::MemoryEvent& event : dag.memory_at(id, sim::Moment::start)) {
      if (event.device == device && timeline.start[node] <= time) sum += event.bytes.value;
    }
    for (const sim::MemoryEvent& event : dag.memory_at(id, sim::Moment::end)) {
      if (event.device == device && timeline.end[node] <= time) sum += event.bytes.value;
    }
  }
  return sum;
}

/// Up to 40 nodes with many ties, on resources of every sort, with memory on three devices.
[[nodiscard]] inline sim::Dag random_dag(std::uint64_t seed) {
  Random random(seed);
  sim::DagBuilder builder;
  const std::uint64_t resources = random.below(6);
  for (std::uint64_t i = 0; i < resources; ++i) {
    sim::Resource resource;
    resource.kind = i < 3 ? sim::ResourceKind::compute : sim::ResourceKind::link;
    resource.dp = static_cast<std::int32_t>(i);
    resource.first_come = i >= 3 || random.chance(1, 3);
    builder.add_resource(resource);
  }
  const std::uint64_t devices = std::min<std::uint64_t>(resources, 3);
  for (std::uint64_t i = 0; i < devices; ++i) {
    sim::MemoryByKind always{};
    always[static_cast<std::size_t>(sim::MemoryKind::weights)] = Bytes{random.between(0, 50)};
    builder.add_device(
        {static_cast<std::int32_t>(i), 0, sim::ResourceId{static_cast<std::uint32_t>(i)}, always});
  }
  const std::uint64_t nodes = random.below(41);
  const std::int64_t longest = random.between(0, 9);
  for (std::uint64_t i = 0; i < nodes; ++i) {
    const std::uint64_t resource = random.below(resources + 1);
    sim::NodeLabel label;
    label.kind =
        resource < 3 && resource < resources ? sim::NodeKind::forward : sim::NodeKind::transfer;
    const sim::NodeId node = builder.add_node(
        Nanos{random.between(0, longest)},
        resource == resources ? sim::kNoResource
                              : sim::ResourceId{static_cast<std::uint32_t>(resource)},
        label);
    for (std::uint64_t edges = random.below(4); edges > 0 && i > 0; --edges) {
      builder.add_edge(sim::NodeId{static_cast<std::uint32_t>(random.below(i))}, node);
    }
    for (std::uint64_t events = devices > 0 ? random.below(4) : 0; events > 0; --events) {
      // Draws in statements of their own: the order of arguments differs between compilers.
      const sim::Moment moment = random.chance(1, 2) ? sim::Moment::start : sim::Moment::end;
      sim::MemoryEvent event;
      event.device = sim::DeviceId{static_cast<std::uint32_t>(random.below(devices))};
      event.kind = static_cast<sim::MemoryKind>(random.below(8));
      event.bytes = Bytes{random.between(-9, 20)};
      builder.add_memory(node, moment, event);
    }
  }
  if (devices > 0)
    builder.add_initial_memory({sim::DeviceId{0}, sim::MemoryKind::receive, Bytes{7}});
  return std::move(builder).finish();
}

}  // namespace slimpack::test
