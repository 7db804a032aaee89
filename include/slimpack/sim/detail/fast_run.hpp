// SPDX-License-Identifier: Apache-2.0
// Executes the fixed orders of a plan in simulated time, without a DAG.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/union_find.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/device_memory.hpp"
#include "slimpack/schedule/event_loop.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/detail/fast_state.hpp"
#include "slimpack/sim/detail/reduction_times.hpp"
#include "slimpack/sim/schedule_tables.hpp"
#include "slimpack/sim/simulator.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim::detail {

/// The policy of fixed orders with links and memory: executes the orders of a plan in simulated
/// time. Devices know what they wait for. So an event is the end of a unit, or an arrival that an
/// idle device waits for. Transfers get their times as soon as these are certain: on a link of one
/// channel when they become possible, on a link that several share when that instant is over.
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
    loop_.clear(devices_.size());
  }

  /// Nothing where the step takes longer than `limit`.
  std::optional<PlanFigures> run_within(std::span<const Nanos> least_ends, Nanos limit) {
    least_ends_ = least_ends;
    limit_ = limit.value;
    // What takes longest shows soonest that it takes too long.
    std::vector<std::vector<std::uint32_t>> apart = devices_apart();
    const auto least_end = [&](const std::vector<std::uint32_t>& devices) {
      Nanos end;
      for (const std::uint32_t device : devices) end = std::max(end, least_ends[device]);
      return end;
    };
    std::stable_sort(apart.begin(), apart.end(),
                     [&](const auto& a, const auto& b) { return least_end(a) > least_end(b); });
    for (const std::vector<std::uint32_t>& devices : apart) {
      loop_.restart(devices);
      loop_.run(*this);
      if (late_) return std::nullopt;
    }
    PlanFigures figures = end_run();
    if (figures.iteration > limit) return std::nullopt;
    return figures;
  }

  /// Throws Deadlock where units wait for each other.
  PlanFigures run() {
    // Ranks that share no pack meet in reductions alone: one after the other they need less cache.
    for (const std::vector<std::uint32_t>& apart : devices_apart()) {
      loop_.restart(apart);
      loop_.run(*this);
    }
    return end_run();
  }

  // --- for the event loop ---

  [[nodiscard]] bool busy(std::uint32_t device) const noexcept { return devices_[device].busy; }
  void finish(std::uint32_t device) { end_unit(device); }
  void decide(std::uint32_t device) {
    if (!late_) advance(device);
  }
  /// Links that are shared choose only when devices have gone on as far as they can: then all
  /// messages of the instant are there, and ties do not depend on the order of events. A message
  /// that takes no time may bring others of the same instant; those that wait longer come later.
  [[nodiscard]] bool settle() {
    if (waiting_links_.empty()) return false;
    std::swap(waiting_links_, choosing_);
    bool goes_on = false;
    for (const std::uint32_t number : choosing_) {
      links_[number].waits = false;
      if (links_[number].free <= loop_.now() && serve(number)) {
        goes_on = goes_on || links_[number].free == loop_.now();
      }
    }
    for (const std::uint32_t number : choosing_) {
      if (goes_on) {
        choose_later(number);
      } else {
        while (serve(number)) {
        }
      }
    }
    choosing_.clear();
    return true;
  }
  [[nodiscard]] static bool unblock() noexcept { return false; }

 private:
  PlanFigures end_run() {
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      if (devices_[device].next == plan_.schedule[device].order.size()) continue;
      // The DAG tells who waits for whom.
      static_cast<void>(simulate(build_dag(plan_, times_)));
      throw Deadlock("plan_figures: the units of a plan wait for each other");
    }
    PlanFigures figures;
    for (FastDevice& device : devices_) figures.busy.push_back(Nanos{device.worked});
    figures.iteration = Nanos{std::max(last_, reductions_.run(times_, figures.busy))};
    for (schedule::DeviceMemory& memory : memory_) figures.peak.push_back(memory.close());
    return figures;
  }

  [[nodiscard]] const DeviceSchedule& schedule(std::uint32_t device) const noexcept {
    return plan_.schedule[device];
  }
  /// The devices of ranks that share packs, directly or by others.
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> devices_apart() const {
    UnionFind ranks(static_cast<std::size_t>(plan_.parallel.dp));
    for (const std::vector<std::int32_t>& group : plan_.groups) {
      for (const std::int32_t rank : group) {
        ranks.join(static_cast<std::size_t>(group.front()), static_cast<std::size_t>(rank));
      }
    }
    const std::vector<std::size_t> part = ranks.numbered();
    std::vector<std::vector<std::uint32_t>> apart;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      const std::size_t of =
          part[static_cast<std::size_t>(schedule(static_cast<std::uint32_t>(device)).dp)];
      apart.resize(std::max(apart.size(), of + 1));
      apart[of].push_back(static_cast<std::uint32_t>(device));
    }
    return apart;
  }

  void ask(std::uint32_t device) {
    if (!devices_[device].busy) loop_.ask(device);
  }
  void choose_later(std::uint32_t link) {
    if (links_[link].waits) return;
    links_[link].waits = true;
    waiting_links_.push_back(link);
  }

  // --- devices ---

  /// Begins the next unit of an idle device, or notes when that may be possible.
  void advance(std::uint32_t device) {
    FastDevice& state = devices_[device];
    const DeviceSchedule& on = schedule(device);
    for (; state.next < on.order.size(); ++state.next) {
      const Unit& unit = on.order[state.next];
      if (unit.kind == UnitKind::reduce) {
        reductions_.release(device, unit.chunk, state.started, state.ends,
                            by_layers(device, unit.chunk));
      } else if (unit.kind == UnitKind::optimizer) {
        reductions_.optimizer(device, state.ends);
      } else {
        break;
      }
    }
    if (state.next == on.order.size()) return;
    require(!reductions_.closed(device), "plan_figures: O must be the last unit of device", device);
    const Unit& unit = on.order[state.next];
    if (!state.known) {
      state.place = table_.place(unit, on.dp, on.pp);
      state.known = true;
    }
    const std::int64_t ready = ready_at(device, unit, state.place);
    if (ready == schedule::kNever) return;
    if (ready > loop_.now()) {
      loop_.set(device, ready);
      return;
    }
    const bool in_cp_group =
        unit.kind != UnitKind::head && unit.kind != UnitKind::weight && table_.ranks(unit.pack) > 1;
    if (in_cp_group || (shard_ && unit.kind == UnitKind::head)) {
      reach_collective(device, unit);
    } else {
      begin(device, unit, duration(unit, state.place, on.pp));
    }
  }

  /// Whether the unit before this R is the last B or W of its chunk and of several layers.
  [[nodiscard]] bool by_layers(std::uint32_t device, std::int32_t chunk) const {
    const FastDevice& state = devices_[device];
    const auto has_gradients = [&](const Unit& unit) {
      return (unit.kind == UnitKind::backward || unit.kind == UnitKind::weight) &&
             unit.chunk == chunk;
    };
    if (!has_gradients(state.last)) return false;
    const auto& order = schedule(device).order;
    const auto rest = order.begin() + static_cast<std::ptrdiff_t>(state.next);
    const auto later = std::find_if(rest, order.end(), has_gradients);
    const std::int32_t virtual_stage = table_.virtual_stages().index(schedule(device).pp, chunk);
    return later == order.end() &&
           plan_.stages[static_cast<std::size_t>(virtual_stage)].layers() > 1;
  }

  /// When the next unit may begin as far as that is known.
  [[nodiscard]] std::int64_t ready_at(std::uint32_t device, const Unit& unit,
                                      const ScheduleTables::Place& place) const {
    const std::int32_t pp = schedule(device).pp;
    const std::int32_t end = table_.virtual_stages().size() - 1;
    if (unit.kind == UnitKind::head) {
      const bool last = static_cast<std::size_t>(pp) + 1 == stages_;
      return last && ended_[table_.cell(place.row, end)] == schedule::kNever ? schedule::kNever
                                                                             : loop_.now();
    }
    if (unit.kind == UnitKind::weight) {
      for (const PackId back : table_.backwards(unit.pack)) {
        const std::size_t row = table_.row(back, schedule(device).dp);
        if (ended_[table_.cell(row, place.virtual_stage)] == schedule::kNever) {
          return schedule::kNever;
        }
      }
      return loop_.now();
    }
    std::int64_t ready = loop_.now();
    if (place.receives != ScheduleTables::kNone) {
      ready = std::max(ready, arrival_[place.cell]);
    } else if (stages_ == 1) {
      const bool forward = unit.kind == UnitKind::forward;
      if (forward && place.virtual_stage > 0 && ended_[place.cell - 1] == schedule::kNever)
        return schedule::kNever;
      if (!forward && place.virtual_stage < end && ended_[place.cell + 1] == schedule::kNever)
        return schedule::kNever;
    }
    if (unit.kind == UnitKind::backward && place.virtual_stage == end) {
      for (const PackId head : table_.heads(unit.pack)) {
        if (!head_done_[table_.row(head, schedule(device).dp)]) return schedule::kNever;
      }
    }
    if (place.sends != ScheduleTables::kNone) {
      const std::uint32_t before = table_.before(place.sends);
      if (before != ScheduleTables::kNone)
        ready = std::max(ready, arrival_[table_.consumer(before)]);
    }
    return ready;
  }

  [[nodiscard]] std::int64_t duration(const Unit& unit, const ScheduleTables::Place& place,
                                      std::int32_t pp) const {
    if (unit.kind == UnitKind::weight) {
      const std::size_t rank = table_[place.row].rank;
      return weight_time(times_, unit.pack, place.virtual_stage, rank).value;
    }
    if (unit.kind != UnitKind::head) return times_.compute(unit.pack, place.virtual_stage).value;
    return times_.head(unit.pack, table_[place.row].rank, pp).value;
  }
  [[nodiscard]] const std::vector<std::int32_t>& group_of(const Unit& unit) const {
    return plan_.groups[index(plan_.micropacks[index(unit.pack)].group)];
  }

  /// The units of a collective begin when the last of their devices is there and take as long as
  /// the slowest.
  void reach_collective(std::uint32_t device, const Unit& unit) {
    FastDevice& state = devices_[device];
    if (state.there) return;
    state.there = true;
    const DeviceSchedule& on = schedule(device);
    if (unit.kind == UnitKind::head) {
      if (++head_there_[state.place.row] < stages_) return;
      const auto first = static_cast<std::uint32_t>(device_index(plan_, on.dp, 0));
      std::int64_t longest = 0;
      for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
        longest = std::max(longest, duration(unit, state.place, pp));
      }
      for (std::uint32_t stage = 0; stage < stages_; ++stage) begin(first + stage, unit, longest);
      return;
    }
    const std::vector<std::int32_t>& ranks = group_of(unit);
    for (const std::int32_t dp : ranks) {
      const FastDevice& other = devices_[device_index(plan_, dp, on.pp)];
      if (!other.there || schedule_of(dp, on.pp).order[other.next] != unit) return;
    }
    const std::int64_t time = duration(unit, state.place, on.pp);
    for (const std::int32_t dp : ranks) {
      const auto other = static_cast<std::uint32_t>(device_index(plan_, dp, on.pp));
      begin(other, unit, time);
    }
  }
  [[nodiscard]] const DeviceSchedule& schedule_of(std::int32_t dp, std::int32_t pp) const {
    return plan_.schedule[device_index(plan_, dp, pp)];
  }

  void begin(std::uint32_t device, const Unit& unit, std::int64_t time) {
    FastDevice& state = devices_[device];
    const std::int64_t now = loop_.now();
    if (!least_ends_.empty()) {
      const std::int64_t waited = now - state.worked;
      late_ = late_ || least_ends_[device].value + waited > limit_;
    }
    state.busy = true;
    state.started = now;
    state.ends = now + time;
    state.worked += time;
    memory_[device].change(now, table_.at_start(unit, state.place, schedule(device).pp).value);
    loop_.set(device, state.ends);
  }

  void end_unit(std::uint32_t device) {
    FastDevice& state = devices_[device];
    const Unit& unit = schedule(device).order[state.next];
    const std::int64_t now = loop_.now();
    state.busy = state.there = state.known = false;
    state.last = unit;
    ++state.next;
    last_ = std::max(last_, now);
    memory_[device].change(now, table_.at_end(unit, state.place, schedule(device).pp).value);
    if (unit.kind == UnitKind::head) {
      if (static_cast<std::size_t>(schedule(device).pp) + 1 == stages_) {
        head_done_[state.place.row] = true;
      }
      return;
    }
    ended_[state.place.cell] = now;
    if (state.place.receives != ScheduleTables::kNone) send(table_.channel(state.place.receives));
    if (state.place.sends != ScheduleTables::kNone) {
      const std::uint32_t channel = table_.channel(state.place.sends);
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
    FastChannel& state = channels_[number];
    FastLink& link = links_[channel.link];
    if (link.channels > 1) {
      for (; state.sent < state.made; ++state.sent) {
        link.waiting.push_back(
            {schedule::kNever, devices_[channel.from].next, channel.first + state.sent});
      }
      for (FastLink::Message& waits : link.waiting) {
        if (waits.possible == schedule::kNever) waits.possible = possible(waits.message);
      }
      choose_later(channel.link);
      return;
    }
    for (; state.sent < state.made; ++state.sent) {
      const std::int64_t from = possible(channel.first + state.sent);
      if (from == schedule::kNever) return;
      link.free = std::max(from, link.free) + transfer_time(channel.first + state.sent);
      arrive(channel.first + state.sent, link.free);
    }
  }

  [[nodiscard]] std::int64_t transfer_time(std::uint32_t message) const {
    const auto stages = static_cast<std::size_t>(table_.virtual_stages().size());
    const std::size_t sender = table_.sender(message);
    const ScheduleTables::Row& row = table_[sender / stages];
    return times_.transfer(row.pack, static_cast<std::int32_t>(sender % stages), row.rank).value;
  }

  void arrive(std::uint32_t message, std::int64_t time) {
    const ScheduleTables::Channel& channel = table_.channels()[table_.channel(message)];
    arrival_[table_.consumer(message)] = time;
    memory_[channel.from].free(time, table_.bytes(message).value);
    ask(channel.from);
    ask(channel.to);
  }

  /// A link that several channels share takes what could go first, ties to what was made first;
  /// whether there was something.
  bool serve(std::uint32_t number) {
    FastLink& link = links_[number];
    if (link.waiting.empty()) return false;
    const auto first = std::min_element(link.waiting.begin(), link.waiting.end());
    if (first->possible == schedule::kNever) return false;
    const std::uint32_t message = first->message;
    link.waiting.erase(first);
    link.free = std::max(loop_.now(), link.free) + transfer_time(message);
    arrive(message, link.free);
    return true;
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
  std::vector<std::uint32_t> head_there_;      // by row: stages that have reached H
  schedule::EventLoop loop_;
  std::vector<schedule::DeviceMemory> memory_;
  std::vector<std::uint32_t> waiting_links_, choosing_;
  FastReductions reductions_;
  std::int64_t last_ = 0;
  std::span<const Nanos> least_ends_;  // of devices, in runs with a limit
  std::int64_t limit_ = 0;
  bool late_ = false;  // the step takes longer
};

}  // namespace slimpack::sim::detail
