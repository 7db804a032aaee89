// SPDX-License-Identifier: Apache-2.0
// The byte formulas of docs/equations.md, "Memory": what planner, simulator and executor count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/layer_bytes.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// Whether the plan's bytes are counted for devices that split rows and widths: tensor parallelism,
/// since version 2.
[[nodiscard]] constexpr bool splits_rows(const Plan& plan) noexcept {
  return plan.parallel.tp > 1 && plan.version >= 2;
}

/// Bytes of one layer on one tensor-parallel device, apart by how the devices split them. A set of
/// tokens takes `token` bytes for each and `row` bytes for each row of the device that holds most
/// of their rows. Without tensor parallelism everything is a token's.
struct SplitBytes {
  LayerBytes token;  ///< split by heads and ffn: of every token a tp-th, rounded up
  LayerBytes row;    ///< split by rows (`TensorRows`): whole
};

/// What a device of the plan holds, for elements of `size` bytes. In version 1 of plans everything
/// is a tp-th of every token.
[[nodiscard]] constexpr SplitBytes split_bytes(const Plan& plan,
                                               const ElementBytes& size) noexcept {
  const TokenWidths all = token_widths(plan.model);
  const std::int64_t tp = plan.parallel.tp;
  if (!splits_rows(plan)) return {layer_bytes(all, size, tp), {}};
  return {layer_bytes(all.without_rows(), size, tp), layer_bytes(all.rows(), size)};
}

/// Rows that each tensor-parallel device brings to a collective inside layers or head at most, in a
/// unit of which it holds `share`: collectives make `head_tile` tokens whole at one time.
[[nodiscard]] constexpr std::int64_t gathered_share(const Plan& plan, Tokens share) noexcept {
  return std::min(share.value,
                  (plan.memory.head_tile.value + plan.parallel.tp - 1) / plan.parallel.tp);
}

/// Workspace for whole rows in F, B and W, none without tensor parallelism: once in the order of
/// devices, as collectives move them, and once in that of tokens.
[[nodiscard]] constexpr std::int64_t gathered_bytes(const Plan& plan, const ElementBytes& size,
                                                    Tokens share) noexcept {
  if (!splits_rows(plan)) return 0;
  return 2 * plan.parallel.tp * gathered_share(plan, share) * plan.model.hidden * size.element;
}

/// Ring buffers of one slice in a context-parallel group of `ranks`, two of the largest message;
/// nothing in a group of one, nor by heads. `pass_kv` moves the keys of [0, end), `pass_q` the
/// slice's queries. O(ranks).
[[nodiscard]] constexpr std::int64_t ring_buffer_bytes(const LayerBytes& layer, const Slice& slice,
                                                       Pass pass, RingMode mode, std::int64_t ranks,
                                                       Tokens block) noexcept {
  if (ranks <= 1 || mode == RingMode::by_heads) return 0;
  const bool back = pass == Pass::backward;
  if (mode == RingMode::pass_kv) {
    return largest_owned(ranks, block, Tokens{0}, slice.end).value *
           (layer.kv_exchange + (back ? layer.kv_exchange_back : 0));
  }
  return largest_owned(ranks, block, slice.begin, slice.end).value *
         (back ? layer.q_exchange_back : layer.q_exchange);
}

/// Whether a slice of a group of several ranks is exchanged by heads, `exchange` being its mode:
/// not where one rank owns the whole sample. The sample must exist.
[[nodiscard]] inline bool is_by_heads(const Plan& plan, const Slice& slice, RingMode exchange) {
  return exchange == RingMode::by_heads &&
         plan.samples[index(slice.sample)] > plan.memory.cp_block_tokens;
}

/// Buffers of all slices of a pack that its ranks exchange by heads, on the rank that needs most.
/// O(slices x ranks).
[[nodiscard]] inline std::int64_t head_buffer_bytes(const Plan& plan, const MicroPack& pack,
                                                    const LayerBytes& layer) {
  if (std::ranges::find(pack.exchange, RingMode::by_heads) == pack.exchange.end()) return 0;
  const std::size_t ranks = plan.groups[index(pack.group)].size();
  const auto count = static_cast<std::int64_t>(ranks);
  const HeadBuffers each = head_buffers(layer.heads, pack.pass, pack.recompute == Recompute::full,
                                        key_copies(plan.model, plan.parallel.tp, count));
  Tokens most, all, whole;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Tokens own;
    for (std::size_t i = 0; i < pack.slices.size(); ++i) {
      const Slice& slice = pack.slices[i];
      if (!is_by_heads(plan, slice, pack.exchange[i])) continue;
      own += cp_shard_of(plan, slice.sample, rank).between(slice.begin, slice.end);
      if (rank > 0) continue;
      all += slice.length();
      if (slice.length() == plan.samples[index(slice.sample)]) whole += slice.length();
    }
    most = std::max(most, own);
  }
  return most.value * each.own +
         (all.value * each.all + whole.value * each.whole + count - 1) / count;
}

/// Pages of `page` tokens that hold `tokens`. `page` must be > 0.
[[nodiscard]] constexpr std::int64_t pages_of(Tokens tokens, Tokens page) noexcept {
  return (tokens.value + page.value - 1) / page.value;
}

/// What a sample keeps of its keys and values on a device from one unit to the next.
struct KeptKeys {
  bool pages = true;       ///< keys and values, from F to the sample's last B
  bool gradients = true;   ///< their gradients, from the sample's first B to its last
  bool by_heads = false;   ///< ranks have those of all tokens for a part of the heads, not of own
  std::int64_t parts = 1;  ///< by heads: the parts, each on one rank or, of one head, on several
  /// Tokens of [0, end) whose keys and values are on a rank.
  [[nodiscard]] constexpr Tokens tokens(const CpShard& own, Tokens end) const noexcept {
    return by_heads ? end : own.before(end);
  }
  friend bool operator==(const KeptKeys&, const KeptKeys&) = default;
};

/// By sample, what its keys and values leave behind. In version 1 everything; since then a sample
/// that is one backward slice has its gradients in B's workspace, and where it is one forward slice
/// too and its backward pack is `full`, B makes its keys and values again. Slices by heads divide
/// them by heads. The slices must name samples that exist. O(slices).
[[nodiscard]] inline std::vector<KeptKeys> kept_keys(const Plan& plan) {
  std::vector<KeptKeys> kept(plan.samples.size());
  if (plan.version < 2) return kept;
  const auto for_each_slice = [&](Pass pass, const auto& visit) {
    for (const MicroPack& pack : plan.micropacks) {
      if (pack.pass != pass) continue;
      for (std::size_t i = 0; i < pack.slices.size(); ++i) {
        const Slice& slice = pack.slices[i];
        KeptKeys& keys = kept[index(slice.sample)];
        visit(pack, keys, slice.length() == plan.samples[index(slice.sample)]);
        if (i < pack.exchange.size() && is_by_heads(plan, slice, pack.exchange[i])) {
          const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
          keys.by_heads = true;
          keys.parts = ranks / key_copies(plan.model, plan.parallel.tp, ranks);
        }
      }
    }
  };
  for_each_slice(Pass::backward, [](const MicroPack& pack, KeptKeys& keys, bool whole) {
    keys.gradients = !whole;
    keys.pages = !whole || pack.recompute != Recompute::full;
  });
  for_each_slice(Pass::forward, [](const MicroPack&, KeptKeys& keys, bool whole) {
    keys.pages = keys.pages || !whole;
  });
  return kept;
}

/// Workspace of H for one token of a tile on a device that holds `rows` rows of the vocabulary: its
/// logits, hidden states with their gradients, and statistics.
[[nodiscard]] constexpr std::int64_t head_token_bytes(const ModelShape& model, std::int64_t rows,
                                                      const ElementBytes& size) noexcept {
  return rows * size.statistic + model.hidden * (3 * size.element + size.gradient) +
         4 * size.statistic;
}

/// Bytes that one token sends to and receives from each further stage of a sharded head: hidden
/// state out; maximum, sum and target logit there and back; hidden gradient in.
[[nodiscard]] constexpr std::int64_t head_traffic_bytes(const ModelShape& model,
                                                        const ElementBytes& size) noexcept {
  return model.hidden * (size.element + size.gradient) + 6 * size.statistic;
}

/// Weights that device (dp, pp) holds, as numbers of elements.
struct DeviceWeights {
  std::int64_t layers = 0;      ///< of all its layers
  std::int64_t embedding = 0;   ///< the whole table, on stage 0
  std::int64_t final_norm = 0;  ///< on the last stage
  std::int64_t head = 0;        ///< projection held apart from the embedding
  /// All of it.
  [[nodiscard]] constexpr std::int64_t total() const noexcept {
    return layers + embedding + final_norm + head;
  }
  friend bool operator==(const DeviceWeights&, const DeviceWeights&) = default;
};

/// Rows of the vocabulary that stage `pp` projects onto: its shard, all, or none.
[[nodiscard]] constexpr std::int64_t head_rows(const Plan& plan, std::int32_t pp) noexcept {
  if (plan.parallel.head == LmHead::shard) {
    return vocabulary_shard(plan.model.vocab, pp, plan.parallel.pp).size();
  }
  return pp == plan.parallel.pp - 1 ? plan.model.vocab : 0;
}

/// Layers of one chunk of a stage, 0 where the plan has no such stage. O(stages).
[[nodiscard]] constexpr std::int64_t chunk_layers(const Plan& plan, std::int32_t pp,
                                                  std::int32_t chunk) noexcept {
  for (const Stage& stage : plan.stages) {
    if (stage.pp == pp && stage.chunk == chunk) return stage.layers();
  }
  return 0;
}

/// The weights of stage `pp`. O(stages).
[[nodiscard]] constexpr DeviceWeights device_weights(const Plan& plan, std::int32_t pp) noexcept {
  const std::int64_t table = plan.model.vocab * plan.model.hidden;
  DeviceWeights weights;
  for (const Stage& stage : plan.stages) {
    if (stage.pp == pp) weights.layers += stage.layers() * plan.model.layer_weights();
  }
  weights.embedding = pp == 0 ? table : 0;
  weights.final_norm = pp == plan.parallel.pp - 1 ? plan.model.hidden : 0;
  const bool has_table = plan.model.tied && weights.embedding > 0;
  weights.head = has_table ? 0 : head_rows(plan, pp) * plan.model.hidden;
  return weights;
}

/// Bytes of optimizer state of one weight: two moments and, below fp32, a master copy.
[[nodiscard]] constexpr std::int64_t state_bytes(const ModelShape& model) noexcept {
  return 2 * model.statistic_bytes() + (model.bytes_per_element < 4 ? 4 : 0);
}

/// What a device holds from the begin of a step to its end.
struct StaticBytes {
  Bytes weights;    ///< of layers, embedding, final norm and head
  Bytes gradients;  ///< accumulated gradients of the weights
  Bytes optimizer;  ///< moments and, below fp32, a master copy of the weights
  /// All of it.
  [[nodiscard]] constexpr Bytes total() const noexcept { return weights + gradients + optimizer; }
  friend bool operator==(const StaticBytes&, const StaticBytes&) = default;
};

/// Weights that a tensor-parallel device of stage `pp` holds at most: a tp-th of every matrix, of
/// the vocabulary's the largest shard, and all gains of norms. O(stages).
[[nodiscard]] constexpr std::int64_t held_weights(const Plan& plan, std::int32_t pp) noexcept {
  const ModelShape& model = plan.model;
  const auto part = [&](std::int64_t all) {
    return (all + plan.parallel.tp - 1) / plan.parallel.tp;
  };
  std::int64_t layers = 0;
  for (const Stage& stage : plan.stages) layers += stage.pp == pp ? stage.layers() : 0;
  const std::int64_t embedding = pp == 0 ? part(model.vocab) : 0;
  const std::int64_t head = model.tied && pp == 0 ? 0 : part(head_rows(plan, pp));
  const std::int64_t norms = 2 * layers + (pp == plan.parallel.pp - 1 ? 1 : 0);
  return layers * part(model.layer_matrix_weights()) + (embedding + head + norms) * model.hidden;
}

/// Weights that are whole at one time on a tensor-parallel device of stage `pp` whose ranks share
/// them, at most: a layer's, the embedding's, or the head's with the final norm. O(stages).
[[nodiscard]] constexpr std::int64_t gathered_weights(const Plan& plan, std::int32_t pp) noexcept {
  const ModelShape& model = plan.model;
  const std::int64_t tp = splits_rows(plan) ? plan.parallel.tp : 1;
  const auto part = [&](std::int64_t all) { return (all + tp - 1) / tp; };
  std::int64_t most = 0;
  for (const Stage& stage : plan.stages) {
    if (stage.pp != pp || stage.layers() == 0) continue;
    most = std::max(most, part(model.layer_matrix_weights()) + 2 * model.hidden);
  }
  if (pp == 0) most = std::max(most, part(model.vocab) * model.hidden);
  const std::int64_t norm = pp == plan.parallel.pp - 1 ? 1 : 0;
  return std::max(most, (part(head_rows(plan, pp)) + norm) * model.hidden);
}

/// Weights, gradients and optimizer state of one tensor-parallel device of stage `pp`, of the one
/// that holds most. In version 1 of plans they are a tp-th of the stage's. Where ranks share
/// weights, each holds one part of them and of their gradients, and two layers of both whole
/// (`gathered_weights`): one in use, the other on its way. O(stages).
[[nodiscard]] constexpr StaticBytes static_bytes(const Plan& plan, std::int32_t pp) noexcept {
  const bool split = splits_rows(plan);
  const std::int64_t weights = split ? held_weights(plan, pp) : device_weights(plan, pp).total();
  const auto part = [](std::int64_t bytes, std::int64_t parts) {
    return Bytes{(bytes + parts - 1) / parts};
  };
  const std::int64_t tp = split ? 1 : plan.parallel.tp;
  const bool sharded = plan.memory.optimizer == OptimizerState::sharded;
  std::int64_t held = weights;
  if (plan.memory.weights == WeightState::sharded) {
    held = (weights + plan.parallel.dp - 1) / plan.parallel.dp + 2 * gathered_weights(plan, pp);
  }
  return {part(held * plan.model.bytes_per_element, tp),
          part(held * plan.memory.gradient_bytes, tp),
          part(weights * state_bytes(plan.model), sharded ? tp * plan.parallel.dp : tp)};
}

/// What H has in work at one time of `tokens` of a rank: tokens, at most `head_tile`; with tensor
/// parallelism rows of each device, which holds `share` of them at most.
[[nodiscard]] constexpr std::int64_t head_tile_rows(const Plan& plan, Tokens tokens,
                                                    Tokens share) noexcept {
  if (splits_rows(plan)) return gathered_share(plan, share);
  return std::min(tokens, plan.memory.head_tile).value;
}

/// Workspace of H on a device of stage `pp` for each of `head_tile_rows`. With tensor parallelism a
/// device has logits, statistics and whole rows, twice, of the rows of all, beside hidden states
/// and gradients of its own.
[[nodiscard]] constexpr std::int64_t head_row_bytes(const Plan& plan, std::int32_t pp,
                                                    const ElementBytes& size) noexcept {
  const std::int64_t tp = plan.parallel.tp, rows = head_rows(plan, pp);
  const std::int64_t all = head_token_bytes(plan.model, rows, size);
  if (!splits_rows(plan)) return (all + tp - 1) / tp;
  const std::int64_t statistics = 4 * size.statistic;
  const std::int64_t own = head_token_bytes(plan.model, 0, size) - statistics;
  return own + tp * ((rows + tp - 1) / tp * size.statistic + statistics +
                     2 * plan.model.hidden * size.element);
}

/// Workspace of H on a device of stage `pp` for `tokens` of a rank, `share` rows at most a device.
[[nodiscard]] constexpr Bytes head_workspace(const Plan& plan, std::int32_t pp, Tokens tokens,
                                             Tokens share) noexcept {
  return Bytes{head_tile_rows(plan, tokens, share) *
               head_row_bytes(plan, pp, element_bytes_of(plan.model, plan.memory.gradient_bytes))};
}
/// The same of tokens whose rows are split evenly.
[[nodiscard]] constexpr Bytes head_workspace(const Plan& plan, std::int32_t pp,
                                             Tokens tokens) noexcept {
  const std::int64_t tp = plan.parallel.tp;
  return head_workspace(plan, pp, tokens, Tokens{(tokens.value + tp - 1) / tp});
}

}  // namespace slimpack
