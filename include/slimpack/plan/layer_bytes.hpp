// SPDX-License-Identifier: Apache-2.0
// Bytes of one layer and token (docs/equations.md, "Memory"), of which plan/memory.hpp makes those
// of units and devices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Bytes of one number of each sort, as a plan or a backend stores it.
struct ElementBytes {
  std::int64_t element = 8;    ///< weights and activations
  std::int64_t statistic = 8;  ///< log-sum-exp, inverse RMS
  std::int64_t gradient = 8;   ///< accumulated gradients of weights, keys and values
  friend bool operator==(const ElementBytes&, const ElementBytes&) = default;
};

/// The sizes that a plan counts with: those of the model, and `MemorySpec::gradient_bytes`.
[[nodiscard]] constexpr ElementBytes element_bytes_of(const ModelShape& model,
                                                      std::int64_t gradient_bytes) noexcept {
  return {model.bytes_per_element, model.statistic_bytes(), gradient_bytes};
}

/// Bytes that one received token brings to a rank of a context-parallel group, for each layer.
struct RingBytes {
  std::int64_t kv = 0;       ///< RingMode::pass_kv: keys and values, in either pass
  std::int64_t kv_back = 0;  ///< RingMode::pass_kv, in backward besides: their gradients
  std::int64_t q = 0;        ///< RingMode::pass_q, forward: queries and partial outputs
  std::int64_t q_back = 0;   ///< RingMode::pass_q, backward (in place of `q`)
  // RingMode::by_heads, of a token's whole heads, into attention and out of it; besides, in either
  // pass, keys and values or their gradients, which are `kv`, as often as ranks have them
  // (`key_copies`).
  std::int64_t heads = 0;  ///< forward: query, output, log-sum-exp
  /// Backward, in place of `heads`: gradients of output and query, two statistics.
  std::int64_t heads_back = 0;
  /// Backward besides: queries, unless attention is made again, for which they have come.
  std::int64_t heads_query = 0;
  friend bool operator==(const RingBytes&, const RingBytes&) = default;
};

/// Numbers of elements and statistics that a token has in one layer. The formulas of memory are
/// linear in them, so those of what tensor-parallel devices split by rows and those of what they
/// split by heads or ffn are the same formulas with the others at zero.
struct TokenWidths {
  std::int64_t hidden = 0;  ///< of a row
  std::int64_t query = 0;   ///< of all query heads
  std::int64_t key = 0;     ///< of all key heads
  std::int64_t ffn = 0;     ///< between the matrices of SwiGLU
  std::int64_t heads = 0;   ///< log-sum-exps
  std::int64_t norms = 0;   ///< inverse RMS of rows
  /// What is split by rows.
  [[nodiscard]] constexpr TokenWidths rows() const noexcept { return {hidden, 0, 0, 0, 0, norms}; }
  /// What is split by heads and ffn.
  [[nodiscard]] constexpr TokenWidths without_rows() const noexcept {
    return {0, query, key, ffn, heads, 0};
  }
};
/// All of a model's.
[[nodiscard]] constexpr TokenWidths token_widths(const ModelShape& model) noexcept {
  return {model.hidden, model.query_width(), model.key_width(), model.ffn, model.heads, 2};
}

/// Bytes that one layer keeps of one token from F to B, by recomputation mode; keys and values are
/// counted apart.
[[nodiscard]] constexpr std::array<std::int64_t, kRecomputeModes> kept_bytes(
    const TokenWidths& widths, const ElementBytes& size) noexcept {
  const std::int64_t hidden = widths.hidden * size.element;
  const std::int64_t query = widths.query * size.element;
  const std::int64_t ffn = widths.ffn * size.element;
  const std::int64_t log_sum = widths.heads * size.statistic;
  return {4 * hidden + 2 * query + log_sum + 3 * ffn + widths.norms * size.statistic,
          2 * hidden + 2 * query + log_sum + 2 * ffn,  //
          hidden + query + log_sum,                    //
          hidden};
}
/// The same of all that a model has.
[[nodiscard]] constexpr std::array<std::int64_t, kRecomputeModes> kept_bytes(
    const ModelShape& model, const ElementBytes& size) noexcept {
  return kept_bytes(token_widths(model), size);
}

/// The ring's messages for elements of `size` bytes.
[[nodiscard]] constexpr RingBytes ring_bytes(const TokenWidths& widths,
                                             const ElementBytes& size) noexcept {
  const std::int64_t queries = 2 * widths.query * size.element;
  const std::int64_t log_sums = widths.heads * size.statistic;
  const std::int64_t keys = 2 * widths.key * size.element;
  return {keys,
          2 * widths.key * size.gradient,
          queries + log_sums,
          queries + widths.query * size.gradient + 2 * log_sums,
          queries + log_sums,
          queries + 2 * log_sums,
          widths.query * size.element};
}
/// The same of all heads of a model.
[[nodiscard]] constexpr RingBytes ring_bytes(const ModelShape& model,
                                             const ElementBytes& size) noexcept {
  return ring_bytes(token_widths(model), size);
}

/// Ranks of a group by heads that have the same heads of keys: one, or as many as there are ranks
/// for each head of a device's, where these are fewer.
[[nodiscard]] constexpr std::int64_t key_copies(const ModelShape& model,
                                                std::int64_t tensor_parallel,
                                                std::int64_t ranks) noexcept {
  const std::int64_t heads = std::max<std::int64_t>(1, model.kv_heads / tensor_parallel);
  return std::max<std::int64_t>(1, ranks / heads);
}

/// Whether a group of so many ranks may exchange by heads (rule 0): each has an equal part of the
/// heads of queries with the heads of keys that these share, an equal part of them or one.
[[nodiscard]] constexpr bool divides_heads(const ModelShape& model, std::int64_t tensor_parallel,
                                           std::int64_t ranks) noexcept {
  if (ranks < 1 || tensor_parallel < 1) return false;
  const std::int64_t keys = model.kv_heads / tensor_parallel;
  if (keys < 1) return false;
  return keys % ranks == 0 || (ranks % keys == 0 && model.heads / tensor_parallel % ranks == 0);
}

/// Bytes that RingMode::by_heads moves, of a token's whole heads on all `devices` of a rank.
struct HeadBytes {
  std::int64_t query = 0;          ///< a query, an output, or a gradient of one
  std::int64_t keys = 0;           ///< keys and values, or what their gradients travel as
  std::int64_t key_gradients = 0;  ///< their gradients, as they are summed
  std::int64_t statistics = 0;     ///< one for each head
  std::int64_t devices = 1;        ///< tensor-parallel ones, each of which has a part
  friend bool operator==(const HeadBytes&, const HeadBytes&) = default;
};

/// Buffers of RingMode::by_heads in one pass, of a token's whole heads.
struct HeadBuffers {
  std::int64_t own = 0;  ///< of an own token of a slice: packed for other ranks, or come from them
  std::int64_t all = 0;  ///< of any token of a slice, of whose heads each rank has a part
  std::int64_t whole = 0;  ///< B: the same of a slice that is its whole sample, besides
  friend bool operator==(const HeadBuffers&, const HeadBuffers&) = default;
};

/// Bytes of one layer and token on one of `tensor_parallel` devices: each entry is that part of the
/// whole, rounded up.
struct LayerBytes {
  /// Kept from F to B, by mode; keys and values are counted apart.
  std::array<std::int64_t, kRecomputeModes> kept{};
  /// What B makes again, by mode: the bytes of `none` less those of the mode.
  std::array<std::int64_t, kRecomputeModes> recomputed{};
  std::array<std::int64_t, kRecomputeModes> forward_workspace{};   ///< of F, by mode
  std::array<std::int64_t, kRecomputeModes> backward_workspace{};  ///< of B, by mode
  /// Made by B that leaves weights apart, for W and by mode: inputs of matrix products that are not
  /// kept, gradients of what the products make.
  std::array<std::int64_t, kRecomputeModes> made_apart{};
  std::int64_t left_apart = 0;        ///< all inputs and those gradients, from the end of B to W's
  std::int64_t kv = 0;                ///< keys and values
  std::int64_t kv_gradient = 0;       ///< their accumulated gradients
  std::int64_t boundary = 0;          ///< hidden state that passes between stages
  std::int64_t kv_exchange = 0;       ///< two ring buffers of `pass_kv`, forward
  std::int64_t kv_exchange_back = 0;  ///< in backward besides: their gradients
  std::int64_t q_exchange = 0;        ///< two ring buffers of `pass_q`, forward
  std::int64_t q_exchange_back = 0;   ///< two ring buffers of `pass_q`, backward
  HeadBytes heads;                    ///< `by_heads`
  /// Workspace of B for a token whose sample is one slice in either pass (`kept_keys`).
  [[nodiscard]] constexpr std::int64_t uncut_workspace(Recompute mode) const noexcept {
    return backward_workspace[static_cast<std::size_t>(mode)] + (mode == Recompute::full ? kv : 0);
  }
  friend bool operator==(const LayerBytes&, const LayerBytes&) = default;
};

/// The tables of docs/equations.md for elements of `size` bytes.
[[nodiscard]] constexpr LayerBytes layer_bytes(const TokenWidths& widths, const ElementBytes& size,
                                               std::int64_t tensor_parallel = 1) noexcept {
  const std::int64_t hidden = widths.hidden * size.element;
  const std::int64_t query = widths.query * size.element;
  const std::int64_t ffn = widths.ffn * size.element;
  const RingBytes ring = ring_bytes(widths, size);
  const auto part = [&](std::int64_t bytes) {
    return (bytes + tensor_parallel - 1) / tensor_parallel;
  };
  const std::array<std::int64_t, kRecomputeModes> kept = kept_bytes(widths, size);
  LayerBytes bytes;
  for (std::size_t mode = 0; mode < kept.size(); ++mode) {
    const std::int64_t made_again = kept[0] - kept[mode];
    bytes.kept[mode] = part(kept[mode]);
    bytes.recomputed[mode] = part(made_again);
    bytes.forward_workspace[mode] = part(2 * hidden + ring.kv + made_again);
    bytes.backward_workspace[mode] =
        part(3 * hidden + 2 * query + 3 * ffn + ring.kv_back + made_again);
  }
  // Two norms, the attention's output, the product of gate and up; q, k and v, both sums with the
  // residual, gate and up.
  const std::int64_t inputs = 2 * hidden + query + ffn;
  const std::int64_t gradients = part(2 * hidden + query + ring.kv + 2 * ffn);
  const std::array<std::int64_t, kRecomputeModes> kept_inputs = {inputs, query, query, 0};
  for (std::size_t mode = 0; mode < kept.size(); ++mode) {
    bytes.made_apart[mode] = part(inputs - kept_inputs[mode]) + gradients;
  }
  bytes.left_apart = part(inputs) + gradients;
  bytes.kv = part(ring.kv);
  bytes.kv_gradient = part(ring.kv_back);
  bytes.boundary = part(hidden);
  bytes.kv_exchange = part(2 * ring.kv);
  bytes.kv_exchange_back = part(2 * ring.kv_back);
  bytes.q_exchange = part(2 * ring.q);
  bytes.q_exchange_back = part(2 * ring.q_back);
  bytes.heads = {query, ring.kv, ring.kv_back, widths.heads * size.statistic, tensor_parallel};
  return bytes;
}

/// The buffers of a pass, of B where it makes attention again or not, where `copies` ranks have the
/// same keys.
[[nodiscard]] constexpr HeadBuffers head_buffers(const HeadBytes& heads, Pass pass, bool again,
                                                 std::int64_t copies) noexcept {
  const auto part = [&](std::int64_t bytes) { return (bytes + heads.devices - 1) / heads.devices; };
  const std::int64_t query = heads.query, keys = copies * heads.keys, one = heads.statistics;
  // What has come, then what goes home, and what attention reads and makes in the order of tokens.
  if (pass == Pass::forward) return {part(query + keys + one), part(3 * query + keys + one), 0};
  // In backward queries, gradients of outputs and statistics come, those of queries, keys and
  // values go; of whole samples the gradients are summed here, and where attention is made again,
  // its queries come too, and keys and values, which no page may hold.
  const std::int64_t back = query + std::max(query + 3 * one, keys);
  const std::int64_t read = (again ? 4 : 3) * query + 4 * one;  // two of them room to align
  const std::int64_t sums = copies * heads.key_gradients;
  return {part(back), part(back + read), part(again ? sums + keys : sums)};
}

/// The same of all that a model has.
[[nodiscard]] constexpr LayerBytes layer_bytes(const ModelShape& model, const ElementBytes& size,
                                               std::int64_t tensor_parallel = 1) noexcept {
  return layer_bytes(token_widths(model), size, tensor_parallel);
}

/// The tables for the elements that a plan counts with.
[[nodiscard]] constexpr LayerBytes layer_bytes(const ModelShape& model,
                                               std::int64_t gradient_bytes = 4,
                                               std::int64_t tensor_parallel = 1) noexcept {
  return layer_bytes(model, element_bytes_of(model, gradient_bytes), tensor_parallel);
}

}  // namespace slimpack
