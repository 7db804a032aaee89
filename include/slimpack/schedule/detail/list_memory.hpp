// SPDX-License-Identifier: Apache-2.0
// Which forward units a device may run when, so that memory suffices whatever the times are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"

namespace slimpack::schedule::detail {

/// Bytes of the items of a rank, per layer where they depend on layers. O(items).
inline void fill_bytes(ListRank& rank, const MemoryModel& memory) {
  const RankPass& forward = rank.pass[0];
  const RankPass& backward = rank.pass[1];
  for (std::size_t side = 0; side < 2; ++side) {
    RankPass& pass = rank.pass[side];
    pass.message.resize(pass.size());
    rank.workspace[side].resize(pass.size());
    for (std::size_t i = 0; i < pass.size(); ++i) {
      const auto id = static_cast<PackId>(pass.pack[i]);
      pass.message[i] = memory.boundary(id, pass.place[i]).value;
      rank.workspace[side][i] = memory.pack_workspace(id, pass.place[i]).value;
    }
  }
  rank.held.resize(forward.size());
  for (std::size_t i = 0; i < forward.size(); ++i) {
    if (const std::uint32_t known = forward.previous_chunk[i]; known != kNoItem) {
      rank.held[i] = rank.held[known];
      continue;
    }
    const auto id = static_cast<PackId>(forward.pack[i]);
    rank.held[i] =
        (memory.kept(id, forward.place[i], 1) + memory.keys_values(id, forward.place[i], 1)).value;
  }
  rank.head_rows.clear();
  for (const std::uint32_t item : rank.head_item) {
    rank.head_rows.push_back(
        memory.head_rows(static_cast<PackId>(forward.pack[item]), forward.place[item]));
  }
  rank.freed.resize(backward.size());
  rank.opens.resize(backward.size());
  rank.closes.resize(backward.size());
  rank.made.resize(backward.size());
  rank.left.resize(backward.size());
  for (std::size_t i = 0; i < backward.size(); ++i) {
    if (const std::uint32_t known = backward.previous_chunk[i]; known != kNoItem) {
      rank.freed[i] = rank.freed[known];
      rank.opens[i] = rank.opens[known];
      rank.closes[i] = rank.closes[known];
      rank.made[i] = rank.made[known];
      rank.left[i] = rank.left[known];
      continue;
    }
    const auto id = static_cast<PackId>(backward.pack[i]);
    const std::size_t place = backward.place[i];
    rank.freed[i] = (memory.kept(id, place, 1) + memory.keys_values(id, place, 1)).value;
    rank.opens[i] = memory.begun_gradients(id, place, 1).value;
    rank.closes[i] = memory.ended_gradients(id, place, 1).value;
    rank.made[i] = memory.made_apart(id, place, 1).value;
    rank.left[i] = memory.left_apart(id, place, 1).value;
  }
  RankWeights& weights = rank.weights;
  weights.freed.resize(weights.size());
  weights.workspace.resize(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto id = static_cast<PackId>(weights.pack[i]);
    weights.freed[i] = memory.left_apart(id, weights.place[i], 1).value;
    weights.workspace[i] = memory.pack_workspace(id, weights.place[i]).value;
  }
}

/// The room that one device has and needs. A device's bytes are a sum of what its count of forward
/// items says and what its count of backward items says, because each pass has one order: buffers
/// of receives as posted, of sends as a ring of `max_in_flight` on each channel. So one table says,
/// for each forward item, after how many backward items it may run. What B leaves to W counts until
/// W is due, however early it runs.
class ListMemory {
 public:
  /// Fills rows `least` and `gate` of stage `pp` of a rank. Returns the bytes that the safe order
  /// needs, which runs every forward item as late as it can; if they exceed `available` the rows
  /// mean nothing. O(items log items) at worst.
  /// Stages of a rank come in their order.
  [[nodiscard]] std::int64_t fill(ListRank& rank, const Plan& plan, std::int32_t pp,
                                  std::int64_t available) {
    if (is_as_before(plan, pp)) {
      const std::size_t tried = tried_.size();
      tried_.resize(first_fitting(plan, pp, available) + 1);
      if (tried_.size() == tried) {
        const auto copy = [pp](std::vector<std::uint32_t>& rows, std::size_t size) {
          const auto row = rows.begin() + pp * static_cast<std::ptrdiff_t>(size);
          std::copy_n(row - static_cast<std::ptrdiff_t>(size), size, row);
        };
        copy(rank.least, rank.pass[0].size());
        copy(rank.gate, rank.pass[1].size());
        copy(rank.weights.due, rank.weights.size());
        return tried_.back().needed;
      }
      let_wait(rank, pp, tried_.back().most);
    } else {
      layers_.clear();
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        layers_.push_back(chunk_layers(plan, pp, chunk));
      }
      count_forward(rank, plan, pp);
      count_rings(rank.pass[1], plan, pp, false);
      count_backward(rank, plan, pp);
      try_waits(rank, plan, pp, available);
    }
    if (tried_.back().needed <= available) find_least(rank, pp, available);
    return tried_.back().needed;
  }

 private:
  /// Whether a stage, which follows the one that was filled last, holds what that one holds: both
  /// lie between the first and the last and have as many layers and rows of the vocabulary.
  [[nodiscard]] static bool is_as_before(const Plan& plan, std::int32_t pp) {
    if (pp < 2 || pp + 1 >= plan.parallel.pp) return false;
    for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
      if (chunk_layers(plan, pp, chunk) != chunk_layers(plan, pp - 1, chunk)) return false;
    }
    return head_rows(plan, pp) == head_rows(plan, pp - 1) &&
           static_bytes(plan, pp).total() == static_bytes(plan, pp - 1).total();
  }

  /// Bytes of the messages of a channel's ring. `in`: posted before each item; else sent.
  struct Ring {
    bool line = false, turn = false;  // between stages; back from the last stage to the first
  };
  static Ring receives(const Plan& plan, std::int32_t pp, bool forward) noexcept {
    if (plan.parallel.pp == 1) return {};
    const std::int32_t first = forward ? 0 : plan.parallel.pp - 1;
    return {pp != first, pp == first && plan.parallel.chunks > 1};
  }
  static Ring sends(const Plan& plan, std::int32_t pp, bool forward) noexcept {
    if (plan.parallel.pp == 1) return {};
    const std::int32_t last = forward ? plan.parallel.pp - 1 : 0;
    return {pp != last, pp == last && plan.parallel.chunks > 1};
  }

  /// posted_[i]: receive buffers after i items; sent_[i]: send buffers after i items have begun.
  void count_rings(const RankPass& pass, const Plan& plan, std::int32_t pp, bool forward) {
    const std::size_t count = pass.size();
    const Ring in = receives(plan, pp, forward);
    const Ring out = sends(plan, pp, forward);
    posted_.assign(count + 1, 0);
    sent_.assign(count + 1, 0);
    // A receive of stage 0 in a later chunk is the message of the item one chunk before.
    const auto maker = [&](std::size_t item) {
      return in.turn ? pass.previous_chunk[item] : static_cast<std::uint32_t>(item);
    };
    const auto received = [&](std::size_t item) {
      return in.line || (in.turn && pass.enters[item] == 0);
    };
    for (std::size_t i = 0; i < count; ++i) {
      if (!received(i)) continue;
      const std::uint32_t sender = maker(i);
      if ((in.turn ? pass.before_turn : pass.before)[sender] == kNoItem) {
        posted_[0] += pass.message[i];
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      posted_[i + 1] = posted_[i];
      sent_[i + 1] = sent_[i];
      if (received(i)) {
        const std::uint32_t next = (in.turn ? pass.after_turn : pass.after)[maker(i)];
        posted_[i + 1] -= pass.message[i];
        if (next != kNoItem) posted_[i + 1] += pass.message[next];
      }
      if (out.line || (out.turn && pass.leaves[i] == 0)) {
        const std::uint32_t ended = (out.turn ? pass.before_turn : pass.before)[i];
        sent_[i + 1] += pass.message[i];
        if (ended != kNoItem) sent_[i + 1] -= pass.message[ended];
      }
    }
  }

  void count_forward(const ListRank& rank, const Plan& plan, std::int32_t pp) {
    const RankPass& pass = rank.pass[0];
    const std::size_t count = pass.size();
    const bool last = pp + 1 == plan.parallel.pp;
    const bool hands = plan.parallel.pp == 1;
    count_rings(pass, plan, pp, true);
    head_ = 0;
    if (last || plan.parallel.head == LmHead::shard) {
      std::int64_t most = 0, rows = 0;
      for (const std::uint32_t item : rank.head_item) most = std::max(most, pass.message[item]);
      for (const std::int64_t of_pack : rank.head_rows) rows = std::max(rows, of_pack);
      const ElementBytes size = element_bytes_of(plan.model, plan.memory.gradient_bytes);
      head_ = (last ? most : 0) + rows * head_row_bytes(plan, pp, size);
    }
    std::int64_t held = static_bytes(plan, pp).total().value;
    after_forward_.assign(count + 1, held + posted_[0]);
    in_forward_.assign(count + 1, held + posted_[0]);
    for (std::size_t i = 0; i < count; ++i) {
      held += layers(pass.chunk[i]) * rank.held[i];
      if (last && pass.leaves[i] != 0) held += pass.message[i];
      if (hands && pass.leaves[i] == 0) held += pass.message[i];
      in_forward_[i + 1] = held + posted_[i] + sent_[i + 1] + rank.workspace[0][i];
      if (hands && pass.enters[i] == 0) held -= pass.message[i];
      const std::int64_t now = held + posted_[i + 1] + sent_[i + 1];
      // A state with fewer forward items never counts as more than one with more of them.
      after_forward_[i + 1] = std::max(after_forward_[i], now);
      in_forward_[i + 1] = std::max(in_forward_[i + 1], now);
    }
  }

  /// Lets as much wait for W as fills the drain; less where F could not run ahead of B by as many
  /// items as there are stages from here on. After `count_backward`.
  void try_waits(ListRank& rank, const Plan& plan, std::int32_t pp, std::int64_t available) {
    tried_.clear();
    each_ahead_ = 0;
    std::int64_t most = 0;
    if (!rank.weights.empty()) {
      const RankPass& forward = rank.pass[0];
      const std::int32_t chunks = plan.parallel.chunks;
      std::int64_t held = 0;
      for (std::size_t i = 0; i < forward.size(); ++i) {
        held += layers(forward.chunk[i]) * rank.held[i];
      }
      each_ahead_ = held / static_cast<std::int64_t>(forward.size()) * chunks;
      most = most_left(rank.pass[1], rank.left, layers_,
                       static_cast<std::size_t>(std::max(plan.parallel.pp - 1, chunks)));
    }
    do {
      if (!tried_.empty()) most /= 2;
      if (!rank.weights.empty() && most < rank.weights.freed.front()) most = 0;
      let_wait(rank, pp, most);
      tried_.push_back({most, needed_at_least(rank)});
    } while (most > 0 && first_fitting(plan, pp, available) == tried_.size());
  }
  /// The first of the bytes that have been tried with which F can run ahead as far as it should on
  /// a stage; the last where that are none; their number where others are left to try.
  [[nodiscard]] std::size_t first_fitting(const Plan& plan, std::int32_t pp,
                                          std::int64_t available) const {
    const std::int64_t ahead = each_ahead_ * (plan.parallel.pp - pp);
    std::size_t i = 0;
    while (i < tried_.size() && tried_[i].most > 0 && tried_[i].needed + ahead > available) ++i;
    return i;
  }
  /// Counts the backward items where so many bytes may wait for W. After `count_backward`.
  void let_wait(ListRank& rank, std::int32_t pp, std::int64_t most) {
    RankWeights& weights = rank.weights;
    std::int64_t beside = head_;  // what may run behind an item: H, or W
    if (!weights.empty()) {
      find_due(weights, rank.pass[1], rank.left, layers_, pp, most);
      beside =
          std::max(beside, *std::max_element(weights.workspace.begin(), weights.workspace.end()));
    }
    const std::uint32_t* due = weights.due.data() + static_cast<std::size_t>(pp) * weights.size();
    const std::size_t count = rank.pass[1].size();
    std::size_t run = 0;     // W that are due
    std::int64_t freed = 0;  // by them
    after_backward_.assign(count + 1, left_backward_[0]);
    from_backward_.assign(count + 1, 0);
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t within = in_backward_[i] - freed;
      for (; run < weights.size() && due[run] <= i + 1; ++run) {
        within = std::max(within, left_backward_[i + 1] - freed + weights.workspace[run]);
        freed += layers(weights.chunk[run]) * weights.freed[run];
      }
      from_backward_[i] = std::max(within, after_backward_[i] + beside);
      after_backward_[i + 1] = left_backward_[i + 1] - freed;
    }
  }

  /// What the backward items hold as long as no W frees any of it. After `count_rings` of the pass.
  void count_backward(const ListRank& rank, const Plan& plan, std::int32_t pp) {
    const RankPass& pass = rank.pass[1];
    const std::size_t count = pass.size();
    const bool last = pp + 1 == plan.parallel.pp;
    const bool hands = plan.parallel.pp == 1;
    std::int64_t held = 0;
    left_backward_.assign(count + 1, posted_[0]);
    in_backward_.assign(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t layers_here = layers(pass.chunk[i]);
      held += layers_here * (rank.opens[i] + rank.made[i]);
      if (hands && pass.leaves[i] == 0) held += pass.message[i];
      in_backward_[i] = held + posted_[i] + sent_[i + 1] + rank.workspace[1][i];
      held -= layers_here * (rank.freed[i] + rank.closes[i] + rank.made[i] - rank.left[i]);
      if (last && pass.enters[i] != 0) held -= pass.message[i];
      if (hands && pass.enters[i] == 0) held -= pass.message[i];
      left_backward_[i + 1] = held + posted_[i + 1] + sent_[i + 1];
    }
  }

  /// Layers of a chunk of the stage at hand.
  [[nodiscard]] std::int64_t layers(std::int32_t chunk) const noexcept {
    return layers_[static_cast<std::size_t>(chunk)];
  }

  [[nodiscard]] std::int64_t needed_at_least(const ListRank& rank) const {
    std::int64_t needed = after_forward_[0] + after_backward_[0];
    std::size_t done = 0;
    for (std::size_t item = 0; item < rank.reserve.size(); ++item) {
      for (; done < rank.reserve[item]; ++done) {
        needed = std::max(needed, in_forward_[done + 1] + after_backward_[item]);
      }
      needed = std::max(needed, after_forward_[done] + from_backward_[item]);
      needed = std::max(needed, after_forward_[done] + after_backward_[item + 1]);
    }
    return needed;
  }

  /// Values of a sequence of which none later is larger, by place: finds the last above a bound.
  class Descent {
   public:
    void clear() {
      place_.clear();
      above_ = 0;
    }
    void add(const std::vector<std::int64_t>& values, std::size_t i) {
      while (!place_.empty() && values[place_.back()] <= values[i]) place_.pop_back();
      place_.push_back(static_cast<std::uint32_t>(i));
    }
    /// One more than the last place above `bound`, 0 if there is none. O(1) where it is near the
    /// one of the bound before, else O(log n).
    [[nodiscard]] std::uint32_t beyond(const std::vector<std::int64_t>& values,
                                       std::int64_t bound) {
      const auto is_above = [&](std::uint32_t i) { return values[i] > bound; };
      above_ = std::min(above_, place_.size());
      std::size_t steps = kNear;
      for (; steps > 0 && above_ > 0 && !is_above(place_[above_ - 1]); --steps) --above_;
      for (; steps > 0 && above_ < place_.size() && is_above(place_[above_]); --steps) ++above_;
      if (steps == 0) {
        const auto found = std::partition_point(place_.begin(), place_.end(), is_above);
        above_ = static_cast<std::size_t>(found - place_.begin());
      }
      return above_ == 0 ? 0 : place_[above_ - 1] + 1;
    }

   private:
    static constexpr std::size_t kNear = 8;
    std::vector<std::uint32_t> place_;
    std::size_t above_ = 0;  // how many are above the bound that was asked for last
  };

  /// The safe order needs no more than `available`.
  void find_least(ListRank& rank, std::int32_t pp, std::int64_t available) {
    const std::size_t forward = rank.pass[0].size(), backward = rank.pass[1].size();
    std::uint32_t* least = rank.least.data() + static_cast<std::size_t>(pp) * forward;
    std::uint32_t* gate = rank.gate.data() + static_cast<std::size_t>(pp) * backward;
    inside_.clear();
    between_.clear();
    crowded_.clear();
    const std::int64_t most_after =
        *std::max_element(after_backward_.begin(), after_backward_.end());
    std::size_t first = 0;  // backward items that run without this forward item
    // With reserves rounded up a backward item can run before its turn in the safe order, if H is
    // all that it waits for; it then waits for the last forward item beside which it has no room.
    const auto find_gate = [&](std::size_t item) {
      const std::uint32_t beyond =
          crowded_.beyond(in_forward_, available - after_backward_[item + 1]);
      gate[item] = beyond > rank.heads_item[item] + 1 ? beyond - 1 : 0;
    };
    for (std::size_t i = 0; i < forward; ++i) {
      while (first < backward && rank.reserve[first] < i + 1) {
        find_gate(first);
        inside_.add(from_backward_, first);
        between_.add(after_backward_, first++);
      }
      least[i] = std::max(inside_.beyond(from_backward_, available - after_forward_[i + 1]),
                          between_.beyond(after_backward_, available - in_forward_[i + 1]));
      if (in_forward_[i + 1] + most_after > available) crowded_.add(in_forward_, i + 1);
    }
    for (; first < backward; ++first) find_gate(first);
  }

  std::int64_t head_ = 0;
  struct Tried {
    std::int64_t most = 0, needed = 0;
  };
  std::vector<Tried> tried_;          // bytes that may wait for W, and what is needed then
  std::int64_t each_ahead_ = 0;       // bytes that F holds for each stage that it runs ahead for
  std::vector<std::int64_t> layers_;  // by chunk of the stage at hand
  std::vector<std::int64_t> posted_, sent_;
  std::vector<std::int64_t> in_backward_;     // by backward items, no W run: in each, then with so
  std::vector<std::int64_t> left_backward_;   // many of them ended
  std::vector<std::int64_t> in_forward_;      // by forward items: in and after the last of them
  std::vector<std::int64_t> after_forward_;   // by forward items ended, never falling
  std::vector<std::int64_t> from_backward_;   // by backward items ended: in the next, or in an H
  std::vector<std::int64_t> after_backward_;  // by backward items ended
  Descent inside_, between_;
  Descent crowded_;  // forward items that have no room beside some backward item
};

}  // namespace slimpack::schedule::detail
