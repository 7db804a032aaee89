// SPDX-License-Identifier: Apache-2.0
// Packs that blocks of data-parallel ranks run together in (interleaved) 1F1B order.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/wlb_packs.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners::detail {

/// What candidates of WLB-LLM and Zeppelin have in common: the settings of a pipeline, and the step
/// that their packs make.
template <std::derived_from<PackedSettings> Type>
class JointMicroBatches : public CandidateBase<Type> {
 protected:
  JointMicroBatches(const PlanRequest& request, std::string_view planner)
      : CandidateBase<Type>(request, planner),
        works_(sample_works(request, request.batch.samples)) {
    this->space_.require_that([&request](const Type& settings) {
      return leaves_layers(request, settings.chunks, settings.head);
    });
  }

  /// Ranks that may work together on a micro-batch.
  [[nodiscard]] std::vector<std::int32_t> rank_choices() const {
    std::vector<std::int32_t> ranks = context_parallel_choices(this->request_);
    std::erase_if(ranks, [](std::int32_t count) { return count > kMostSharing; });
    return ranks;
  }
  void add_assignment() {
    this->space_.add("assignment", &PackedSettings::assignment_rule,
                     {AssignmentRule::in_turn, AssignmentRule::balanced});
  }
  void add_pipeline() {
    const auto chunks = chunk_choices(this->request_, 1);
    this->space_.add("chunks", &PackedSettings::chunks, chunks);
    add_step_settings(this->space_, this->request_, chunks);
  }

  [[nodiscard]] std::span<const Int128> works() const noexcept { return works_; }
  [[nodiscard]] std::int32_t groups(const Type& settings) const noexcept {
    return this->request_.dp / settings.ranks;
  }

  /// The step of `packs`, without a prediction. O(samples + packs x ranks).
  [[nodiscard]] Plan joint_plan(const Type& settings, schedule::Bins packs) const {
    PlanRequest request = this->request_;
    if (settings.ranks > 1) share_evenly(request, settings.ranks);
    PackedRanks packed;
    packed.sequences = std::move(packs);
    packed.ranks =
        settings.assignment_rule == AssignmentRule::in_turn
            ? schedule::assign_round_robin(packed.sequences.size(), groups(settings))
            : schedule::assign_balanced(pack_works(packed.sequences, works_), groups(settings));
    return build_packed(request, this->planner_, settings, packed, OneForwardOneBackward{});
  }

 private:
  std::vector<Int128> works_;
};

}  // namespace slimpack::planners::detail
