// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's plans: documents packed whole, in 1F1B, interleaved or shared.
#pragma once

#include <string_view>
#include <utility>

#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"

namespace slimpack::planners {

/// Micro-batches of whole documents, each document attending to itself alone, in
/// one-forward-one-backward order. Searched: recomputation, place of the head and devices
/// (`StepSettings`), length of micro-batches from the longest sample to the context (its
/// `--seq-length`), documents in data order or best fit decreasing, micro-batches assigned to ranks
/// in turn or balanced in equal numbers. Infeasible where more than one chunk is asked for; as
/// published, a sharded head too.
struct Megatron {
  static constexpr std::string_view name = "megatron";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "Megatron-LM: documents packed whole, one forward, one backward (1F1B)";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<PackedCandidates<>>({}, request, name, PackedChoices{});
  }
};
static_assert(Planner<Megatron>);

/// The packs of `Megatron` in interleaved order (Narayanan et al., SC 2021), for any number of
/// micro-batches. Searched besides: chunks, from those of 2 to 8 that give every stage and chunk
/// the same number of layers (where there is none, that leave none empty; one where there is none
/// of these). As published, infeasible where a sharded head is asked for.
struct MegatronInterleaved {
  /// In lists and as `Plan::planner`.
  static constexpr std::string_view name = "megatron-interleaved";
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "Megatron-LM with virtual stages: documents packed whole, interleaved 1F1B";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<PackedCandidates<>>({.one_chunk = false}, request, name,
                                             PackedChoices{.chunks = chunk_choices(request, 2)});
  }
};
static_assert(Planner<MegatronInterleaved>);

/// The packs and the order of `Megatron`, each micro-batch run by `context_parallel` neighbouring
/// data-parallel ranks together, which exchange keys and values of every document (all of its
/// slices are `kv`) and run their common units in the same order. Searched: what `Megatron`
/// searches, context-parallel degrees (powers of two that divide dp, one among them, none above
/// `max_cp`), the blocks in which documents are shared, and chunks: with several the order is that
/// of `MegatronInterleaved`.
///
/// Megatron cuts every document into 2 x degree chunks of its own length and gives rank i chunks i
/// and 2 x degree - 1 - i. A plan has one length of blocks for all documents, assigned to ranks by
/// that same rule over and over. A document of 2 x degree blocks is shared as Megatron does it; a
/// longer one in more pieces, as evenly; of one shorter than a block the first rank has all. Small
/// blocks even that out and cost attention more segments and partly filled tiles, as short
/// documents cost Megatron. Padding of documents to multiples of 2 x degree is not counted.
///
/// As published, infeasible where a sharded head is asked for.
struct MegatronCp {
  static constexpr std::string_view name = "megatron-cp";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "Megatron-LM with context parallelism: packed documents shared by ranks, interleaved or not";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "one length of context-parallel blocks for all documents, of those searched";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<PackedCandidates<>>(
        {.one_chunk = false}, request, name,
        PackedChoices{.chunks = chunk_choices(request, 1), .context_parallel = true});
  }
};
static_assert(Planner<MegatronCp>);

}  // namespace slimpack::planners
