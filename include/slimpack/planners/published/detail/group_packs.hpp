// SPDX-License-Identifier: Apache-2.0
// Plans whose MicroPacks are the same in both passes, group after group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/pipeline.hpp"

namespace slimpack::planners::detail {

/// The packs of a group, in forward order: pack i is forward[i] and backward[i].
struct GroupPacks {
  std::vector<PackId> forward, backward;
};

/// A plan of the request without packs, on one chunk a stage with the head on the last stage.
[[nodiscard]] inline Plan last_head_frame(const PlanRequest& request, std::string_view planner,
                                          const LmHeadPlacement& head) {
  Plan plan = plan_frame(request, planner);
  plan.stages =
      spread_layers(request.model.layers, virtual_stages_of(plan), head.fewer_last_layers, true);
  return plan;
}

/// Appends a pack to both passes of a group and to its list, and gives the group its samples.
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

/// Appends the schedules of a group's ranks: `orders` of F and B, completed. Groups come in order
/// of their ranks.
inline void add_orders(Plan& plan, GroupId group, const GroupPacks& packs,
                       const schedule::StageOrders& orders) {
  const schedule::Pipeline pipeline{plan.parallel.pp, 1};
  const schedule::StageOrders steps = schedule::with_updates(
      pipeline, schedule::with_heads(pipeline, orders, LmHead::last, plan.max_in_flight));
  for (const std::int32_t rank : plan.groups[index(group)]) {
    for (std::int32_t stage = 0; stage < plan.parallel.pp; ++stage) {
      plan.schedule.push_back({rank, stage,
                               schedule::name_units(steps[static_cast<std::size_t>(stage)],
                                                    packs.forward, packs.backward)});
    }
  }
}

/// Why a planner of one chunk a stage with the head on the last cannot serve a request, if so.
[[nodiscard]] inline std::optional<Infeasible> beyond_one_chunk(const PlanRequest& request,
                                                                std::string_view planner) {
  const std::string order = "one in " + std::string(planner) + "'s order";
  if (request.chunks.value_or(1) != 1) {
    return Infeasible{"chunks of a stage, " + order, *request.chunks, 1};
  }
  if (request.head == LmHead::shard) {
    return Infeasible{"stages with a part of the head, " + order, request.pp, 1};
  }
  return std::nullopt;
}

}  // namespace slimpack::planners::detail
