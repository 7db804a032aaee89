// SPDX-License-Identifier: Apache-2.0
// Device orders in lockstep: all stages do as much between two collectives over a sharded head.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/simulation_hook.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/list_schedule.hpp"

namespace slimpack::planners {

/// The orders of one part of a plan of one chunk, slot by slot. In a slot a stage runs at most one
/// B and then one F, each pack one stage further than in the slot before, so that no unit waits for
/// one of its own slot. H of `batch` packs follows at a slot's end. As every stage then does the
/// same number of units between two collectives, a stage waits in them only for the difference
/// between units. F waits while a device would lack memory for the B that come before the next F,
/// whatever the times are.
class Lockstep {
 public:
  /// Prepares one part of a plan of one chunk; plan and memory must outlive it. `batch` is how many
  /// packs run their H back to back.
  Lockstep(const Plan& plan, const schedule::ScheduleParts& parts, std::size_t part,
           const MemoryModel& memory, std::int32_t batch)
      : plan_(plan), memory_(memory), stages_(plan.parallel.pp), batch_(batch) {
    for (const std::int32_t dp : parts.ranks(part)) ranks_.emplace_back().dp = dp;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::uint32_t pack : parts.packs(part, pass)) {
        const auto& group = plan.groups[index(plan.micropacks[pack].group)];
        for (std::size_t place = 0; place < group.size(); ++place) {
          Rank& rank = rank_of(group[place]);
          auto& items = pass == Pass::forward ? rank.forward : rank.backward;
          items.push_back({pack, static_cast<std::uint32_t>(place)});
        }
      }
    }
    for (Rank& rank : ranks_) {
      find_needs(rank);
      find_gates(rank);
    }
    if (!parts.packs(part, Pass::forward).empty()) {
      SLIMPACK_ON_SIMULATION(orders, ranks_.size() * static_cast<std::size_t>(stages_));
    }
  }

  /// Bytes that the fullest device lacks even if each F runs as late as it can; 0 if none.
  [[nodiscard]] std::int64_t lacks() const noexcept { return lacks_; }
  /// The data-parallel rank of that device; of no meaning where nothing lacks.
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

  /// The last B of each stage, if sends never wait for one another or for a link.
  [[nodiscard]] std::vector<schedule::LastGradients> last_gradients(const PricedPlan& times) const;

 private:
  class Replay;

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
  [[nodiscard]] std::int64_t room(const Rank& rank) const;
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

/// Bytes that the fullest device of a rank has for activations, keys and values.
inline std::int64_t Lockstep::room(const Rank& rank) const {
  Bytes always, most_work, most_boundary;
  Tokens most_tokens, most_share;
  for (std::int32_t pp = 0; pp < stages_; ++pp) {
    always = std::max(always, static_bytes(plan_, pp).total());
  }
  for (const std::vector<Item>* items : {&rank.forward, &rank.backward}) {
    for (const Item& item : *items) {
      const auto pack = static_cast<PackId>(item.pack);
      most_work = std::max(most_work, memory_.pack_workspace(pack, item.place));
      most_boundary = std::max(most_boundary, memory_.boundary(pack, item.place));
      most_tokens = std::max(most_tokens, memory_.own_tokens(pack, item.place));
      most_share = std::max(most_share, memory_.own_share(pack, item.place));
    }
  }
  for (std::int32_t pp = 0; pp < stages_; ++pp) {
    most_work = std::max(most_work, head_workspace(plan_, pp, most_tokens, most_share));
  }
  const std::int64_t buffers = stages_ > 1 ? 4 * plan_.max_in_flight * most_boundary.value : 0;
  return (plan_.memory.capacity - plan_.memory.reserved - always - most_work).value - buffers;
}

/// Finds the B that must be over before each F, so that the B before the next F have what they
/// need.
inline void Lockstep::find_gates(Rank& rank) {
  std::int64_t layers = 0;
  for (std::int32_t pp = 0; pp < stages_; ++pp) {
    layers = std::max(layers, chunk_layers(plan_, pp, 0));
  }
  const std::int64_t room = this->room(rank);
  const auto kept = [&](const Item& item) {
    const auto pack = static_cast<PackId>(item.pack);
    return (memory_.kept(pack, item.place, layers) + memory_.keys_values(pack, item.place, layers) +
            memory_.boundary(pack, item.place) * 2)
        .value;
  };

  // What F adds, and what is free before and held from each B on.
  std::vector<std::int64_t> added(rank.forward.size() + 1, 0);
  for (std::size_t i = 0; i < rank.forward.size(); ++i) {
    added[i + 1] = added[i] + kept(rank.forward[i]);
  }
  std::vector<std::int64_t> held(rank.backward.size());  // by B: allocated less freed before it
  std::int64_t level = 0;
  for (std::size_t i = 0; i < rank.backward.size(); ++i) {
    const Item& item = rank.backward[i];
    const auto pack = static_cast<PackId>(item.pack);
    level += memory_.begun_gradients(pack, item.place, layers).value;
    held[i] = level;
    level -= kept(item) + memory_.ended_gradients(pack, item.place, layers).value;
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

/// Runs the orders slot by slot against times.
class Lockstep::Replay {
 public:
  /// Both must outlive it; the orders must have run.
  Replay(const Lockstep& lockstep, const PricedPlan& times)
      : lockstep_(lockstep),
        times_(times),
        stages_(static_cast<std::size_t>(lockstep.stages_)),
        last_(stages_) {
    for (const Rank& rank : lockstep.ranks_) {
      Cursor& cursor = cursors_.emplace_back();
      cursor.ready[0].resize(rank.forward.size());
      cursor.ready[1].resize(rank.backward.size());
      cursor.next[0].resize(stages_);
      cursor.next[1].resize(stages_);
      cursor.free.resize(stages_);
      if (!rank.backward.empty()) {
        slots_ = std::max(slots_, rank.backward.back().slot + lockstep.stages_);
      }
    }
  }

  /// The last B of each stage.
  [[nodiscard]] std::vector<schedule::LastGradients> run() {
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      for (std::size_t pp = 0; pp < stages_; ++pp) {
        for (const Pass pass : {Pass::backward, Pass::forward}) {
          for (std::size_t i = 0; i < cursors_.size(); ++i) {
            if (due(i, pp, pass, slot)) run_unit(i, pp, pass);
          }
        }
      }
      for (std::size_t i = 0; i < cursors_.size(); ++i) run_heads(i, slot);
    }
    return std::move(last_);
  }

 private:
  struct Cursor {
    std::array<std::vector<std::int64_t>, 2> ready;  // by pass: when an item's input is there
    std::array<std::vector<std::size_t>, 2> next;    // by pass: next item of each stage
    std::vector<std::int64_t> free;                  // by stage
    std::size_t head = 0;                            // next H
  };

  [[nodiscard]] const std::vector<Item>& items(std::size_t i, Pass pass) const {
    const Rank& rank = lockstep_.ranks_[i];
    return pass == Pass::forward ? rank.forward : rank.backward;
  }
  [[nodiscard]] std::size_t rank_of(std::int32_t dp) const {
    std::size_t i = 0;
    while (lockstep_.ranks_[i].dp != dp) ++i;
    return i;
  }
  [[nodiscard]] bool due(std::size_t i, std::size_t pp, Pass pass, std::int64_t slot) const {
    const std::size_t next = cursors_[i].next[static_cast<std::size_t>(pass)][pp];
    const std::size_t later = pass == Pass::forward ? pp : stages_ - 1 - pp;
    return next < items(i, pass).size() &&
           items(i, pass)[next].slot + static_cast<std::int64_t>(later) == slot;
  }

  /// Runs the next item of a stage and pass on all ranks of its group; only the first rank does.
  void run_unit(std::size_t i, std::size_t pp, Pass pass) {
    const auto side = static_cast<std::size_t>(pass);
    const Item& item = items(i, pass)[cursors_[i].next[side][pp]];
    const std::vector<std::int32_t>& group = lockstep_.group_of(item);
    if (group.front() != lockstep_.ranks_[i].dp) return;
    std::int64_t begin = 0;
    for (const std::int32_t dp : group) {
      const Cursor& other = cursors_[group.size() == 1 ? i : rank_of(dp)];
      begin = std::max({begin, other.free[pp], other.ready[side][other.next[side][pp]]});
    }
    const auto pack = static_cast<PackId>(item.pack);
    const auto stage = static_cast<std::int32_t>(pp);
    const Nanos time = times_.compute(pack, stage);
    const std::int64_t end = begin + time.value;
    if (pass == Pass::backward && last_[pp].end.value <= end) last_[pp] = {{end}, time};
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      Cursor& other = cursors_[group.size() == 1 ? i : rank_of(group[rank])];
      other.free[pp] = end;
      other.ready[side][other.next[side][pp]++] =
          end + (stages_ > 1 ? times_.transfer(pack, stage, rank).value : 0);
    }
  }

  /// Runs the H of a slot: on all stages together where the head is sharded.
  void run_heads(std::size_t i, std::int64_t slot) {
    const Rank& rank = lockstep_.ranks_[i];
    Cursor& cursor = cursors_[i];
    const bool shard = lockstep_.plan_.parallel.head == LmHead::shard;
    const auto first = cursor.free.begin() + (shard ? 0 : lockstep_.stages_ - 1);
    for (; cursor.head < rank.head_slot.size() && rank.head_slot[cursor.head] == slot;
         ++cursor.head) {
      const Item& item = rank.forward[cursor.head];
      const auto pack = static_cast<PackId>(item.pack);
      const std::int64_t begin = *std::max_element(first, cursor.free.end());
      std::fill(first, cursor.free.end(),
                begin + times_.head(pack, item.place, lockstep_.stages_ - 1).value);
    }
  }

  const Lockstep& lockstep_;
  const PricedPlan& times_;
  std::size_t stages_;
  std::int64_t slots_ = 0;
  std::vector<schedule::LastGradients> last_;  // by stage
  std::vector<Cursor> cursors_;                // by rank
};

inline std::vector<schedule::LastGradients> Lockstep::last_gradients(
    const PricedPlan& times) const {
  return Replay(*this, times).run();
}

}  // namespace slimpack::planners
