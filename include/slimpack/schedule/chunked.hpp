// SPDX-License-Identifier: Apache-2.0
// One forward, one backward on chunks, of which those of one sequence depend on each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack::schedule {

/// How far forward units run ahead of backward units.
enum class ChunkLead : std::uint8_t {
  steady,        ///< all the time as far as the sequence of most chunks asks for
  just_in_time,  ///< so far that each sequence is complete in time, no further
};

/// F and B of sequences of chunks on a pipeline of one chunk a stage. `chunks[q]` is the number of
/// chunks of sequence q; items count through all sequences in turn. Forward, the chunks of a
/// sequence rise; its backward units follow in the reverse order once all its forward units are
/// through the last stage, the sequences in turn. Between backward units at most one forward unit
/// runs, but before the first: before backward unit k (from 1) of the last stage
/// `steady` has run k + N - 1 forward units, N being the most chunks of a sequence (Seq1F1B,
/// arXiv 2406.03488); `just_in_time` the least number that rises by at most one from unit to unit
/// and has every sequence complete before its first backward unit. Each stage before the last has
/// run one more than the next. Sequences of one chunk are in the order of one_f_one_b. Any
/// window >= 1 is free of deadlock. Throws InvalidInput if a size is < 1. O(stages * chunks).
[[nodiscard]] inline StageOrders chunked_one_f_one_b(std::int32_t stages,
                                                     std::span<const std::int32_t> chunks,
                                                     ChunkLead lead) {
  check_pipeline({stages, 1});
  std::vector<std::int32_t> backward;  // items in backward order
  std::vector<std::int64_t> needed;    // forward units that each of them waits for
  std::int32_t first = 0, most = 1;
  for (const std::int32_t count : chunks) {
    require(count >= 1, "chunked_one_f_one_b: chunks of a sequence must be >= 1", count);
    most = std::max(most, count);
    for (std::int32_t item = first + count - 1; item >= first; --item) {
      backward.push_back(item);
      needed.push_back(first + count);
    }
    first += count;
  }
  const auto items = static_cast<std::int64_t>(backward.size());
  std::int64_t later = 0;
  for (std::int64_t i = items - 1; i >= 0; --i) {
    std::int64_t& here = needed[static_cast<std::size_t>(i)];
    here = lead == ChunkLead::steady ? i + most : std::max({here, i + 1, later - 1});
    later = here;
  }
  StageOrders orders(static_cast<std::size_t>(stages));
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    auto& order = orders[static_cast<std::size_t>(stage)];
    order.reserve(2 * backward.size());
    std::int64_t ahead = 0;
    for (std::size_t i = 0; i < backward.size(); ++i) {
      const std::int64_t until = std::min(items, needed[i] + stages - 1 - stage);
      for (; ahead < until; ++ahead) {
        order.push_back({UnitKind::forward, static_cast<std::int32_t>(ahead), 0});
      }
      order.push_back({UnitKind::backward, backward[i], 0});
    }
  }
  return orders;
}

}  // namespace slimpack::schedule
