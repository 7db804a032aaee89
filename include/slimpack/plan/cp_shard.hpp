// SPDX-License-Identifier: Apache-2.0
// How the ranks of a merged group share a sample, and where stages lie on the line of layers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// A rank's part in a group: `rank` of `ranks`, in the order of `Plan::groups`. Block k of
/// `block` tokens belongs to the rank i with k mod 2g = i or 2g-1-i, which balances causal
/// attention. A group of one owns everything.
struct CpShard {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  Tokens block{512};

  [[nodiscard]] constexpr bool owns(Tokens token) const noexcept {
    const std::int64_t turn = (token / block) % (2 * ranks);
    return turn == rank || turn == 2 * ranks - 1 - rank;
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
    return {whole * 2 * block.value + part(rank) + part(2 * ranks - 1 - rank)};
  }

  /// Owned tokens among [begin, end). O(1).
  [[nodiscard]] constexpr Tokens between(Tokens begin, Tokens end) const noexcept {
    return before(end) - before(begin);
  }

  /// Calls visit(first, last) for each maximal run [first, last) of owned tokens in [begin, end),
  /// ascending. O(owned blocks).
  template <class Visit>
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
  /// The first owned block that is not before block `at`.
  [[nodiscard]] constexpr std::int64_t next_owned(std::int64_t i) const noexcept {
    const std::int64_t turn = i % (2 * ranks);
    if (turn <= rank) return i + (rank - turn);
    const std::int64_t mirrored = 2 * ranks - 1 - rank;
    if (turn <= mirrored) return i + (mirrored - turn);
    return i + (2 * ranks - turn) + rank;
  }
};

/// Stages in the order in which a token meets them: line index = chunk * pp + stage.
struct VirtualStages {
  std::int32_t pp = 1;
  std::int32_t chunks = 1;
  [[nodiscard]] constexpr std::int32_t size() const noexcept { return pp * chunks; }
  [[nodiscard]] constexpr std::int32_t index(std::int32_t stage,
                                             std::int32_t chunk) const noexcept {
    return chunk * pp + stage;
  }
  [[nodiscard]] constexpr std::int32_t stage(std::int32_t line) const noexcept { return line % pp; }
  [[nodiscard]] constexpr std::int32_t chunk(std::int32_t line) const noexcept { return line / pp; }
};

/// The line of a plan's stages.
[[nodiscard]] constexpr VirtualStages virtual_stages_of(const Plan& plan) noexcept {
  return {plan.parallel.pp, plan.parallel.chunks};
}

/// Position of device (dp, pp) in `Plan::schedule`.
[[nodiscard]] constexpr std::size_t device_index(const Plan& plan, std::int32_t dp,
                                                 std::int32_t pp) noexcept {
  return static_cast<std::size_t>(dp) * static_cast<std::size_t>(plan.parallel.pp) +
         static_cast<std::size_t>(pp);
}

/// The share of the `rank`-th rank of a group.
[[nodiscard]] inline CpShard cp_shard_of(const Plan& plan, GroupId group, std::size_t rank) {
  return {static_cast<std::int64_t>(rank),
          static_cast<std::int64_t>(plan.groups[index(group)].size()), plan.memory.cp_block_tokens};
}

/// Rows [first, last) of the vocabulary that stage `pp` holds under a sharded head.
struct VocabularyShard {
  std::int64_t first = 0, last = 0;
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return last - first; }
};
[[nodiscard]] constexpr VocabularyShard vocabulary_shard(std::int64_t vocab, std::int32_t pp,
                                                         std::int32_t stages) noexcept {
  return {vocab * pp / stages, vocab * (pp + 1) / stages};
}

}  // namespace slimpack
