// SPDX-License-Identifier: Apache-2.0
// The choices of list scheduling.
#pragma once

#include <cstdint>

namespace slimpack {

/// Settings of `list_schedule`. Every value >= its least gives a valid schedule.
struct ListOptions {
  /// Packs that wait for H before the stages of a rank meet for it (sharded head), >= 1.
  std::int32_t head_batch = 8;
  /// Packs that must wait for H when the last stage has nothing else to do, >= 1.
  std::int32_t head_least = 1;
  /// The meeting is put off while the last stage has more than so many B that need no further H,
  /// >= 0.
  std::int32_t head_spare = 1;
  /// On the last stage F goes before B while fewer packs wait for H (sharded head), >= 0.
  std::int32_t head_lead = 0;
  /// F goes before a ready B while at most so many F units wait at the next stage, >= -1.
  std::int32_t forward_queue = 0;
  /// Packs of a rank that pass chunk after chunk together, 0 for as many as stages. Windows bound
  /// it.
  std::int32_t chunk_block = 0;
  friend bool operator==(const ListOptions&, const ListOptions&) = default;
};

}  // namespace slimpack
