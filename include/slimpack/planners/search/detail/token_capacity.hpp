// SPDX-License-Identifier: Apache-2.0
// What ranks can hold, about: where searches over sizes of groups and micro-batches begin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/layout.hpp"

namespace slimpack::planners::detail {

/// About how many tokens of a micro-batch a rank can hold in a recomputation mode with as many
/// micro-batches in flight as there are stages; at least 1.
[[nodiscard]] inline Tokens token_capacity(const PlanRequest& request, Recompute recompute,
                                           WeightState weights = WeightState::replicated) {
  Plan plan = plan_frame(request, "");
  plan.memory.weights = weights;
  const LayerBytes layer = layer_bytes(request.model, plan.memory.gradient_bytes, plan.parallel.tp);
  const auto mode = static_cast<std::size_t>(recompute);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Stage& stage : plan.stages) {
    const std::int64_t room =
        (plan.memory.capacity - plan.memory.reserved - static_bytes(plan, stage.pp).total() -
         head_workspace(plan, stage.pp, plan.memory.head_tile))
            .value;
    const std::int64_t in_flight = plan.parallel.pp - stage.pp;
    const std::int64_t each = in_flight * stage.layers() * (layer.kept[mode] + layer.kv) +
                              stage.layers() * layer.kv_gradient + layer.backward_workspace[mode] +
                              4 * layer.boundary;
    least = std::min(least, room / std::max<std::int64_t>(each, 1));
  }
  return {std::max<std::int64_t>(least, 1)};
}

/// Powers of two up to the request's ranks and its bound on groups.
[[nodiscard]] inline std::int32_t largest_group(const PlanRequest& request) {
  const std::int32_t most = std::min(request.dp, request.max_cp.value_or(request.dp));
  std::int32_t power = 1;
  while (power <= most / 2) power *= 2;
  return power;
}

/// Sizes of groups, ascending, with those first whose ranks can hold so many tokens together where
/// little is recomputed, then the others from the largest.
[[nodiscard]] inline std::vector<std::int32_t> roomy_first(const PlanRequest& request,
                                                           std::vector<std::int32_t> sizes,
                                                           Tokens tokens) {
  const Tokens room = token_capacity(request, Recompute::light);
  const auto small = std::stable_partition(
      sizes.begin(), sizes.end(), [&](std::int32_t ranks) { return tokens <= room * ranks; });
  std::reverse(small, sizes.end());
  return sizes;
}

}  // namespace slimpack::planners::detail
