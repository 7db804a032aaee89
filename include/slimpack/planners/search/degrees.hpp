// SPDX-License-Identifier: Apache-2.0
// Which parallel degrees a number of devices allows, and which of them cannot hold the weights.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/layout.hpp"

namespace slimpack::planners {

/// Degrees of parallelism; their product is the number of devices.
struct Degrees {
  std::int32_t dp = 1;  ///< data-parallel ranks
  std::int32_t pp = 1;  ///< stages of the pipeline of a rank
  std::int32_t tp = 1;  ///< tensor-parallel devices of a stage
  friend auto operator<=>(const Degrees&, const Degrees&) = default;
};

/// "dp 8 x pp 4 x tp 2".
[[nodiscard]] inline std::string to_string(const Degrees& degrees) {
  return "dp " + std::to_string(degrees.dp) + " x pp " + std::to_string(degrees.pp) + " x tp " +
         std::to_string(degrees.tp);
}

/// What must hold of the degrees that `degree_choices` gives.
struct DegreeBounds {
  std::optional<std::int32_t> dp;      ///< data-parallel ranks; absent: any
  std::optional<std::int32_t> pp;      ///< stages; absent: any
  std::optional<std::int32_t> tp;      ///< tensor-parallel devices; absent: any
  std::int32_t chunks = 1;             ///< virtual stages a device has: each needs a layer
  std::int32_t fewer_last_layers = 0;  ///< layers that the last virtual stage holds fewer
};

/// Every (dp, pp, tp) with dp x pp x tp = `devices` that a request for this model may have: tp a
/// power of two that divides heads, kv_heads and ffn and is at most a node's devices; a layer for
/// each of the pp x chunks virtual stages, and fewer on the last one as asked for. By rising tp,
/// then rising pp; none where the bounds leave none. Throws InvalidInput if `devices` is not in [1,
/// 2^20], a bound is below its least value, or model or cluster has sizes that are not positive.
/// O(sqrt(devices) log devices).
[[nodiscard]] inline std::vector<Degrees> degree_choices(const ModelShape& model,
                                                         const Cluster& cluster,
                                                         std::int64_t devices,
                                                         const DegreeBounds& bounds = {}) {
  detail::check_model(model);
  detail::check_cluster(cluster);
  require(devices >= 1, "devices must be >= 1", devices);
  require(devices <= kMostDevices, "devices must be <= " + std::to_string(kMostDevices), devices);
  const auto fixed = [](const char* name, const std::optional<std::int32_t>& value) {
    if (value) require(*value >= 1, std::string(name) + " must be >= 1", *value);
  };
  fixed("dp", bounds.dp);
  fixed("pp", bounds.pp);
  fixed("tp", bounds.tp);
  require(bounds.chunks >= 1, "chunks must be >= 1", bounds.chunks);
  require(bounds.fewer_last_layers >= 0, "fewer_last_layers must be >= 0",
          bounds.fewer_last_layers);

  const auto holds_layers = [&](std::int64_t pp) {
    const std::int64_t places = pp * bounds.chunks;
    if (places > model.layers) return false;
    return bounds.fewer_last_layers == 0 ||
           (pp > 1 &&
            (model.layers + bounds.fewer_last_layers) / places > bounds.fewer_last_layers);
  };
  const auto agrees = [](const std::optional<std::int32_t>& wish, std::int64_t value) {
    return !wish || *wish == value;
  };
  std::vector<Degrees> choices;
  for (std::int64_t tp = 1; tp <= std::min(devices, cluster.devices_per_node); tp *= 2) {
    if (devices % tp != 0 || model.heads % tp != 0 || model.kv_heads % tp != 0 ||
        model.ffn % tp != 0 || !agrees(bounds.tp, tp)) {
      continue;
    }
    const std::int64_t ranks = devices / tp;
    for (std::int64_t pp = 1; pp <= std::min(ranks, model.layers); ++pp) {
      if (ranks % pp != 0 || !holds_layers(pp) || !agrees(bounds.pp, pp) ||
          !agrees(bounds.dp, ranks / pp)) {
        continue;
      }
      choices.push_back({static_cast<std::int32_t>(ranks / pp), static_cast<std::int32_t>(pp),
                         static_cast<std::int32_t>(tp)});
    }
  }
  return choices;
}

/// The request at other degrees.
[[nodiscard]] inline PlanRequest at_degrees(PlanRequest request, const Degrees& degrees) {
  request.dp = degrees.dp;
  request.pp = degrees.pp;
  request.tp = degrees.tp;
  return request;
}

/// Weights, gradients and optimizer state that the fullest device holds at least, however layers
/// and head are placed: some stage has no fewer layers, and none fewer weights, than an even part.
/// The request's own degrees do not matter. O(1).
[[nodiscard]] inline Bytes least_static_bytes(const PlanRequest& request, const Degrees& degrees) {
  const ModelShape& model = request.model;
  const MemorySpec memory = memory_of(request);
  const auto part = [](std::int64_t amount, std::int64_t parts) {
    return (amount + parts - 1) / parts;
  };
  const std::int64_t table = model.vocab * model.hidden;
  const std::int64_t all =
      model.layers * model.layer_weights() + model.hidden + (model.tied ? table : 2 * table);
  const std::int64_t weights =
      std::max(part(model.layers, degrees.pp) * model.layer_weights(), part(all, degrees.pp));
  const bool sharded = memory.optimizer == OptimizerState::sharded;
  const std::int64_t state_parts = std::int64_t{degrees.tp} * (sharded ? degrees.dp : 1);
  return Bytes{part(weights * model.bytes_per_element, degrees.tp) +
               part(weights * memory.gradient_bytes, degrees.tp) +
               part(weights * state_bytes(model), state_parts)};
}

/// What is lacking where devices of these degrees cannot hold even weights, gradients and
/// optimizer state; absent where they may fit. O(1).
[[nodiscard]] inline std::optional<Infeasible> lacks_static_memory(const PlanRequest& request,
                                                                   const Degrees& degrees) {
  const MemorySpec memory = memory_of(request);
  const Bytes needed = least_static_bytes(request, degrees);
  const Bytes available = memory.capacity - memory.reserved;
  if (needed <= available) return std::nullopt;
  return Infeasible{"bytes of weights, gradients and optimizer state on the fullest device",
                    needed.value, available.value};
}

}  // namespace slimpack::planners
