// SPDX-License-Identifier: Apache-2.0
// What each device held of each kind while time passed, replayed from a simulated graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/dag/dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::detail {

/// The changes of memory of all devices, each device's in the order of time.
class MemoryLevels {
 public:
  /// O(events log events). The graph must outlive this.
  MemoryLevels(const Dag& dag, const Timeline& timeline) : dag_(dag), changes_(dag.devices.size()) {
    for (const MemoryEvent& event : dag.initial_memory) add(Nanos{}, event);
    for (std::size_t at = 0; at < dag.size(); ++at) {
      const NodeId node{static_cast<std::uint32_t>(at)};
      for (const MemoryEvent& event : dag.memory_at(node, Moment::start)) {
        add(timeline.start[at], event);
      }
      for (const MemoryEvent& event : dag.memory_at(node, Moment::end)) {
        add(timeline.end[at], event);
      }
    }
    for (std::vector<Change>& changes : changes_) {
      std::stable_sort(changes.begin(), changes.end(),
                       [](const Change& a, const Change& b) { return a.at < b.at; });
    }
  }

  /// Calls visit(at, bytes by kind) at time 0 and at each later instant at which a kind changes,
  /// with what is held from then on: what ends at an instant is freed before what starts comes.
  template <class Visit>
  void for_each(DeviceId device, Visit&& visit) const {
    const std::vector<Change>& changes = changes_[index(device)];
    MemoryByKind level = dag_.devices[index(device)].always;
    MemoryByKind seen = level;
    std::size_t next = 0;
    for (bool first = true; first || next < changes.size(); first = false) {
      const Nanos now = first ? Nanos{} : changes[next].at;
      for (; next < changes.size() && changes[next].at == now; ++next) {
        level[static_cast<std::size_t>(changes[next].kind)] += changes[next].bytes;
      }
      if (first || level != seen) visit(now, level);
      seen = level;
    }
  }

 private:
  struct Change {
    Nanos at;
    Bytes bytes;
    MemoryKind kind = MemoryKind::kept;
  };
  void add(Nanos at, const MemoryEvent& event) {
    changes_[index(event.device)].push_back({at, event.bytes, event.kind});
  }

  const Dag& dag_;
  std::vector<std::vector<Change>> changes_;
};

}  // namespace slimpack::detail
