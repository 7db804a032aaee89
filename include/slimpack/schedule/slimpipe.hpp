// SPDX-License-Identifier: Apache-2.0
// The order of SlimPipe: one forward, one backward on slices of sequences.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack::schedule {

/// F and B of sequences cut into slices (SlimPipe, arXiv 2504.14519). `slices[q]` is the number of
/// slices of sequence q; items count through all sequences in turn. Forward, the slices of a
/// sequence rise; with several chunks p slices at a time pass chunk after chunk. Backward is the
/// exact reverse within the sequence. With n slices in the longest sequence, at most n v + 2(p-1-r)
/// pairs of slice and chunk are in flight on stage r, from the start of F to the end of B. With
/// equal slices and stages (p-1)/(n v m) of the ideal time of m sequences is idle. The publication
/// asks for n to be a multiple of p where v > 1; a sequence of another number is ordered as if it
/// were filled up to the next multiple, the missing units left out, n then counting as that
/// multiple. Any window
/// >= 1 is free of deadlock. Throws InvalidInput if a size is < 1. O(stages * chunks * slices).
[[nodiscard]] inline StageOrders slimpipe(const Pipeline& pipeline,
                                          std::span<const std::int32_t> slices) {
  check_pipeline(pipeline);
  const std::int32_t stride = pipeline.chunks == 1 ? 1 : pipeline.stages;
  const auto filled = [&](std::int32_t count) { return (count + stride - 1) / stride * stride; };
  std::int32_t longest = 1;
  for (const std::int32_t count : slices) {
    require(count >= 1, "slimpipe: slices of a sequence must be >= 1", count);
    longest = std::max(longest, filled(count));
  }
  constexpr std::int32_t kMissing = -1;
  std::vector<PipelineOp> forward;
  std::vector<PipelineOp> backward;
  std::int32_t first = 0;
  for (const std::int32_t count : slices) {
    const std::size_t start = forward.size();
    for (std::int32_t run = 0; run < filled(count); run += stride) {
      for (std::int32_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
        for (std::int32_t slice = run; slice < run + stride; ++slice) {
          forward.push_back({UnitKind::forward, slice < count ? first + slice : kMissing, chunk});
        }
      }
    }
    for (std::size_t i = forward.size(); i > start; --i) {
      backward.push_back({UnitKind::backward, forward[i - 1].item, forward[i - 1].chunk});
    }
    first += count;
  }
  StageOrders orders;
  for (std::int32_t stage = 0; stage < pipeline.stages; ++stage) {
    const std::int64_t in_flight =
        std::int64_t{longest} * pipeline.chunks + 2 * (std::int64_t{pipeline.stages} - 1 - stage);
    orders.push_back(one_backward_one_forward(forward, backward, in_flight));
    std::erase_if(orders.back(), [](const PipelineOp& step) { return step.item == kMissing; });
  }
  return orders;
}

}  // namespace slimpack::schedule
