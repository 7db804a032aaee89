// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's plan with several chunks a stage: documents packed whole, interleaved 1F1B.
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

/// The packs of `Megatron` in interleaved order (Narayanan et al., SC 2021), for any number of
/// micro-batches. Searched besides: chunks, from those of 2 to 8 that give every stage and chunk
/// the same number of layers (where there is none, that leave none empty; one where there is none
/// of these). Infeasible where a sharded head is asked for.
struct MegatronInterleaved {
  static constexpr std::string_view name = "megatron-interleaved";
  static constexpr std::string_view description =
      "Megatron-LM with virtual stages: documents packed whole to the context, interleaved 1F1B";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.head == LmHead::shard) {
      return {Infeasible{"stages with a part of the head, one in megatron-interleaved's order",
                         request.pp, 1},
              {},
              0};
    }
    PackedSpace space;
    space.recompute = recompute_choices(request);
    space.chunks = chunk_choices(request, 2);
    space.head = head_choices(request, space.chunks, false);
    return choose_packed(
        request, name, space,
        [](const schedule::Pipeline& pipeline, std::span<const std::int32_t> slices) {
          return schedule::interleaved(pipeline, static_cast<std::int32_t>(slices.size()));
        });
  }
};
static_assert(Planner<MegatronInterleaved>);

}  // namespace slimpack::planners
