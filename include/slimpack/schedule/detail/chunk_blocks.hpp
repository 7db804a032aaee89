// SPDX-License-Identifier: Apache-2.0
// Which packs of a rank pass chunk after chunk together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::schedule::detail {

/// How many packs pass chunk after chunk together.
struct BlockSize {
  std::uint32_t least = 0;       ///< of a rank, before a pack that may end a block does
  std::uint32_t most = 0;        ///< of a rank
  std::uint32_t most_group = 0;  ///< of a context-parallel group
};

/// What options and messages in flight allow; `shared`: ranks of the part share packs.
[[nodiscard]] inline BlockSize block_size(const Plan& plan, const ListOptions& options,
                                          bool shared) {
  const std::int64_t stages = plan.parallel.pp, max_in_flight = plan.max_in_flight;
  const std::int64_t wanted = options.block(plan.parallel.pp);
  // On one stage there are no messages in flight, and nothing waits for a block to end.
  if (stages == 1) {
    const auto all = static_cast<std::uint32_t>(wanted);
    return {all, all, all};
  }
  const std::int64_t room = 2 * max_in_flight * stages - 1;
  const std::int64_t least = std::min(wanted, room);
  const std::int64_t most = options.sample_blocks ? room : least;
  const std::int64_t of_group = shared ? std::min(most, 2 * max_in_flight) : most;
  return {static_cast<std::uint32_t>(least), static_cast<std::uint32_t>(most),
          static_cast<std::uint32_t>(of_group)};
}

/// The block of each of so many packs of one rank that shares none. Blocks of fewer packs than
/// stages keep some of these waiting, chunk for chunk. So blocks are full, and where the last one
/// would have fewer, the one before it shares with it equally; or all are equal but for one pack
/// (`even_blocks`). The larger ones come first, and where one would still have fewer packs than
/// stages, there is one block fewer, if messages in flight allow it. O(packs).
[[nodiscard]] inline std::vector<std::uint32_t> blocks_of_rank(const Plan& plan,
                                                               const ListOptions& options,
                                                               std::size_t packs) {
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  const std::size_t most = block_size(plan, options, false).most;
  const std::size_t room = 2 * static_cast<std::size_t>(plan.max_in_flight) * stages - 1;
  std::size_t full = packs % most == 0 || packs % most >= stages ? packs / most : 0;
  if (packs / most > 0 && full == 0) full = packs / most - 1;
  if (options.even_blocks) full = 0;
  const std::size_t rest = packs - full * most;
  std::size_t count = (rest + most - 1) / most;
  if (count > 1 && rest < count * stages && rest <= (count - 1) * room) --count;
  std::vector<std::uint32_t> blocks;
  blocks.reserve(packs);
  const auto add = [&](std::size_t size) {
    blocks.insert(blocks.end(), size, blocks.empty() ? 0 : blocks.back() + 1);
  };
  for (std::size_t block = 0; block < full; ++block) add(most);
  for (std::size_t block = 0; block < count; ++block) {
    add(rest / count + (block < rest % count ? 1 : 0));
  }
  return blocks;
}

/// Behind which forward packs a sample ends that began in an earlier one, or none goes on. By
/// position in `packs`. O(slices).
[[nodiscard]] inline std::vector<bool> ends_samples(const Plan& plan, const ScheduleParts& parts,
                                                    const std::vector<std::uint32_t>& packs) {
  std::vector<bool> ends(packs.size());
  for (std::size_t i = 0; i < packs.size(); ++i) {
    bool ended = false, goes_on = false;
    for (const Slice& slice : plan.micropacks[packs[i]].slices) {
      const bool last = parts.last_forward(slice.sample) == i;
      ended = ended || (last && slice.begin.value > 0);
      goes_on = goes_on || !last;
    }
    ends[i] = ended || !goes_on;
  }
  return ends;
}

/// Behind which backward packs the next one awaits a later forward block than all before it;
/// `forward` has the block of each forward pack. By position in `packs`. O(slices).
[[nodiscard]] inline std::vector<bool> ends_needs(const Plan& plan, const ScheduleParts& parts,
                                                  const std::vector<std::uint32_t>& packs,
                                                  const std::vector<std::uint32_t>& forward) {
  std::vector<bool> ends(packs.size());
  std::uint32_t awaited = 0;
  for (std::size_t i = 0; i < packs.size(); ++i) {
    std::uint32_t here = awaited;
    for (const Slice& slice : plan.micropacks[packs[i]].slices) {
      here = std::max(here, forward[parts.last_forward(slice.sample)]);
    }
    if (i > 0) ends[i - 1] = here > awaited;
    awaited = here;
  }
  return ends;
}

/// The block of each pack, by position in `packs`: `ends` says behind which packs a block of
/// `least` ends. Packs of one block keep their order. O(packs of all ranks).
[[nodiscard]] inline std::vector<std::uint32_t> chunk_blocks(
    const Plan& plan, const std::vector<std::uint32_t>& packs, const BlockSize& size,
    const std::vector<bool>& ends) {
  struct Open {
    std::uint32_t block = 0, count = 0;
    bool ended = false;
  };
  std::vector<Open> rank(static_cast<std::size_t>(plan.parallel.dp)), group(plan.groups.size());
  std::vector<std::uint32_t> blocks;
  blocks.reserve(packs.size());
  for (std::size_t i = 0; i < packs.size(); ++i) {
    const std::size_t id = index(plan.micropacks[packs[i]].group);
    std::uint32_t block = 0;
    for (const std::int32_t dp : plan.groups[id]) {
      block = std::max(block, rank[static_cast<std::size_t>(dp)].block);
    }
    const auto full = [&](const Open& open, std::uint32_t bound) {
      return open.block == block && (open.count >= bound || open.ended);
    };
    bool next = full(group[id], size.most_group);
    for (const std::int32_t dp : plan.groups[id]) {
      next = next || full(rank[static_cast<std::size_t>(dp)], size.most);
    }
    if (next) ++block;
    const auto enter = [&](Open& open) {
      if (open.block != block) open = {block, 0, false};
      ++open.count;
      open.ended = open.count >= size.least && ends[i];
    };
    enter(group[id]);
    for (const std::int32_t dp : plan.groups[id]) enter(rank[static_cast<std::size_t>(dp)]);
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace slimpack::schedule::detail
