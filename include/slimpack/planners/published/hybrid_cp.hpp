// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's hybrid context parallelism: every sample on as many ranks as it needs.
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

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/hybrid_cp_rounds.hpp"
#include "slimpack/planners/published/detail/shared_batches.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/token_capacity.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners {

/// One candidate of `HybridCp`.
struct HybridCpSettings : detail::SharedSettings {
  Tokens per_rank;      ///< most tokens of a sample on one rank
  bool packed = false;  ///< several samples a micro-batch, else one
};

namespace detail {

/// Micro-batches of the rounds in their common order: the first of each group, the second of each,
/// and so on. One sample each, or, with `packed`, as many of a group in a row as have at most
/// `packed` tokens a rank.
[[nodiscard]] inline std::vector<SharedBatch> hybrid_batches(std::span<const Tokens> samples,
                                                             const std::vector<HybridRound>& rounds,
                                                             std::optional<Tokens> packed) {
  std::vector<SharedBatch> batches;
  for (const HybridRound& round : rounds) {
    std::vector<std::size_t> next(round.size());
    for (bool more = true; more;) {
      more = false;
      for (std::size_t i = 0; i < round.size(); ++i) {
        const HybridGroup& group = round[i];
        if (next[i] == group.samples.size()) continue;
        SharedBatch batch{group.first, group.ranks, {}};
        Tokens total;
        do {
          total += samples[group.samples[next[i]]];
          batch.samples.push_back(group.samples[next[i]++]);
        } while (packed && next[i] < group.samples.size() &&
                 total + samples[group.samples[next[i]]] <= *packed * group.ranks);
        batches.push_back(std::move(batch));
        more = more || next[i] < group.samples.size();
      }
    }
  }
  return batches;
}

/// The candidates of `HybridCp`.
class HybridCpCandidates : public CandidateBase<HybridCpSettings> {
 public:
  HybridCpCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner) {
    const std::int32_t most = largest_group(request);
    const Tokens longest = longest_of(request.batch.samples);
    std::vector<Tokens> per_rank;
    for (std::int64_t power = 1; power <= most; power *= 2) {
      per_rank.push_back({(longest.value + power - 1) / power});
      if (power >= 2 && 2 * power <= most) {  // between two powers
        per_rank.push_back({(2 * longest.value + 3 * power - 1) / (3 * power)});
      }
    }
    // What memory holds, as users set it, is tried first.
    const Tokens room = token_capacity(request, Recompute::light);
    std::stable_partition(per_rank.begin(), per_rank.end(),
                          [&](Tokens tokens) { return tokens <= room; });
    space_.add("recompute", &HybridCpSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t tokens = space_.add("tokens_per_rank", &HybridCpSettings::per_rank, per_rank);
    const std::size_t micro_batch =
        space_.add("micro_batch", &HybridCpSettings::packed,
                   request.as_published ? std::vector{false} : std::vector{false, true}, {},
                   [](bool packed) { return packed ? "packed" : "sample"; });
    add_step_settings(space_, request);
    space_.add("share_tokens", &HybridCpSettings::cp_block, block_choices(request, most), {},
               block_text);
    space_.start({});  // as many tokens a rank as memory holds, each sample by itself
    space_.start({{tokens, 1}});
    space_.start({{micro_batch, 1}});
    space_.start({{tokens, 2}, {micro_batch, 1}});
  }

  [[nodiscard]] Plan build(const HybridCpSettings& settings) const {
    const std::vector<Tokens>& samples = request_.batch.samples;
    const auto rounds =
        hybrid_cp_rounds(samples, {request_.dp, settings.per_rank, std::min(request_.dp, most())});
    const auto batches = hybrid_batches(
        samples, rounds, settings.packed ? std::optional(settings.per_rank) : std::nullopt);
    Plan plan = share_batches(request_, planner_, settings, batches);
    schedule_shared(plan, batches, PricedPlan(plan), MemoryModel(plan), settings.head_batch,
                    request_.runtime);
    return plan;
  }
  static void describe(const HybridCpSettings&, const Plan& plan, SettingTexts& texts) {
    texts["largest_group"] = std::to_string(plan.parallel.max_cp);
    texts["share_tokens"] = std::to_string(plan.memory.cp_block_tokens.value);
  }

 private:
  /// The published groups are powers of two, or all ranks.
  [[nodiscard]] std::int32_t most() const {
    return request_.max_cp.value_or(request_.dp) >= request_.dp ? request_.dp
                                                                : largest_group(request_);
  }
};

}  // namespace detail

/// Hybrid context parallelism of Megatron-Core's main branch (github.com/NVIDIA/Megatron-LM,
/// megatron/core/pipeline_parallel/hybrid_cp_schedule.py, `BalancedCPScheduler`, 2026): each sample
/// runs on the power of two of neighbouring ranks that its length asks for, in rounds of groups
/// whose work, the square of lengths over ranks, is about equal (`hybrid_cp_rounds`). Every sample
/// is a micro-batch of its own; keys and values are what ranks exchange.
///
/// Searched: recomputation; tokens of a sample on a rank (`max_seqlen_per_dp_cp_rank`), from which
/// sizes of groups follow; CP blocks, as by `MegatronCp`; place of the head and devices
/// (`StepSettings`). And what the published code does not have: consecutive samples of a group are
/// packed into micro-batches of as many tokens a rank.
///
/// Deviations, all in its favour but the last: ranks wait for each other where they share a
/// sample, not all of them after every round; with several stages, which the published code
/// refuses, the same micro-batches run in a common order that a simulation finds under the memory
/// limit (detail/shared_batches.hpp). Where ranks are not a power of two and its code stops with an
/// error, some stay idle for a round. Megatron cuts every sample into 2 x degree chunks; a plan has
/// one length of blocks for all (published/megatron.hpp).
///
/// Infeasible where more than one chunk is asked for; as published, several stages too.
struct HybridCp {
  static constexpr std::string_view name = "hybrid-cp";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "Megatron-Core: every sample on a power of two of ranks that its length asks for";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "one length of context-parallel blocks for all documents, of those searched";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::HybridCpCandidates>({.published_one_stage = true}, request, name);
  }
};
static_assert(Planner<HybridCp>);

}  // namespace slimpack::planners
