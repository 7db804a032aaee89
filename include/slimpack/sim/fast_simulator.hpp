// SPDX-License-Identifier: Apache-2.0
// How long a plan takes, how busy its devices are and what they hold at most, without a DAG.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/next_event.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/detail/fast_state.hpp"
#include "slimpack/sim/detail/reduction_times.hpp"
#include "slimpack/sim/schedule_tables.hpp"
#include "slimpack/sim/simulator.hpp"

namespace slimpack::sim {

/// The figures of a simulated plan that a prediction carries.
struct PlanFigures {
  Nanos iteration;
  std::vector<Nanos> busy;  ///< one a device
  std::vector<Bytes> peak;  ///< one a device
  friend bool operator==(const PlanFigures&, const PlanFigures&) = default;
};

namespace detail {

/// Executes the orders of a plan in simulated time. Devices know what they wait for, so an event is
/// the end of a unit, an arrival that an idle device waits for, or the end of a transfer on a link
/// that several channels share; other transfers are settled when they are certain.
template <UnitTimes Times>
class FastSimulator {
 public:
  FastSimulator(const ScheduleTables& table, const Times& times)
      : table_(table),
        plan_(table.plan()),
        times_(times),
        stages_(static_cast<std::size_t>(plan_.parallel.pp)),
        devices_(plan_.schedule.size()),
        channels_(table.channels().size()),
        links_(2 * plan_.schedule.size()),
        shard_(plan_.parallel.head == LmHead::shard && stages_ > 1),
        arrival_(table.cells(), schedule::kNever),
        ended_(table.cells(), schedule::kNever),
        head_done_(table.rows(), false),
        head_there_(shard_ ? table.rows() : 0, 0),
        reductions_(plan_) {
    for (const Bytes first : table.at_first()) memory_.emplace_back(first);
    for (const ScheduleTables::Channel& channel : table.channels()) ++links_[channel.link].channels;
    for (std::uint32_t link = 0; link < links_.size(); ++link) {
      if (links_[link].channels < 2) continue;
      shared_.push_back(link);
      links_[link].event = static_cast<std::uint32_t>(shared_.size());
    }
    events_.reset(devices_.size() + shared_.size());
  }

  /// Throws Deadlock where units wait for each other.
  PlanFigures run() {
    for (std::uint32_t device = 0; device < devices_.size(); ++device) mark(device);
    for (settle(); events_.time() != schedule::kNever; settle()) now_ = events_.time();
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      if (devices_[device].place == plan_.schedule[device].order.size()) continue;
      // The DAG tells who waits for whom.
      static_cast<void>(simulate(build_dag(plan_, times_)));
      throw Deadlock("plan_figures: the units of a plan wait for each other");
    }
    PlanFigures figures;
    for (FastDevice& device : devices_) figures.busy.push_back(Nanos{device.worked});
    figures.iteration = Nanos{std::max(last_, reductions_.run(times_, figures.busy))};
    for (FastMemory& memory : memory_) figures.peak.push_back(memory.close());
    return figures;
  }

 private:
  [[nodiscard]] const DeviceSchedule& schedule(std::uint32_t device) const noexcept {
    return plan_.schedule[device];
  }

  void mark(std::uint32_t device) {
    FastDevice& at = devices_[device];
    if (at.busy || at.marked) return;
    at.marked = true;
    marked_.push_back(device);
  }
  void mark_link(std::uint32_t link) {
    if (links_[link].busy || links_[link].marked) return;
    links_[link].marked = true;
    marked_links_.push_back(link);
  }

  /// All that the instant brings: devices go on as far as they can, and only then links that are
  /// shared choose, until nothing changes.
  void settle() {
    for (;;) {
      while (events_.time() == now_) take_event();
      while (!marked_.empty()) {
        const std::uint32_t device = marked_.back();
        marked_.pop_back();
        devices_[device].marked = false;
        if (!devices_[device].busy) advance(device);
      }
      if (events_.time() == now_) continue;
      if (marked_links_.empty()) return;
      std::swap(marked_links_, choosing_);
      for (const std::uint32_t link : choosing_) {
        links_[link].marked = false;
        if (!links_[link].busy) serve(link);
      }
      choosing_.clear();
    }
  }

  void take_event() {
    const std::uint32_t event = events_.device();
    events_.set(event, schedule::kNever);
    if (event >= devices_.size()) {
      const std::uint32_t link = shared_[event - devices_.size()];
      links_[link].busy = false;
      mark_link(link);
      return;
    }
    if (devices_[event].busy) finish(event);
    mark(event);
  }

  // --- devices ---

  /// Begins the next unit of an idle device, or notes when that may be possible.
  void advance(std::uint32_t device) {
    FastDevice& at = devices_[device];
    const DeviceSchedule& on = schedule(device);
    for (; at.place < on.order.size(); ++at.place) {
      const Unit& unit = on.order[at.place];
      if (unit.kind == UnitKind::reduce) {
        reductions_.release(device, unit.chunk, at.started, at.ends, by_layers(device, unit.chunk));
      } else if (unit.kind == UnitKind::optimizer) {
        reductions_.optimizer(device, at.ends);
      } else {
        break;
      }
    }
    if (at.place == on.order.size()) return;
    require(!reductions_.closed(device), "plan_figures: O must be the last unit of device", device);
    const Unit& unit = on.order[at.place];
    if (!at.known) {
      at.at = table_.place(unit, on.dp, on.pp);
      at.known = true;
    }
    const std::int64_t ready = ready_at(device, unit, at.at);
    if (ready == schedule::kNever) return;
    if (ready > now_) {
      events_.set(device, ready);
      return;
    }
    const bool in_cp_group =
        unit.kind != UnitKind::head &&
        plan_.groups[index(plan_.micropacks[index(unit.pack)].group)].size() > 1;
    if (in_cp_group || (shard_ && unit.kind == UnitKind::head)) {
      meet(device, unit);
    } else {
      begin(device, unit, duration(unit, at.at, on.pp));
    }
  }

  /// Whether the unit before this R is the last B of its chunk and of several layers.
  [[nodiscard]] bool by_layers(std::uint32_t device, std::int32_t chunk) const {
    const FastDevice& at = devices_[device];
    if (at.last.kind != UnitKind::backward || at.last.chunk != chunk) return false;
    const auto& order = schedule(device).order;
    const auto rest = order.begin() + static_cast<std::ptrdiff_t>(at.place);
    const auto later = std::find_if(rest, order.end(), [&](const Unit& unit) {
      return unit.kind == UnitKind::backward && unit.chunk == chunk;
    });
    const std::int32_t line = table_.line().index(schedule(device).pp, chunk);
    return later == order.end() && plan_.stages[static_cast<std::size_t>(line)].layers() > 1;
  }

  /// When the next unit may begin as far as that is known.
  [[nodiscard]] std::int64_t ready_at(std::uint32_t device, const Unit& unit,
                                      const ScheduleTables::Place& at) const {
    const std::int32_t pp = schedule(device).pp;
    const std::int32_t end = table_.line().size() - 1;
    if (unit.kind == UnitKind::head) {
      const bool last = static_cast<std::size_t>(pp) + 1 == stages_;
      return last && ended_[table_.cell(at.row, end)] == schedule::kNever ? schedule::kNever : now_;
    }
    std::int64_t ready = now_;
    if (at.receives != ScheduleTables::kNone) {
      ready = std::max(ready, arrival_[at.cell]);
    } else if (stages_ == 1) {
      const bool forward = unit.kind == UnitKind::forward;
      if (forward && at.line > 0 && ended_[at.cell - 1] == schedule::kNever)
        return schedule::kNever;
      if (!forward && at.line < end && ended_[at.cell + 1] == schedule::kNever)
        return schedule::kNever;
    }
    if (unit.kind == UnitKind::backward && at.line == end) {
      for (const PackId head : table_.heads(unit.pack)) {
        if (!head_done_[table_.row(head, schedule(device).dp)]) return schedule::kNever;
      }
    }
    if (at.sends != ScheduleTables::kNone) {
      const std::uint32_t before = table_.before(at.sends);
      if (before != ScheduleTables::kNone)
        ready = std::max(ready, arrival_[table_.consumer(before)]);
    }
    return ready;
  }

  [[nodiscard]] std::int64_t duration(const Unit& unit, const ScheduleTables::Place& at,
                                      std::int32_t pp) const {
    if (unit.kind != UnitKind::head) return times_.compute(unit.pack, at.line).value;
    return times_.head(unit.pack, table_[at.row].rank, pp).value;
  }
  [[nodiscard]] const std::vector<std::int32_t>& group_of(const Unit& unit) const {
    return plan_.groups[index(plan_.micropacks[index(unit.pack)].group)];
  }

  /// Units that meet begin when the last of their devices is there and take as long as the slowest.
  void meet(std::uint32_t device, const Unit& unit) {
    FastDevice& at = devices_[device];
    if (at.there) return;
    at.there = true;
    const DeviceSchedule& on = schedule(device);
    if (unit.kind == UnitKind::head) {
      if (++head_there_[at.at.row] < stages_) return;
      const auto first = static_cast<std::uint32_t>(device_index(plan_, on.dp, 0));
      std::int64_t longest = 0;
      for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
        longest = std::max(longest, duration(unit, at.at, pp));
      }
      for (std::uint32_t stage = 0; stage < stages_; ++stage) begin(first + stage, unit, longest);
      return;
    }
    const std::vector<std::int32_t>& ranks = group_of(unit);
    for (const std::int32_t dp : ranks) {
      const FastDevice& other = devices_[device_index(plan_, dp, on.pp)];
      if (!other.there || schedule_of(dp, on.pp).order[other.place] != unit) return;
    }
    const std::int64_t time = duration(unit, at.at, on.pp);
    for (const std::int32_t dp : ranks) {
      const auto other = static_cast<std::uint32_t>(device_index(plan_, dp, on.pp));
      begin(other, unit, time);
    }
  }
  [[nodiscard]] const DeviceSchedule& schedule_of(std::int32_t dp, std::int32_t pp) const {
    return plan_.schedule[device_index(plan_, dp, pp)];
  }

  void begin(std::uint32_t device, const Unit& unit, std::int64_t time) {
    FastDevice& at = devices_[device];
    at.busy = true;
    at.started = now_;
    at.ends = now_ + time;
    at.worked += time;
    memory_[device].change(now_, table_.at_start(unit, at.at, schedule(device).pp).value);
    events_.set(device, at.ends);
  }

  void finish(std::uint32_t device) {
    FastDevice& at = devices_[device];
    const Unit& unit = schedule(device).order[at.place];
    at.busy = at.there = at.known = false;
    at.last = unit;
    ++at.place;
    last_ = now_;
    memory_[device].change(now_, table_.at_end(unit, at.at, schedule(device).pp).value);
    if (unit.kind == UnitKind::head) {
      if (static_cast<std::size_t>(schedule(device).pp) + 1 == stages_) {
        head_done_[at.at.row] = true;
      }
      return;
    }
    ended_[at.at.cell] = now_;
    if (at.at.receives != ScheduleTables::kNone) send(table_.channel(at.at.receives));
    if (at.at.sends != ScheduleTables::kNone) {
      const std::uint32_t channel = table_.channel(at.at.sends);
      ++channels_[channel].made;
      send(channel);
    }
  }

  // --- transfers ---

  /// When a message whose unit has ended can go, as far as that is known.
  [[nodiscard]] std::int64_t possible(std::uint32_t message) const {
    const std::int64_t made = ended_[table_.sender(message)];
    const std::uint32_t before = table_.before(message);
    return before == ScheduleTables::kNone ? made : std::max(made, ended_[table_.consumer(before)]);
  }

  /// Sends what a channel has to send and room for at the receiver: in turn on a link of its own.
  void send(std::uint32_t number) {
    const ScheduleTables::Channel& channel = table_.channels()[number];
    FastChannel& at = channels_[number];
    FastLink& link = links_[channel.link];
    if (link.event != 0) {
      for (; at.sent < at.made; ++at.sent) {
        link.waiting.push_back(
            {schedule::kNever, devices_[channel.from].place, channel.first + at.sent});
      }
      for (FastLink::Message& waits : link.waiting) {
        if (waits.possible == schedule::kNever) waits.possible = possible(waits.message);
      }
      mark_link(channel.link);
      return;
    }
    for (; at.sent < at.made; ++at.sent) {
      const std::int64_t from = possible(channel.first + at.sent);
      if (from == schedule::kNever) return;
      link.free = std::max(from, link.free) + transfer_time(channel.first + at.sent);
      arrive(channel.first + at.sent, link.free);
    }
  }

  [[nodiscard]] std::int64_t transfer_time(std::uint32_t message) const {
    const auto lines = static_cast<std::size_t>(table_.line().size());
    const std::size_t sender = table_.sender(message);
    const ScheduleTables::Row& row = table_[sender / lines];
    return times_.transfer(row.pack, static_cast<std::int32_t>(sender % lines), row.rank).value;
  }

  void arrive(std::uint32_t message, std::int64_t i) {
    const ScheduleTables::Channel& channel = table_.channels()[table_.channel(message)];
    arrival_[table_.consumer(message)] = i;
    memory_[channel.from].free(i, table_.bytes(message).value);
    mark(channel.from);
    mark(channel.to);
  }

  /// A link that several channels share takes what could go first, ties to what was made first.
  void serve(std::uint32_t number) {
    FastLink& link = links_[number];
    if (link.waiting.empty()) return;
    const auto first = std::min_element(link.waiting.begin(), link.waiting.end());
    if (first->possible == schedule::kNever) return;
    const std::uint32_t message = first->message;
    link.waiting.erase(first);
    link.busy = true;
    const std::int64_t end = now_ + transfer_time(message);
    events_.set(static_cast<std::uint32_t>(devices_.size()) + link.event - 1, end);
    arrive(message, end);
  }

  const ScheduleTables& table_;
  const Plan& plan_;
  const Times& times_;
  std::size_t stages_;
  std::vector<FastDevice> devices_;
  std::vector<FastChannel> channels_;
  std::vector<FastLink> links_;
  bool shard_;
  std::vector<std::int64_t> arrival_, ended_;  // by cell
  std::vector<bool> head_done_;                // by row, on the last stage
  std::vector<std::uint32_t> head_there_;      // by row: stages that meet
  schedule::NextEvent events_;                 // of devices, then of links that are shared
  std::vector<FastMemory> memory_;
  std::vector<std::uint32_t> shared_;  // links of several channels
  std::vector<std::uint32_t> marked_, marked_links_, choosing_;
  FastReductions reductions_;
  std::int64_t now_ = 0, last_ = 0;
};

}  // namespace detail

/// The figures of a plan whose units take `times`: those of `simulate_plan`, several times as fast
/// and in a fraction of the memory, for O has to be the last unit of a device and R in the same
/// order on all ranks. Throws InvalidInput where it is not, and Deadlock. O(units log devices).
template <UnitTimes Times>
[[nodiscard]] PlanFigures plan_figures(const ScheduleTables& table, const Times& times) {
  return detail::FastSimulator<Times>(table, times).run();
}

}  // namespace slimpack::sim
