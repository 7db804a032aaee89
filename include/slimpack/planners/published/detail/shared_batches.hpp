// SPDX-License-Identifier: Apache-2.0
// Plans of micro-batches that each have a block of data-parallel ranks of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/list_schedule.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners::detail {

/// Whole samples that ranks first .. first + ranks - 1 run together.
struct SharedBatch {
  std::int32_t first = 0, ranks = 1;
  std::vector<std::size_t> samples;
  std::int32_t round = 0;  ///< those of a round share no rank
  friend bool operator==(const SharedBatch&, const SharedBatch&) = default;
};

/// The settings that planners of shared micro-batches have in common.
struct SharedSettings : StepSettings {
  ModeChoice recompute;            ///< of micro-batches, by the tokens that a rank has of each
  std::optional<Tokens> cp_block;  ///< tokens of a CP block; absent: the request's
};

/// A plan of the request with everything but schedule and prediction: micro-batch i of the common
/// order is MicroPack 2i forward and 2i + 1 backward, keys and values are what ranks exchange. One
/// chunk a stage. O(samples + micro-batches x ranks).
[[nodiscard]] inline Plan share_batches(const PlanRequest& request, std::string_view planner,
                                        const SharedSettings& settings,
                                        std::span<const SharedBatch> batches) {
  Plan plan = step_frame(request, planner, settings);
  std::map<std::pair<std::int32_t, std::int32_t>, GroupId> in_cp_group;  // by size and first rank
  for (const SharedBatch& batch : batches) {
    if (batch.ranks > 1) in_cp_group[{batch.ranks, batch.first}] = GroupId{};
  }
  for (auto& [block, group] : in_cp_group) {
    group = static_cast<GroupId>(plan.groups.size());
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(block.first));
    std::iota(ranks.begin(), ranks.end(), block.second);
    plan.groups.push_back(std::move(ranks));
    plan.parallel.max_cp = std::max(plan.parallel.max_cp, block.first);
  }
  if (!in_cp_group.empty() && settings.cp_block) plan.memory.cp_block_tokens = *settings.cp_block;
  for (const SharedBatch& batch : batches) {
    const GroupId group = batch.ranks > 1 ? in_cp_group.at({batch.ranks, batch.first})
                                          : static_cast<GroupId>(batch.first);
    std::vector<Slice> slices;
    Tokens tokens;
    for (const std::size_t sample : batch.samples) {
      tokens += plan.samples[sample];
      plan.sample_group[sample] = group;
      slices.push_back({static_cast<SampleId>(sample), Tokens{}, plan.samples[sample]});
    }
    const std::vector<RingMode> exchange(batch.ranks > 1 ? slices.size() : 0, RingMode::pass_kv);
    plan.micropacks.push_back({Pass::forward, group, slices, exchange, Recompute::none});
    plan.micropacks.push_back(
        {Pass::backward, group, std::move(slices), exchange,
         settings.recompute.of({(tokens.value + batch.ranks - 1) / batch.ranks})});
  }
  return plan;
}

/// The schedule in which each rank runs its micro-batches in the common order, at most `lead` of
/// them in flight. With a lead of 1 free of deadlock whatever ranks share.
[[nodiscard]] inline std::vector<DeviceSchedule> one_after_another(
    const Plan& plan, std::span<const SharedBatch> batches, std::int32_t lead) {
  const schedule::Pipeline pipeline{plan.parallel.pp, 1};
  std::vector<std::vector<PackId>> forward(static_cast<std::size_t>(plan.parallel.dp));
  auto backward = forward;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for (std::int32_t of = 0; of < batches[i].ranks; ++of) {
      const auto rank = static_cast<std::size_t>(batches[i].first + of);
      forward[rank].push_back(static_cast<PackId>(2 * i));
      backward[rank].push_back(static_cast<PackId>(2 * i + 1));
    }
  }
  std::vector<DeviceSchedule> schedule;
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    const auto rank = static_cast<std::size_t>(dp);
    std::vector<schedule::PipelineOp> first, second;
    for (std::size_t item = 0; item < forward[rank].size(); ++item) {
      first.push_back({UnitKind::forward, static_cast<std::int32_t>(item), 0});
      second.push_back({UnitKind::backward, static_cast<std::int32_t>(item), 0});
    }
    schedule::StageOrders orders;
    for (std::int32_t stage = 0; stage < plan.parallel.pp; ++stage) {
      orders.push_back(schedule::one_backward_one_forward(
          first, second, std::min(lead, plan.parallel.pp - stage)));
    }
    const schedule::StageOrders steps = schedule::with_updates(
        pipeline, schedule::with_heads(pipeline, orders, plan.parallel.head, plan.max_in_flight));
    for (std::int32_t stage = 0; stage < plan.parallel.pp; ++stage) {
      schedule.push_back({dp, stage,
                          schedule::name_units(steps[static_cast<std::size_t>(stage)],
                                               forward[rank], backward[rank])});
    }
  }
  return schedule;
}

/// Gives a plan of shared micro-batches its schedule. On one stage forward and backward of each
/// follow each other. On several, ranks whose groups change cannot each keep an order of its own
/// such as 1F1B: two of them may ask for B and F of two common micro-batches in opposite order and
/// wait for ever. There the orders come from `list_schedule`, backward first where it is ready, as
/// many micro-batches in flight as memory allows, H of `head_batch` back to back where the head is
/// sharded, else where `runtime` asks for it; where even one after another does not fit, that order
/// is left, which lacks least.
template <UnitTimes Times>
void schedule_shared(Plan& plan, std::span<const SharedBatch> batches, const Times& times,
                     const MemoryModel& memory, std::int32_t head_batch, Runtime runtime) {
  if (plan.parallel.pp > 1) {
    schedule::ListOptions options;
    if (plan.parallel.head == LmHead::shard) options.head_batch = head_batch;
    options.head_at_once = runtime == Runtime::torch;
    auto listed = schedule::list_schedule(plan, times, memory, options);
    if (auto* schedule = std::get_if<std::vector<DeviceSchedule>>(&listed)) {
      plan.schedule = std::move(*schedule);
      return;
    }
  }
  plan.schedule = one_after_another(plan, batches, 1);
}

}  // namespace slimpack::planners::detail
