// SPDX-License-Identifier: Apache-2.0
// ZeRO-3: weights and gradients sharded over data-parallel ranks and gathered layer by layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::planners {

/// What stages hold and move when each rank keeps one part of all weights and gradients of its
/// stage (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
/// Models", SC 2020, stage 3): F and B gather the weights of each layer before they run it, B
/// scatters and reduces the layer's gradients behind it. A plan shards optimizer state alone.
///
/// While a layer runs, its weights and those of the next one are whole, and in B one layer's
/// gradients. The table of the embedding, the final norm and the head count as a layer of theirs.
/// Traffic hides behind computing but for one layer's part, the share by which rings hide
/// (docs/costs.md). The step's first F finds weights that O has gathered, and R reduces the last
/// micro-batch's gradients: both are priced where a plan has them.
struct ShardedWeights {
  /// Bytes of weights and gradients that a device of the stage does not hold, by stage.
  std::vector<Bytes> not_held;
  std::vector<std::int64_t> layers;    ///< gathered one after another, by stage; at least 1
  std::vector<Nanos> gather, scatter;  ///< of a whole stage, by stage
  std::vector<std::int64_t> moved;     ///< numbers that all ranks receive in either, by stage
};

namespace detail {

/// Bytes of a device's stage that are not held where `ranks` share them.
[[nodiscard]] inline Bytes stage_not_held(const Plan& plan, std::int32_t pp) {
  const StaticBytes all = static_bytes(plan, pp);
  const DeviceWeights weights = device_weights(plan, pp);
  const std::int64_t layer = std::max({weights.layers > 0 ? plan.model.layer_weights() : 0,
                                       weights.embedding, weights.final_norm + weights.head});
  const std::int64_t tp = plan.parallel.tp, ranks = plan.parallel.dp;
  const std::int64_t whole =
      layer * (2 * plan.model.bytes_per_element + plan.memory.gradient_bytes);
  const std::int64_t both = (all.weights + all.gradients).value;
  const std::int64_t held = (both + ranks - 1) / ranks + (whole + tp - 1) / tp;
  return Bytes{std::max<std::int64_t>(0, both - held)};
}

}  // namespace detail

/// The bytes that fully sharded weights save a device of each stage. O(stages).
[[nodiscard]] inline std::vector<Bytes> bytes_not_held(const Plan& plan) {
  std::vector<Bytes> bytes;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    bytes.push_back(detail::stage_not_held(plan, pp));
  }
  return bytes;
}

/// Bytes and times of fully sharded weights on the stages of a plan with one chunk a stage. A
/// gather takes as long as a reduction that scatters as many bytes. O(stages x ranks x tp).
template <CostModel Model>
[[nodiscard]] ShardedWeights sharded_weights(const Plan& plan, const Model& model) {
  const Links links(plan);
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(plan.parallel.dp));
  std::iota(ranks.begin(), ranks.end(), 0);
  ShardedWeights sharded;
  sharded.not_held = bytes_not_held(plan);
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    const DeviceWeights weights = device_weights(plan, pp);
    sharded.layers.push_back(chunk_layers(plan, pp, 0) + (weights.embedding > 0 ? 1 : 0) +
                             (weights.head > 0 ? 1 : 0));
    const std::int64_t parts = plan.parallel.tp * sharded.layers.back();
    const Link& link = links.ranks(ranks, pp);
    const auto time = [&](std::int64_t each) {
      const Bytes layer{(weights.total() * each + parts - 1) / parts};
      return model.reduce(layer, plan.parallel.dp, link) * sharded.layers.back();
    };
    sharded.gather.push_back(time(plan.model.bytes_per_element));
    sharded.scatter.push_back(time(plan.memory.gradient_bytes));
    sharded.moved.push_back(weights.total() * (plan.parallel.dp - 1));
  }
  return sharded;
}

/// A unit's time with traffic that hides behind it but for one of `layers` parts of the shorter.
[[nodiscard]] constexpr Nanos with_traffic(Nanos compute, Nanos traffic,
                                           std::int64_t layers) noexcept {
  return std::max(compute, traffic) +
         Nanos{(std::min(compute, traffic).value + layers - 1) / layers};
}

}  // namespace slimpack::planners
