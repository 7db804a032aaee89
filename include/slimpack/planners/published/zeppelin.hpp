// SPDX-License-Identifier: Apache-2.0
// Zeppelin: documents local to a rank, to a node, or over nodes; remapped for even linear work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/joint_micro_batches.hpp"
#include "slimpack/planners/published/detail/wlb_packs.hpp"
#include "slimpack/planners/published/detail/zeppelin_times.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/bins.hpp"

namespace slimpack::planners {

/// How Zeppelin's documents become micro-batches.
enum class ZeppelinPacking : std::uint8_t { equal_work, best_fit, in_order };

/// One candidate of `Zeppelin`.
struct ZeppelinSettings : PackedSettings {
  std::int32_t packs = 1;  ///< capacity of a micro-batch in lengths of packs, at most one a rank
  ZeppelinPacking documents = ZeppelinPacking::equal_work;  ///< how they become micro-batches
};

namespace detail {

/// The candidates of `Zeppelin`.
class ZeppelinCandidates : public JointMicroBatches<ZeppelinSettings> {
 public:
  ZeppelinCandidates(const PlanRequest& request, std::string_view planner)
      : JointMicroBatches(request, planner) {
    std::vector<std::int32_t> ranks = rank_choices();
    if (ranks.back() != request.dp && request.dp <= kMostSharing &&
        request.max_cp.value_or(request.dp) >= request.dp) {
      ranks.push_back(request.dp);
    }
    std::reverse(ranks.begin(), ranks.end());
    space_.add("recompute", &PackedSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t context_parallel =
        space_.add("context_parallel", &PackedSettings::ranks, ranks);
    const std::size_t packs =
        space_.add("micro_batch_packs", &ZeppelinSettings::packs, {1, 2, 4, 8, 16, 32, 64});
    add_pack_length(space_, request);
    add_pipeline();
    using enum ZeppelinPacking;
    space_.add("packing", &ZeppelinSettings::documents, {equal_work, best_fit, in_order}, {},
               [](ZeppelinPacking packing) {
                 return packing == equal_work ? "equal-work"
                        : packing == best_fit ? "best-fit-decreasing"
                                              : "in-order";
               });
    add_assignment();
    space_.require_that(
        [](const ZeppelinSettings& settings) { return settings.packs <= settings.ranks; });
    space_.start({});  // all ranks together, a pack as long as the context at a time
    space_.start({{packs, 2}});
    space_.start({{context_parallel, 1}, {packs, 1}});
    space_.start({{context_parallel, 2}});
  }

  [[nodiscard]] BuiltStep build(const ZeppelinSettings& settings) const {
    Plan plan = joint_plan(settings, packs(settings));
    if (settings.ranks == 1) return plan;
    ZonedTimes zoned = ZeppelinPricing(plan, make_model(plan)).run();
    UnitTimeOverrides times(plan, PricedPlan(plan), std::move(zoned.times));
    return SimulationOnlyPlan{std::move(plan), std::move(times),
                              "local and distributed documents in one unit", Bytes{zoned.bytes}};
  }
  static void describe(const ZeppelinSettings& settings, const Plan& plan, SettingTexts& texts) {
    texts["micro_batches"] = std::to_string(plan.micropacks.size() / 2);
    if (settings.ranks == 1) return;
    const ZonedTimes zoned = ZeppelinPricing(plan, make_model(plan)).run();
    texts["local_documents"] = std::to_string(zoned.local);
    texts["intra_node_documents"] = std::to_string(zoned.node);
    texts["inter_node_documents"] = std::to_string(zoned.cluster);
    texts["remapped_micro_batches"] = std::to_string(zoned.remapped);
  }

 private:
  [[nodiscard]] schedule::Bins packs(const ZeppelinSettings& settings) const {
    const std::span<const Tokens> samples = request_.batch.samples;
    const Tokens capacity = settings.packs * settings.pack_length.value_or(request_.context);
    switch (settings.documents) {
      case ZeppelinPacking::best_fit:
        return schedule::pack_best_fit_decreasing(samples, capacity);
      case ZeppelinPacking::in_order:
        return schedule::pack_next_fit(samples, capacity);
      case ZeppelinPacking::equal_work:
        break;
    }
    return pack_by_work(samples, works(), nominal_packs(samples, capacity, groups(settings)),
                        capacity);
  }
};

}  // namespace detail

/// Zeppelin ("Zeppelin: Balancing Variable-length Workloads in Data Parallel Large Model Training",
/// arXiv 2509.21841): the ranks of a data-parallel group run each micro-batch together. Short
/// documents stay on one rank, middle ones are cut over the ranks of a node, long ones over all
/// nodes, both by ring attention; the engine works off the three queues while their rings run; the
/// traffic of a ring between nodes is routed over the network interfaces of all its ranks in a
/// node; tokens are remapped between attention and linear layers so that every rank does an even
/// part of the linear work.
///
/// Searched: ranks that work together (all, and powers of two that divide dp, none above `max_cp`
/// or 256), recomputation, length of a pack from the longest sample to the context, capacity of a
/// micro-batch (powers of two of that length, at most one a rank), packing of documents into
/// micro-batches (equal work, best fit decreasing, in order), assignment of micro-batches to
/// groups, chunks, place of the head and devices (`StepSettings`). The lengths from which documents
/// leave a rank and a node: of several multiples of an even part, whichever is predicted to take
/// least, for each micro-batch.
///
/// Deviations and assumptions. Written from the publication's abstract and from descriptions of it
/// by others; where these are silent, the choice is ours. It is about data parallelism alone, so
/// there is no pipeline to follow: stages run 1F1B or interleaved 1F1B here, remapping is decided
/// for each stage (in its favour). A document between nodes runs on all ranks of the group, never
/// on some of its nodes. Rings inside and between nodes run at the same time
/// (in its favour) and hide behind attention by the share of slimpack's own, a latency for each
/// step and layer. Remapping first evens out inside nodes and is not hidden; it is left out where
/// that is faster.
/// Memory and messages between stages are those of tokens shared evenly in small blocks, without
/// pages filled in part (in its favour: keys and values of local documents stay where they are
/// attended to). One rank alone is a plan. As published, infeasible with several stages.
struct Zeppelin {
  static constexpr std::string_view name = "zeppelin";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "Zeppelin: documents local, in a node or over nodes, remapped for even linear work";
  /// When its answer is a SimulationOnlyPlan.
  static constexpr std::string_view simulated_only = "with context-parallel ranks";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::ZeppelinCandidates>(
        {.one_chunk = false, .published_one_stage = true}, request, name);
  }
};
static_assert(Planner<Zeppelin>);

}  // namespace slimpack::planners
