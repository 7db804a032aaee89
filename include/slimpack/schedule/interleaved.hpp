// SPDX-License-Identifier: Apache-2.0
// Interleaved one forward, one backward: several chunks a stage.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/one_f_one_b.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack::schedule {

/// Sizes of the groups of micro-batches that run chunk after chunk: as many groups of at least
/// `stages` items as there can be, equal but for one item, the larger first; one group where there
/// are fewer items than stages.
[[nodiscard]] inline std::vector<std::int32_t> interleaved_groups(std::int32_t stages,
                                                                  std::int32_t items) {
  const std::int32_t count = std::max<std::int32_t>(1, items / stages);
  std::vector<std::int32_t> sizes;
  for (std::int32_t group = 0; group < count; ++group) {
    sizes.push_back(items / count + (group < items % count ? 1 : 0));
  }
  return sizes;
}

/// F and B of `items` micro-batches on `chunks` chunks a stage (Narayanan et al., "Efficient
/// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.2).
/// A group of micro-batches passes chunk after chunk forwards, and in the reverse order of chunks
/// backwards; stage r runs 2(p-1-r) + (v-1)g + 1 forward units ahead, g being the largest group.
/// The publication asks for a multiple of p micro-batches in groups of p; here any number is dealt
/// in equal groups of p to 2p-1 (`interleaved_groups`), and where a group exceeds p + 2 window - 2
/// the stages run further ahead, without which the channel from the last stage to the first would
/// fill up and nothing move. With equal micro-batches, stages and groups of p, (p-1)/(v m) of the
/// ideal time is idle. One chunk is one_f_one_b. Free of deadlock with this window. Throws
/// InvalidInput if a size is < 1 or items < 0. O(stages * chunks * items).
[[nodiscard]] inline StageOrders interleaved(const Pipeline& pipeline, std::int32_t items,
                                             std::int32_t max_in_flight = 2) {
  check_pipeline(pipeline);
  require(items >= 0, "interleaved: items must be >= 0", items);
  require(max_in_flight >= 1, "interleaved: window must be >= 1", max_in_flight);
  const std::int32_t stages = pipeline.stages;
  if (pipeline.chunks == 1) return one_f_one_b(stages, items);
  std::vector<PipelineOp> forward;
  std::vector<PipelineOp> backward;
  const std::vector<std::int32_t> groups = interleaved_groups(stages, items);
  std::int32_t first = 0;
  for (const std::int32_t size : groups) {
    for (std::int32_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
      for (std::int32_t item = first; item < first + size; ++item) {
        forward.push_back({UnitKind::forward, item, chunk});
        backward.push_back({UnitKind::backward, item, pipeline.chunks - 1 - chunk});
      }
    }
    first += size;
  }
  const std::int64_t largest = groups.front();
  const std::int64_t reach =
      std::max<std::int64_t>(2 * (stages - 1), 2 * largest - 4 * max_in_flight + 1);
  StageOrders orders;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    const std::int64_t below = stages - 1 - stage;
    const std::int64_t hops = stages == 1 ? 0 : (reach * below + stages - 2) / (stages - 1);
    orders.push_back(
        one_backward_one_forward(forward, backward, hops + (pipeline.chunks - 1) * largest + 1));
  }
  return orders;
}

}  // namespace slimpack::schedule
