// SPDX-License-Identifier: Apache-2.0
// The most memory that a plan may need, whatever its times turn out to be.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/schedule_tables.hpp"

namespace slimpack::planners {

namespace detail {

/// Walks the devices of a plan in their own order. All bytes come and go in that order but those of
/// send buffers, which end with their transfers.
class WorstMemory {
 public:
  explicit WorstMemory(const sim::ScheduleTables& table)
      : table_(table),
        plan_(table.plan()),
        stages_(static_cast<std::size_t>(plan_.parallel.pp)),
        level_(table.at_first()),
        unit_place_(table.cells()),
        held_(table.channels().empty()
                  ? 0
                  : table.channels().back().first + table.channels().back().count) {
    const bool meets = plan_.parallel.head == LmHead::shard && stages_ > 1;
    if (meets) head_place_.resize(table.rows() * stages_);
    for (const DeviceSchedule& device : plan_.schedule) {
      for (std::size_t i = 0; i < device.order.size(); ++i) {
        const Unit& unit = device.order[i];
        const auto place = static_cast<std::uint32_t>(i);
        if (unit.kind == UnitKind::forward || unit.kind == UnitKind::backward) {
          const std::size_t row = table.row(unit.pack, device.dp);
          unit_place_[table.cell(row, table.virtual_stages().index(device.pp, unit.chunk))] = place;
        } else if (unit.kind == UnitKind::head && meets) {
          const std::size_t row = table.row(unit.pack, device.dp);
          head_place_[row * stages_ + static_cast<std::size_t>(device.pp)] = place;
        }
      }
    }
  }

  [[nodiscard]] Bytes device(std::size_t on) {
    for (Sends& sends : unfinished_) sends.clear();
    Bytes level = level_[on], most = level_[on];
    const DeviceSchedule& device = plan_.schedule[on];
    for (const Unit& unit : device.order) {
      if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) continue;
      const sim::ScheduleTables::Place at = table_.place(unit, device.dp, device.pp);
      level -= hear(unit, at, device.pp);
      if (at.sends != sim::ScheduleTables::kNone) level -= queue(at.sends);
      level += table_.at_start(unit, at, device.pp);
      most = std::max(most, level);
      level += table_.at_end(unit, at, device.pp);
      most = std::max(most, level);
    }
    return most;
  }

 private:
  struct Send {
    std::uint32_t consumer = 0;  // place at the receiver
    std::uint32_t message = 0;
  };
  /// Sends by place of their consumers. Those of one channel are consumed in turn, so that a new
  /// one mostly comes last.
  struct Sends {
    std::vector<Send> all;
    std::size_t first = 0;  // that has not ended

    void add(const Send& send) {
      std::size_t at = all.size();
      all.push_back(send);
      for (; at > first && all[at - 1].consumer > send.consumer; --at) all[at] = all[at - 1];
      all[at] = send;
    }
    void clear() {
      all.clear();
      first = 0;
    }
  };

  /// Sends to the next stage, and to the one before: with two stages that is the same.
  [[nodiscard]] std::size_t way(std::int32_t step) const noexcept {
    return step < 0 && stages_ > 2 ? 1 : 0;
  }

  /// Frees what is sent that way to a device that has ended its first `units` units.
  Bytes ended(std::size_t way, std::size_t units) {
    Bytes freed;
    Sends& sends = unfinished_[way];
    for (; sends.first < sends.all.size() && sends.all[sends.first].consumer < units;
         ++sends.first) {
      freed += std::exchange(held_[sends.all[sends.first].message], Bytes{});
    }
    return freed;
  }

  /// A unit that starts has heard how far its neighbours are: its input comes from one, and in a
  /// collective over the head both stand at the same unit.
  Bytes hear(const Unit& unit, const sim::ScheduleTables::Place& at, std::int32_t pp) {
    if (unit.kind == UnitKind::head) {
      Bytes freed;
      if (head_place_.empty()) return freed;
      const auto stages = static_cast<std::int32_t>(stages_);
      for (const std::int32_t step : {-1, 1}) {
        const auto stage = static_cast<std::size_t>((pp + step + stages) % stages);
        freed += ended(way(step), head_place_[at.row * stages_ + stage]);
      }
      return freed;
    }
    if (at.receives == sim::ScheduleTables::kNone) return {};
    return ended(way(unit.kind == UnitKind::forward ? -1 : 1),
                 std::size_t{unit_place_[table_.sender(at.receives)]} + 1);
  }

  /// Notes the send of a unit that starts; the send `max_in_flight` before it has ended.
  Bytes queue(std::uint32_t message) {
    const std::uint32_t before = table_.before(message);
    const Bytes freed =
        before == sim::ScheduleTables::kNone ? Bytes{} : std::exchange(held_[before], Bytes{});
    held_[message] = table_.bytes(message);
    const sim::ScheduleTables::Channel& channel = table_.channels()[table_.channel(message)];
    unfinished_[channel.way].add({unit_place_[table_.consumer(message)], message});
    return freed;
  }

  const sim::ScheduleTables& table_;
  const Plan& plan_;
  std::size_t stages_;
  std::vector<Bytes> level_;               // of each device, before its first unit
  std::vector<std::uint32_t> unit_place_;  // by cell, in its device's order
  std::vector<std::uint32_t> head_place_;  // by row and stage, where stages run H together
  std::vector<Bytes> held_;                // by message; zero once freed
  std::array<Sends, 2> unfinished_;
};

}  // namespace detail

/// The most bytes that each device of a plan may hold at any times of its units and transfers. A
/// send buffer counts until its end is certain: when the unit that queues the send
/// `max_in_flight` later starts, or when the device has heard from the receiver, by an input or by
/// a collective over the head, after it has consumed the message. Never less than a simulated peak.
/// The plan must keep rules 1 to 6. O(units log max_in_flight).
[[nodiscard]] inline std::vector<Bytes> worst_memory(const sim::ScheduleTables& table) {
  detail::WorstMemory walk(table);
  std::vector<Bytes> worst;
  for (std::size_t device = 0; device < table.plan().schedule.size(); ++device) {
    worst.push_back(walk.device(device));
  }
  return worst;
}
/// The same by the plan's own memory rules, in the order of `Plan::schedule`.
[[nodiscard]] inline std::vector<Bytes> worst_memory(const Plan& plan) {
  const MemoryModel memory(plan);
  return worst_memory(sim::ScheduleTables(plan, memory));
}

}  // namespace slimpack::planners
