// SPDX-License-Identifier: Apache-2.0
// TRL's plan: documents packed best fit decreasing, packs assigned to ranks by the trainer's
// sampler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/bfd_packs.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/planners/search/detail/token_capacity.hpp"

namespace slimpack::planners {

/// One candidate of `Bfd`.
struct BfdSettings : PackedSettings, BfdRules {};

namespace detail {

/// The candidates of `Bfd`.
class BfdCandidates : public CandidateBase<BfdSettings> {
 public:
  BfdCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner) {
    const Tokens longest = longest_of(request.batch.samples);
    std::vector<Tokens> lengths{request.context};
    if (longest < request.context && !request.as_published) lengths.push_back(longest);
    const auto ranks = context_parallel_choices(request);
    const std::vector<std::int32_t> by_context = roomy_first(request, ranks, request.context);
    space_.add("recompute", &PackedSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t ranks_of_pack =
        space_.add("context_parallel", &PackedSettings::ranks, by_context);
    add_step_settings(space_, request);
    space_.add("share_tokens", &PackedSettings::cp_block, block_choices(request, ranks.back()),
               {.applies = PackedSettings::in_cp_group, .first_only = true}, block_text);
    const std::size_t length = space_.add("pack_tokens", &BfdRules::length, lengths);
    space_.add("packs_of_micro_batch", &BfdRules::batch, {1, 2, 4});
    // Packs as they come, and orders that the trainer might draw.
    space_.add("sampler", &BfdRules::shuffled, {0, 1, 2, 3}, {}, [](std::uint64_t seed) {
      return seed == 0 ? "as-packed" : "shuffled-" + std::to_string(seed);
    });
    // As TRL does it on the fewest ranks that hold a pack of the context's length, then packs no
    // longer than the longest sample on the fewest ranks that hold those, then other ranks.
    space_.start({});
    const auto hold_longest = std::find(by_context.begin(), by_context.end(),
                                        roomy_first(request, ranks, longest).front());
    space_.start({{length, 1},
                  {ranks_of_pack, static_cast<std::size_t>(hold_longest - by_context.begin())}});
    space_.start({{length, 1}, {ranks_of_pack, 1}});
    space_.start({{length, 1}, {ranks_of_pack, 2}});
  }

  [[nodiscard]] Plan build(const BfdSettings& settings) const {
    return build_packed(
        request_, planner_, settings,
        assign_as_trl(request_.batch.samples, request_.dp / settings.ranks, settings),
        OneForwardOneBackward{});
  }
};

}  // namespace detail

/// The packing of TRL (github.com/huggingface/trl, trl/data_utils.py, strategy `bfd`, 2026),
/// assigned as its trainer's sampler does: documents best fit decreasing into packs of `max_length`
/// tokens, each attending to itself alone; packs drawn one after another, micro-batch i to rank i
/// mod dp. Nothing balances ranks.
///
/// Searched: recomputation; context-parallel degree (powers of two that divide dp) and CP blocks,
/// as by `MegatronCp`; place of the head and devices (`StepSettings`); length of packs (the context
/// or the longest sample); packs of a micro-batch (1, 2 or 4); packs as packed or in one of three
/// shuffled orders, of which the trainer draws one.
///
/// Deviations: TRL packs a whole data set, so that the packs of a step are a sample of them; here
/// the samples of the step are packed. Its sampler repeats packs until they divide among ranks;
/// here no work is added. TRL has no pipeline; with several stages micro-batches run 1F1B, in its
/// favour. CP blocks are those of a plan (published/megatron.hpp).
///
/// Infeasible where more than one chunk is asked for; as published, several stages too.
struct Bfd {
  static constexpr std::string_view name = "bfd";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "TRL: documents packed best fit decreasing, packs assigned to ranks in turn";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::BfdCandidates>({.published_one_stage = true}, request, name);
  }
};
static_assert(Planner<Bfd>);

}  // namespace slimpack::planners
