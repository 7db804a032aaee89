// SPDX-License-Identifier: Apache-2.0
// TRL's plan: documents packed best fit decreasing, packs dealt to ranks by the trainer's sampler.
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
#include "slimpack/planners/published/detail/bfd_packs.hpp"
#include "slimpack/planners/published/detail/token_capacity.hpp"
#include "slimpack/planners/published/megatron_cp.hpp"
#include "slimpack/planners/search/choose_plan.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

namespace detail {

/// The candidates of `Bfd`.
class BfdCandidates {
 public:
  BfdCandidates(const PlanRequest& request, std::string_view planner)
      : request_(request),
        planner_(planner),
        recompute_(recompute_choices(request)),
        ranks_(context_parallel_choices(request)),
        share_(share_choices(request, ranks_)),
        length_{request.context} {
    const std::vector<std::int32_t> one_chunk{1};
    head_ = head_choices(request, one_chunk, false);
    const Tokens longest =
        *std::max_element(request.batch.samples.begin(), request.batch.samples.end());
    if (longest < request.context) length_ = {longest, request.context};
    ranks_ = roomy_first(request, std::move(ranks_), length_.front());
  }

  [[nodiscard]] std::vector<std::size_t> sizes() const {
    return {recompute_.size(), ranks_.size(), head_.size(), share_.size(),
            length_.size(),    batch_.size(), kDraws};
  }
  /// Blocks matter to several ranks alone.
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    return point[3] == 0 || ranks_[point[1]] > 1;
  }
  [[nodiscard]] Plan build(const SettingPoint& point) const {
    const PackedSettings settings = packed(point);
    return build_packed(
        request_, planner_, settings,
        assign_as_trl(request_.batch.samples, request_.dp / settings.ranks, rules(point)),
        [](const schedule::Pipeline& pipeline, std::span<const std::int32_t> slices) {
          return schedule::one_f_one_b(pipeline.stages, static_cast<std::int32_t>(slices.size()));
        });
  }
  [[nodiscard]] std::map<std::string, std::string> describe(const SettingPoint& point,
                                                            const Plan& plan) const {
    const PackedSettings settings = packed(point);
    auto lines = slimpack::planners::describe(settings, false);
    for (const char* fixed : {"packing", "dealing", "chunks"}) lines.erase(fixed);
    const BfdRules chosen = rules(point);
    lines["pack_tokens"] = std::to_string(chosen.length.value);
    lines["packs_of_micro_batch"] = std::to_string(chosen.batch);
    lines["sampler"] =
        chosen.shuffled == 0 ? "as-packed" : "shuffled-" + std::to_string(chosen.shuffled);
    lines["context_parallel"] = std::to_string(settings.ranks);
    if (settings.ranks > 1)
      lines["share_tokens"] = std::to_string(plan.memory.cp_block_tokens.value);
    return lines;
  }

 private:
  static constexpr std::size_t kDraws = 4;  ///< orders of packs: as packed, and shuffled ones

  [[nodiscard]] PackedSettings packed(const SettingPoint& point) const {
    PackedSettings settings;
    settings.recompute = recompute_[point[0]];
    settings.ranks = ranks_[point[1]];
    settings.head = head_[point[2]];
    settings.share = share_[point[3]];
    return settings;
  }
  [[nodiscard]] BfdRules rules(const SettingPoint& point) const {
    return {length_[point[4]], batch_[point[5]], point[6]};
  }

  const PlanRequest& request_;
  std::string_view planner_;
  std::vector<Recompute> recompute_;
  std::vector<std::int32_t> ranks_;
  std::vector<std::optional<Tokens>> share_;
  std::vector<LmHeadPlacement> head_;
  std::vector<Tokens> length_;
  std::vector<std::size_t> batch_{1, 2, 4};
};

}  // namespace detail

/// The packing of TRL (github.com/huggingface/trl, trl/data_utils.py, strategy `bfd`, 2026), dealt
/// as its trainer's sampler does: documents best fit decreasing into packs of `max_length` tokens,
/// each attending to itself alone; packs drawn one after another, micro-batch i to rank i mod dp.
/// Nothing balances ranks.
///
/// Searched: recomputation; context-parallel degree (powers of two that divide dp) and the blocks
/// of sharing, as `MegatronCp`; layers of the last stage; length of packs, the context or the
/// longest sample; packs of a micro-batch, 1, 2 or 4; packs as packed or in one of three shuffled
/// orders, of which the trainer draws one.
///
/// Deviations: TRL packs a whole data set, so that the packs of a step are a sample of them; here
/// the samples of the step are packed. Its sampler repeats packs until they divide among ranks;
/// here no work is added. TRL has no pipeline; with several stages micro-batches run 1F1B, in its
/// favour. Blocks of sharing are those of a plan (planners/megatron_cp.hpp).
///
/// Infeasible where more than one chunk or a sharded head is asked for.
struct Bfd {
  static constexpr std::string_view name = "bfd";
  static constexpr std::string_view description =
      "TRL: documents packed best fit decreasing, packs dealt to ranks in turn";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.chunks.value_or(1) != 1) {
      return {Infeasible{"chunks of a stage, one in bfd's order", *request.chunks, 1}, {}, 0};
    }
    if (request.head == LmHead::shard) {
      return {
          Infeasible{"stages with a part of the head, one in bfd's order", request.pp, 1}, {}, 0};
    }
    return choose_plan(request, detail::BfdCandidates(request, name));
  }
};
static_assert(Planner<Bfd>);

}  // namespace slimpack::planners
