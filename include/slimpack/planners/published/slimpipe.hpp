// SPDX-License-Identifier: Apache-2.0
// SlimPipe: uniform slices in its order, attention exchanged between stages, a sharded vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/slimpipe_times.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

/// One candidate of `Slimpipe`.
struct SlimpipeSettings : PackedSettings {
  bool exchange = true;  ///< stages exchange attention
};

namespace detail {

/// The published order of sequences with so many slices.
struct SlimpipeSlices {
  [[nodiscard]] schedule::StageOrders operator()(const schedule::Pipeline& pipeline,
                                                 std::span<const std::int32_t> slices) const {
    return schedule::slimpipe(pipeline, slices);
  }
};

/// What both planners of SlimPipe search.
[[nodiscard]] inline PackedChoices slimpipe_choices(const PlanRequest& request) {
  const std::int32_t pp = request.pp;
  PackedChoices choices{.chunks = chunk_choices(request, 1), .head = LmHead::shard};
  for (const std::int32_t slices : {4 * pp, 2 * pp, 8 * pp, pp, 16 * pp, std::max(1, pp / 2), 1}) {
    if (std::find(choices.slices.begin(), choices.slices.end(), slices) == choices.slices.end()) {
      choices.slices.push_back(slices);
    }
  }
  return choices;
}

/// The candidates of `Slimpipe`: packed sequences, with context parallelism and exchange besides.
class SlimpipeCandidates : public PackedCandidates<SlimpipeSlices, SlimpipeSettings> {
 public:
  SlimpipeCandidates(const PlanRequest& request, std::string_view planner, PackedChoices choices)
      : PackedCandidates(request, planner, choices) {
    space_.add("exchange", &SlimpipeSettings::exchange, {true, false}, {},
               [](bool exchange) { return exchange ? "attention" : "none"; });
  }

  [[nodiscard]] BuiltStep build(const SlimpipeSettings& settings) const {
    Plan plan = PackedCandidates::build(settings);
    if (plan.groups.front().size() > 1) exchange_fewer_bytes(plan);
    if (!settings.exchange) return plan;
    const AnyModel model = make_model(plan);
    const PricedPlan prices(plan);
    SlimpipeTimes exchanged(plan, model, prices);
    const Bytes bytes = communication_of(plan).exchange + Bytes{exchanged.bytes};
    UnitTimeOverrides times(plan, prices, std::move(exchanged.times));
    return SimulationOnlyPlan{std::move(plan), std::move(times),
                              "exchange of attention between stages", bytes};
  }
};

}  // namespace detail

/// Sequences of whole documents, cut into slices of equal length (at the nearest
/// multiple of the granularity), in the order of SlimPipe (arXiv 2504.14519). Searched: slices of
/// the longest sequence (1, half the stages, and 1 to 16 times the stages; the others in
/// proportion), chunks, head on the last stage or sharded, and what `Megatron` searches. Its
/// exchange of attention work between stages is not part of a plan: `Slimpipe` has it.
struct SlimpipeOrder {
  static constexpr std::string_view name = "slimpipe-order";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "SlimPipe: packed sequences in uniform slices, one forward, one backward on slices";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    return choose(request, PackedCandidates<detail::SlimpipeSlices>(
                               request, name, detail::slimpipe_choices(request)));
  }
};
static_assert(Planner<SlimpipeOrder>);

/// SlimPipe (Li et al., "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for
/// Long-Context LLM Training", arXiv 2504.14519): packed sequences in slices of equal length, one
/// forward and one backward slice by turns, the vocabulary sharded over the stages; stages that at
/// the same time work on slices with different prefixes hand attention work to each other (queries
/// and part of the keys and values there, partial outputs back), so that all take the mean time.
///
/// Searched: what `SlimpipeOrder` searches, whether stages exchange attention at all, and context
/// parallelism as `MegatronCp` does, each slice exchanging keys and values or queries, whichever is
/// fewer bytes. Without exchange between stages the answer is a plan.
///
/// Deviations and assumptions. In its favour: work is exchanged to the nanosecond, not by whole
/// slices of keys; received queries and keys take no memory. Priced as slimpack's own: traffic
/// hides behind attention by the share of a ring's, a latency there and back for each layer, and
/// stages that exchange start together. An instant is the units at positions k, k - 1, .. of the
/// stages' forward (backward) orders, as in the steady state; where an exchange, waiting for each
/// other included, would not end sooner than the slowest by itself, it is left out. Sequences of
/// several whole documents are masked by document, and cut as `SlimpipeOrder` does; stages hand
/// work to each other in the order of their numbers. Written from the publication's abstract and
/// from descriptions of it by others; where these are silent, the choice is ours.
struct Slimpipe {
  static constexpr std::string_view name = "slimpipe";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "SlimPipe: uniform slices, attention exchanged between stages, sharded vocabulary";
  /// When its answer is a SimulationOnlyPlan.
  static constexpr std::string_view simulated_only = "where stages exchange attention";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    PackedChoices choices = detail::slimpipe_choices(request);
    choices.context_parallel = true;
    return choose(request, detail::SlimpipeCandidates(request, name, std::move(choices)));
  }
};
static_assert(Planner<Slimpipe>);

}  // namespace slimpack::planners
