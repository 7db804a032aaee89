// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's plan: documents packed whole to the context, 1F1B.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/choose_packed.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

/// Micro-batches of whole documents up to the context, each document attending to itself alone, in
/// one-forward-one-backward order, the head on the last stage. Searched: recomputation, layers of
/// the last stage, documents in data order or best fit decreasing, micro-batches to ranks in turn
/// or balanced in equal numbers. Infeasible where more than one chunk or a sharded head is asked
/// for.
struct Megatron {
  static constexpr std::string_view name = "megatron";
  static constexpr std::string_view description =
      "Megatron-LM: documents packed whole to the context, one forward, one backward (1F1B)";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.chunks.value_or(1) != 1) {
      return {Infeasible{"chunks of a stage, one in megatron's order", *request.chunks, 1}, {}, 0};
    }
    if (request.head == LmHead::shard) {
      return {Infeasible{"stages with a part of the head, one in megatron's order", request.pp, 1},
              {},
              0};
    }
    PackedSpace space;
    space.recompute = recompute_choices(request);
    space.head = head_choices(request, space.chunks, false);
    return choose_packed(
        request, name, space,
        [](const schedule::Pipeline& pipeline, std::span<const std::int32_t> slices) {
          return schedule::one_f_one_b(pipeline.stages, static_cast<std::int32_t>(slices.size()));
        });
  }
};
static_assert(Planner<Megatron>);

}  // namespace slimpack::planners
