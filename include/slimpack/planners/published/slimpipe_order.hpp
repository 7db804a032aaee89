// SPDX-License-Identifier: Apache-2.0
// SlimPipe's plan: packed sequences in uniform slices, in its published order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/choose_packed.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

/// Sequences of whole documents up to the context, cut into slices of equal length (at the nearest
/// multiple of the granularity), in the order of SlimPipe (arXiv 2504.14519). Searched: slices of
/// the longest sequence (1, half the stages, and 1 to 16 times the stages; the others in
/// proportion), chunks, head on the last stage or sharded, and what `Megatron` searches. Its
/// exchange of attention work between stages is not part of a plan: `Slimpipe` has it.
struct SlimpipeOrder {
  static constexpr std::string_view name = "slimpipe-order";
  static constexpr std::string_view description =
      "SlimPipe: packed sequences in uniform slices, one forward, one backward on slices";

  /// The published order of sequences with so many slices.
  static constexpr auto order = [](const schedule::Pipeline& pipeline,
                                   std::span<const std::int32_t> slices) {
    return schedule::slimpipe(pipeline, slices);
  };

  /// What is searched.
  [[nodiscard]] static PackedSpace space(const PlanRequest& request) {
    PackedSpace space;
    space.recompute = recompute_choices(request);
    space.slices.clear();
    for (const std::int32_t slices : {4 * request.pp, 2 * request.pp, 8 * request.pp, request.pp,
                                      16 * request.pp, std::max(1, request.pp / 2), 1}) {
      if (std::find(space.slices.begin(), space.slices.end(), slices) == space.slices.end()) {
        space.slices.push_back(slices);
      }
    }
    space.chunks = chunk_choices(request, 1);
    space.head = head_choices(request, space.chunks, true);
    return space;
  }

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    return choose_packed(request, name, space(request), order);
  }
};
static_assert(Planner<SlimpipeOrder>);

}  // namespace slimpack::planners
