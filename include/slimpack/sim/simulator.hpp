// SPDX-License-Identifier: Apache-2.0
// Runs a Dag event by event in integer nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/deadlock.hpp"
#include "slimpack/sim/detail/event_queue.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

namespace detail {

/// Bytes of one device while time passes. What is held at an instant is known once it is past.
struct MemoryState {
  Nanos last;
  Bytes level;
  MemoryPeak peak;
};

template <MemoryObserver Observer>
class Simulation {
 public:
  Simulation(const Dag& dag, Observer& observer)
      : dag_(dag), observer_(observer), queue_(dag.resources.size() + dag.parts.size() + 1) {}

  [[nodiscard]] Timeline run() {
    prepare();
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (dag_.predecessor_count[i] == 0) become_possible(NodeId{static_cast<std::uint32_t>(i)});
    }
    settle_instant();
    while (!queue_.empty()) {
      now_ = queue_.top().time;
      do {
        const NodeId node = queue_.top().node;
        queue_.pop();
        end(node);
      } while (!queue_.empty() && queue_.top().time == now_);
      settle_instant();
    }
    if (ended_ != dag_.size()) throw Deadlock(describe_deadlock(dag_, waiting_of_all()));
    return finish();
  }

 private:
  struct Turns {
    std::uint32_t served = 0, arrived = 0;  // in `Timeline::turns`
    std::uint32_t fresh = 0;                // the first that arrived at `fresh_at`
    Nanos fresh_at{-1};
    bool busy = false;
    bool marked = false;
  };
  static constexpr std::uint32_t kFirstCome = std::uint32_t{1} << 31U;

  void prepare() {
    const std::size_t nodes = dag_.size();
    timeline_.start.resize(nodes);
    timeline_.end.resize(nodes);
    waiting_ = dag_.predecessor_count;
    prepare_turns();
    memory_.resize(dag_.devices.size());
    for (std::size_t device = 0; device < memory_.size(); ++device) {
      memory_[device].level = total(dag_.devices[device].always);
    }
    for (const MemoryEvent& event : dag_.initial_memory) {
      memory_[index(event.device)].level += event.bytes;
    }
  }

  void prepare_turns() {
    std::vector<std::uint32_t> count(dag_.resources.size(), 0);
    bool any = false;
    for (const Resource& resource : dag_.resources) any = any || resource.first_come;
    for (std::size_t i = 0; any && i < dag_.size(); ++i) {
      const ResourceId resource = dag_.resource[i];
      if (resource == kNoResource || !dag_.resources[index(resource)].first_come) continue;
      ++count[index(resource)];
      waiting_[i] |= kFirstCome;
    }
    NodeLists& turns = timeline_.turns;
    turns_.resize(count.size());
    for (std::size_t i = 0; i < count.size(); ++i) {
      const std::uint32_t first = turns.offset.back();
      turns_[i].served = turns_[i].arrived = turns_[i].fresh = first;
      turns.offset.push_back(first + count[i]);
    }
    turns.node.resize(turns.offset.back());
    marked_.reserve(count.size());
    deciding_.reserve(count.size());
  }

  void change(const Dag::Net& net) {
    MemoryState& state = memory_[index(net.device)];
    if (state.last != now_) {
      settle_memory(net.device, state);
      state.last = now_;
    }
    state.level += net.bytes;
  }
  void settle_memory(DeviceId device, MemoryState& state) {
    if (state.level > state.peak.bytes) state.peak = {state.level, state.last};
    observer_.memory(device, state.last, state.level);
  }
  void change_all(NodeId node, Moment moment) {
    const std::size_t row = 2 * index(node) + static_cast<std::size_t>(moment);
    const std::uint32_t last = dag_.net_offset[row + 1];
    for (std::uint32_t i = dag_.net_offset[row]; i < last; ++i) change(dag_.net[i]);
  }

  void begin(NodeId node) {
    const std::size_t i = index(node);
    const Nanos duration = dag_.duration[i];
    timeline_.start[i] = now_;
    timeline_.end[i] = now_ + duration;
    change_all(node, Moment::start);
    if (duration == Nanos{}) {
      ending_now_.push_back(node);
    } else {
      queue_.push({now_ + duration, node});
    }
  }

  void end(NodeId node) {
    ++ended_;
    change_all(node, Moment::end);
    if (waiting_[index(node)] != 0) {
      Turns& turns = turns_[index(dag_.resource[index(node)])];
      turns.busy = false;
      mark(dag_.resource[index(node)], turns);
    }
    for (const NodeId next : dag_.successors[index(node)]) {
      const std::uint32_t left = --waiting_[index(next)];
      if ((left & ~kFirstCome) == 0) become_possible(next);
    }
  }

  void become_possible(NodeId node) {
    if (waiting_[index(node)] == 0) {
      begin(node);
    } else {
      arrive(node);
    }
  }

  /// Queues a node at its resource, among those of the same instant in the order of ids.
  void arrive(NodeId node) {
    const ResourceId resource = dag_.resource[index(node)];
    Turns& turns = turns_[index(resource)];
    if (turns.fresh_at != now_) {
      turns.fresh_at = now_;
      turns.fresh = turns.arrived;
    }
    const std::uint32_t first = turns.fresh > turns.served ? turns.fresh : turns.served;
    std::uint32_t place = turns.arrived++;
    std::vector<NodeId>& order = timeline_.turns.node;
    for (; place > first && node < order[place - 1]; --place) order[place] = order[place - 1];
    order[place] = node;
    mark(resource, turns);
  }

  void mark(ResourceId resource, Turns& turns) {
    if (turns.busy || turns.marked) return;
    turns.marked = true;
    marked_.push_back(resource);
  }

  /// Lets everything that takes no time happen, and only then gives free resources to those that
  /// wait: so ties fall to the lower id, however they arose.
  void settle_instant() {
    for (;;) {
      while (!ending_now_.empty()) {
        const NodeId node = ending_now_.back();
        ending_now_.pop_back();
        end(node);
      }
      if (marked_.empty()) return;
      std::swap(marked_, deciding_);
      for (const ResourceId resource : deciding_) {
        Turns& turns = turns_[index(resource)];
        turns.marked = false;
        if (turns.busy || turns.served == turns.arrived) continue;
        turns.busy = true;
        begin(timeline_.turns.node[turns.served++]);
      }
      deciding_.clear();
    }
  }

  [[nodiscard]] std::vector<std::uint32_t> waiting_of_all() const {
    std::vector<std::uint32_t> waiting = waiting_;
    for (std::uint32_t& count : waiting) count &= ~kFirstCome;
    return waiting;
  }

  [[nodiscard]] Timeline finish() {
    timeline_.makespan = now_;
    timeline_.peak.resize(memory_.size());
    timeline_.busy.resize(memory_.size());
    std::vector<Nanos> busy(dag_.resources.size());
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (dag_.resource[i] != kNoResource) busy[index(dag_.resource[i])] += dag_.duration[i];
    }
    for (std::size_t device = 0; device < memory_.size(); ++device) {
      settle_memory(DeviceId{static_cast<std::uint32_t>(device)}, memory_[device]);
      timeline_.peak[device] = memory_[device].peak;
      timeline_.busy[device] = busy[index(dag_.devices[device].compute)];
    }
    return std::move(timeline_);
  }

  const Dag& dag_;
  Observer& observer_;
  EventQueue queue_;
  Timeline timeline_;
  Nanos now_;
  std::size_t ended_ = 0;
  std::vector<std::uint32_t> waiting_;  // unfinished predecessors; kFirstCome beside them
  std::vector<Turns> turns_;            // one a resource
  std::vector<ResourceId> marked_, deciding_;
  std::vector<NodeId> ending_now_;
  std::vector<MemoryState> memory_;
};

}  // namespace detail

/// Simulates every node as early as its predecessors and its resource allow; `observer` sees memory
/// change. Nodes that end at one instant end before any node starts; ties go to the lower id.
/// Throws Deadlock, listing what each blocked unit awaits, where nodes wait for each other.
/// O((nodes + edges) log(nodes at work)).
template <MemoryObserver Observer>
[[nodiscard]] Timeline simulate(const Dag& dag, Observer& observer) {
  return detail::Simulation<Observer>(dag, observer).run();
}
/// The same without an observer.
[[nodiscard]] inline Timeline simulate(const Dag& dag) {
  IgnoreMemory ignore;
  return simulate(dag, ignore);
}

}  // namespace slimpack::sim
