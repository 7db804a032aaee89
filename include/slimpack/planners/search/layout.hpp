// SPDX-License-Identifier: Apache-2.0
// The parts of a plan that do not depend on its schedule: stages, placement, memory, groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::planners {

/// The layers of each (stage, chunk) in line order, as evenly as possible, the last place of the
/// line holding `relief` fewer than an even part. Where the layers do not divide, the later places
/// hold one more, for fewer micro-batches are in flight there; the last only if all others do, or
/// if `relief` is 0 and `spare_last` is not set. Throws InvalidInput if a place would be empty.
/// O(stages).
[[nodiscard]] inline std::vector<Stage> spread_layers(std::int64_t layers,
                                                      VirtualStages virtual_stages,
                                                      std::int32_t fewer_last_layers = 0,
                                                      bool spare_last = false) {
  require(virtual_stages.pp >= 1 && virtual_stages.chunks >= 1, "stages and chunks must be >= 1");
  require(fewer_last_layers >= 0, "relief of the last stage must be >= 0", fewer_last_layers);
  const std::int64_t places = std::int64_t{virtual_stages.pp} * virtual_stages.chunks;
  require(places <= layers, "there must be a layer for every stage and chunk", layers);
  const std::int64_t even = (layers + fewer_last_layers) / places;
  const std::int64_t more = (layers + fewer_last_layers) % places;
  require(even > fewer_last_layers, "relief of the last stage must leave it a layer",
          fewer_last_layers);
  const bool skip_last = spare_last || fewer_last_layers > 0;
  std::vector<Stage> stages;
  std::int64_t first = 0;
  for (std::int32_t i = 0; i < virtual_stages.size(); ++i) {
    const std::int64_t from_end = places - 1 - i - (skip_last ? 1 : 0);
    std::int64_t count = even + (from_end >= 0 && from_end < more ? 1 : 0);
    if (i == virtual_stages.size() - 1) count -= fewer_last_layers;
    stages.push_back(
        {virtual_stages.stage(i), virtual_stages.chunk(i), first, first + count, i == 0});
    first += count;
  }
  return stages;
}

/// The device of (dp, pp, tp): tensor-parallel devices lie next to each other, then data-parallel
/// ranks, then stages.
[[nodiscard]] inline std::vector<Placement> place_devices(const Parallel& parallel) {
  std::vector<Placement> placement;
  for (std::int32_t dp = 0; dp < parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
      for (std::int32_t tp = 0; tp < parallel.tp; ++tp) {
        const std::int64_t rank = std::int64_t{pp} * parallel.dp + dp;
        placement.push_back({dp, pp, tp, rank * parallel.tp + tp});
      }
    }
  }
  return placement;
}

/// The memory rules of a request: the cluster's figures unless it overrides them.
[[nodiscard]] inline MemorySpec memory_of(const PlanRequest& request) {
  const MemoryOverrides& wish = request.memory;
  const MemorySpec rules;
  return {wish.capacity.value_or(request.cluster.memory),
          wish.reserved.value_or(request.cluster.reserved),
          request.optimizer,
          wish.gradient_bytes.value_or(rules.gradient_bytes),
          wish.page_tokens.value_or(rules.page_tokens),
          wish.cp_block_tokens.value_or(rules.cp_block_tokens),
          wish.head_tile.value_or(rules.head_tile)};
}

/// A plan of the request with everything but groups of samples, MicroPacks, schedule and
/// prediction: every rank is a group of its own, the stages are spread evenly on one chunk.
[[nodiscard]] inline Plan plan_frame(const PlanRequest& request, std::string_view planner) {
  Plan plan;
  plan.planner = planner;
  plan.step_index = request.batch.step;
  plan.target_tokens = request.batch.target_tokens;
  plan.sources = request.sources;
  plan.origin = request.batch.origin;
  plan.samples = request.batch.samples;
  plan.model = request.model;
  plan.cluster = request.cluster;
  plan.cost = request.cost;
  plan.memory = memory_of(request);
  plan.parallel.dp = request.dp;
  plan.parallel.pp = request.pp;
  plan.parallel.tp = request.tp;
  plan.parallel.granularity = request.granularity;
  plan.placement = place_devices(plan.parallel);
  plan.stages = spread_layers(request.model.layers, virtual_stages_of(plan));
  for (std::int32_t dp = 0; dp < request.dp; ++dp) plan.groups.push_back({dp});
  plan.sample_group.resize(plan.samples.size());
  return plan;
}

}  // namespace slimpack::planners
