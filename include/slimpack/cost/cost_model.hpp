// SPDX-License-Identifier: Apache-2.0
// What a cost model answers, and in which exact quantities it is asked.
#pragma once

#include <concepts>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// What a unit of work puts on one device of its group: exact integers, summed over its slices.
/// Of a rank of a context-parallel group only its own shard counts (docs/equations.md, "Merged
/// groups").
struct PackLoad {
  Tokens tokens;                   ///< rows of matrix work
  std::int64_t pairs2 = 0;         ///< twice the (query, key) pairs, sum of s (2 prefix + s)
  std::int64_t filled_pairs2 = 0;  ///< the same with the rows of each segment filled up to tiles
  std::int64_t segments = 0;       ///< runs of query rows that attention handles separately
  std::int64_t runs = 0;           ///< backward: runs of saved rows contiguous in memory; else 0
  std::int64_t ranks = 1;          ///< of the group
  Tokens kv_received;              ///< tokens whose keys and values arrive from other ranks
  Tokens q_received;               ///< tokens whose queries arrive from other ranks
  friend bool operator==(const PackLoad&, const PackLoad&) = default;
};

/// What is the same for all units of one chunk of one stage: layers and links.
struct StageLoad {
  std::int64_t layers = 0;  ///< of the chunk
  bool embedding = false;
  std::int64_t tensor_parallel = 1;
  Link tensor_link;    ///< between tensor-parallel devices
  Link exchange_link;  ///< slowest link between the ranks of the pack's group
  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

/// One device's part of the vocabulary projection and loss of a forward pack.
struct HeadLoad {
  Tokens tokens;            ///< of this rank
  std::int64_t vocab = 0;   ///< rows of the projection on this device's stage
  std::int64_t shards = 1;  ///< stages that share the head; 1: it is on the last stage
  std::int64_t tensor_parallel = 1;
  Tokens tile{1024};
  Link link;         ///< slowest link between the stages that share the head
  Link tensor_link;  ///< between tensor-parallel devices
  friend bool operator==(const HeadLoad&, const HeadLoad&) = default;
};

/// Laws: pure; never negative; non-decreasing in every amount of work of a load (tokens, pairs,
/// segments, runs, received tokens, layers, rows of the vocabulary, bytes); equal on every compiler
/// (integers, or single rounded steps that no contraction can change). More ranks, shards or
/// tensor-parallel devices may cost or save time.
template <class Model>
concept CostModel =
    requires(const Model& model, const PackLoad& pack, const StageLoad& stage, const HeadLoad& head,
             Recompute recompute, Bytes bytes, std::int64_t ranks, const Link& link) {
      /// Forward of a pack on one chunk of one stage, exchange and tensor-parallel traffic
      /// included.
      { model.forward(pack, stage) } noexcept -> std::same_as<Nanos>;
      /// Backward, recomputation and regrouping of saved tensors included.
      { model.backward(pack, stage, recompute) } noexcept -> std::same_as<Nanos>;
      /// Final norm, logits, loss and their gradients.
      { model.head(head) } noexcept -> std::same_as<Nanos>;
      /// Sending `bytes` over `link`.
      { model.transfer(bytes, link) } noexcept -> std::same_as<Nanos>;
      /// Reducing `bytes` of gradients over `ranks` (reduce-scatter where the optimizer is sharded,
      /// all-reduce otherwise).
      { model.reduce(bytes, ranks, link) } noexcept -> std::same_as<Nanos>;
      /// Optimizer step over `bytes` of state and weights touched, and the gathering of
      /// `gathered` bytes of weights over `ranks` (0 where the state is replicated).
      { model.optimizer(bytes, bytes, ranks, link) } noexcept -> std::same_as<Nanos>;
    };

/// What a model charges for work as such, whatever the units: picoseconds on one device without
/// tensor parallelism. A pair2 is half a (query, key) pair, as in PackLoad.
struct WorkRates {
  double forward_token = 0, forward_pair2 = 0;           ///< per layer
  double backward_token = 0, backward_pair2 = 0;         ///< per layer, nothing recomputed
  double embedding_forward = 0, embedding_backward = 0;  ///< per token
  double head_token = 0;  ///< per token, on every stage that shares it
  double head_row = 0;    ///< per token and row of the vocabulary

  // What each unit, segment and tile adds at least, and what recomputing adds. Units, segments and
  // launches cost each tensor-parallel device the whole.
  double forward_unit = 0, backward_unit = 0;          ///< per unit of a stage with layers
  double forward_launch = 0, backward_launch = 0;      ///< per unit and layer
  double head_unit = 0;                                ///< per H with tokens
  double forward_segment = 0, backward_segment = 0;    ///< per segment and layer
  bool forward_tiles = false, backward_tiles = false;  ///< filled pairs are charged, not pairs
  double light_token = 0;  ///< per token and layer; `layer` and `full` add `forward_token`
  /// Bytes of a token, layer and pass (head: of a token) that each of tp devices passes on tp - 1
  /// times over the tensor-parallel link, over tp.
  std::int64_t forward_tensor = 0, backward_tensor = 0, head_tensor = 0;
  friend bool operator==(const WorkRates&, const WorkRates&) = default;
};

/// Laws: the rates of tokens, pairs and rows are those that large units approach, without launch,
/// segment, tile or communication; no price is below the sum of all rates times amounts, those of
/// tokens, pairs and rows over `tensor_parallel` (but for the rounding of each term to a
/// picosecond), nor below the price of the same load with `ranks` 1.
template <class Model>
concept RatedCostModel = CostModel<Model> && requires(const Model& model) {
  { model.rates() } noexcept -> std::same_as<WorkRates>;
};

}  // namespace slimpack
