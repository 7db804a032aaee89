// SPDX-License-Identifier: Apache-2.0
// The parts of a plan that do not depend on its schedule: stages, placement, memory, groups.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/pipeline.hpp"

namespace slimpack {
namespace planners {

/// Which devices lie next to each other: the data-parallel ranks of a stage or the stages of a
/// rank.
enum class DeviceOrder : std::uint8_t { ranks, stages };

}  // namespace planners

template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::DeviceOrder>{"ranks-together",
                                                                               "stages-together"};
}  // namespace slimpack

namespace slimpack::planners {

/// The layers of each virtual stage in order, as evenly as possible; the last virtual stage holds
/// `fewer_last_layers` fewer than an even part. Where the layers do not divide, the later ones hold
/// one more, because fewer micro-batches are in flight there; the last only if all others do, or if
/// it holds no fewer and `spare_last` is not set. Throws InvalidInput if one would be empty.
/// O(stages).
[[nodiscard]] inline std::vector<Stage> spread_layers(std::int64_t layers,
                                                      VirtualStages virtual_stages,
                                                      std::int32_t fewer_last_layers = 0,
                                                      bool spare_last = false) {
  require(virtual_stages.pp >= 1 && virtual_stages.chunks >= 1, "stages and chunks must be >= 1");
  require(fewer_last_layers >= 0, "fewer_last_layers must be >= 0", fewer_last_layers);
  const std::int64_t places = std::int64_t{virtual_stages.pp} * virtual_stages.chunks;
  require(places <= layers, "there must be a layer for every stage and chunk", layers);
  const std::int64_t even = (layers + fewer_last_layers) / places;
  const std::int64_t more = (layers + fewer_last_layers) % places;
  require(even > fewer_last_layers, "fewer_last_layers must leave the last stage a layer",
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

/// The device of (dp, pp, tp): tensor-parallel devices lie next to each other, then the ranks of a
/// stage or the stages of a rank.
[[nodiscard]] inline std::vector<Placement> place_devices(const Parallel& parallel,
                                                          DeviceOrder order = DeviceOrder::ranks) {
  std::vector<Placement> placement;
  for (std::int32_t dp = 0; dp < parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
      for (std::int32_t tp = 0; tp < parallel.tp; ++tp) {
        const std::int64_t rank = order == DeviceOrder::ranks ? std::int64_t{pp} * parallel.dp + dp
                                                              : std::int64_t{dp} * parallel.pp + pp;
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

/// The text of how many layers fewer than an even part the last stage holds.
[[nodiscard]] inline std::string fewer_layers_text(std::int32_t fewer) {
  return fewer == 0 ? "even" : std::to_string(fewer) + "-fewer";
}

/// Where the head is, and how many layers fewer the last virtual stage holds for its sake.
struct LmHeadPlacement {
  LmHead head = LmHead::last;          ///< on the last stage, or sharded over all
  std::int32_t fewer_last_layers = 0;  ///< layers of the last virtual stage below an even part
  friend bool operator==(const LmHeadPlacement&, const LmHeadPlacement&) = default;

  /// The texts "head" and "last_stage_layers".
  void describe(SettingTexts& texts) const {
    texts["head"] = to_string(head);
    texts["last_stage_layers"] = fewer_layers_text(fewer_last_layers);
  }
};

/// What any system may decide of a step, whatever its micro-batches are.
struct StepSettings {
  LmHeadPlacement head;         ///< place of the head, and layers of the last stage
  std::int32_t head_batch = 1;  ///< packs that run their H back to back where the head is sharded
  DeviceOrder devices = DeviceOrder::ranks;  ///< placement of (dp, pp)
};

/// The frame of a plan with these settings and so many chunks a stage.
[[nodiscard]] inline Plan step_frame(const PlanRequest& request, std::string_view planner,
                                     const StepSettings& settings, std::int32_t chunks = 1) {
  Plan plan = plan_frame(request, planner);
  plan.parallel.chunks = chunks;
  plan.parallel.head = settings.head.head;
  plan.stages = spread_layers(request.model.layers, virtual_stages_of(plan),
                              settings.head.fewer_last_layers, settings.head.head == LmHead::last);
  plan.placement = place_devices(plan.parallel, settings.devices);
  return plan;
}

/// Makes CP groups of `ranks` neighbouring ranks, with CP blocks of `cp_block` tokens (absent: as
/// the plan says). One rank alone changes nothing. `ranks` divides dp.
inline void group_neighbours(Plan& plan, std::int32_t ranks, std::optional<Tokens> cp_block) {
  if (ranks == 1) return;
  plan.parallel.max_cp = ranks;
  if (cp_block) plan.memory.cp_block_tokens = *cp_block;
  plan.groups.assign(static_cast<std::size_t>(plan.parallel.dp / ranks), {});
  for (std::int32_t rank = 0; rank < plan.parallel.dp; ++rank) {
    plan.groups[static_cast<std::size_t>(rank / ranks)].push_back(rank);
  }
}

/// The packs of a group that have the same slices forward and backward.
struct GroupPacks {
  std::vector<PackId> forward;   ///< in forward order
  std::vector<PackId> backward;  ///< backward[i] has the slices of forward[i]
};

/// Appends a pack to both passes of a group and to its list, and gives the group its samples.
/// Ranks of a group exchange keys and values.
inline void add_pack(Plan& plan, GroupId group, std::vector<Slice> slices, Recompute recompute,
                     GroupPacks& packs) {
  for (const Slice& slice : slices) plan.sample_group[index(slice.sample)] = group;
  const bool in_cp_group = plan.groups[index(group)].size() > 1;
  const std::vector<RingMode> exchange(in_cp_group ? slices.size() : 0, RingMode::pass_kv);
  packs.forward.push_back(static_cast<PackId>(plan.micropacks.size()));
  plan.micropacks.push_back({Pass::forward, group, slices, exchange, Recompute::none});
  packs.backward.push_back(static_cast<PackId>(plan.micropacks.size()));
  plan.micropacks.push_back({Pass::backward, group, std::move(slices), exchange, recompute});
}

/// Appends the schedules of a group's ranks: `orders` of F and B, with H, R and O. Where the head
/// is sharded and stages have one chunk, F runs so far ahead that `head_batch` packs run their H
/// back to back. Groups come in the order of their ranks.
inline void add_orders(Plan& plan, GroupId group, const GroupPacks& packs,
                       const schedule::StageOrders& orders, std::int32_t head_batch = 1) {
  const schedule::Pipeline pipeline{plan.parallel.pp, plan.parallel.chunks};
  // With several chunks, stages that run ahead may wait for each other around the pipeline.
  const bool batched =
      plan.parallel.head == LmHead::shard && head_batch > 1 && plan.parallel.chunks == 1;
  const schedule::StageOrders complete = schedule::with_updates(
      pipeline,
      schedule::with_heads(
          pipeline,
          batched ? schedule::run_ahead(orders, static_cast<std::size_t>(head_batch) - 1) : orders,
          plan.parallel.head, plan.max_in_flight, head_batch));
  for (const std::int32_t rank : plan.groups[index(group)]) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      plan.schedule.push_back({rank, pp,
                               schedule::name_units(complete[static_cast<std::size_t>(pp)],
                                                    packs.forward, packs.backward)});
    }
  }
}

}  // namespace slimpack::planners
