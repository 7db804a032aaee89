// SPDX-License-Identifier: Apache-2.0
// The choices of list scheduling.
#pragma once

#include <cstdint>

namespace slimpack {

/// Settings of `list_schedule`. Every value that is allowed gives a valid schedule.
struct ListOptions {
  /// Packs that wait for H before the stages of a rank meet for it (sharded head), >= 1. Until then
  /// the last stage prefers F. More cost fewer meetings and keep more tokens in flight.
  std::int32_t head_batch = 8;
  /// F goes before a ready B while at most so many F units wait at the next stage, >= -1.
  std::int32_t forward_queue = 1;
  /// Packs of a rank that pass chunk after chunk together, 0 for as many as stages. Windows bound
  /// it from above.
  std::int32_t chunk_block = 0;
  friend bool operator==(const ListOptions&, const ListOptions&) = default;
};

}  // namespace slimpack
