// SPDX-License-Identifier: Apache-2.0
// One forward, one backward: the order of PipeDream-Flush and Megatron-LM.
#pragma once

#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack::schedule {

/// F and B of `items` micro-batches on a pipeline of one chunk (Narayanan et al., "Efficient
/// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.1).
/// Stage r starts with p-1-r forward units, then runs one forward and one backward by turns: at
/// most p-r micro-batches are in flight there, from the start of F to the end of B. With equal
/// micro-batches and stages, (p-1)/m of the ideal time is idle. Any window >= 1 is free of
/// deadlock. Throws InvalidInput if stages < 1 or items < 0. O(stages * items).
[[nodiscard]] inline StageOrders one_f_one_b(std::int32_t stages, std::int32_t items) {
  check_pipeline({stages, 1});
  require(items >= 0, "one_f_one_b: items must be >= 0", items);
  std::vector<PipelineOp> forward;
  std::vector<PipelineOp> backward;
  for (std::int32_t item = 0; item < items; ++item) {
    forward.push_back({UnitKind::forward, item, 0});
    backward.push_back({UnitKind::backward, item, 0});
  }
  StageOrders orders;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    orders.push_back(one_backward_one_forward(forward, backward, stages - stage));
  }
  return orders;
}

}  // namespace slimpack::schedule
