// SPDX-License-Identifier: Apache-2.0
// WLB-LLM: packs of equal work, outliers delayed, documents shared by context-parallel ranks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
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
#include "slimpack/planners/search/choose_modelled.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/bins.hpp"

namespace slimpack::planners {

namespace detail {

/// The candidates of WLB-LLM.
class WlbCandidates {
 public:
  WlbCandidates(const PlanRequest& request, std::string_view planner) : steps_(request, planner) {
    // The search starts with the ranks of a node.
    const std::int64_t node =
        std::max<std::int64_t>(1, request.cluster.devices_per_node / request.tp);
    std::vector<std::int32_t>& ranks = steps_.space().ranks;
    const auto past = std::upper_bound(ranks.begin(), ranks.end(), node);
    std::rotate(ranks.begin(), past - 1, past);
  }

  [[nodiscard]] std::array<std::size_t, 7> sizes() const noexcept {
    const PackedSpace& space = steps_.space();
    return {space.recompute.size(), space.ranks.size(), kPacksPerContext2.size(),
            space.chunks.size(),    space.head.size(),  space.assignment_rule.size(),
            kMost2.size()};
  }
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const PackedSettings settings = settings_at(point);
    return leaves_layers(steps_.request(), settings.chunks, settings.head);
  }
  [[nodiscard]] SimulationOnlyPlan build(const SettingPoint& point) const {
    const PackedSettings settings = settings_at(point);
    Plan plan = steps_.plan(settings, packs(point));
    const AnyModel model = make_model(plan);
    ShardedTimes sharded = WlbPricing(plan, model).run();
    PricedPlan prices = std::visit([&](const auto& m) { return PricedPlan(plan, m); }, model);
    UnitTimeOverrides times(plan, std::move(prices), std::move(sharded.times));
    const bool shared = settings.ranks > 1;
    return {std::move(plan), std::move(times),
            shared ? "choice of sharding by document or by sequence" : "",
            shared ? std::optional(sharded.exchange) : std::nullopt};
  }
  [[nodiscard]] std::map<std::string, std::string> settings(const SettingPoint& point,
                                                            const Plan& plan) const {
    const PackedSettings settings = settings_at(point);
    auto lines = describe(settings, false);
    lines["packing"] = "equal-work";
    lines["context_parallel"] = std::to_string(settings.ranks);
    lines["micro_batches"] = std::to_string(plan.micropacks.size() / 2);
    const std::int64_t most2 = kMost2.at(point[6]);
    lines["longest_pack"] =
        most2 == 0 ? "free" : std::to_string(steps_.request().context.value * most2 / 2);
    if (settings.ranks > 1) {
      const AnyModel model = make_model(plan);
      const ShardedTimes sharded = WlbPricing(plan, model).run();
      lines["sharded_by_document"] = std::to_string(sharded.by_document);
      lines["sharded_by_sequence"] = std::to_string(sharded.by_sequence);
    }
    return lines;
  }

 private:
  /// Micro-batches in place of each that is a full context long, twice over.
  static constexpr std::array<std::int64_t, 5> kPacksPerContext2{2, 4, 8, 1, 16};
  /// Longest packs in contexts, twice over; 0: any.
  static constexpr std::array<std::int64_t, 3> kMost2{0, 4, 3};

  [[nodiscard]] PackedSettings settings_at(const SettingPoint& point) const {
    return steps_.settings(point, point[5]);
  }
  [[nodiscard]] schedule::Bins packs(const SettingPoint& point) const {
    const PlanRequest& request = steps_.request();
    const std::span<const Tokens> samples = request.batch.samples;
    const std::int32_t groups = steps_.groups(settings_at(point));
    const std::int64_t each = nominal_packs(samples, request.context, groups) / groups;
    const std::int64_t count =
        groups * std::max<std::int64_t>(1, each * kPacksPerContext2.at(point[2]) / 2);
    const std::int64_t most2 = kMost2.at(point[6]);
    const Tokens most = most2 == 0 ? Tokens{std::numeric_limits<std::int64_t>::max()}
                                   : Tokens{request.context.value * most2 / 2};
    return pack_by_work(samples, steps_.works(), count, most);
  }

  JointMicroBatches steps_;
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
/// Searched: context-parallel degree (as `MegatronCp`, up to 256), recomputation, micro-batches (as
/// many as full contexts, twice, four and eight times, half), chunks, layers of the last stage,
/// dealing to ranks, and how long a pack may get before the shortest one takes the next document
/// (1.5 or 2 contexts, or any length that memory allows). Levels of the queues, whether there are
/// any too: the least estimated time over the steps at hand.
///
/// Deviations and assumptions: documents that fit into no pack are not left for the next step, and
/// all that wait run in the last step at the latest, so that every planner computes the same
/// tokens. Keys and values are gathered whole, hidden behind attention (in its favour: the
/// system gathers them before it). Prediction is the cost model itself (in its favour). Memory and
/// messages between stages are those of documents shared evenly in small blocks, keys and values
/// without pages filled in part (in its favour).
/// Written from the publication's abstract, from descriptions of it and a re-implementation of its
/// packing by others; where these are silent, the choice is ours.
/// Without context parallelism the answer is a plan. Infeasible where a sharded head is asked for.
struct WlbLlm {
  static constexpr std::string_view name = "wlb-llm";
  static constexpr std::string_view description =
      "WLB-LLM: packs of equal work, delayed outliers, sharding chosen by micro-batch";
  static constexpr std::string_view simulated_only = "with context-parallel ranks";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.head == LmHead::shard) {
      return {Infeasible{"stages with a part of the head, one in wlb-llm's order", request.pp, 1},
              {},
              0};
    }
    const detail::WlbCandidates candidates(request, name);
    const auto sizes = candidates.sizes();
    return choose_modelled(request, sizes, candidates);
  }

  /// Delays outliers. Queues are those, of some levels that halve from half the first step's
  /// context down or none, with which the steps are estimated to take least; ties to the fewest and
  /// longest. Throws InvalidInput as `check_request`. O(samples log samples).
  [[nodiscard]] std::vector<PlanRequest> rebatch(std::vector<PlanRequest> steps) const {
    for (const PlanRequest& request : steps) check_request(request);
    if (steps.size() < 2) return steps;
    const detail::WaitingSteps given = detail::samples_with_targets(steps);
    std::vector<std::int64_t> packs;
    for (const PlanRequest& request : steps) {
      packs.push_back(detail::nominal_packs(request.batch.samples, request.context, request.dp));
    }
    detail::WaitingSteps best;
    std::optional<Int128> least;
    for (const auto& levels : detail::level_choices(steps.front().context)) {
      detail::WaitingSteps moved = detail::delay_outliers(given, levels, packs);
      const Int128 time = detail::estimated_time(steps, moved);
      if (least && *least <= time) continue;
      least = time;
      best = std::move(moved);
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
