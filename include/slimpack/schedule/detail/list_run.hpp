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
  /// What it calls for each unit is short: all of it in one function takes a fifth less time.
  [[gnu::flatten]] Nanos run() {
    prepare();
    state_.loop.run(*this);
    close();
    return Nanos{now()};
  }

  // --- for the event loop ---

  [[nodiscard]] bool busy(std::uint32_t device) const noexcept {
    return at(device).doing != Doing::nothing;
  }
  [[nodiscard]] static bool settle() noexcept { return false; }
  void finish(std::uint32_t device) {
    ListDevice& on = at(device);
    const Doing doing = on.doing;
    on.doing = Doing::nothing;
    ++on.head->idle;
    if (doing == Doing::head) return;
    --left_;
    // Each pass by itself: then most of what its end asks for is known beforehand.
    if (doing == Doing::forward) {
      item_ended(on, device, 0);
    } else if (doing == Doing::backward) {
      item_ended(on, device, 1);
    }
  }

  /// Begins what an idle device runs next, or notes when that may be possible.
  void decide(std::uint32_t device) {
    ListDevice& on = at(device);
    ListHead& head = *on.head;
    on.wanted = 0;
    const bool head_waits = this->head_waits(on);
    if (head_waits && options_.head_at_once) return run_head(on, device);
    if (weight_due(on)) {
      begin_weight(on, device);
      return;
    }
    if (shard_ && !head.called && on.stage == last_ && time_to_call(on)) call(on.rank);
    if (head.called) {
      join(on, device);
      return;
    }
    const std::array<std::int64_t, 2> ready_times{ready(on, 0), ready(on, 1)};
    if (!alone_) {
      if (run_on_group(on, device, ready_times, head_waits)) return;
    } else if (ready_times[1] <= now() && !forward_first(on, device, ready_times)) {
      return begin(on, device, 1);
    } else if (!head_waits && ready_times[0] <= now()) {
      return begin(on, device, 0);
    }
    if (head_waits) return run_head(on, device);
    if (weight_fills(on, ready_times)) {
      begin_weight(on, device);
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
    const auto chunks = static_cast<std::size_t>(plan_.parallel.chunks);
    state_.loop.reset(devices);
    state_.devices.assign(devices, {});
    devices_ = state_.devices.data();
    state_.heads.assign(ranks_.size(), {});
    state_.gradients.assign(devices * chunks, 0);
    state_.last.assign(stages_ * chunks, {});
    left_ = 0;
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
      ListRank& rank = ranks_[i];
      state_.heads[i].idle = stages_;
      for (std::size_t side = 0; side < 2; ++side) {
        const RankPass& pass = rank.pass[side];
        rank.arrival[side].assign(pass.size() * stages_, kNever);
        std::int64_t* enters = rank.arrival[side].data() + row(pass, entry(side));
        for (std::size_t item = 0; item < pass.size(); ++item) {
          if (stages_ == 1 || pass.enters[item] != 0) enters[item] = 0;
        }
      }
      const std::size_t units = rank.pass[0].size() + rank.pass[1].size() + rank.weights.size();
      left_ += units * stages_ + rank.head_item.size();
      std::vector<std::uint32_t> gradients(chunks, 0);
      for (const std::int32_t chunk : rank.pass[1].chunk)
        ++gradients[static_cast<std::size_t>(chunk)];
      for (const std::int32_t chunk : rank.weights.chunk)
        ++gradients[static_cast<std::size_t>(chunk)];
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        ListDevice& on = at(i * stages_ + stage);
        on.rank = i;
        on.stage = stage;
        on.one_port = parts_.one_port(rank.dp, static_cast<std::int32_t>(stage));
        on.row = {row_of(i, stage, 0), row_of(i, stage, 1)};
        on.weight = weights_of(rank.weights, stage);
        on.head = &state_.heads[i];
        on.gradients = &state_.gradients[(i * stages_ + stage) * chunks];
        std::copy(gradients.begin(), gradients.end(), on.gradients);
        if (schedule_.empty()) continue;
        std::vector<Unit>& order =
            schedule_[device_index(plan_, rank.dp, static_cast<std::int32_t>(stage))].order;
        order.resize(units + (shard_ || stage == last_ ? rank.head_item.size() : 0) + chunks + 1);
        on.order = order.data();
        on.units = static_cast<std::uint32_t>(order.size());
      }
    }
  }

  void close() {
    for (std::uint32_t device = 0; device < state_.devices.size(); ++device) {
      ListDevice& on = at(device);
      add_reductions(on, device);
      write(on, UnitKind::optimizer, 0, 0);
      SLIMPACK_ASSERT(on.order == nullptr || on.written == on.units);
    }
  }

  /// R of each chunk of which no B or W is left, the last chunk first, on all ranks alike.
  void add_reductions(ListDevice& on, std::uint32_t device) {
    const std::int32_t chunks = plan_.parallel.chunks;
    for (; on.reductions < chunks && on.gradients[chunks - 1 - on.reductions] == 0;
         ++on.reductions) {
      write(on, UnitKind::reduce, 0, chunks - 1 - on.reductions);
      if (times_ != nullptr) times_->reduce(device, chunks - 1 - on.reductions);
    }
  }
  /// A B or W of a chunk has begun; behind the last of them come R.
  void gradients_end(ListDevice& on, std::uint32_t device, std::int32_t chunk,
                     const LastGradients& unit) {
    const auto own = static_cast<std::size_t>(chunk);
    if (--on.gradients[own] > 0) return;
    const auto chunks = static_cast<std::size_t>(plan_.parallel.chunks);
    LastGradients& last = state_.last[on.stage * chunks + own];
    if (last.end <= unit.end) last = unit;
    add_reductions(on, device);
  }

  /// Appends a unit to its device's order, where orders are asked for.
  static void write(ListDevice& on, UnitKind kind, std::uint32_t pack, std::int32_t chunk) {
    if (on.order == nullptr) return;
    on.order[on.written++] = {kind, static_cast<PackId>(pack), chunk};
  }

  /// Later stages decide first: what they take makes room for earlier ones.
  void ask(std::uint32_t device) {
    if (!busy(device)) state_.loop.ask(device);
  }

  /// Begins the next item of a pass.
  void begin(ListDevice& on, std::uint32_t device, std::size_t side) {
    const ListRow& of = on.row[side];
    const std::uint32_t item = on.begun[side];
    if (times_ != nullptr) times_->begin(on, device, side, item);
    const std::int64_t time = of.time[item];
    const std::int32_t chunk = of.pass->chunk[item];
    write(on, side == 0 ? UnitKind::forward : UnitKind::backward, of.pass->pack[item], chunk);
    ++on.begun[side];
    if (side == 1) gradients_end(on, device, chunk, {Nanos{now() + time}, Nanos{time}});
    occupy(on, device, side == 0 ? Doing::forward : Doing::backward, now() + time);
  }
  /// W has run since the device became idle: what it has waited for in vain does not keep it.
  void begin_weight(ListDevice& on, std::uint32_t device) {
    const RankWeights& weights = ranks_[on.rank].weights;
    const std::int64_t time = weight_duration(on), end = on.ends + time;
    const std::uint32_t item = on.weights++;
    if (times_ != nullptr) times_->begin_weight(device, item);
    write(on, UnitKind::weight, weights.pack[item], weights.chunk[item]);
    gradients_end(on, device, weights.chunk[item], {Nanos{end}, Nanos{time}});
    if (end > now()) {
      occupy(on, device, Doing::weight, end);
      return;
    }
    on.ends = end;
    on.wanted = 0;
    --left_;
    ask(device);
  }

  /// The last item of a pass that has begun has ended.
  void item_ended(ListDevice& on, std::uint32_t device, std::size_t side) {
    const std::uint32_t item = on.begun[side] - 1;
    const ListRow& of = on.row[side];
    // An item that has been consumed posts the receive `max_in_flight` later on its channel.
    if (of.posts != nullptr && of.posts[item] != kNoItem) {
      ListDevice& from = at(of.from);
      if (ended(from, side) > of.posts[item]) transfer(from, of.from, side, of.posts[item], false);
    }
    const bool leaves = of.pass->leaves[item] != 0;
    if (of.awaits != nullptr && (on.stage != exit(side) || !leaves) &&
        (of.awaits[item] == kNoItem || ended(at(of.to), side) > of.awaits[item])) {
      transfer(on, device, side, item, true);
    }
    if (side == 0 && on.stage == last_ && leaves) ++on.head->reached;
  }

  void occupy(ListDevice& on, std::uint32_t device, Doing doing, std::int64_t ends) {
    on.doing = doing;
    on.ends = ends;
    on.wanted = 0;
    --on.head->idle;
    state_.loop.set(device, ends);
  }

  /// Both sides of a message that a device sends are posted now. Of two that can go over a link
  /// from the same instant on, that of the earlier unit goes first. `fresh`: the unit has just
  /// ended.
  void transfer(ListDevice& on, std::uint32_t sender, std::size_t side, std::uint32_t item,
                bool fresh) {
    ListDevice::Link& link = on.link[on.one_port ? 0 : side];
    const std::int64_t time = on.row[side].transfer[item];
    const bool tie = link.used == now();
    const bool overtakes =
        tie && !link.several && !fresh && (link.fresh || began_sooner(on, side, item, link));
    if (times_ != nullptr) times_->transfer(on, sender, side, item, overtakes);
    if (overtakes) {
      link.free = std::max(link.before, now()) + time;
      arrive(on.row[side], item, link.free);
      link.free += on.row[link.side].transfer[link.item];
      arrive(on.row[link.side], link.item, link.free);
    } else {
      link.before = link.free;
      link.free = std::max(link.free, now()) + time;
      arrive(on.row[side], item, link.free);
      link.item = item;
      link.side = static_cast<std::uint8_t>(side);
      link.fresh = fresh;
    }
    link.several = tie;
    link.used = now();
    ask(sender);
  }
  /// A message has its time of arrival.
  void arrive(const ListRow& of, std::uint32_t item, std::int64_t time) {
    of.there[of.consumer == nullptr ? item : of.consumer[item]] = time;
    ask(of.to);
  }

  // --- what may run ---

  [[nodiscard]] static bool is_context_parallel(const ListDevice& on, std::size_t side) noexcept {
    const ListRow& of = on.row[side];
    const std::uint32_t item = on.begun[side];
    return item < of.items && of.pass->in_cp_group[item] != 0;
  }

  /// Whether an H waits on the last stage, which runs it alone.
  [[nodiscard]] bool head_waits(const ListDevice& on) const noexcept {
    if (shard_ || on.stage != last_) return false;
    const ListHead& head = *on.head;
    return head.done < head.reached;
  }

  enum class Readiness : std::uint8_t { impossible, wait, wanted, possible };

  /// Whether the other ranks of a device's next item may run it too: an item of a context-parallel
  /// group that is ready there.
  [[nodiscard]] Readiness readiness(std::uint32_t device, std::size_t side) const {
    const ListDevice& on = at(device);
    const RankPass& own = *on.row[side].pass;
    const std::uint32_t item = on.begun[side];
    Readiness result = Readiness::possible;
    bool wanted = false;
    for_each_partner(on, side, [&](std::uint32_t number) {
      const ListDevice& other = at(number);
      const RankPass& pass = *other.row[side].pass;
      const std::uint32_t theirs = other.begun[side];
      if (theirs == pass.size() || pass.pack[theirs] != own.pack[item] ||
          pass.chunk[theirs] != own.chunk[item] || weight_due(other) ||
          ready(other, side) > now()) {
        result = Readiness::impossible;
        return;
      }
      const bool owes = other.head->called || (options_.head_at_once && head_waits(other));
      if ((other.doing != Doing::nothing || owes) && result != Readiness::impossible) {
        result = Readiness::wait;
      }
      wanted = wanted || (number != device && other.wanted == side + 1);
    });
    return result == Readiness::possible && wanted ? Readiness::wanted : result;
  }

  /// Begins what a device runs next where ranks share packs. Whether there is something, or the
  /// device waits for the other ranks of an item.
  [[nodiscard]] bool run_on_group(ListDevice& on, std::uint32_t device,
                                  const std::array<std::int64_t, 2>& ready_times, bool head_waits) {
    for (const std::size_t side : {std::size_t{1}, std::size_t{0}}) {
      if (ready_times[side] <= now() && is_context_parallel(on, side) &&
          readiness(device, side) == Readiness::wanted) {
        begin_on_group(on, side);
        return true;
      }
    }
    std::array<std::size_t, 2> wish{1, 0};
    if (forward_first(on, device, ready_times)) std::swap(wish[0], wish[1]);
    for (const std::size_t side : wish) {
      if (side == 0 && head_waits) return false;
      if (ready_times[side] > now()) continue;
      if (!is_context_parallel(on, side)) {
        begin(on, device, side);
        return true;
      }
      const Readiness found = readiness(device, side);
      if (found == Readiness::possible) {
        begin_on_group(on, side);
        return true;
      }
      if (found == Readiness::wait) {
        on.wanted = static_cast<std::uint8_t>(side + 1);
        return true;
      }
    }
    return false;
  }

  void begin_on_group(const ListDevice& on, std::size_t side) {
    partners_.clear();
    for_each_partner(on, side, [&](std::uint32_t other) { partners_.push_back(other); });
    if (times_ != nullptr) times_->meet(partners_, side);
    for (const std::uint32_t other : partners_) begin(at(other), other, side);
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
  void run_head(ListDevice& on, std::uint32_t device) {
    const ListRank& rank = ranks_[on.rank];
    const std::uint32_t pack = on.head->done++;
    --left_;
    if (times_ != nullptr) times_->begin_heads(on.rank, last_, pack, pack + 1);
    write(on, UnitKind::head, rank.pass[0].pack[rank.head_item[pack]], 0);
    occupy(on, device, Doing::head, now() + rank.head_time[pack]);
  }

  // --- H of all stages ---

  void call(std::uint32_t i) {
    const ListRank& rank = ranks_[i];
    ListHead& head = state_.heads[i];
    head.called = true;
    head.readiness = now();
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      const ListDevice& on = at(i * stages_ + stage);
      if (on.doing != Doing::nothing) head.readiness = std::max(head.readiness, on.ends);
      ask(i * stages_ + stage);
    }
    // The last stage still runs the B that need no further H; so the others know the time early.
    const ListDevice& on = at(i * stages_ + last_);
    std::int64_t spare = on.doing == Doing::nothing ? now() : on.ends;
    for (std::size_t item = on.begun[1]; item < rank.heads.size() && rank.heads[item] <= head.done;
         ++item) {
      if (item - on.begun[1] >= kCollectiveNotice) break;
      spare += on.row[1].time[item];
    }
    head.readiness = std::max(head.readiness, spare);
  }

  /// A stage called to the collective: starts it if all are there, or fills the time until then.
  void join(ListDevice& on, std::uint32_t device) {
    ListHead& head = *on.head;
    const std::array<std::int64_t, 2> ready_times{ready(on, 0), ready(on, 1)};
    const std::int64_t left = head.readiness - now();
    std::array<bool, 2> fits{};
    std::array<std::int64_t, 2> time{};
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      if (ready_times[side] > now() || is_context_parallel(on, side)) continue;
      time[side] = duration(on, side);
      fits[side] = time[side] <= left + time[side] / kCollectiveSlack;
    }
    if (fits[0] || fits[1]) {
      std::size_t side = fits[1] ? 1 : 0;
      if (fits[0] && fits[1]) {
        if (left > time[0] + time[1]) {
          side = forward_first(on, device, ready_times) ? 0 : 1;
        } else {
          const std::int64_t after_f = left - time[0], after_b = left - time[1];
          const std::int64_t rest_f = time[0] > 0 && after_f > 0 ? after_f % time[0] : after_f;
          side = std::abs(rest_f) < std::abs(after_b) ? 0 : 1;
        }
      }
      begin(on, device, side);
      head.readiness = std::max(head.readiness, now() + time[side]);
      return;
    }
    if (weight_ready(on) && weight_duration(on) <= left) {
      begin_weight(on, device);
    } else if (head.idle == stages_ && none_due(on.rank)) {
      run_collective(on.rank);
    } else {
      wake(device, ready_times);
    }
  }

  /// Starts H of all packs that wait for it, on all stages of a rank.
  void run_collective(std::uint32_t i) {
    const ListRank& rank = ranks_[i];
    ListHead& head = state_.heads[i];
    head.called = false;
    if (times_ != nullptr) times_->begin_heads(i, 0, head.done, head.reached);
    std::int64_t time = now();
    for (; head.done < head.reached; ++head.done) {
      const std::uint32_t pack = rank.pass[0].pack[rank.head_item[head.done]];
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        write(at(i * stages_ + stage), UnitKind::head, pack, 0);
      }
      time += rank.head_time[head.done];
      --left_;
    }
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      occupy(at(i * stages_ + stage), i * stages_ + stage, Doing::head, time);
    }
  }

  std::vector<std::uint32_t> partners_;
  ListTimes* times_ = nullptr;  // none where nobody asks for the times of the orders
};

}  // namespace slimpack::schedule::detail
