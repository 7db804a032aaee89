// SPDX-License-Identifier: Apache-2.0
// Zeppelin: documents local to a rank, to a node, or over nodes; remapped for even linear work.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/joint_micro_batches.hpp"
#include "slimpack/planners/published/detail/wlb_packs.hpp"
#include "slimpack/planners/published/detail/zeppelin_times.hpp"
#include "slimpack/planners/search/choose_modelled.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/bins.hpp"

namespace slimpack::planners {

namespace detail {

/// The candidates of Zeppelin.
class ZeppelinCandidates {
 public:
  ZeppelinCandidates(const PlanRequest& request, std::string_view planner)
      : steps_(request, planner) {
    std::vector<std::int32_t>& ranks = steps_.space().ranks;
    if (ranks.back() != request.dp && request.dp <= kMostSharing &&
        request.max_cp.value_or(request.dp) >= request.dp) {
      ranks.push_back(request.dp);
    }
    std::reverse(ranks.begin(), ranks.end());
  }

  [[nodiscard]] std::array<std::size_t, 7> sizes() const noexcept {
    const PackedSpace& space = steps_.space();
    return {space.recompute.size(),      space.ranks.size(), kContexts.size(),
            space.chunks.size(),         space.head.size(),  kPackings.size(),
            space.assignment_rule.size()};
  }
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const PackedSettings settings = settings_at(point);
    return kContexts.at(point[2]) <= settings.ranks &&
           leaves_layers(steps_.request(), settings.chunks, settings.head);
  }
  [[nodiscard]] SimulationOnlyPlan build(const SettingPoint& point) const {
    const PackedSettings settings = settings_at(point);
    Plan plan = steps_.plan(settings, packs(point));
    const AnyModel model = make_model(plan);
    PricedPlan prices = std::visit([&](const auto& m) { return PricedPlan(plan, m); }, model);
    if (settings.ranks == 1) {
      UnitTimeOverrides times = own_times(plan, std::move(prices));
      return {std::move(plan), std::move(times), "", std::nullopt};
    }
    ZonedTimes zoned = ZeppelinPricing(plan, model).run();
    UnitTimeOverrides times(plan, std::move(prices), std::move(zoned.times));
    return {std::move(plan), std::move(times), "local and distributed documents in one unit",
            Bytes{zoned.bytes}};
  }
  [[nodiscard]] std::map<std::string, std::string> settings(const SettingPoint& point,
                                                            const Plan& plan) const {
    const PackedSettings settings = settings_at(point);
    auto lines = describe(settings, false);
    lines["packing"] = kPackings.at(point[5]);
    lines["context_parallel"] = std::to_string(settings.ranks);
    lines["micro_batch_contexts"] = std::to_string(kContexts.at(point[2]));
    lines["micro_batches"] = std::to_string(plan.micropacks.size() / 2);
    if (settings.ranks > 1) {
      const AnyModel model = make_model(plan);
      const ZonedTimes zoned = ZeppelinPricing(plan, model).run();
      lines["local_documents"] = std::to_string(zoned.local);
      lines["intra_node_documents"] = std::to_string(zoned.node);
      lines["inter_node_documents"] = std::to_string(zoned.cluster);
      lines["remapped_micro_batches"] = std::to_string(zoned.remapped);
    }
    return lines;
  }

 private:
  /// Capacity of a micro-batch in contexts, at most one a rank.
  static constexpr std::array<std::int32_t, 7> kContexts{1, 2, 4, 8, 16, 32, 64};
  static constexpr std::array<std::string_view, 3> kPackings{"equal-work", "best-fit-decreasing",
                                                             "in-order"};

  [[nodiscard]] PackedSettings settings_at(const SettingPoint& point) const {
    return steps_.settings(point, point[6]);
  }
  [[nodiscard]] schedule::Bins packs(const SettingPoint& point) const {
    const PlanRequest& request = steps_.request();
    const std::span<const Tokens> samples = request.batch.samples;
    const Tokens capacity = kContexts.at(point[2]) * request.context;
    if (point[5] == 1) return schedule::pack_best_fit_decreasing(samples, capacity);
    if (point[5] == 2) return schedule::pack_next_fit(samples, capacity);
    const std::int32_t groups = steps_.groups(settings_at(point));
    return pack_by_work(samples, steps_.works(), nominal_packs(samples, capacity, groups),
                        capacity);
  }

  JointMicroBatches steps_;
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
/// Searched: ranks that work together (all, and powers of two that divide dp, none above `merge` or
/// 256), recomputation, capacity of a micro-batch (powers of two of the context, at most one
/// context a rank), packing of documents into micro-batches (equal work, best fit decreasing, in
/// order), its dealing to groups, chunks, layers of the last stage. The lengths from which
/// documents leave a rank and a node: of several multiples of an even part, whichever is predicted
/// to take least, for each micro-batch.
///
/// Deviations and assumptions. Written from the publication's abstract and from descriptions of it
/// by others; where these are silent, the choice is ours. It is about data parallelism alone, so
/// there is no pipeline to follow: stages run 1F1B or interleaved 1F1B here, remapping is decided
/// for each stage (in its favour). A document between nodes runs on all ranks of the group, never
/// on some of its nodes. All rings hide behind attention and each other, the longest of the three
/// counts; launches and latencies of ring steps are not counted but for one each (in its favour).
/// Remapping first evens out inside nodes and is not hidden; it is left out where that is faster.
/// Memory and messages between stages are those of tokens shared evenly in small blocks, without
/// pages filled in part (in its favour: keys and values of local documents stay where they are
/// attended to). One rank alone is a plan. Infeasible where a sharded head is asked for.
struct Zeppelin {
  static constexpr std::string_view name = "zeppelin";
  static constexpr std::string_view description =
      "Zeppelin: documents local, in a node or over nodes, remapped for even linear work";
  static constexpr std::string_view simulated_only = "with context-parallel ranks";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.head == LmHead::shard) {
      return {Infeasible{"stages with a part of the head, one in zeppelin's order", request.pp, 1},
              {},
              0};
    }
    const detail::ZeppelinCandidates candidates(request, name);
    const auto sizes = candidates.sizes();
    return choose_modelled(request, sizes, candidates);
  }
};
static_assert(Planner<Zeppelin>);

}  // namespace slimpack::planners
