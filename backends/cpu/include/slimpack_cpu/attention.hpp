// SPDX-License-Identifier: Apache-2.0
// Causal attention of a run of queries to a run of keys, in fp64, with running softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// A run of `rows` queries from position `first_row` and a run of `keys` keys from position
/// `first_key` of the same sample. Row i sees key j if first_key + j <= first_row + i. Consecutive
/// query heads share a key head.
struct AttentionShape {
  std::int64_t rows = 0;      ///< queries of the run
  std::int64_t keys = 0;      ///< keys of the run
  Tokens first_row;           ///< position of the first query in the sample
  Tokens first_key;           ///< position of the first key in the sample
  std::int64_t heads = 0;     ///< of queries, a multiple of kv_heads
  std::int64_t kv_heads = 0;  ///< of keys and values, > 0
  std::int64_t head_dim = 0;  ///< width of a head, > 0

  /// Keys of the run that row i sees.
  [[nodiscard]] constexpr std::int64_t visible(std::int64_t row) const noexcept {
    return std::clamp<std::int64_t>(first_row.value + row - first_key.value + 1, 0, keys);
  }
  /// Width of a row of queries.
  [[nodiscard]] constexpr std::int64_t query_width() const noexcept { return heads * head_dim; }
  /// Width of a row of keys, and of values.
  [[nodiscard]] constexpr std::int64_t key_width() const noexcept { return kv_heads * head_dim; }
};

/// Rows that meet all keys before the next rows do. What is read and written of the query heads of
/// one key head in so many rows stays in the cache from one run of keys to the next, so that a pair
/// costs the same in long slices. At least 1.
[[nodiscard]] inline std::int64_t attention_rows(const ModelShape& model) noexcept {
  constexpr std::int64_t kNumbers = 65'536;
  return std::max<std::int64_t>(1, kNumbers * model.kv_heads / model.query_width());
}

namespace detail {

inline void check_attention(AttentionShape shape) {
  require(shape.head_dim > 0, "attention: head_dim must be > 0", shape.head_dim);
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
          "attention: kv_heads must divide heads", shape.kv_heads);
}

/// Where a head's part of a row begins.
inline std::size_t head_at(std::int64_t row, std::int64_t head, std::int64_t heads,
                           std::int64_t head_dim) {
  return static_cast<std::size_t>((row * heads + head) * head_dim);
}

/// `delta(row, head)` is the sum over the head of output * output gradient.
template <class Delta>
void attention_backward(Out dquery, Out dkey, Out dvalue, In query, In key, In value, In log_sum,
                        In dout, AttentionShape shape, Delta delta) {
  check_attention(shape);
  check_size(dquery.size(), shape.rows, shape.query_width(),
             "attention_backward: dquery is not rows * heads * head_dim");
  check_size(query.size(), shape.rows, shape.query_width(),
             "attention_backward: query is not rows * heads * head_dim");
  check_size(dout.size(), shape.rows, shape.query_width(),
             "attention_backward: dout is not rows * heads * head_dim");
  check_size(log_sum.size(), shape.rows, shape.heads,
             "attention_backward: log_sum is not rows * heads");
  for (const std::size_t size : {dkey.size(), dvalue.size(), key.size(), value.size()}) {
    check_size(size, shape.keys, shape.key_width(),
               "attention_backward: keys and values are not keys * kv_heads * head_dim");
  }
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const std::int64_t visible = shape.visible(r);
    if (visible == 0) continue;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::size_t i = head_at(r, head, shape.heads, shape.head_dim);
      const In q = query.subspan(i, dim);
      const In d = dout.subspan(i, dim);
      const double sum = log_sum[static_cast<std::size_t>(r * shape.heads + head)];
      const double row_delta = delta(r, head);
      for (std::int64_t j = 0; j < visible; ++j) {
        const std::size_t key_at =
            head_at(j, head / (shape.heads / shape.kv_heads), shape.kv_heads, shape.head_dim);
        const In k = key.subspan(key_at, dim);
        const double weight = std::exp(scale * dot(q, k) - sum);
        const double dscore = weight * (dot(d, value.subspan(key_at, dim)) - row_delta) * scale;
        add_scaled(dvalue.subspan(key_at, dim), weight, d);
        add_scaled(dkey.subspan(key_at, dim), dscore, q);
        add_scaled(dquery.subspan(i, dim), dscore, k);
      }
    }
  }
}

}  // namespace detail

/// The state of rows that have seen no key yet: output zero, log-sum-exp minus infinity.
inline void attention_begin(Out out, Out log_sum) {
  std::ranges::fill(out, 0.0);
  std::ranges::fill(log_sum, -std::numeric_limits<double>::infinity());
}

/// Lets rows see further keys: `out` and `log_sum` (one a row and head) hold the result over the
/// keys seen before and then over these too. Runs may come in any order, each once, from any rank
/// of a context-parallel group: partial results continue where another rank left off. O(rows *
/// keys).
inline void attention_forward(Out out, Out log_sum, In query, In key, In value,
                              AttentionShape shape) {
  detail::check_attention(shape);
  detail::check_size(out.size(), shape.rows, shape.query_width(),
                     "attention_forward: out is not rows * heads * head_dim");
  detail::check_size(query.size(), shape.rows, shape.query_width(),
                     "attention_forward: query is not rows * heads * head_dim");
  detail::check_size(log_sum.size(), shape.rows, shape.heads,
                     "attention_forward: log_sum is not rows * heads");
  for (const std::size_t size : {key.size(), value.size()}) {
    detail::check_size(size, shape.keys, shape.key_width(),
                       "attention_forward: keys and values are not keys * kv_heads * head_dim");
  }
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const std::int64_t visible = shape.visible(r);
    if (visible == 0) continue;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::size_t i = detail::head_at(r, head, shape.heads, shape.head_dim);
      const In q = query.subspan(i, dim);
      const Out sum = out.subspan(i, dim);  // of values, weighted by exp(score - largest)
      double& log = log_sum[static_cast<std::size_t>(r * shape.heads + head)];
      double largest = log;
      double weights = std::isinf(log) ? 0.0 : 1.0;
      for (std::int64_t j = 0; j < visible; ++j) {
        const std::size_t key_at = detail::head_at(j, head / (shape.heads / shape.kv_heads),
                                                   shape.kv_heads, shape.head_dim);
        const double score = scale * detail::dot(q, key.subspan(key_at, dim));
        if (score > largest) {
          const double shrink = std::exp(largest - score);
          weights *= shrink;
          for (double& element : sum) element *= shrink;
          largest = score;
        }
        const double weight = std::exp(score - largest);
        weights += weight;
        detail::add_scaled(sum, weight, value.subspan(key_at, dim));
      }
      for (double& element : sum) element /= weights;
      log = largest + std::log(weights);
    }
  }
}

/// Adds the gradients of queries, keys and values through this run of keys. `out` and `log_sum`
/// are the results over all keys of a row, `dout` the gradient of `out`.
inline void attention_backward(Out dquery, Out dkey, Out dvalue, In query, In key, In value, In out,
                               In log_sum, In dout, AttentionShape shape) {
  detail::check_size(out.size(), shape.rows, shape.query_width(),
                     "attention_backward: out is not rows * heads * head_dim");
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  detail::attention_backward(dquery, dkey, dvalue, query, key, value, log_sum, dout, shape,
                             [&](std::int64_t row, std::int64_t head) {
                               const std::size_t i =
                                   detail::head_at(row, head, shape.heads, shape.head_dim);
                               return detail::dot(out.subspan(i, dim), dout.subspan(i, dim));
                             });
}

/// delta = per row and head the sum of out * dout: what travels instead of `out`.
inline void attention_delta(Out delta, In out, In dout, AttentionShape shape) {
  detail::check_attention(shape);
  detail::check_size(delta.size(), shape.rows, shape.heads,
                     "attention_delta: delta is not rows * heads");
  detail::check_size(out.size(), shape.rows, shape.query_width(),
                     "attention_delta: out is not rows * heads * head_dim");
  detail::check_size(dout.size(), shape.rows, shape.query_width(),
                     "attention_delta: dout is not rows * heads * head_dim");
  for (std::int64_t i = 0; i < shape.rows * shape.heads; ++i) {
    delta[static_cast<std::size_t>(i)] =
        detail::dot(detail::row(out, i, shape.head_dim), detail::row(dout, i, shape.head_dim));
  }
}

/// As attention_backward, of queries that came from another rank with their `delta`.
inline void attention_backward_from(Out dquery, Out dkey, Out dvalue, In query, In key, In value,
                                    In delta, In log_sum, In dout, AttentionShape shape) {
  detail::check_size(delta.size(), shape.rows, shape.heads,
                     "attention_backward_from: delta is not rows * heads");
  detail::attention_backward(dquery, dkey, dvalue, query, key, value, log_sum, dout, shape,
                             [&](std::int64_t row, std::int64_t head) {
                               return delta[static_cast<std::size_t>(row * shape.heads + head)];
                             });
}

}  // namespace slimpack::cpu
