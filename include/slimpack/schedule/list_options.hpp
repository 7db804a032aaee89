// SPDX-License-Identifier: Apache-2.0
// The choices of list scheduling.
#pragma once

#include <cstdint>

namespace slimpack::schedule {

/// Settings of `list_schedule`. Every value that is allowed gives a valid schedule.
struct ListOptions {
  /// Sharded head: the stages of a rank meet when so many packs wait for H, and until then the last
  /// stage prefers F. More of them cost fewer meetings and keep more tokens in flight. Head last
  /// and several chunks: so many packs the last stage runs F ahead of what its next B needs. >= 1.
  std::int32_t head_batch = 8;
  /// F goes before a ready B while at most so many F units wait at the next stage, >= -1.
  std::int32_t forward_queue = 1;
  /// Packs of a rank that pass chunk after chunk together, 0 for three for every two stages.
  /// Windows bound it: at most 2 window pp - 1, among ranks that share packs 2 window a group.
  std::int32_t chunk_block = 0;
  [[nodiscard]] constexpr std::int32_t block(std::int32_t stages) const noexcept {
    return chunk_block > 0 ? chunk_block : (3 * stages + 1) / 2;
  }
  friend bool operator==(const ListOptions&, const ListOptions&) = default;
};

}  // namespace slimpack::schedule
