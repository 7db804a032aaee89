// SPDX-License-Identifier: Apache-2.0
// Pipeline orders in plain numbers, before micro-batches have names.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::schedule {

/// One entry of a stage's order: F and B of micro-batch or slice `item` on a chunk, H of an item, R
/// of a chunk, or O. `item` counts in forward order; members without a meaning are zero.
struct PipelineOp {
  UnitKind kind = UnitKind::forward;  ///< F, B, H, R or O
  std::int32_t item = 0;              ///< micro-batch or slice, in forward order
  std::int32_t chunk = 0;             ///< of the stage
  friend auto operator<=>(const PipelineOp&, const PipelineOp&) = default;
};

/// One order a stage.
using StageOrders = std::vector<std::vector<PipelineOp>>;

/// Sizes of a pipeline.
struct Pipeline {
  std::int32_t stages = 1;  ///< pipeline ranks
  std::int32_t chunks = 1;  ///< virtual stages of a stage
};

/// Throws InvalidInput unless both sizes are >= 1.
inline void check_pipeline(const Pipeline& pipeline) {
  require(pipeline.stages >= 1, "pipeline: stages must be >= 1", pipeline.stages);
  require(pipeline.chunks >= 1, "pipeline: chunks must be >= 1", pipeline.chunks);
}

/// The order of one stage that runs `lead` units of `forward`, then by turns one of `backward` and
/// one of `forward` until both are used up: at most `lead` units are in flight, counted from the
/// start of a forward unit to the end of its backward unit. Throws InvalidInput if the two differ
/// in size or lead < 1. O(units).
[[nodiscard]] inline std::vector<PipelineOp> one_backward_one_forward(
    std::span<const PipelineOp> forward, std::span<const PipelineOp> backward, std::int64_t lead) {
  require(forward.size() == backward.size(),
          "one_backward_one_forward: there must be as many backward as forward units",
          static_cast<std::int64_t>(backward.size()));
  require(lead >= 1, "one_backward_one_forward: lead must be >= 1", lead);
  std::size_t ahead = std::min(forward.size(), static_cast<std::size_t>(lead));
  std::vector<PipelineOp> order(forward.begin(),
                                forward.begin() + static_cast<std::ptrdiff_t>(ahead));
  order.reserve(2 * forward.size());
  for (const PipelineOp& step : backward) {
    order.push_back(step);
    if (ahead < forward.size()) order.push_back(forward[ahead++]);
  }
  return order;
}

/// The largest number of F and B pairs of an order that are open at one time, counted from the
/// start of F to the end of its B. O(units).
[[nodiscard]] inline std::int64_t most_in_flight(std::span<const PipelineOp> order) noexcept {
  std::int64_t open = 0;
  std::int64_t most = 0;
  for (const PipelineOp& step : order) {
    if (step.kind == UnitKind::forward) most = std::max(most, ++open);
    if (step.kind == UnitKind::backward) --open;
  }
  return most;
}

}  // namespace slimpack::schedule
