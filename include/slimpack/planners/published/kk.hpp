// SPDX-License-Identifier: Apache-2.0
// verl's plan: Karmarkar-Karp over data-parallel ranks, then over micro-batches of a token budget.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/kk_batches.hpp"
#include "slimpack/planners/published/detail/token_capacity.hpp"
#include "slimpack/planners/published/megatron_cp.hpp"
#include "slimpack/planners/search/choose_plan.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

namespace detail {

/// The candidates of `Kk`.
class KkCandidates {
 public:
  KkCandidates(const PlanRequest& request, std::string_view planner)
      : request_(request),
        planner_(planner),
        recompute_(recompute_choices(request)),
        ranks_(context_parallel_choices(request)),
        share_(share_choices(request, ranks_)),
        chunks_(request.pp == 1 && !request.chunks ? std::vector<std::int32_t>{1}
                                                   : chunk_choices(request, 1)),
        head_(head_choices(request, chunks_, false)) {
    if (request.pp > 1) least_ = {4, 1, 2, 8, 16};
    const Tokens longest =
        *std::max_element(request.batch.samples.begin(), request.batch.samples.end());
    ranks_ = roomy_first(request, std::move(ranks_), longest);
    budget_ = {request.context, request.context * 2, request.context * 4};
    if (longest < request.context) budget_.push_back(longest);
    if (request.batch.samples.size() % static_cast<std::size_t>(request.dp) != 0) {
      sizes_ = {schedule::PartSizes::free};
    }
  }

  [[nodiscard]] std::vector<std::size_t> sizes() const {
    return {recompute_.size(), ranks_.size(), least_.size(), budget_.size(), work_.size(),
            sizes_.size(),     head_.size(),  share_.size(), chunks_.size(), ends_.size()};
  }
  /// Blocks matter to several ranks alone.
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    return (point[7] == 0 || ranks_[point[1]] > 1) &&
           leaves_layers(request_, chunks_[point[8]], head_[point[6]]);
  }
  [[nodiscard]] Plan build(const SettingPoint& point) const {
    const PackedSettings settings = packed(point);
    const auto order = [](const schedule::Pipeline& pipeline,
                          std::span<const std::int32_t> slices) {
      const auto count = static_cast<std::int32_t>(slices.size());
      return pipeline.chunks > 1 ? schedule::interleaved(pipeline, count)
                                 : schedule::one_f_one_b(pipeline.stages, count);
    };
    return build_packed(request_, planner_, settings,
                        assign_as_verl(request_.model, request_.batch.samples,
                                       request_.dp / settings.ranks, rules(point)),
                        order);
  }
  [[nodiscard]] std::map<std::string, std::string> describe(const SettingPoint& point,
                                                            const Plan& plan) const {
    const PackedSettings settings = packed(point);
    auto lines = slimpack::planners::describe(settings, false);
    lines.erase("packing");
    lines.erase("dealing");
    const KkRules chosen = rules(point);
    lines["work"] = chosen.work == KkWork::verl ? "24576-L-plus-L2" : "model";
    lines["samples_of_ranks"] = chosen.sizes == schedule::PartSizes::equal ? "equal" : "free";
    lines["budget_tokens"] = std::to_string(chosen.budget.value);
    lines["least_micro_batches"] = std::to_string(chosen.least);
    lines["small_at_ends"] = chosen.small_at_ends ? "yes" : "no";
    lines["context_parallel"] = std::to_string(settings.ranks);
    if (settings.ranks > 1)
      lines["share_tokens"] = std::to_string(plan.memory.cp_block_tokens.value);
    return lines;
  }

 private:
  [[nodiscard]] PackedSettings packed(const SettingPoint& point) const {
    PackedSettings settings;
    settings.recompute = recompute_[point[0]];
    settings.ranks = ranks_[point[1]];
    settings.head = head_[point[6]];
    settings.share = share_[point[7]];
    settings.chunks = chunks_[point[8]];
    return settings;
  }
  [[nodiscard]] KkRules rules(const SettingPoint& point) const {
    KkRules rules;
    const std::int32_t ranks = ranks_[point[1]];
    rules.least = least_[point[2]] * (request_.pp > 1 ? request_.pp : 1);
    // A group's budget is that of its ranks together.
    rules.budget = budget_[point[3]] * (budget_[point[3]] < request_.context ? 1 : ranks);
    rules.work = work_[point[4]];
    rules.sizes = sizes_[point[5]];
    rules.multiple = chunks_[point[8]] > 1 ? request_.pp : 1;
    rules.small_at_ends = ends_[point[9]];
    return rules;
  }

  const PlanRequest& request_;
  std::string_view planner_;
  std::vector<Recompute> recompute_;
  std::vector<std::int32_t> ranks_;
  std::vector<std::optional<Tokens>> share_;
  std::vector<std::int32_t> chunks_;
  std::vector<LmHeadPlacement> head_;
  std::vector<std::int64_t> least_{1, 4, 16, 64};  ///< times stages where there are several
  std::vector<Tokens> budget_;
  std::vector<KkWork> work_{KkWork::verl, KkWork::model};
  std::vector<schedule::PartSizes> sizes_{schedule::PartSizes::equal, schedule::PartSizes::free};
  std::vector<bool> ends_{true, false};
};

}  // namespace detail

/// The batching of verl (github.com/verl-project/verl, verl/utils/seqlen_balancing.py and
/// `_balance_batch` of its trainer, 2026): samples go to data-parallel ranks by Karmarkar-Karp over
/// their work, the same number to each; each rank cuts its own, again by Karmarkar-Karp, into as
/// many micro-batches as the token budget asks of the fullest rank, the light ones first and last.
/// Whole samples, packed without padding; 1F1B, interleaved where stages have chunks.
///
/// Searched: recomputation; context-parallel degree (powers of two that divide dp) and the blocks
/// of sharing, as `MegatronCp`; chunks; layers of the last stage; verl's own knobs: token budget,
/// least number of micro-batches, light ones at both ends or as dealt. And what it fixes: work by
/// its figure of a 7B model or by the model at hand, ranks with equal or free numbers of samples.
///
/// Deviations, all in its favour: where ranks do not divide the samples, verl stops, here numbers
/// are free; a rank with fewer samples than micro-batches has one a sample. As published, a
/// micro-batch may exceed the budget; what does not fit into memory is not chosen. Blocks of
/// sharing are those of a plan (planners/megatron_cp.hpp).
///
/// Infeasible where a sharded head is asked for.
struct Kk {
  static constexpr std::string_view name = "kk";
  static constexpr std::string_view description =
      "verl: Karmarkar-Karp over ranks, then over micro-batches of a token budget";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.head == LmHead::shard) {
      return {
          Infeasible{"stages with a part of the head, one in kk's order", request.pp, 1}, {}, 0};
    }
    return choose_plan(request, detail::KkCandidates(request, name));
  }
};
static_assert(Planner<Kk>);

}  // namespace slimpack::planners
