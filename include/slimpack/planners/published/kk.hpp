// SPDX-License-Identifier: Apache-2.0
// verl's plan: Karmarkar-Karp over data-parallel ranks, then over micro-batches of a token budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/kk_batches.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/planners/search/detail/token_capacity.hpp"

namespace slimpack::planners {

/// One candidate of `Kk`.
struct KkSettings : PackedSettings, KkRules {};

namespace detail {

/// The candidates of `Kk`.
class KkCandidates : public CandidateBase<KkSettings> {
 public:
  KkCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner) {
    using schedule::PartSizes;
    const Tokens longest = longest_of(request.batch.samples);
    const auto ranks = context_parallel_choices(request);
    const auto chunks = request.pp == 1 && !request.chunks ? std::vector<std::int32_t>{1}
                                                           : chunk_choices(request, 1);
    std::vector<std::int64_t> least{1, 4, 16, 64};
    if (request.pp > 1) least = {4, 1, 2, 8, 16};
    for (std::int64_t& times : least) times *= request.pp;
    std::vector<Tokens> budgets{request.context, request.context * 2, request.context * 4};
    if (longest < request.context) budgets.push_back(longest);
    std::vector<PartSizes> sizes{PartSizes::equal, PartSizes::free};
    if (request.batch.samples.size() % static_cast<std::size_t>(request.dp) != 0) {
      sizes = {PartSizes::free};
    } else if (request.as_published) {
      sizes = {PartSizes::equal};
    }
    space_.add("recompute", &PackedSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t context_parallel = space_.add("context_parallel", &PackedSettings::ranks,
                                                    roomy_first(request, ranks, longest));
    const std::size_t least_batches = space_.add("least_micro_batches", &KkRules::least, least);
    const std::size_t budget = space_.add("", &KkRules::budget, budgets);
    std::vector<KkWork> works{KkWork::verl};
    if (!request.as_published) works.push_back(KkWork::model);
    space_.add("work", &KkRules::work, works, {},
               [](KkWork work) { return work == KkWork::verl ? "24576-L-plus-L2" : "model"; });
    space_.add("samples_of_ranks", &KkRules::sizes, sizes, {},
               [](PartSizes parts) { return parts == PartSizes::equal ? "equal" : "free"; });
    add_step_settings(space_, request, chunks);
    space_.add("share_tokens", &PackedSettings::cp_block, block_choices(request, ranks.back()),
               {.applies = PackedSettings::in_cp_group, .first_only = true}, block_text);
    space_.add("chunks", &PackedSettings::chunks, chunks);
    space_.add("small_at_ends", &KkRules::small_at_ends, {true, false});
    space_.require_that([&request](const KkSettings& settings) {
      return leaves_layers(request, settings.chunks, settings.head);
    });
    space_.start({});  // verl's defaults on the fewest ranks that hold the longest sample
    space_.start({{context_parallel, 1}});
    space_.start({{least_batches, 1}});
    space_.start({{budget, 1}});
  }

  [[nodiscard]] Plan build(const KkSettings& settings) const {
    KkRules rules = settings;  // NOLINT(cppcoreguidelines-slicing): its part
    rules.budget = group_budget(settings);
    rules.multiple = settings.chunks > 1 ? request_.pp : 1;
    return build_packed(
        request_, planner_, settings,
        assign_as_verl(request_.model, request_.batch.samples, request_.dp / settings.ranks, rules),
        OneForwardOneBackward{});
  }
  void describe(const KkSettings& settings, const Plan&, SettingTexts& texts) const {
    texts["budget_tokens"] = std::to_string(group_budget(settings).value);
  }

 private:
  /// A group's budget is that of its ranks together, unless it is the longest sample's.
  [[nodiscard]] Tokens group_budget(const KkSettings& settings) const {
    return settings.budget * (settings.budget < request_.context ? 1 : settings.ranks);
  }
};

}  // namespace detail

/// The batching of verl (github.com/verl-project/verl, verl/utils/seqlen_balancing.py and
/// `_balance_batch` of its trainer, 2026): samples go to data-parallel ranks by Karmarkar-Karp over
/// their work, the same number to each; each rank cuts its own, again by Karmarkar-Karp, into as
/// many micro-batches as the token budget asks of the fullest rank, the light ones first and last.
/// Whole samples, packed without padding; 1F1B, interleaved where stages have chunks.
///
/// Searched: recomputation; context-parallel degree (powers of two that divide dp) and CP blocks,
/// as by `MegatronCp`; chunks; place of the head and devices (`StepSettings`); verl's own knobs:
/// token budget, least number of micro-batches, light ones at both ends or as assigned. And what it
/// fixes: work by its figure of a 7B model or by the model at hand, ranks with equal or free
/// numbers of samples.
///
/// Deviations in its favour: where ranks do not divide the samples, verl stops, here numbers
/// are free; a rank with fewer samples than micro-batches has one a sample. As published, a
/// micro-batch may exceed the budget; what does not fit into memory is not chosen. Against it as
/// against `MegatronCp`: one length of CP blocks for all documents (published/megatron.hpp).
///
/// As published, infeasible where a sharded head is asked for.
struct Kk {
  static constexpr std::string_view name = "kk";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "verl: Karmarkar-Karp over ranks, then over micro-batches of a token budget";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "one length of context-parallel blocks for all documents, of those searched";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::KkCandidates>({.one_chunk = false}, request, name);
  }
};
static_assert(Planner<Kk>);

}  // namespace slimpack::planners
