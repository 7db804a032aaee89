// SPDX-License-Identifier: Apache-2.0
// Packs that blocks of data-parallel ranks run together in (interleaved) 1F1B order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/wlb_packs.hpp"
#include "slimpack/planners/published/megatron_cp.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/orders.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners::detail {

/// What candidates of WLB-LLM and Zeppelin have in common: the settings of a pipeline and the step
/// that their packs make. Values 0, 1, 3 and 4 of a point are recomputation, ranks that work
/// together, chunks and layers of the last stage.
class JointMicroBatches {
 public:
  JointMicroBatches(const PlanRequest& request, std::string_view planner)
      : request_(request), planner_(planner), works_(sample_works(request, request.batch.samples)) {
    space_.recompute = recompute_choices(request);
    space_.chunks = chunk_choices(request, 1);
    space_.head = head_choices(request, space_.chunks, false);
    space_.ranks = context_parallel_choices(request);
    std::erase_if(space_.ranks, [](std::int32_t ranks) { return ranks > kMostSharing; });
  }

  [[nodiscard]] const PlanRequest& request() const noexcept { return request_; }
  [[nodiscard]] std::span<const Int128> works() const noexcept { return works_; }
  [[nodiscard]] PackedSpace& space() noexcept { return space_; }
  [[nodiscard]] const PackedSpace& space() const noexcept { return space_; }

  [[nodiscard]] PackedSettings settings(const SettingPoint& point,
                                        std::size_t assignment_rule) const {
    PackedSettings settings;
    settings.recompute = space_.recompute.at(point[0]);
    settings.ranks = space_.ranks.at(point[1]);
    settings.chunks = space_.chunks.at(point[3]);
    settings.head = space_.head.at(point[4]);
    settings.assignment_rule = space_.assignment_rule.at(assignment_rule);
    return settings;
  }
  [[nodiscard]] std::int32_t groups(const PackedSettings& settings) const noexcept {
    return request_.dp / settings.ranks;
  }

  /// The step of `packs`, without a prediction. O(samples + packs x ranks).
  [[nodiscard]] Plan plan(const PackedSettings& settings, schedule::Bins packs) const {
    PlanRequest request = request_;
    if (settings.ranks > 1) share_evenly(request, settings.ranks);
    PackedRanks packed;
    packed.sequences = std::move(packs);
    packed.ranks =
        settings.assignment_rule == AssignmentRule::in_turn
            ? schedule::assign_round_robin(packed.sequences.size(), groups(settings))
            : schedule::assign_balanced(pack_works(packed.sequences, works_), groups(settings));
    return build_packed(
        request, planner_, settings, packed,
        [](const schedule::Pipeline& pipeline, std::span<const std::int32_t> slices) {
          return schedule::interleaved(pipeline, static_cast<std::int32_t>(slices.size()));
        });
  }

 private:
  const PlanRequest& request_;
  std::string_view planner_;
  std::vector<Int128> works_;
  PackedSpace space_;
};

}  // namespace slimpack::planners::detail
