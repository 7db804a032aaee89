// SPDX-License-Identifier: Apache-2.0
// WLB-LLM: packs of equal work, outliers delayed, documents shared by context-parallel ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/joint_micro_batches.hpp"
#include "slimpack/planners/published/detail/wlb_packs.hpp"
#include "slimpack/planners/published/detail/wlb_queues.hpp"
#include "slimpack/planners/published/detail/wlb_shards.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/bins.hpp"

namespace slimpack::planners {

/// One candidate of `WlbLlm`.
struct WlbSettings : PackedSettings {
  /// Micro-batches in place of each that is as long as `pack_length`, twice over.
  std::int64_t packs_per_length2 = 2;
  /// Halves of `pack_length` that the longest micro-batch has; absent: of any length.
  std::optional<std::int64_t> longest_pack2;
};

namespace detail {

/// The candidates of `WlbLlm`.
class WlbCandidates : public JointMicroBatches<WlbSettings> {
 public:
  WlbCandidates(const PlanRequest& request, std::string_view planner)
      : JointMicroBatches(request, planner) {
    // The search starts with the ranks of a node.
    const std::int64_t node =
        std::max<std::int64_t>(1, request.cluster.devices_per_node / request.tp);
    std::vector<std::int32_t> ranks = rank_choices();
    const auto past = std::upper_bound(ranks.begin(), ranks.end(), node);
    std::rotate(ranks.begin(), past - 1, past);
    space_.add("recompute", &PackedSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t context_parallel =
        space_.add("context_parallel", &PackedSettings::ranks, ranks);
    const std::size_t micro_batches =
        space_.add("", &WlbSettings::packs_per_length2, {2, 4, 8, 1, 16});
    add_pipeline();
    add_assignment();
    add_pack_length(space_, request);
    space_.add("longest_pack", &WlbSettings::longest_pack2, {std::nullopt, 4, 3}, {},
               [](std::optional<std::int64_t> halves) {
                 return halves ? std::to_string(*halves) + "/2" : std::string("free");
               });
    space_.start({});  // context parallelism in a node
    space_.start({{context_parallel, 1}});
    space_.start({{context_parallel, 2}});
    space_.start({{micro_batches, 1}});
  }

  [[nodiscard]] BuiltStep build(const WlbSettings& settings) const {
    Plan plan = joint_plan(settings, packs(settings));
    if (settings.ranks == 1) return plan;
    ShardedTimes sharded = WlbPricing(plan, make_model(plan)).run();
    UnitTimeOverrides times(plan, PricedPlan(plan), std::move(sharded.times));
    return SimulationOnlyPlan{std::move(plan), std::move(times),
                              "choice of sharding by document or by sequence", sharded.exchange};
  }
  static void describe(const WlbSettings& settings, const Plan& plan, SettingTexts& texts) {
    texts["packing"] = "equal-work";
    texts["micro_batches"] = std::to_string(plan.micropacks.size() / 2);
    if (settings.ranks == 1) return;
    const ShardedTimes sharded = WlbPricing(plan, make_model(plan)).run();
    texts["sharded_by_document"] = std::to_string(sharded.by_document);
    texts["sharded_by_sequence"] = std::to_string(sharded.by_sequence);
  }

 private:
  [[nodiscard]] schedule::Bins packs(const WlbSettings& settings) const {
    const std::span<const Tokens> samples = request_.batch.samples;
    const std::int32_t count = groups(settings);
    const Tokens length = settings.pack_length.value_or(request_.context);
    const std::int64_t each = nominal_packs(samples, length, count) / count;
    const Tokens most =
        settings.longest_pack2 ? Tokens{length.value * *settings.longest_pack2 / 2} : Tokens::max();
    return pack_by_work(samples, works(),
                        count * std::max<std::int64_t>(1, each * settings.packs_per_length2 / 2),
                        most);
  }
};

}  // namespace detail

/// WLB-LLM (Wang et al., "WLB-LLM: Workload-Balanced 4D Parallelism for Large Language Model
/// Training", OSDI 2025, arXiv 2503.17924): micro-batches of equal predicted work and of different
/// length, documents longest first to the one with least work; outliers wait over steps in queues
/// by length until there is one for each micro-batch; context-parallel ranks share each document
/// (two chunks of 2 x degree each) or the packed sequence likewise, whichever is predicted to be
/// faster for this micro-batch, tiles and segments of the attention kernel counted; 1F1B and
/// interleaved 1F1B.
///
/// Searched: context-parallel degree (as `MegatronCp`, up to 256), recomputation, length of a pack
/// from the longest sample to the context, micro-batches (as many as full packs, twice, four and
/// eight times, half), chunks, place of the head and devices (`StepSettings`), assignment to ranks,
/// and how long a pack may get before the shortest one takes the next document (1.5 or 2 times the
/// length of a pack, or any length that memory allows). Levels of the queues, whether there are any
/// too: the least estimated time over the steps at hand.
///
/// Deviations and assumptions: documents that fit into no pack are not left for the next step, and
/// all that wait run in the last step at the latest, so that every planner computes the same
/// tokens. Keys and values are gathered whole, hidden behind attention (in its favour: the
/// system gathers them before it). Prediction is the cost model itself (in its favour). Memory and
/// messages between stages are those of documents shared evenly in small blocks, keys and values
/// without pages filled in part (in its favour).
/// Written from the publication's abstract, from descriptions of it and a re-implementation of its
/// packing by others; where these are silent, the choice is ours.
/// Without context parallelism the answer is a plan. As published, infeasible where a sharded head
/// is asked for.
struct WlbLlm {
  static constexpr std::string_view name = "wlb-llm";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "WLB-LLM: packs of equal work, delayed outliers, sharding chosen by micro-batch";
  /// When its answer is a SimulationOnlyPlan.
  static constexpr std::string_view simulated_only = "with context-parallel ranks";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::WlbCandidates>({.one_chunk = false}, request, name);
  }

  /// Delays outliers. Packs are about as long as the first step's context or as the longest sample
  /// of all steps; queues are none, or some levels that halve from half that length down: those
  /// with which the steps are estimated to take least; ties to the context, then to the fewest and
  /// longest. Throws InvalidInput as `check_request`. O(samples log samples).
  [[nodiscard]] std::vector<PlanRequest> rebatch(std::vector<PlanRequest> steps) const {
    for (const PlanRequest& request : steps) check_request(request);
    if (steps.size() < 2) return steps;
    const detail::WaitingSteps given = detail::samples_with_targets(steps);
    std::vector<Tokens> lengths{steps.front().context, Tokens{1}};
    for (const PlanRequest& request : steps) {
      lengths.back() = std::max(lengths.back(), longest_of(request.batch.samples));
    }
    if (lengths.back() == lengths.front() || steps.front().as_published) lengths.pop_back();
    detail::WaitingSteps best;
    std::optional<Int128> least;
    for (const Tokens length : lengths) {
      std::vector<std::int64_t> packs;
      for (const PlanRequest& request : steps) {
        packs.push_back(detail::nominal_packs(request.batch.samples, length, request.dp));
      }
      for (const auto& levels : detail::level_choices(length)) {
        detail::WaitingSteps moved = detail::delay_outliers(given, levels, packs);
        const Int128 time = detail::estimated_time(steps, moved, lengths);
        if (least && *least <= time) continue;
        least = time;
        best = std::move(moved);
      }
    }
    for (std::size_t step = 0; step < steps.size(); ++step) {
      Batch& batch = steps[step].batch;
      batch.samples.clear();
      batch.origin.clear();
      batch.target_tokens = detail::targets_of(best[step]);
      for (const detail::WaitingSample& sample : best[step]) {
        batch.samples.push_back(sample.length);
        batch.origin.push_back(sample.origin);
      }
    }
    return steps;
  }
};
static_assert(MultiStepPlanner<WlbLlm>);

}  // namespace slimpack::planners
