// SPDX-License-Identifier: Apache-2.0
// What a cost model answers, and in which exact quantities it is asked.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/head_pieces.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The work of a pack on one rank of its group: exact integers, summed over the pack's slices.
/// Of a rank of a context-parallel group only its own shard counts (docs/equations.md,
/// "Context-parallel groups").
struct PackLoad {
  Tokens tokens;                   ///< rows of matrix work
  std::int64_t pairs2 = 0;         ///< twice the (query, key) pairs, sum of s (2 prefix + s)
  std::int64_t filled_pairs2 = 0;  ///< the same with the rows of each segment filled up to tiles
  /// Of `pairs2` those of queries with keys of their own run of rows: the sum of the squares of its
  /// tokens. Tiles of keys that hang over the diagonal make them dearer.
  std::int64_t own_pairs2 = 0;
  std::int64_t keys = 0;      ///< keys and values that are read: each slice, those before its end
  std::int64_t segments = 0;  ///< runs of query rows that attention handles separately
  std::int64_t runs = 0;      ///< backward and weight: runs of saved rows contiguous in memory
  std::int64_t ranks = 1;     ///< that compute it together: those of the group, of weight packs 1
  Tokens kv_received;         ///< tokens whose keys and values arrive from other ranks
  Tokens q_received;          ///< tokens whose queries arrive from other ranks
  Tokens kv_sent;             ///< own tokens whose keys and values go to each other rank
  Tokens heads_sent;          ///< own tokens of slices by heads, whose heads pass to other ranks
  /// Of `pairs2` those that wait for no ring: of slices that one rank of several owns up to their
  /// end, so that it attends to them by itself, and of slices by heads; the same of the others
  /// below.
  std::int64_t alone_pairs2 = 0;
  std::int64_t alone_filled_pairs2 = 0;  ///< of `filled_pairs2`
  std::int64_t alone_own_pairs2 = 0;     ///< of `own_pairs2`
  std::int64_t alone_keys = 0;           ///< of `keys`
  HeadSets head_sets;  ///< in which slices by heads go; nothing in any: all of them together
  friend bool operator==(const PackLoad&, const PackLoad&) = default;
};

/// An amount of attention, and the part of it that waits for no ring.
struct AttentionAmount {
  std::int64_t PackLoad::* all;    ///< the whole amount
  std::int64_t PackLoad::* alone;  ///< that part
};

/// Those that attention is priced by, but for segments.
inline constexpr std::array<AttentionAmount, 4> kAttentionAmounts{{
    {&PackLoad::pairs2, &PackLoad::alone_pairs2},
    {&PackLoad::filled_pairs2, &PackLoad::alone_filled_pairs2},
    {&PackLoad::own_pairs2, &PackLoad::alone_own_pairs2},
    {&PackLoad::keys, &PackLoad::alone_keys},
}};

/// What is the same for all units of one chunk of one stage: layers and links.
struct StageLoad {
  std::int64_t layers = 0;           ///< of the chunk
  bool embedding = false;            ///< whether it holds the embedding: virtual stage 0 alone
  std::int64_t tensor_parallel = 1;  ///< devices that share the work of each layer
  Link tensor_link;                  ///< between tensor-parallel devices
  Link exchange_link;                ///< slowest link between the ranks of the pack's group
  /// Hops of these ranks over `exchange_link` where their others are inside nodes
  /// (`RingOrder::hops_between`); 0: all of them.
  std::int64_t exchange_hops = 0;
  /// Ranks of the group on the node where they are fewest; 0: all of them are on one.
  std::int64_t node_ranks = 0;
  /// Link of the message that F sends, where other traffic of the unit has to share it; no rate: it
  /// has not.
  Link forward_message;
  Link backward_message;  ///< the same of the message that B sends
  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

/// One device's part of the vocabulary projection and loss of a forward pack.
struct HeadLoad {
  Tokens tokens;            ///< own tokens of this rank
  std::int64_t vocab = 0;   ///< rows of the projection on one stage: all, or the largest shard
  std::int64_t shards = 1;  ///< stages that share the head; 1: it is on the last stage
  std::int64_t tensor_parallel = 1;  ///< devices that share the work of the stage
  Tokens tile{1024};                 ///< tokens whose logits exist at one time; 0: all of them
  Link link;                         ///< slowest link between the stages that share the head
  Link tensor_link;                  ///< between tensor-parallel devices
  friend bool operator==(const HeadLoad&, const HeadLoad&) = default;
};

/// Laws: pure; never negative; non-decreasing in every amount of work of a load (tokens, pairs,
/// segments, runs, tokens that travel, layers, rows of the vocabulary, bytes); equal on every
/// compiler (integers, or single rounded steps that no contraction can change). More ranks, shards
/// or tensor-parallel devices may cost or save time.
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

/// A model that also prices B without the gradients of weights, and W. Laws as above.
template <class Model>
concept SplitCostModel = CostModel<Model> && requires(const Model& model, const PackLoad& pack,
                                                      const StageLoad& stage, Recompute recompute) {
  /// Backward that leaves the gradients of weights apart, recomputation included.
  { model.backward_apart(pack, stage, recompute) } noexcept -> std::same_as<Nanos>;
  /// The gradients of weights alone, regrouping of what B has left included.
  { model.weight(pack, stage) } noexcept -> std::same_as<Nanos>;
};

/// What a model charges for work as such, whatever the units: picoseconds on one device without
/// tensor parallelism. `pair2` counts half (query, key) pairs, as PackLoad does.
struct WorkRates {
  double forward_token = 0;       ///< F, per token and layer
  double forward_pair2 = 0;       ///< F, per half pair and layer
  double backward_token = 0;      ///< B, per token and layer, nothing recomputed
  double backward_pair2 = 0;      ///< B, per half pair and layer, nothing recomputed
  double embedding_forward = 0;   ///< F of virtual stage 0, per token
  double embedding_backward = 0;  ///< B of virtual stage 0, per token
  double head_token = 0;          ///< H, per token, on every stage that shares it
  double head_row = 0;            ///< H, per token and row of the vocabulary

  // What each unit, segment and tile adds at least, and what recomputing adds. Units, segments and
  // launches cost each tensor-parallel device the whole.
  double forward_unit = 0;      ///< per F of a stage with layers
  double backward_unit = 0;     ///< per B of a stage with layers
  double forward_launch = 0;    ///< per F and layer
  double backward_launch = 0;   ///< per B and layer
  double head_unit = 0;         ///< per H with tokens
  double forward_segment = 0;   ///< F, per segment and layer
  double backward_segment = 0;  ///< B, per segment and layer
  bool forward_tiles = false;   ///< F charges filled pairs, not pairs
  bool backward_tiles = false;  ///< B charges filled pairs, not pairs
  double light_token = 0;       ///< per token and layer; `layer` and `full` add `forward_token`
  // Each of tp tensor-parallel devices sends (tp - 1) / tp times these bytes over their link.
  std::int64_t forward_tensor = 0;   ///< bytes of F, per token and layer
  std::int64_t backward_tensor = 0;  ///< bytes of B, per token and layer, nothing recomputed
  std::int64_t head_tensor = 0;      ///< bytes of H, per token
  // B that leaves weights apart; those of B where the model has no price of it. What is less than
  // in B is in W, at least.
  double apart_token = 0;         ///< per token and layer
  double apart_launch = 0;        ///< per B and layer
  std::int64_t apart_tensor = 0;  ///< bytes per token and layer
  friend bool operator==(const WorkRates&, const WorkRates&) = default;
};

/// Laws: the rates of tokens, pairs and rows are those that large units approach, without launch,
/// segment, tile or communication; no price is below the sum of all rates times amounts, those of
/// tokens, pairs and rows over `tensor_parallel` (but for the rounding of each term to a
/// picosecond), nor below the price of the same load with `ranks` 1. The same holds of B that
/// leaves weights apart, and of it and W together, beside the rates of B.
template <class Model>
concept RatedCostModel = CostModel<Model> && requires(const Model& model) {
  { model.rates() } noexcept -> std::same_as<WorkRates>;
};

}  // namespace slimpack
