// SPDX-License-Identifier: Apache-2.0
// The stages of a plan in the order in which a token meets them, and where devices stand in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Numbers the virtual stages of a pipeline of `pp` stages with `chunks` chunks each, in the order
/// in which a token meets them: virtual stage = chunk * pp + stage. `Plan::stages` has this order.
struct VirtualStages {
  std::int32_t pp = 1;      ///< stages of the pipeline, that is devices of a data-parallel rank
  std::int32_t chunks = 1;  ///< virtual stages of a device
  /// How many virtual stages there are.
  [[nodiscard]] constexpr std::int32_t size() const noexcept { return pp * chunks; }
  /// The virtual stage of a chunk of a stage.
  [[nodiscard]] constexpr std::int32_t index(std::int32_t stage,
                                             std::int32_t chunk) const noexcept {
    return chunk * pp + stage;
  }
  /// The stage that holds a virtual stage.
  [[nodiscard]] constexpr std::int32_t stage(std::int32_t virtual_stage) const noexcept {
    return virtual_stage % pp;
  }
  /// Which chunk of its stage a virtual stage is.
  [[nodiscard]] constexpr std::int32_t chunk(std::int32_t virtual_stage) const noexcept {
    return virtual_stage / pp;
  }
};

/// The virtual stages of a plan.
[[nodiscard]] constexpr VirtualStages virtual_stages_of(const Plan& plan) noexcept {
  return {plan.parallel.pp, plan.parallel.chunks};
}

/// Position of device (dp, pp) in `Plan::schedule`.
[[nodiscard]] constexpr std::size_t device_index(const Plan& plan, std::int32_t dp,
                                                 std::int32_t pp) noexcept {
  return static_cast<std::size_t>(dp) * static_cast<std::size_t>(plan.parallel.pp) +
         static_cast<std::size_t>(pp);
}

/// How many devices execute a plan: tp for each (dp, pp).
[[nodiscard]] constexpr std::size_t device_count(const Plan& plan) noexcept {
  return static_cast<std::size_t>(plan.parallel.dp) * static_cast<std::size_t>(plan.parallel.pp) *
         static_cast<std::size_t>(plan.parallel.tp);
}

/// Number of device (dp, pp, tp) among those that execute a plan: by dp, then pp, then tp. Without
/// tensor parallelism it is `device_index`.
[[nodiscard]] constexpr std::size_t device_number(const Plan& plan, std::int32_t dp,
                                                  std::int32_t pp, std::int32_t tp) noexcept {
  return device_index(plan, dp, pp) * static_cast<std::size_t>(plan.parallel.tp) +
         static_cast<std::size_t>(tp);
}

/// Rows [first, last) of the vocabulary that a device holds.
struct VocabularyShard {
  std::int64_t first = 0;  ///< first row
  std::int64_t last = 0;   ///< one past the last row
  /// Number of rows.
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return last - first; }
};

/// The rows of shard `i` of `shards`: they are contiguous and differ by one row at most.
[[nodiscard]] constexpr VocabularyShard vocabulary_shard(std::int64_t vocab, std::int32_t i,
                                                         std::int32_t shards) noexcept {
  return {vocab * i / shards, vocab * (i + 1) / shards};
}

/// The rows that device (pp, tp) of a rank projects onto in H. A sharded head is cut in one shard a
/// device, number tp x stages + pp, so that those of a part tp lie in its rows of the embedding,
/// [V tp / n, V (tp + 1) / n), from the first row on those of stage 0. Otherwise the devices of the
/// last stage share all rows.
[[nodiscard]] constexpr VocabularyShard head_shard(std::int64_t vocab, const Parallel& parallel,
                                                   std::int32_t pp, std::int32_t tp) noexcept {
  if (parallel.head == LmHead::shard) {
    return vocabulary_shard(vocab, tp * parallel.pp + pp, parallel.pp * parallel.tp);
  }
  if (pp + 1 < parallel.pp) return {};
  return vocabulary_shard(vocab, tp, parallel.tp);
}

}  // namespace slimpack
