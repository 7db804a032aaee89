// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's plan with context parallelism: packed documents shared by neighbouring ranks, 1F1B.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/choose_packed.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

namespace detail {

/// Powers of two that divide `dp`, up to the request's bound on merged groups.
[[nodiscard]] inline std::vector<std::int32_t> context_parallel_choices(
    const PlanRequest& request) {
  const std::int32_t most = std::min(request.dp, request.max_cp.value_or(request.dp));
  std::vector<std::int32_t> choices{1};
  while (choices.back() <= most / 2 && request.dp % (2 * choices.back()) == 0) {
    choices.push_back(2 * choices.back());
  }
  return choices;
}

/// Blocks in which sequences are shared: the request's, or some lengths and that which cuts the
/// longest sample into twice as many blocks as the largest of `choices`.
[[nodiscard]] inline std::vector<std::optional<Tokens>> share_choices(
    const PlanRequest& request, std::span<const std::int32_t> choices) {
  if (choices.size() == 1 || request.memory.cp_block_tokens) return {std::nullopt};
  std::vector<std::optional<Tokens>> blocks{Tokens{128}, Tokens{512}, Tokens{2048}, Tokens{32}};
  const Tokens longest =
      *std::max_element(request.batch.samples.begin(), request.batch.samples.end());
  const std::int64_t parts = 2 * std::int64_t{choices.back()};
  const Tokens chunk{(longest.value + parts - 1) / parts};
  if (std::find(blocks.begin(), blocks.end(), chunk) == blocks.end()) blocks.push_back(chunk);
  return blocks;
}

}  // namespace detail

/// The packs and the order of `Megatron`, each micro-batch run by `context_parallel` neighbouring
/// data-parallel ranks together, which exchange keys and values of every document (all of its
/// slices are `kv`) and meet in each unit in the same order. Searched: what `Megatron` searches,
/// context-parallel degrees (powers of two that divide dp, one among them, none above `merge`), and
/// the blocks in which documents are shared.
///
/// Megatron cuts every document into 2 x degree chunks of its own length and gives rank i chunks i
/// and 2 x degree - 1 - i. A plan has one length of blocks for all documents, dealt to ranks by
/// that same rule over and over. A document of 2 x degree blocks is shared as Megatron does it; a
/// longer one in more pieces, as evenly; of one shorter than a block the first rank has all. Small
/// blocks even that out and cost attention more segments and partly filled tiles, as short
/// documents cost Megatron. Padding of documents to multiples of 2 x degree is not counted.
///
/// Infeasible where more than one chunk or a sharded head is asked for.
struct MegatronCp {
  static constexpr std::string_view name = "megatron-cp";
  static constexpr std::string_view description =
      "Megatron-LM with context parallelism: packed documents shared by ranks, 1F1B";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    if (request.chunks.value_or(1) != 1) {
      return {
          Infeasible{"chunks of a stage, one in megatron-cp's order", *request.chunks, 1}, {}, 0};
    }
    if (request.head == LmHead::shard) {
      return {
          Infeasible{"stages with a part of the head, one in megatron-cp's order", request.pp, 1},
          {},
          0};
    }
    PackedSpace space;
    space.recompute = recompute_choices(request);
    space.head = head_choices(request, space.chunks, false);
    space.ranks = detail::context_parallel_choices(request);
    space.share = detail::share_choices(request, space.ranks);
    return choose_packed(
        request, name, space,
        [](const schedule::Pipeline& pipeline, std::span<const std::int32_t> slices) {
          return schedule::one_f_one_b(pipeline.stages, static_cast<std::int32_t>(slices.size()));
        });
  }
};
static_assert(Planner<MegatronCp>);

}  // namespace slimpack::planners
