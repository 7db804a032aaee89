// SPDX-License-Identifier: Apache-2.0
// The order in which list scheduling runs the MicroPacks of each rank, one sequence a pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::schedule::detail {

inline constexpr std::uint32_t kNoItem = std::numeric_limits<std::uint32_t>::max();

/// The packs of one pass as listed, where slices of a sample come in the order that rule 4 demands;
/// otherwise the lowest listed pack that may come next. O(slices) as listed, else O(n log n).
/// Throws InvalidInput where packs wait for each other or slices do not partition their samples.
[[nodiscard]] inline std::vector<std::uint32_t> queue_order(const Plan& plan, Pass pass) {
  const bool forward = pass == Pass::forward;
  std::vector<std::uint32_t> order;
  std::vector<Tokens> position(forward ? std::vector<Tokens>(plan.samples.size()) : plan.samples);
  bool as_listed = true;
  std::size_t slices = 0;
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    const MicroPack& pack = plan.micropacks[id];
    if (pack.pass != pass) continue;
    require_pack(plan, static_cast<PackId>(id));
    require(!pack.slices.empty(), "list_schedule: a MicroPack must have a slice, but not number",
            static_cast<std::int64_t>(id));
    order.push_back(static_cast<std::uint32_t>(id));
    slices += pack.slices.size();
    for (const Slice& slice : pack.slices) {
      require(index(slice.sample) < plan.samples.size(), "slice: sample does not exist",
              static_cast<std::int64_t>(index(slice.sample)));
      Tokens& next = position[index(slice.sample)];
      as_listed = as_listed && next == (forward ? slice.begin : slice.end);
      next = forward ? slice.end : slice.begin;
    }
  }
  if (as_listed) {
    for (std::size_t sample = 0; sample < position.size(); ++sample) {
      require(position[sample] == (forward ? plan.samples[sample] : Tokens{}),
              "list_schedule: the slices of a pass must partition sample",
              static_cast<std::int64_t>(sample));
    }
    return order;
  }

  const SliceIndex found(plan, pass);
  std::vector<std::uint32_t> waiting(plan.micropacks.size(), 0);
  std::vector<std::vector<std::uint32_t>> after(plan.micropacks.size());
  std::size_t reached = 0;
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    std::uint32_t previous = kNoItem;
    Tokens end;
    found.for_each_overlap(SampleId{static_cast<std::uint32_t>(sample)}, Tokens{},
                           plan.samples[sample], [&](const IndexedSlice& slice) {
                             const auto pack = static_cast<std::uint32_t>(index(slice.pack));
                             if (slice.begin == end) ++reached;
                             end = slice.end;
                             if (previous != kNoItem) {
                               const std::uint32_t first = forward ? previous : pack;
                               const std::uint32_t second = forward ? pack : previous;
                               after[first].push_back(second);
                               ++waiting[second];
                             }
                             previous = pack;
                           });
    require(end == plan.samples[sample],
            "list_schedule: the slices of a pass must partition sample",
            static_cast<std::int64_t>(sample));
  }
  require(reached == slices, "list_schedule: slices of a pass must not overlap or leave gaps");
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (const std::uint32_t pack : order) {
    if (waiting[pack] == 0) ready.push(pack);
  }
  const std::size_t count = order.size();
  order.clear();
  while (!ready.empty()) {
    const std::uint32_t pack = ready.top();
    ready.pop();
    order.push_back(pack);
    for (const std::uint32_t next : after[pack]) {
      if (--waiting[next] == 0) ready.push(next);
    }
  }
  require(order.size() == count,
          forward ? "list_schedule: forward MicroPacks hold slices that wait for each other"
                  : "list_schedule: backward MicroPacks hold slices that wait for each other");
  return order;
}

/// The weight packs as listed. Throws InvalidInput where one has no slice.
[[nodiscard]] inline std::vector<std::uint32_t> weight_packs(const Plan& plan) {
  std::vector<std::uint32_t> order;
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (plan.micropacks[id].pass != Pass::weight) continue;
    require_pack(plan, static_cast<PackId>(id));
    require(!plan.micropacks[id].slices.empty(),
            "list_schedule: a MicroPack must have a slice, but not number",
            static_cast<std::int64_t>(id));
    for (const Slice& slice : plan.micropacks[id].slices) {
      require(index(slice.sample) < plan.samples.size(), "slice: sample does not exist",
              static_cast<std::int64_t>(index(slice.sample)));
    }
    order.push_back(static_cast<std::uint32_t>(id));
  }
  return order;
}

/// One pass of one rank: its packs on all its chunks in the order in which every stage runs them. A
/// block of packs passes chunk after chunk. The pass enters the pipeline at the first stage with
/// its first chunk (backward: at the last stage with the last chunk) and leaves it with the other
/// end.
struct RankPass {
  std::vector<std::uint32_t> pack;
  std::vector<std::int32_t> chunk;
  std::vector<std::uint32_t> place;       ///< of the rank in the pack's group
  std::vector<std::uint8_t> in_cp_group;  ///< the pack's group has several ranks
  std::vector<std::uint8_t> enters;       ///< first chunk of the pass
  std::vector<std::uint8_t> leaves;       ///< last chunk of the pass
  /// Item whose message goes `max_in_flight` before or after this one's on the same channel:
  /// between neighbouring stages, and on the channel from the last stage back to the first.
  std::vector<std::uint32_t> before, after, before_turn, after_turn;
  std::vector<std::uint32_t> next_chunk, previous_chunk;  ///< the same pack's items
  /// By item that is sent on that channel, the item that consumes the message `max_in_flight`
  /// before; by item that is received, the one whose message is posted behind it.
  std::vector<std::uint32_t> awaits_turn, posts_turn;
  std::vector<std::int64_t> message;  ///< bytes of the hidden states
  [[nodiscard]] std::size_t size() const noexcept { return pack.size(); }

  void clear() {
    pack.clear();
    chunk.clear();
    place.clear();
    in_cp_group.clear();
  }
};

/// Links the items of a pass whose packs and chunks are known: `entering` is the first chunk.
inline void link_items(RankPass& pass, const Plan& plan, std::int32_t entering,
                       std::int32_t leaving, std::vector<std::vector<std::uint32_t>>& scratch) {
  const std::size_t count = pass.size();
  const auto max_in_flight = static_cast<std::size_t>(plan.max_in_flight);
  pass.enters.resize(count);
  pass.leaves.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    pass.enters[i] = pass.chunk[i] == entering ? 1 : 0;
    pass.leaves[i] = pass.chunk[i] == leaving ? 1 : 0;
  }
  scratch.resize(std::max(scratch.size(), plan.groups.size()));
  const auto link = [&](std::vector<std::uint32_t>& before, std::vector<std::uint32_t>& after,
                        bool turn) {
    before.assign(count, kNoItem);
    after.assign(count, kNoItem);
    for (auto& channel : scratch) channel.clear();
    for (std::size_t i = 0; i < count; ++i) {
      if (turn && pass.leaves[i] != 0) continue;
      auto& channel = scratch[index(plan.micropacks[pass.pack[i]].group)];
      if (channel.size() >= max_in_flight) {
        before[i] = channel[channel.size() - max_in_flight];
        after[before[i]] = static_cast<std::uint32_t>(i);
      }
      channel.push_back(static_cast<std::uint32_t>(i));
    }
  };
  link(pass.before, pass.after, false);
  if (entering == leaving) {
    pass.before_turn.assign(count, kNoItem);
    pass.after_turn.assign(count, kNoItem);
    pass.next_chunk.assign(count, kNoItem);
    pass.previous_chunk.assign(count, kNoItem);
    pass.awaits_turn.clear();
    pass.posts_turn.clear();
    return;
  }
  link(pass.before_turn, pass.after_turn, true);
  pass.next_chunk.assign(count, kNoItem);
  pass.previous_chunk.assign(count, kNoItem);
  std::vector<std::uint32_t> last(plan.micropacks.size(), kNoItem);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t& previous = last[pass.pack[i]];
    pass.previous_chunk[i] = previous;
    if (previous != kNoItem) pass.next_chunk[previous] = static_cast<std::uint32_t>(i);
    previous = static_cast<std::uint32_t>(i);
  }
  const auto at = [](const std::vector<std::uint32_t>& of, std::uint32_t item) {
    return item == kNoItem ? kNoItem : of[item];
  };
  pass.awaits_turn.resize(count);
  pass.posts_turn.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    pass.awaits_turn[i] = at(pass.next_chunk, pass.before_turn[i]);
    pass.posts_turn[i] = at(pass.after_turn, pass.previous_chunk[i]);
  }
}

}  // namespace slimpack::schedule::detail
