// SPDX-License-Identifier: Apache-2.0
// The most memory that a plan may need, whatever its times turn out to be.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/dag/dag.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"

namespace slimpack {

namespace detail {

/// Walks the devices of a plan in their own order. All bytes come and go in
/// that order but those of send buffers, which end with their transfers.
class WorstMemory {
 public:
  WorstMemory(const Plan& plan, const Dag& dag)
      : plan_(plan),
        dag_(dag),
        line_(line_of(plan)),
        slots_(static_cast<std::size_t>(plan.parallel.chunks) + 1) {
    first_.reserve(plan.micropacks.size() + 1);
    for (const MicroPack& pack : plan.micropacks) {
      first_.push_back(first_.back() + plan.groups[index(pack.group)].size());
    }
    place_.resize(first_.back() * static_cast<std::size_t>(line_.pp) * slots_);
    node_.resize(plan.schedule.size());
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      const auto& order = plan.schedule[device].order;
      node_[device].resize(order.size());
      for (std::size_t unit = 0; unit < order.size(); ++unit) {
        if (order[unit].kind == UnitKind::reduce || order[unit].kind == UnitKind::optimizer)
          continue;
        place_[slot(device, order[unit])] = static_cast<std::uint32_t>(unit);
      }
    }
    for (std::size_t node = 0; node < dag.size(); ++node) {
      const NodeLabel& label = dag.label[node];
      if (!is_compute(label.kind) && label.kind != NodeKind::transfer) continue;
      Nodes& nodes = node_[device_index(plan, label.dp, label.pp)][label.unit];
      (is_compute(label.kind) ? nodes.compute : nodes.transfer) = node + 1;
    }
  }

  [[nodiscard]] Bytes device(std::size_t on) const {
    State state;
    state.held.resize(dag_.channels.size());
    Bytes level = total(dag_.devices[on].always);
    for (const MemoryEvent& event : dag_.initial_memory) {
      if (index(event.device) == on) level += event.bytes;
    }
    Bytes most = level;
    const auto& order = plan_.schedule[on].order;
    for (std::size_t at = 0; at < order.size(); ++at) {
      const Nodes& nodes = node_[on][at];
      if (nodes.compute == 0) continue;
      level -= hear(on, order[at], state);
      if (nodes.transfer != 0) level -= queue(on, order[at], nodes.transfer - 1, state);
      level += change(nodes.compute - 1, Moment::start, on);
      most = std::max(most, level);
      level += change(nodes.compute - 1, Moment::end, on);
      most = std::max(most, level);
    }
    return most;
  }

 private:
  struct Nodes {
    std::size_t compute = 0, transfer = 0;  // id + 1; 0 where there is none
  };
  struct Send {
    std::size_t consumer;  // place at the receiver
    std::size_t channel, message;
    bool operator<(const Send& other) const noexcept { return consumer > other.consumer; }
  };
  struct State {
    std::vector<std::vector<Bytes>> held;  // by channel and message; zero once freed
    std::map<std::size_t, std::priority_queue<Send>> unfinished;  // by receiver
  };

  [[nodiscard]] Bytes change(std::size_t node, Moment moment, std::size_t on) const {
    Bytes sum;
    for (const MemoryEvent& event :
         dag_.memory_at(NodeId{static_cast<std::uint32_t>(node)}, moment)) {
      if (index(event.device) == on) sum += event.bytes;
    }
    return sum;
  }

  [[nodiscard]] std::size_t peer(std::size_t on, std::int32_t stage) const {
    return device_index(plan_, plan_.schedule[on].dp, stage);
  }
  /// Where `place_` has an F, B or H of a device.
  [[nodiscard]] std::size_t slot(std::size_t on, const Unit& unit) const {
    const DeviceSchedule& device = plan_.schedule[on];
    const auto& ranks = plan_.groups[index(plan_.micropacks[index(unit.pack)].group)];
    const auto rank = static_cast<std::size_t>(
        std::lower_bound(ranks.begin(), ranks.end(), device.dp) - ranks.begin());
    const std::size_t row = (first_[index(unit.pack)] + rank) * static_cast<std::size_t>(line_.pp) +
                            static_cast<std::size_t>(device.pp);
    return row * slots_ +
           (unit.kind == UnitKind::head ? slots_ - 1 : static_cast<std::size_t>(unit.chunk));
  }
  [[nodiscard]] std::size_t place(std::size_t on, const Unit& unit) const {
    return place_[slot(on, unit)];
  }
  /// The same unit one place further along the line, or back.
  [[nodiscard]] std::pair<std::size_t, std::size_t> neighbour(std::size_t on, const Unit& unit,
                                                              std::int32_t step) const {
    const std::int32_t line = line_.at(plan_.schedule[on].pp, unit.chunk) + step;
    const std::size_t device = peer(on, line_.stage(line));
    return {device, place(device, {unit.kind, unit.pack, line_.chunk(line)})};
  }

  static Bytes free(Bytes& held) noexcept { return std::exchange(held, Bytes{}); }

  /// Frees what is sent to a device that has ended its first `units` units.
  static Bytes ended(std::size_t device, std::size_t units, State& state) {
    Bytes freed;
    auto& unfinished = state.unfinished[device];
    while (!unfinished.empty() && unfinished.top().consumer < units) {
      freed += free(state.held[unfinished.top().channel][unfinished.top().message]);
      unfinished.pop();
    }
    return freed;
  }

  /// A unit that starts has heard how far its neighbours are: its input comes
  /// from one, and in a meeting over the head both stand at the same unit.
  Bytes hear(std::size_t on, const Unit& unit, State& state) const {
    if (line_.pp == 1) return {};
    const std::int32_t stage = plan_.schedule[on].pp;
    if (unit.kind == UnitKind::head && plan_.parallel.head == Head::shard) {
      Bytes freed;
      for (const std::int32_t step : {-1, 1}) {
        const std::size_t device = peer(on, (stage + step + line_.pp) % line_.pp);
        freed += ended(device, place(device, unit), state);
      }
      return freed;
    }
    const std::int32_t line = line_.at(stage, unit.chunk);
    const bool forward = unit.kind == UnitKind::forward;
    if (!forward && unit.kind != UnitKind::backward) return {};
    if (forward ? line == 0 : line + 1 == line_.size()) return {};
    const auto [device, sender] = neighbour(on, unit, forward ? -1 : 1);
    return ended(device, sender + 1, state);
  }

  /// Notes the send of a unit that starts; the send `window` before it has
  /// ended.
  Bytes queue(std::size_t on, const Unit& unit, std::size_t transfer, State& state) const {
    const std::size_t channel = index(dag_.label[transfer].channel);
    auto& held = state.held[channel];
    const std::size_t message = held.size();
    const auto window = static_cast<std::size_t>(plan_.window);
    const Bytes freed = message >= window ? free(held[message - window]) : Bytes{};
    held.push_back(-change(transfer, Moment::end, on));
    const auto [device, consumer] = neighbour(on, unit, unit.kind == UnitKind::forward ? 1 : -1);
    state.unfinished[device].push({consumer, channel, message});
    return freed;
  }

  const Plan& plan_;
  const Dag& dag_;
  Line line_;
  std::size_t slots_;                     // chunks, and one for H
  std::vector<std::size_t> first_{0};     // row of a pack's first rank
  std::vector<std::uint32_t> place_;      // in its device's order, by pack, rank, stage and slot
  std::vector<std::vector<Nodes>> node_;  // by device and place in its order
};

}  // namespace detail

/// The most bytes that each device of a plan may hold at any times of its units
/// and transfers, from the plan's own DAG. A send buffer counts until its end
/// is certain: when the unit that queues the send `window` later starts, or
/// when the device has heard from the receiver, by an input or by meeting it
/// over the head, after it has consumed the message. Never less than a
/// simulated peak. The plan must keep rules 1 to 6. O(units log window +
/// events).
[[nodiscard]] inline std::vector<Bytes> worst_memory(const Plan& plan, const Dag& dag) {
  const detail::WorstMemory walk(plan, dag);
  std::vector<Bytes> worst;
  for (std::size_t device = 0; device < dag.devices.size(); ++device) {
    worst.push_back(walk.device(device));
  }
  return worst;
}

}  // namespace slimpack
