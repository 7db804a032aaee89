// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan keeps on a device, per token and per unit (docs/equations.md, "Memory").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Bytes on one of `tp` tensor-parallel devices, each entry a tp-th, rounded up.
struct LayerBytes {
  std::array<std::int64_t, kRecomputeModes> kept{};  ///< per token, without keys and values
  std::array<std::int64_t, kRecomputeModes>
      recomputed{};  ///< per token: `none`'s bytes less `kept`
  std::array<std::int64_t, kRecomputeModes> forward_workspace{};   ///< of F, per token
  std::array<std::int64_t, kRecomputeModes> backward_workspace{};  ///< of B, per token
  std::int64_t kv = 0;                                             ///< keys and values, per token
  std::int64_t kv_gradient = 0;       ///< their accumulated gradients, per token
  std::int64_t boundary = 0;          ///< hidden state that passes between stages, per token
  std::int64_t kv_exchange = 0;       ///< exchange `kv`: per token of share(0,b), forward
  std::int64_t kv_exchange_back = 0;  ///< further, in backward
  std::int64_t q_exchange = 0;        ///< exchange `q`: per token of share(a,b), forward
  std::int64_t q_exchange_back = 0;   ///< in its place, in backward
  friend bool operator==(const LayerBytes&, const LayerBytes&) = default;
};

/// What the tables of docs/equations.md say of one layer and token.
[[nodiscard]] constexpr LayerBytes layer_bytes(const ModelShape& model,
                                               std::int64_t gradient_bytes = 4,
                                               std::int64_t tensor_parallel = 1) noexcept {
  const std::int64_t element = model.bytes_per_element;
  const std::int64_t statistic = model.statistic_bytes();
  const std::int64_t hidden = model.hidden * element;
  const std::int64_t query = model.query_width() * element;
  const std::int64_t key = model.key_width() * element;
  const std::int64_t ffn = model.ffn * element;
  const std::int64_t log_sum = model.heads * statistic;
  const std::int64_t key_gradient = 2 * model.key_width() * gradient_bytes;
  const auto part = [&](std::int64_t bytes) {
    return (bytes + tensor_parallel - 1) / tensor_parallel;
  };
  const std::array<std::int64_t, kRecomputeModes> kept = {
      4 * hidden + 2 * query + log_sum + 3 * ffn + 2 * statistic,
      2 * hidden + 2 * query + log_sum + 2 * ffn,  //
      hidden + query + log_sum,                    //
      hidden};
  LayerBytes bytes;
  for (std::size_t mode = 0; mode < kept.size(); ++mode) {
    const std::int64_t made_again = kept[0] - kept[mode];
    bytes.kept[mode] = part(kept[mode]);
    bytes.recomputed[mode] = part(made_again);
    bytes.forward_workspace[mode] = part(2 * hidden + 2 * key + made_again);
    bytes.backward_workspace[mode] =
        part(3 * hidden + 2 * query + 3 * ffn + key_gradient + made_again);
  }
  bytes.kv = part(2 * key);
  bytes.kv_gradient = part(key_gradient);
  bytes.boundary = part(hidden);
  bytes.kv_exchange = part(2 * 2 * key);
  bytes.kv_exchange_back = part(2 * key_gradient);
  bytes.q_exchange = part(2 * (2 * query + log_sum));
  bytes.q_exchange_back =
      part(2 * (2 * query + model.query_width() * gradient_bytes + 2 * log_sum));
  return bytes;
}

/// Weights, as numbers of elements, that device (dp, pp) holds.
struct DeviceWeights {
  std::int64_t layers = 0;      ///< of all its layers
  std::int64_t embedding = 0;   ///< the whole table, on stage 0
  std::int64_t final_norm = 0;  ///< on the last stage
  std::int64_t head = 0;        ///< projection held apart from the embedding
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

/// Layers of one chunk of a stage, 0 where the plan has no such stage.
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

/// What a device always holds.
struct StaticBytes {
  Bytes weights, gradients, optimizer;
  [[nodiscard]] constexpr Bytes total() const noexcept { return weights + gradients + optimizer; }
  friend bool operator==(const StaticBytes&, const StaticBytes&) = default;
};

/// Weights, gradients and optimizer state of one tensor-parallel device of stage `pp`. O(stages).
[[nodiscard]] constexpr StaticBytes static_bytes(const Plan& plan, std::int32_t pp) noexcept {
  const std::int64_t weights = device_weights(plan, pp).total();
  const auto part = [](std::int64_t bytes, std::int64_t parts) {
    return Bytes{(bytes + parts - 1) / parts};
  };
  const std::int64_t tp = plan.parallel.tp;
  const bool sharded = plan.memory.optimizer == OptimizerState::sharded;
  return {part(weights * plan.model.bytes_per_element, tp),
          part(weights * plan.memory.gradient_bytes, tp),
          part(weights * state_bytes(plan.model), sharded ? tp * plan.parallel.dp : tp)};
}

/// Workspace of H on stage `pp` for `tokens` of a rank.
[[nodiscard]] constexpr Bytes head_workspace(const Plan& plan, std::int32_t pp,
                                             Tokens tokens) noexcept {
  const std::int64_t statistic = plan.model.statistic_bytes();
  const std::int64_t row =
      head_rows(plan, pp) * statistic +
      plan.model.hidden * (3 * plan.model.bytes_per_element + plan.memory.gradient_bytes) +
      4 * statistic;
  const std::int64_t tp = plan.parallel.tp;
  return Bytes{(row + tp - 1) / tp} * std::min(tokens, plan.memory.head_tile).value;
}

/// Bytes of the activations, keys and values, buffers and workspaces of every unit of a plan.
/// Precomputes a few numbers for each pack and rank; every question is O(1) unless said otherwise.
/// `rank` counts inside the pack's group; `layers` are those of the chunk in question.
class MemoryModel {
 public:
  /// O(n log n) in slices times ranks. The plan must outlive the model and obey rules 1 and 2.
  /// Throws InvalidInput if a pack, group or sample does not exist.
  explicit MemoryModel(const Plan& plan);

  [[nodiscard]] const LayerBytes& layer() const noexcept { return layer_; }

  /// Own tokens of a pack.
  [[nodiscard]] Tokens own_tokens(PackId pack, std::size_t rank) const noexcept;
  /// Own tokens of a pack that are kept in `mode`: the mode of the backward pack that holds them.
  [[nodiscard]] Tokens kept_tokens(PackId pack, std::size_t rank, Recompute mode) const noexcept {
    return entry(pack, rank).by_mode[static_cast<std::size_t>(mode)];
  }
  /// Activations of a pack's tokens on one chunk: allocated when a forward pack starts, freed when
  /// a backward pack ends. Both sum to the same over all packs.
  [[nodiscard]] Bytes kept(PackId pack, std::size_t rank, std::int64_t layers) const noexcept;
  /// Hidden states of a pack's tokens: message, buffer, last layer's output, hidden gradients.
  [[nodiscard]] Bytes boundary(PackId pack, std::size_t rank) const noexcept {
    return Bytes{layer_.boundary * own_tokens(pack, rank).value};
  }
  /// Keys and values of `pages` pages.
  [[nodiscard]] Bytes page_bytes(std::int64_t pages, std::int64_t layers) const noexcept {
    return Bytes{layers * layer_.kv * page_.value * pages};
  }
  /// Pages that hold the own tokens of [0, end).
  [[nodiscard]] std::int64_t pages(const CpShard& shard, Tokens end) const noexcept {
    return (shard.before(end).value + page_.value - 1) / page_.value;
  }
  /// Gradients of keys and values of a sample of `length` tokens.
  [[nodiscard]] Bytes kv_gradient(const CpShard& shard, Tokens length,
                                  std::int64_t layers) const noexcept {
    return Bytes{layers * layer_.kv_gradient * shard.before(length).value};
  }
  /// Workspace of F or B of a pack, the exchange's buffers included; the same on every stage.
  [[nodiscard]] Bytes pack_workspace(PackId pack, std::size_t rank) const noexcept;
  /// Workspace of any unit of device (dp, pp); `rank` is dp's place in the pack's group.
  [[nodiscard]] Bytes workspace(const Unit& unit, std::int32_t pp, std::size_t rank) const noexcept;

 private:
  struct Entry {
    std::array<Tokens, kRecomputeModes> by_mode{};
  };
  [[nodiscard]] const Entry& entry(PackId pack, std::size_t rank) const noexcept {
    SLIMPACK_ASSERT(first_[index(pack)] + rank < first_[index(pack) + 1]);
    return entries_[first_[index(pack)] + rank];
  }

  const Plan* plan_;
  LayerBytes layer_;
  Tokens page_;
  std::vector<std::size_t> first_;  // of a pack in entries_, and one past the last
  std::vector<Entry> entries_;
  std::vector<Bytes> exchange_;  // workspace of a pack's exchange, one a pack
};

namespace detail {

/// The largest own(begin, end) of a group's ranks. O(ranks).
[[nodiscard]] inline Tokens largest_share(const Plan& plan, GroupId group, Tokens begin,
                                          Tokens end) {
  Tokens largest{0};
  for (std::size_t rank = 0; rank < plan.groups[index(group)].size(); ++rank) {
    largest = std::max(largest, cp_shard_of(plan, group, rank).between(begin, end));
  }
  return largest;
}

/// Buffers of a pack's exchange: its slices exchange one after another, the largest counts.
[[nodiscard]] inline Bytes exchange_workspace(const Plan& plan, const MicroPack& pack,
                                              const LayerBytes& layer) {
  if (plan.groups[index(pack.group)].size() == 1) return {};
  Tokens keys{0}, queries{0};
  for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
    const Slice& slice = pack.slices[slot];
    if (pack.exchange[slot] == RingMode::pass_kv) {
      keys = std::max(keys, largest_share(plan, pack.group, Tokens{0}, slice.end));
    } else {
      queries = std::max(queries, largest_share(plan, pack.group, slice.begin, slice.end));
    }
  }
  const bool back = pack.pass == Pass::backward;
  const std::int64_t key_row = layer.kv_exchange + (back ? layer.kv_exchange_back : 0);
  const std::int64_t query_row = back ? layer.q_exchange_back : layer.q_exchange;
  return Bytes{std::max(keys.value * key_row, queries.value * query_row)};
}

}  // namespace detail

inline MemoryModel::MemoryModel(const Plan& plan)
    : plan_(&plan),
      layer_(layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp)),
      page_(plan.memory.page_tokens),
      first_(plan.micropacks.size() + 1, 0) {
  require(page_.value > 0, "memory.page_tokens must be > 0", page_.value);
  const SliceIndex backward(plan, Pass::backward);
  exchange_.reserve(plan.micropacks.size());
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    require_pack(plan, static_cast<PackId>(i));
    const MicroPack& pack = plan.micropacks[i];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    first_[i + 1] = first_[i] + ranks;
    entries_.resize(first_[i + 1]);
    const auto add = [&](Recompute mode, const Slice& slice, Tokens begin, Tokens end) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        entries_[first_[i] + rank].by_mode[static_cast<std::size_t>(mode)] +=
            cp_shard_of(plan, pack.group, rank)
                .between(std::max(begin, slice.begin), std::min(end, slice.end));
      }
    };
    for (const Slice& slice : pack.slices) {
      if (pack.pass == Pass::backward) {
        add(pack.recompute, slice, slice.begin, slice.end);
        continue;
      }
      backward.for_each_overlap(
          slice.sample, slice.begin, slice.end, [&](const IndexedSlice& found) {
            add(plan.micropacks[index(found.pack)].recompute, slice, found.begin, found.end);
          });
    }
    exchange_.push_back(detail::exchange_workspace(plan, pack, layer_));
  }
}

inline Tokens MemoryModel::own_tokens(PackId pack, std::size_t rank) const noexcept {
  Tokens sum{0};
  for (const Tokens tokens : entry(pack, rank).by_mode) sum += tokens;
  return sum;
}

inline Bytes MemoryModel::kept(PackId pack, std::size_t rank, std::int64_t layers) const noexcept {
  Bytes sum;
  for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
    sum += Bytes{layers * layer_.kept[mode] * entry(pack, rank).by_mode[mode].value};
  }
  return sum;
}

inline Bytes MemoryModel::pack_workspace(PackId pack, std::size_t rank) const noexcept {
  const bool back = plan_->micropacks[index(pack)].pass == Pass::backward;
  const auto& per_token = back ? layer_.backward_workspace : layer_.forward_workspace;
  Bytes sum = exchange_[index(pack)];
  for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
    sum += Bytes{per_token[mode] * entry(pack, rank).by_mode[mode].value};
  }
  return sum;
}

inline Bytes MemoryModel::workspace(const Unit& unit, std::int32_t pp,
                                    std::size_t rank) const noexcept {
  switch (unit.kind) {
    case UnitKind::forward:
    case UnitKind::backward:
      return pack_workspace(unit.pack, rank);
    case UnitKind::head:
      return head_workspace(*plan_, pp, own_tokens(unit.pack, rank));
    default:
      return {};
  }
}

}  // namespace slimpack
