// SPDX-License-Identifier: Apache-2.0
// Which tokens of a sample each rank of a context-parallel group owns.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// A rank's part of a sample of a context-parallel group. The sample is cut into blocks of `block`
/// tokens. With g ranks, counted round from the one that has the first block, block k belongs to
/// the i-th with k mod 2g = i or 2g-1-i, which balances causal attention (zigzag, as in
/// Megatron-LM's context parallelism). A group of one rank owns everything.
struct CpShard {
  std::int64_t rank = 0;   ///< position in the group, in the order of `Plan::groups`
  std::int64_t ranks = 1;  ///< of the group, at least 1
  Tokens block{512};       ///< tokens of a CP block, > 0 (`MemorySpec::cp_block_tokens`)
  std::int64_t first = 0;  ///< position of the rank that owns the first block (`sample_first`)

  /// The part of another rank of the group.
  [[nodiscard]] constexpr CpShard of(std::int64_t position) const noexcept {
    return {position, ranks, block, first};
  }
  /// The rank counted round from the one that owns the first block.
  [[nodiscard]] constexpr std::int64_t place() const noexcept {
    return rank >= first ? rank - first : rank - first + ranks;
  }
  /// Whether one rank owns all of [0, end), so that nothing of it travels.
  [[nodiscard]] constexpr bool undivided(Tokens end) const noexcept {
    return ranks == 1 || end <= block;
  }

  /// Whether the rank owns a token. O(1).
  [[nodiscard]] constexpr bool owns(Tokens token) const noexcept {
    const std::int64_t turn = (token / block) % (2 * ranks);
    return turn == place() || turn == 2 * ranks - 1 - place();
  }

  /// Owned tokens among [0, end). O(1).
  [[nodiscard]] constexpr Tokens before(Tokens end) const noexcept {
    if (ranks == 1) return end;
    const std::int64_t cycle = 2 * ranks * block.value;
    const std::int64_t whole = end.value / cycle;
    const std::int64_t rest = end.value % cycle;
    const auto part = [&](std::int64_t turn) {
      return std::clamp<std::int64_t>(rest - turn * block.value, 0, block.value);
    };
    return {whole * 2 * block.value + part(place()) + part(2 * ranks - 1 - place())};
  }

  /// The owned token that has `count` others before it, count >= 0: `before` the other way round.
  /// O(1).
  [[nodiscard]] constexpr Tokens token(std::int64_t count) const noexcept {
    if (ranks == 1) return Tokens{count};
    const std::int64_t rest = count % (2 * block.value);
    const std::int64_t turn = rest < block.value ? place() : 2 * ranks - 1 - place();
    return {(count / (2 * block.value) * 2 * ranks + turn) * block.value + rest % block.value};
  }

  /// Owned tokens among [begin, end). O(1).
  [[nodiscard]] constexpr Tokens between(Tokens begin, Tokens end) const noexcept {
    return before(end) - before(begin);
  }

  /// Calls visit(first, last) for each maximal run [first, last) of owned tokens in [begin, end),
  /// ascending. O(owned blocks).
  template <std::invocable<Tokens, Tokens> Visit>
  constexpr void for_each_run(Tokens begin, Tokens end, Visit&& visit) const {
    if (begin >= end) return;
    if (ranks == 1) {
      visit(begin, end);
      return;
    }
    for (std::int64_t i = next_owned(begin / block); block.value * i < end.value;) {
      std::int64_t past = i + 1;
      while (next_owned(past) == past && block.value * past < end.value) ++past;
      visit(std::max(begin, Tokens{block.value * i}), std::min(end, Tokens{block.value * past}));
      i = next_owned(past);
    }
  }

 private:
  /// The first owned block that is not before block `i`.
  [[nodiscard]] constexpr std::int64_t next_owned(std::int64_t i) const noexcept {
    const std::int64_t turn = i % (2 * ranks), own = place();
    if (turn <= own) return i + (own - turn);
    const std::int64_t mirrored = 2 * ranks - 1 - own;
    if (turn <= mirrored) return i + (mirrored - turn);
    return i + (2 * ranks - turn) + own;
  }
};

/// The shard of a sample that the `rank`-th rank of its group in the plan has. The sample and its
/// group must exist.
[[nodiscard]] inline CpShard cp_shard_of(const Plan& plan, SampleId sample, std::size_t rank) {
  const std::size_t ranks = plan.groups[index(plan.sample_group[index(sample)])].size();
  const std::int32_t first = plan.sample_first.empty() ? 0 : plan.sample_first[index(sample)];
  return {static_cast<std::int64_t>(rank), static_cast<std::int64_t>(ranks),
          plan.memory.cp_block_tokens, first};
}

/// The position of a rank in a group that holds it. O(log ranks).
[[nodiscard]] inline std::size_t place_in_group(const Plan& plan, GroupId group, std::int32_t dp) {
  const std::vector<std::int32_t>& ranks = plan.groups[index(group)];
  return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), dp) - ranks.begin());
}

/// The largest number of tokens of [begin, end) that one rank of a group of `ranks` owns. O(ranks).
[[nodiscard]] constexpr Tokens largest_owned(std::int64_t ranks, Tokens block, Tokens begin,
                                             Tokens end) noexcept {
  Tokens largest;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    largest = std::max(largest, CpShard{rank, ranks, block}.between(begin, end));
  }
  return largest;
}

}  // namespace slimpack
