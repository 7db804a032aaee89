// SPDX-License-Identifier: Apache-2.0
// Device orders in lockstep: all stages do as much between two collectives over a sharded head.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/list_schedule.hpp"

namespace slimpack::planners {

/// The orders of one part of a plan of one chunk, slot by slot. In a slot a stage runs at most one
/// B and then one F, each pack one stage further than in the slot before, so that no unit waits for
/// one of its own slot. H of `batch` packs follows at a slot's end. As every stage then does the
/// same number of units between two collectives, collectives cost only what units differ. F waits
/// while a device could not keep what the B before the next F will need, whatever the times are.
class Lockstep {
 public:
  Lockstep(const Plan& plan, const schedule::ScheduleParts& parts, std::size_t part,
           const MemoryModel& memory, std::int32_t batch)
      : plan_(plan), memory_(memory), stages_(plan.parallel.pp), batch_(batch) {
    for (const std::int32_t dp : parts.ranks(part)) ranks_.emplace_back().dp = dp;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::uint32_t pack : parts.packs(part, pass)) {
        const auto& group = plan.groups[index(plan.micropacks[pack].group)];
        for (std::size_t place = 0; place < group.size(); ++place) {
          Rank& rank = rank_of(group[place]);
          auto& line = pass == Pass::forward ? rank.forward : rank.backward;
          line.push_back({pack, static_cast<std::uint32_t>(place)});
        }
      }
    }
    for (Rank& rank : ranks_) {
      find_needs(rank);
      find_gates(rank);
    }
  }

  /// What a device lacks to run each F as late as it can; 0 if nothing.
  [[nodiscard]] std::int64_t lacks() const noexcept { return lacks_; }
  [[nodiscard]] std::int32_t lacking_rank() const noexcept { return lacking_rank_; }

  /// Gives every unit its slot. False if F and B wait for each other.
  [[nodiscard]] bool run() {
    if (!run_once()) return false;
    // B that begins as late as the longest sample asks for later never has to pause.
    for (Rank& rank : ranks_) {
      std::int64_t lag = 0;
      for (std::size_t i = 0; i < rank.backward.size(); ++i) {
        lag = std::max(lag, rank.backward[i].slot - static_cast<std::int64_t>(i));
      }
      rank = Rank{rank.dp, std::move(rank.forward), std::move(rank.backward), {}, 0, 0, 0, 0, 0, 0,
                  lag};
    }
    return run_once();
  }

  /// Appends the orders of the part's devices, R and O included.
  void write(std::vector<DeviceSchedule>& schedule) const {
    for (const Rank& rank : ranks_) {
      for (std::int32_t pp = 0; pp < stages_; ++pp) {
        auto& order = schedule[device_index(plan_, rank.dp, pp)].order;
        order.reserve(2 * rank.forward.size() + rank.backward.size() + 2);
        visit_stage(rank, pp, [&](UnitKind kind, const Item& item) {
          order.push_back({kind, static_cast<PackId>(item.pack), 0});
        });
        order.push_back({UnitKind::reduce, PackId{}, 0});
        order.push_back({UnitKind::optimizer, PackId{}, 0});
      }
    }
  }

  /// When the last B ends, if sends never wait for a window or a link.
  [[nodiscard]] Nanos end(const PricedPlan& times) const;

 private:
  [[nodiscard]] bool run_once() {
    std::size_t left = 0;
    for (const Rank& rank : ranks_) left += rank.backward.size();
    std::int64_t quiet = 0;
    for (std::int64_t slot = 0; left > 0; ++slot) {
      bool moved = false;
      for (Rank& rank : ranks_) rank.reached_stage_0(slot, stages_);
      for (Rank& rank : ranks_) {
        if (!rank.may_backward(slot) || !all_of_group(rank, Pass::backward, slot)) continue;
        left -= start(rank, Pass::backward, slot);
        moved = true;
      }
      for (Rank& rank : ranks_) {
        if (!rank.may_forward(slot) || !all_of_group(rank, Pass::forward, slot)) continue;
        start(rank, Pass::forward, slot);
        moved = true;
      }
      for (Rank& rank : ranks_) moved = head(rank, slot) || moved;
      quiet = moved ? 0 : quiet + 1;
      if (quiet > 2 * std::int64_t{stages_} + 2) return false;
    }
    return true;
  }

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;
  struct Item {
    std::uint32_t pack = 0;
    std::uint32_t place = 0;     // of the rank in the pack's group
    std::uint32_t need = 0;      // B: F that must have had their H
    std::uint32_t gate = 0;      // F: B that must be over on stage 0
    std::int64_t slot = kNever;  // F: on stage 0; B: on the last stage
  };
  struct Rank {
    std::int32_t dp = 0;
    std::vector<Item> forward, backward;
    std::vector<std::int64_t> head_slot;  // of every F
    std::size_t f = 0, b = 0;             // next F on stage 0, next B on the last stage
    std::size_t reached = 0;              // B begun on stage 0
    std::size_t arrived = 0;              // F over on the last stage
    std::int64_t forward_free = 0, backward_free = 0;  // first slot for another F, B
    std::int64_t lag = 0;                              // least slot of B less its number

    void reached_stage_0(std::int64_t slot, std::int32_t stages) {
      while (reached < b && backward[reached].slot + stages - 1 <= slot) ++reached;
    }
    [[nodiscard]] bool may_backward(std::int64_t slot) const {
      if (backward_free > slot || b == backward.size()) return false;
      if (backward[b].need > head_slot.size()) return false;
      const bool forward_waits = f == forward.size() || reached < forward[f].gate;
      return forward_waits || slot >= lag + static_cast<std::int64_t>(b);
    }
    [[nodiscard]] bool may_forward(std::int64_t slot) const {
      return forward_free <= slot && f < forward.size() && reached >= forward[f].gate;
    }
  };

  [[nodiscard]] Rank& rank_of(std::int32_t dp) {
    return *std::find_if(ranks_.begin(), ranks_.end(),
                         [&](const Rank& rank) { return rank.dp == dp; });
  }
  [[nodiscard]] static const Item& next(const Rank& rank, Pass pass) {
    return pass == Pass::forward ? rank.forward[rank.f] : rank.backward[rank.b];
  }
  [[nodiscard]] const std::vector<std::int32_t>& group_of(const Item& item) const {
    return plan_.groups[index(plan_.micropacks[item.pack].group)];
  }
  /// Whether all ranks of the next pack's group are ready for it; only its first rank asks.
  [[nodiscard]] bool all_of_group(const Rank& rank, Pass pass, std::int64_t slot) {
    const Item& item = next(rank, pass);
    const auto& group = group_of(item);
    if (group.size() == 1) return true;
    if (group.front() != rank.dp) return false;
    return std::all_of(group.begin(), group.end(), [&](std::int32_t dp) {
      const Rank& other = rank_of(dp);
      if (pass == Pass::forward) {
        return other.may_forward(slot) && next(other, pass).pack == item.pack;
      }
      return other.may_backward(slot) && next(other, pass).pack == item.pack;
    });
  }
  /// Gives the next pack its slot on all its ranks, and says on how many.
  std::size_t start(Rank& rank, Pass pass, std::int64_t slot) {
    const std::vector<std::int32_t>& group = group_of(next(rank, pass));
    for (const std::int32_t dp : group) {
      Rank& other = group.size() == 1 ? rank : rank_of(dp);
      if (pass == Pass::forward) {
        other.forward[other.f++].slot = slot;
        other.forward_free = slot + 1;
      } else {
        other.backward[other.b++].slot = slot;
        other.backward_free = slot + 1;
      }
    }
    return group.size();
  }
  /// H at the end of a slot: of a full batch, or of what there is if no F comes next.
  bool head(Rank& rank, std::int64_t slot) {
    while (rank.arrived < rank.f && rank.forward[rank.arrived].slot + stages_ - 1 <= slot) {
      ++rank.arrived;
    }
    const std::size_t waiting = rank.arrived - rank.head_slot.size();
    if (waiting == 0) return false;
    const bool more =
        rank.arrived < rank.f && rank.forward[rank.arrived].slot + stages_ - 1 == slot + 1;
    if (waiting < static_cast<std::size_t>(batch_) && more) return false;
    rank.head_slot.resize(rank.arrived, slot);
    return true;
  }

  void find_needs(Rank& rank) {
    last_forward_.assign(plan_.samples.size(), 0);
    for (std::size_t i = 0; i < rank.forward.size(); ++i) {
      for (const Slice& slice : plan_.micropacks[rank.forward[i].pack].slices) {
        last_forward_[index(slice.sample)] =
            std::max(last_forward_[index(slice.sample)], static_cast<std::uint32_t>(i + 1));
      }
    }
    std::uint32_t need = 0;
    for (Item& item : rank.backward) {
      for (const Slice& slice : plan_.micropacks[item.pack].slices) {
        need = std::max(need, last_forward_[index(slice.sample)]);
      }
      item.need = need;
    }
  }
  void find_gates(Rank& rank);

  const Plan& plan_;
  const MemoryModel& memory_;
  std::int32_t stages_;
  std::int32_t batch_;
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> last_forward_;
  std::int64_t lacks_ = 0;
  std::int32_t lacking_rank_ = 0;

  /// Calls visit(kind, item) for each F, B and H of a stage in order.
  template <class Visit>
  void visit_stage(const Rank& rank, std::int32_t pp, const Visit& visit) const {
    const bool heads = plan_.parallel.head == LmHead::shard || pp == stages_ - 1;
    std::size_t f = 0, b = 0, h = 0;
    const auto slot_of_head = [&] {
      return h < rank.head_slot.size() ? rank.head_slot[h] : kNever;
    };
    while (f < rank.forward.size() || b < rank.backward.size() ||
           (heads && h < rank.head_slot.size())) {
      const std::int64_t forward = f < rank.forward.size() ? rank.forward[f].slot + pp : kNever;
      const std::int64_t backward =
          b < rank.backward.size() ? rank.backward[b].slot + stages_ - 1 - pp : kNever;
      if (heads && slot_of_head() < std::min(forward, backward)) {
        visit(UnitKind::head, rank.forward[h++]);
      } else if (backward <= forward) {
        visit(UnitKind::backward, rank.backward[b++]);
      } else {
        visit(UnitKind::forward, rank.forward[f++]);
      }
    }
  }
};

inline void Lockstep::find_gates(Rank& rank) {
  std::int64_t layers = 0;
  Bytes always;
  for (std::int32_t pp = 0; pp < stages_; ++pp) {
    layers = std::max(layers, chunk_layers(plan_, pp, 0));
    always = std::max(always, static_bytes(plan_, pp).total());
  }
  Bytes most_work, most_boundary;
  const auto look = [&](const Item& item) {
    const auto pack = static_cast<PackId>(item.pack);
    most_work = std::max(most_work, memory_.pack_workspace(pack, item.place));
    most_boundary = std::max(most_boundary, memory_.boundary(pack, item.place));
    for (std::int32_t pp = 0; pp < stages_; ++pp) {
      most_work =
          std::max(most_work, head_workspace(plan_, pp, memory_.own_tokens(pack, item.place)));
    }
  };
  for (const Item& item : rank.forward) look(item);
  for (const Item& item : rank.backward) look(item);
  const std::int64_t buffers = stages_ > 1 ? 4 * plan_.max_in_flight * most_boundary.value : 0;
  const std::int64_t room =
      (plan_.memory.capacity - plan_.memory.reserved - always - most_work).value - buffers;

  // What F adds, and what is free before and held from each B on.
  std::vector<std::int64_t> added(rank.forward.size() + 1, 0);
  for (std::size_t i = 0; i < rank.forward.size(); ++i) {
    const Item& item = rank.forward[i];
    const auto pack = static_cast<PackId>(item.pack);
    const CpShard shard = cp_shard_of(plan_, plan_.micropacks[item.pack].group, item.place);
    std::int64_t bytes =
        (memory_.kept(pack, item.place, layers) + memory_.boundary(pack, item.place) * 2).value;
    for (const Slice& slice : plan_.micropacks[item.pack].slices) {
      bytes += memory_
                   .page_bytes(memory_.pages(shard, slice.end) - memory_.pages(shard, slice.begin),
                               layers)
                   .value;
    }
    added[i + 1] = added[i] + bytes;
  }
  std::vector<std::int64_t> held(rank.backward.size());  // by B: allocated less freed before it
  std::int64_t level = 0;
  for (std::size_t i = 0; i < rank.backward.size(); ++i) {
    const Item& item = rank.backward[i];
    const auto pack = static_cast<PackId>(item.pack);
    const CpShard shard = cp_shard_of(plan_, plan_.micropacks[item.pack].group, item.place);
    std::int64_t freed =
        (memory_.kept(pack, item.place, layers) + memory_.boundary(pack, item.place) * 2).value;
    for (const Slice& slice : plan_.micropacks[item.pack].slices) {
      const Tokens length = plan_.samples[index(slice.sample)];
      const std::int64_t gradient = memory_.kv_gradient(shard, length, layers).value;
      if (slice.end == length) level += gradient;
      if (slice.begin.value == 0) {
        freed += gradient + memory_.page_bytes(memory_.pages(shard, length), layers).value;
      }
    }
    held[i] = level;
    level -= freed;
    const std::int64_t least = added[item.need] + held[i];
    if (least - room > lacks_) {
      lacks_ = least - room;
      lacking_rank_ = rank.dp;
    }
  }
  std::size_t after = 0;  // B that need only earlier F
  for (std::size_t i = 0; i < rank.forward.size(); ++i) {
    while (after < rank.backward.size() && rank.backward[after].need <= i) ++after;
    std::size_t gate = after;
    while (gate > 0 && added[i + 1] + held[gate - 1] <= room) --gate;
    rank.forward[i].gate = static_cast<std::uint32_t>(gate);
  }
}

inline Nanos Lockstep::end(const PricedPlan& times) const {
  struct Cursor {
    std::vector<std::int64_t> forward_end, backward_end;  // of every item, on the stage before
    std::vector<std::int64_t> free;                       // by stage
    std::vector<std::size_t> f, b;                        // next item, by stage
    std::size_t h = 0;
    std::vector<std::int64_t> head_end;
  };
  const auto stages = static_cast<std::size_t>(stages_);
  std::vector<Cursor> cursors;
  std::int64_t slots = 0;
  for (const Rank& rank : ranks_) {
    cursors.push_back({std::vector<std::int64_t>(rank.forward.size()),
                       std::vector<std::int64_t>(rank.backward.size()),
                       std::vector<std::int64_t>(stages), std::vector<std::size_t>(stages),
                       std::vector<std::size_t>(stages), 0,
                       std::vector<std::int64_t>(rank.forward.size())});
    if (!rank.backward.empty()) slots = std::max(slots, rank.backward.back().slot + stages_);
  }
  const bool shard = plan_.parallel.head == LmHead::shard;
  const auto at_of = [&](std::int32_t dp) {
    std::size_t i = 0;
    while (ranks_[i].dp != dp) ++i;
    return i;
  };
  const auto run_unit = [&](std::size_t i, std::size_t pp, bool back) {
    const Rank& rank = ranks_[i];
    Cursor& cursor = cursors[i];
    const std::size_t number = back ? cursor.b[pp] : cursor.f[pp];
    const Item& item = back ? rank.backward[number] : rank.forward[number];
    const auto& group = group_of(item);
    if (group.front() != rank.dp) return;
    std::int64_t begin = 0;
    for (const std::int32_t dp : group) {
      const Cursor& other = cursors[group.size() == 1 ? i : at_of(dp)];
      const std::size_t one = back ? other.b[pp] : other.f[pp];
      begin = std::max(
          {begin, other.free[pp], back ? other.backward_end[one] : other.forward_end[one]});
    }
    const auto pack = static_cast<PackId>(item.pack);
    const auto line = static_cast<std::int32_t>(pp);
    const std::int64_t end = begin + times.compute(pack, line).value;
    for (std::size_t place = 0; place < group.size(); ++place) {
      Cursor& other = cursors[group.size() == 1 ? i : at_of(group[place])];
      const std::size_t one = back ? other.b[pp]++ : other.f[pp]++;
      other.free[pp] = end;
      (back ? other.backward_end : other.forward_end)[one] =
          end + (stages > 1 ? times.transfer(pack, line, place).value : 0);
    }
  };
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (std::size_t pp = 0; pp < stages; ++pp) {
      for (const bool back : {true, false}) {
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
          const Rank& rank = ranks_[i];
          const Cursor& cursor = cursors[i];
          const auto stage = static_cast<std::int64_t>(pp);
          if (back ? cursor.b[pp] < rank.backward.size() &&
                         rank.backward[cursor.b[pp]].slot + stages_ - 1 - stage == slot
                   : cursor.f[pp] < rank.forward.size() &&
                         rank.forward[cursor.f[pp]].slot + stage == slot) {
            run_unit(i, pp, back);
          }
        }
      }
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const Rank& rank = ranks_[i];
      Cursor& cursor = cursors[i];
      for (; cursor.h < rank.head_slot.size() && rank.head_slot[cursor.h] == slot; ++cursor.h) {
        const Item& item = rank.forward[cursor.h];
        const std::size_t first = shard ? 0 : stages - 1;
        std::int64_t begin = 0;
        for (std::size_t pp = first; pp < stages; ++pp) begin = std::max(begin, cursor.free[pp]);
        const std::int64_t end =
            begin + times.head(static_cast<PackId>(item.pack), item.place, stages_ - 1).value;
        for (std::size_t pp = first; pp < stages; ++pp) cursor.free[pp] = end;
      }
    }
  }
  std::int64_t end = 0;
  for (const Cursor& cursor : cursors) {
    for (const std::int64_t free : cursor.free) end = std::max(end, free);
  }
  return {end};
}

}  // namespace slimpack::planners
