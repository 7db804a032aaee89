// SPDX-License-Identifier: Apache-2.0
// The list rule: decides, event by event, what each device of a part runs next.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"
#include "slimpack/schedule/detail/list_state.hpp"
#include "slimpack/schedule/detail/list_times.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::schedule::detail {

/// The policy that chooses: what each device of a part runs next, and when the stages of a rank run
/// the sharded head together.
class ListRun : ListPlaces {
 public:
  using ListPlaces::ListPlaces;

  /// Lets `times` hear of everything that begins.
  void tell(ListTimes& times) noexcept { times_ = &times; }

  /// Appends the orders of all devices of the part; the time at which the last unit but R, O ends.
  Nanos run() {
    prepare();
    state_.loop.run(*this);
    close();
    return Nanos{now()};
  }

  // --- for the event loop ---

  [[nodiscard]] bool busy(std::uint32_t device) const noexcept {
    return state_.devices[device].doing != Doing::nothing;
  }
  [[nodiscard]] static bool settle() noexcept { return false; }
  void finish(std::uint32_t device) {
    ListDevice& state = state_.devices[device];
    const Doing doing = state.doing;
    state.doing = Doing::nothing;
    ++state_.heads[rank_of(device)].idle;
    if (doing == Doing::head) return;
    --left_;
    if (doing == Doing::weight) return;
    const std::size_t side = doing == Doing::forward ? 0 : 1;
    const std::uint32_t rank = state.rank, stage = state.stage, item = state.begun[side] - 1;
    const RankPass& pass = ranks_[rank].pass[side];
    const ListRow& of = state_.rows[device][side];
    // An item that has been consumed posts the receive `max_in_flight` later on its channel.
    if (of.posts != nullptr && of.posts[item] != kNoItem && ended(of.from, side) > of.posts[item]) {
      transfer(of.from, side, of.posts[item], false);
    }
    if (sends(pass, side, stage, item) &&
        (of.awaits[item] == kNoItem || ended(of.to, side) > of.awaits[item])) {
      transfer(device, side, item, true);
    }
    if (side == 0 && stage == last_ && pass.leaves[item] != 0) ++state_.heads[rank].reached;
  }

  /// Begins what an idle device runs next, or notes when that may be possible.
  void decide(std::uint32_t device) {
    const std::uint32_t rank = rank_of(device), stage = stage_of(device);
    ListHead& head = state_.heads[rank];
    state_.devices[device].wanted = 0;
    const bool head_waits = this->head_waits(device);
    if (head_waits && options_.head_at_once) return run_head(device);
    if (weight_due(device)) {
      begin_weight(device);
      return;
    }
    if (shard_ && !head.called && stage == last_ && time_to_call(device)) call(rank);
    if (head.called) {
      join(device);
      return;
    }
    const std::array<std::int64_t, 2> ready_times{ready(device, 0), ready(device, 1)};
    for (const std::size_t side : {std::size_t{1}, std::size_t{0}}) {
      if (!alone() && ready_times[side] <= now() && is_context_parallel(device, side) &&
          readiness(device, side) == Readiness::wanted) {
        begin_on_group(device, side);
        return;
      }
    }
    std::array<std::size_t, 2> wish{1, 0};
    if (forward_first(device, ready_times)) std::swap(wish[0], wish[1]);
    for (const std::size_t side : wish) {
      if (side == 0 && head_waits) {
        run_head(device);
        return;
      }
      if (ready_times[side] > now()) continue;
      if (alone() || !is_context_parallel(device, side)) {
        begin(device, side);
        return;
      }
      const Readiness found = readiness(device, side);
      if (found == Readiness::possible) {
        begin_on_group(device, side);
        return;
      }
      if (found == Readiness::wait) {
        state_.devices[device].wanted = static_cast<std::uint8_t>(side + 1);
        return;
      }
    }
    if (head_waits) {
      run_head(device);
      return;
    }
    if (weight_fills(device, ready_times)) {
      begin_weight(device);
    } else {
      wake(device, ready_times);
    }
  }

  /// Nothing runs and nothing is known to come: calls the stages of a rank together for H that they
  /// have put off. Throws Deadlock if units are left and there is no such rank.
  [[nodiscard]] bool unblock() {
    if (left_ == 0) return false;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const ListHead& head = state_.heads[rank];
      if (!shard_ || head.done == head.reached) continue;
      call(rank);
      return true;
    }
    throw Deadlock("list_schedule: the units of a part wait for each other");
  }

 private:
  // --- begin and end ---

  void prepare() {
    const std::size_t devices = ranks_.size() * stages_;
    state_.loop.reset(devices);
    state_.devices.assign(devices, {});
    for (std::uint32_t device = 0; device < devices; ++device) {
      state_.devices[device].rank = device / stages_;
      state_.devices[device].stage = device % stages_;
      state_.devices[device].one_port =
          parts_.one_port(ranks_[device / stages_].dp, static_cast<std::int32_t>(device % stages_));
    }
    state_.rows.resize(devices);
    state_.orders.assign(devices, nullptr);
    state_.heads.assign(ranks_.size(), {});
    const auto chunks = static_cast<std::size_t>(plan_.parallel.chunks);
    state_.gradients.assign(devices * chunks, 0);
    state_.last.assign(stages_ * chunks, {});
    left_ = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ListRank& rank = ranks_[i];
      state_.heads[i].idle = stages_;
      for (std::size_t side = 0; side < 2; ++side) {
        const RankPass& pass = rank.pass[side];
        left_ += pass.size() * stages_;
        rank.arrival[side].assign(pass.size() * stages_, kNever);
        std::int64_t* enters = rank.arrival[side].data() + row(pass, entry(side));
        for (std::size_t item = 0; item < pass.size(); ++item) {
          if (stages_ == 1 || pass.enters[item] != 0) enters[item] = 0;
        }
      }
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        std::uint32_t* gradients = state_.gradients.data() + (i * stages_ + stage) * chunks;
        for (const std::int32_t chunk : rank.pass[1].chunk) ++gradients[chunk];
        for (const std::int32_t chunk : rank.weights.chunk) ++gradients[chunk];
        if (schedule_.empty()) continue;
        std::vector<Unit>& order =
            schedule_[device_index(plan_, rank.dp, static_cast<std::int32_t>(stage))].order;
        state_.orders[i * stages_ + stage] = &order;
        order.clear();
        order.reserve(rank.pass[0].size() + rank.pass[1].size() + rank.weights.size() +
                      (shard_ || stage == last_ ? rank.head_item.size() : 0) +
                      static_cast<std::size_t>(plan_.parallel.chunks) + 1);
      }
      left_ += rank.head_item.size() + rank.weights.size() * stages_;
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
          state_.rows[i * stages_ + stage][side] =
              row_of(static_cast<std::uint32_t>(i), stage, side);
        }
      }
    }
  }

  void close() {
    for (std::uint32_t device = 0; device < state_.devices.size(); ++device) {
      add_reductions(device);
      write(device, UnitKind::optimizer, 0, 0);
    }
  }

  /// R of each chunk of which no B or W is left, the last chunk first, on all ranks alike.
  void add_reductions(std::uint32_t device) {
    const std::int32_t chunks = plan_.parallel.chunks;
    const std::uint32_t* gradients =
        state_.gradients.data() + std::size_t{device} * static_cast<std::size_t>(chunks);
    std::int32_t& done = state_.devices[device].reductions;
    for (; done < chunks && gradients[chunks - 1 - done] == 0; ++done) {
      write(device, UnitKind::reduce, 0, chunks - 1 - done);
      if (times_ != nullptr) times_->reduce(device, chunks - 1 - done);
    }
  }
  /// A B or W of a chunk has begun; behind the last of them come R.
  void gradients_end(std::uint32_t device, std::int32_t chunk, const LastGradients& unit) {
    const auto chunks = static_cast<std::size_t>(plan_.parallel.chunks);
    const auto own = static_cast<std::size_t>(chunk);
    if (--state_.gradients[std::size_t{device} * chunks + own] > 0) return;
    LastGradients& last = state_.last[stage_of(device) * chunks + own];
    if (last.end <= unit.end) last = unit;
    add_reductions(device);
  }

  /// Appends a unit to its device's order, where orders are asked for.
  void write(std::uint32_t device, UnitKind kind, std::uint32_t pack, std::int32_t chunk) {
    std::vector<Unit>* order = state_.orders[device];
    if (order == nullptr) return;
    Unit& unit = order->emplace_back();
    unit.kind = kind;
    unit.pack = static_cast<PackId>(pack);
    unit.chunk = chunk;
  }

  /// Later stages decide first: what they take makes room for earlier ones.
  void ask(std::uint32_t device) {
    if (!busy(device)) state_.loop.ask(device);
  }

  /// Begins the next item of a pass.
  void begin(std::uint32_t device, std::size_t side) {
    ListDevice& state = state_.devices[device];
    const RankPass& pass = ranks_[state.rank].pass[side];
    const std::uint32_t item = state.begun[side];
    if (times_ != nullptr) times_->begin(device, side, item);
    const std::int64_t time = state_.rows[device][side].time[item];
    write(device, side == 0 ? UnitKind::forward : UnitKind::backward, pass.pack[item],
          pass.chunk[item]);
    ++state.begun[side];
    if (side == 1) gradients_end(device, pass.chunk[item], {Nanos{now() + time}, Nanos{time}});
    occupy(device, side == 0 ? Doing::forward : Doing::backward, now() + time);
  }
  /// W has run since the device became idle: what it has waited for in vain does not keep it.
  void begin_weight(std::uint32_t device) {
    const ListRank& rank = ranks_[rank_of(device)];
    ListDevice& state = state_.devices[device];
    const std::int64_t time = weight_duration(device), end = state.ends + time;
    const std::uint32_t item = state.weights++;
    if (times_ != nullptr) times_->begin_weight(device, item);
    write(device, UnitKind::weight, rank.weights.pack[item], rank.weights.chunk[item]);
    gradients_end(device, rank.weights.chunk[item], {Nanos{end}, Nanos{time}});
    if (end > now()) {
      occupy(device, Doing::weight, end);
      return;
    }
    state.ends = end;
    state.wanted = 0;
    --left_;
    ask(device);
  }

  void occupy(std::uint32_t device, Doing doing, std::int64_t ends) {
    ListDevice& state = state_.devices[device];
    state.doing = doing;
    state.ends = ends;
    state.wanted = 0;
    --state_.heads[rank_of(device)].idle;
    state_.loop.set(device, ends);
  }

  /// Both sides of a message that a device sends are posted now. Of two that can go over a link
  /// from the same instant on, that of the earlier unit goes first. `fresh`: the unit has just
  /// ended.
  void transfer(std::uint32_t sender, std::size_t side, std::uint32_t item, bool fresh) {
    ListDevice& device = state_.devices[sender];
    ListDevice::Link& link = device.link[device.one_port ? 0 : side];
    const std::int64_t time = state_.rows[sender][side].transfer[item];
    const bool tie = link.used == now();
    const bool overtakes =
        tie && !link.several && !fresh && (link.fresh || began_sooner(sender, side, item, link));
    if (times_ != nullptr) times_->transfer(sender, side, item, overtakes);
    if (overtakes) {
      link.free = std::max(link.before, now()) + time;
      arrive(sender, side, item, link.free);
      link.free += state_.rows[sender][link.side].transfer[link.item];
      arrive(sender, link.side, link.item, link.free);
    } else {
      link.before = link.free;
      link.free = std::max(link.free, now()) + time;
      arrive(sender, side, item, link.free);
      link.item = item;
      link.side = static_cast<std::uint8_t>(side);
      link.fresh = fresh;
    }
    link.several = tie;
    link.used = now();
    ask(sender);
  }
  /// A message has its time of arrival.
  void arrive(std::uint32_t sender, std::size_t side, std::uint32_t item, std::int64_t time) {
    const ListRow& of = state_.rows[sender][side];
    of.there[of.consumer == nullptr ? item : of.consumer[item]] = time;
    ask(of.to);
  }

  // --- what may run ---

  /// Whether there is one rank, which then shares nothing.
  [[nodiscard]] bool alone() const noexcept { return ranks_.size() == 1; }
  [[nodiscard]] bool is_context_parallel(std::uint32_t device, std::size_t side) const noexcept {
    const RankPass& pass = ranks_[rank_of(device)].pass[side];
    const std::uint32_t item = state_.devices[device].begun[side];
    return item < pass.size() && pass.in_cp_group[item] != 0;
  }

  /// Whether an H waits on the last stage, which runs it alone.
  [[nodiscard]] bool head_waits(std::uint32_t device) const noexcept {
    const ListHead& head = state_.heads[rank_of(device)];
    return !shard_ && stage_of(device) == last_ && head.done < head.reached;
  }

  enum class Readiness : std::uint8_t { impossible, wait, wanted, possible };

  /// Whether the other ranks of a device's next item may run it too: an item of a context-parallel
  /// group that is ready there.
  [[nodiscard]] Readiness readiness(std::uint32_t device, std::size_t side) const {
    const RankPass& own = ranks_[rank_of(device)].pass[side];
    const std::uint32_t item = state_.devices[device].begun[side];
    Readiness result = Readiness::possible;
    bool wanted = false;
    for_each_partner(device, side, [&](std::uint32_t other) {
      const RankPass& pass = ranks_[rank_of(other)].pass[side];
      const ListDevice& state = state_.devices[other];
      const std::uint32_t theirs = state.begun[side];
      if (theirs == pass.size() || pass.pack[theirs] != own.pack[item] ||
          pass.chunk[theirs] != own.chunk[item] || weight_due(other) ||
          ready(other, side) > now()) {
        result = Readiness::impossible;
        return;
      }
      const bool owes =
          state_.heads[rank_of(other)].called || (options_.head_at_once && head_waits(other));
      if ((state.doing != Doing::nothing || owes) && result != Readiness::impossible) {
        result = Readiness::wait;
      }
      wanted = wanted || (other != device && state.wanted == side + 1);
    });
    return result == Readiness::possible && wanted ? Readiness::wanted : result;
  }

  void begin_on_group(std::uint32_t device, std::size_t side) {
    partners_.clear();
    for_each_partner(device, side, [&](std::uint32_t other) { partners_.push_back(other); });
    if (times_ != nullptr) times_->meet(partners_, side);
    for (const std::uint32_t other : partners_) begin(other, side);
  }

  // --- what runs next ---

  /// Sets the next time at which something that is known to come makes an item ready.
  void wake(std::uint32_t device, const std::array<std::int64_t, 2>& ready_times) {
    std::int64_t next_time = kNever;
    for (const std::int64_t time : ready_times) {
      if (time > now()) next_time = std::min(next_time, time);
    }
    if (next_time != state_.loop.time(device)) state_.loop.set(device, next_time);
  }

  /// H of the next pack on the last stage alone.
  void run_head(std::uint32_t device) {
    ListRank& rank = ranks_[rank_of(device)];
    ListHead& head = state_.heads[rank_of(device)];
    const std::uint32_t pack = head.done++;
    --left_;
    if (times_ != nullptr) times_->begin_heads(rank_of(device), last_, pack, pack + 1);
    write(device, UnitKind::head, rank.pass[0].pack[rank.head_item[pack]], 0);
    occupy(device, Doing::head, now() + rank.head_time[pack]);
  }

  // --- H of all stages ---

  void call(std::uint32_t i) {
    const ListRank& rank = ranks_[i];
    ListHead& head = state_.heads[i];
    head.called = true;
    head.readiness = now();
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      const ListDevice& device = state_.devices[i * stages_ + stage];
      if (device.doing != Doing::nothing) head.readiness = std::max(head.readiness, device.ends);
      ask(i * stages_ + stage);
    }
    // The last stage still runs the B that need no further H; so the others know the time early.
    const ListDevice& device = state_.devices[i * stages_ + last_];
    const ListRow& backward = state_.rows[i * stages_ + last_][1];
    std::int64_t spare = device.doing == Doing::nothing ? now() : device.ends;
    for (std::size_t item = device.begun[1];
         item < rank.heads.size() && rank.heads[item] <= head.done; ++item) {
      if (item - device.begun[1] >= kCollectiveNotice) break;
      spare += backward.time[item];
    }
    head.readiness = std::max(head.readiness, spare);
  }

  /// A stage called to the collective: starts it if all are there, or fills the time until then.
  void join(std::uint32_t device) {
    ListHead& head = state_.heads[rank_of(device)];
    const std::array<std::int64_t, 2> ready_times{ready(device, 0), ready(device, 1)};
    const std::int64_t left = head.readiness - now();
    std::array<bool, 2> fits{};
    std::array<std::int64_t, 2> time{};
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      if (ready_times[side] > now() || is_context_parallel(device, side)) continue;
      time[side] = duration(device, side);
      fits[side] = time[side] <= left + time[side] / kCollectiveSlack;
    }
    if (fits[0] || fits[1]) {
      std::size_t side = fits[1] ? 1 : 0;
      if (fits[0] && fits[1]) {
        if (left > time[0] + time[1]) {
          side = forward_first(device, ready_times) ? 0 : 1;
        } else {
          const std::int64_t after_f = left - time[0], after_b = left - time[1];
          const std::int64_t rest_f = time[0] > 0 && after_f > 0 ? after_f % time[0] : after_f;
          side = std::abs(rest_f) < std::abs(after_b) ? 0 : 1;
        }
      }
      begin(device, side);
      head.readiness = std::max(head.readiness, now() + time[side]);
      return;
    }
    if (weight_ready(device) && weight_duration(device) <= left) {
      begin_weight(device);
    } else if (head.idle == stages_ && none_due(rank_of(device))) {
      run_collective(rank_of(device));
    } else {
      wake(device, ready_times);
    }
  }

  /// Starts H of all packs that wait for it, on all stages of a rank.
  void run_collective(std::uint32_t i) {
    ListRank& rank = ranks_[i];
    ListHead& head = state_.heads[i];
    head.called = false;
    if (times_ != nullptr) times_->begin_heads(i, 0, head.done, head.reached);
    std::int64_t time = now();
    for (; head.done < head.reached; ++head.done) {
      const std::uint32_t pack = rank.pass[0].pack[rank.head_item[head.done]];
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        write(i * stages_ + stage, UnitKind::head, pack, 0);
      }
      time += rank.head_time[head.done];
      --left_;
    }
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      occupy(i * stages_ + stage, Doing::head, time);
    }
  }

  std::vector<std::uint32_t> partners_;
  ListTimes* times_ = nullptr;  // none where nobody asks for the times of the orders
};

}  // namespace slimpack::schedule::detail
