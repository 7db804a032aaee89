// SPDX-License-Identifier: Apache-2.0
// Attention for any shape, one thread at a time: what the fast kernels are compared with. A thread
// has one row and head and kPlainPart elements of it; threads of one row repeat its scores, so that
// they need not wait for each other.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/attention_arguments.cuh"

namespace slimpack::cuda::kernels {

inline constexpr int kPlainTile = 128;  ///< queries or keys of a block, one a thread
inline constexpr int kPlainPart = 32;   ///< elements of a head that a thread accumulates

SLIMPACK_HOST_DEVICE int plain_parts(int head_dim) {
  return (head_dim + kPlainPart - 1) / kPlainPart;
}

namespace detail {

SLIMPACK_DEVICE float dot(const Bf16* a, const Bf16* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum = simt::multiply_add(to_float(a[i]), to_float(b[i]), sum);
  return sum;
}

/// Part of a head that a thread accumulates.
struct PlainPart {
  std::array<float, kPlainPart> sum{};
  SLIMPACK_DEVICE void scale(float factor) {
    SLIMPACK_UNROLL
    for (std::size_t i = 0; i < kPlainPart; ++i) sum[i] *= factor;
  }
  /// sum += factor * values, `count` of them.
  SLIMPACK_DEVICE void add(float factor, const Bf16* values, int count) {
    SLIMPACK_UNROLL
    for (std::size_t i = 0; i < kPlainPart; ++i) {
      if (static_cast<int>(i) < count) {
        sum[i] = simt::multiply_add(factor, to_float(values[i]), sum[i]);
      }
    }
  }
};

/// What a thread of a kernel over query tiles does: blocks count parts fastest, then heads.
struct PlainRow {
  bool any = false;
  int head = 0, kv_head = 0;
  int begin = 0, count = 0;  ///< elements of the head
  int query = 0;             ///< of the segment
  AttentionSegment segment;
};
SLIMPACK_DEVICE PlainRow plain_row(const AttentionInputs& in) {
  const int dim = in.shape.head_dim, parts = plain_parts(dim);
  const auto [at, head_and_part] = tile_and_head(in.shape.heads * parts);
  const QueryTile tile = in.work.query_tiles.data[at];
  PlainRow row;
  row.segment = in.work.segments.data[tile.segment];
  row.head = head_and_part / parts;
  row.kv_head = row.head / (in.shape.heads / in.shape.kv_heads);
  row.begin = head_and_part % parts * kPlainPart;
  row.count = smaller(kPlainPart, dim - row.begin);
  row.query = tile.first + static_cast<int>(simt::thread_index());
  row.any = row.query < row.segment.rows;
  return row;
}

/// Calls `see(row of the key matrix)` for the keys that the query sees, in rising order.
template <class See>
SLIMPACK_DEVICE void for_visible_keys(const AttentionInputs& in, const AttentionSegment& segment,
                                      int query, const See& see) {
  const int position = segment.position + query, page_tokens = in.shape.page_tokens;
  for (int first = 0; first < segment.keys; first += page_tokens) {
    const KeyPlace place = key_place(in, segment.first_page, segment.keys, first);
    if (place.position > position) return;
    const int seen =
        smaller(smaller(segment.keys - first, page_tokens), position - place.position + 1);
    for (int i = 0; i < seen; ++i) see(place.row + i);
  }
}

}  // namespace detail

/// kPlainTile threads; blocks are query tiles x heads x parts.
SLIMPACK_DEVICE void attention_forward_plain(const AttentionForward& at) {
  const AttentionInputs& in = at.in;
  const detail::PlainRow row = detail::plain_row(in);
  if (!row.any) return;
  const int dim = in.shape.head_dim, heads = in.shape.heads;
  const Bf16* query = in.query + head_at(row.segment.query_row + row.query, row.head, heads, dim);
  float largest = -infinity(), weights = 0;
  detail::PlainPart output;
  detail::for_visible_keys(in, row.segment, row.query, [&](std::int64_t key_row) {
    const std::int64_t key = head_at(key_row, row.kv_head, in.shape.kv_heads, dim);
    const float score = detail::dot(query, in.key + key, dim) * in.scale * kLog2E;
    if (score > largest) {
      const float shrink = simt::exp2_fast(largest - score);
      weights *= shrink;
      output.scale(shrink);
      largest = score;
    }
    const float weight = simt::exp2_fast(score - largest);
    weights += weight;
    output.add(weight, in.value + key + row.begin, row.count);
  });
  output.scale(weights == 0 ? 0.0F : 1.0F / weights);
  Bf16* to =
      at.output + head_at(row.segment.output_row + row.query, row.head, heads, dim) + row.begin;
  for (std::size_t i = 0; i < kPlainPart; ++i) {
    if (static_cast<int>(i) < row.count) to[i] = to_bf16(output.sum[i]);
  }
  if (row.begin == 0) {
    at.log_sum[head_at(row.segment.log_sum_row + row.query, row.head, heads, 1)] =
        weights == 0 ? -infinity() : (largest + simt::log2_fast(weights)) * kLn2;
  }
}

/// kPlainTile threads; blocks are query tiles x heads x parts.
SLIMPACK_DEVICE void attention_backward_queries_plain(const AttentionBackward& at) {
  const AttentionInputs& in = at.in;
  const detail::PlainRow row = detail::plain_row(in);
  if (!row.any) return;
  const int dim = in.shape.head_dim, heads = in.shape.heads;
  const AttentionSegment& segment = row.segment;
  const std::int64_t gradient = head_at(segment.gradient_row + row.query, row.head, heads, dim);
  const Bf16* query = in.query + head_at(segment.query_row + row.query, row.head, heads, dim);
  const Bf16* doutput = at.doutput + gradient;
  const float log_sum =
      log_sum_to_base_2(at.log_sum[head_at(segment.log_sum_row + row.query, row.head, heads, 1)]);
  const float delta = at.delta[head_at(segment.gradient_row + row.query, row.head, heads, 1)];
  detail::PlainPart dquery;
  detail::for_visible_keys(in, segment, row.query, [&](std::int64_t key_row) {
    const std::int64_t key = head_at(key_row, row.kv_head, in.shape.kv_heads, dim);
    const float score = detail::dot(query, in.key + key, dim) * in.scale * kLog2E;
    const float weight = simt::exp2_fast(score - log_sum);
    const float dscore = weight * (detail::dot(doutput, in.value + key, dim) - delta);
    dquery.add(dscore, in.key + key + row.begin, row.count);
  });
  dquery.scale(in.scale);
  for (std::size_t i = 0; i < kPlainPart; ++i) {
    if (static_cast<int>(i) >= row.count) continue;
    const std::int64_t to = gradient + row.begin + static_cast<std::int64_t>(i);
    if (at.dquery != nullptr) {
      at.dquery[to] = to_bf16(dquery.sum[i]);
    } else {
      at.dquery_sum[to] += dquery.sum[i];
    }
  }
}

/// kPlainTile threads; blocks are key tiles x kv heads x parts.
SLIMPACK_DEVICE void attention_backward_keys_plain(const AttentionBackward& at) {
  const AttentionInputs& in = at.in;
  const int dim = in.shape.head_dim, heads = in.shape.heads, kv_heads = in.shape.kv_heads;
  const int parts = plain_parts(dim), group = heads / kv_heads;
  const auto [tile_at, head_and_part] = tile_and_head(kv_heads * parts);
  const KeyTile tile = in.work.key_tiles.data[tile_at];
  const int kv_head = head_and_part / parts;
  const int begin = head_and_part % parts * kPlainPart, count = smaller(kPlainPart, dim - begin);
  const int key_at = tile.first + static_cast<int>(simt::thread_index());
  detail::PlainPart dkey, dvalue;
  bool listed = false;
  std::int64_t key_gradient = 0, value_gradient = 0;
  for (int which = tile.first_segment; which < tile.last_segment; ++which) {
    const AttentionSegment segment = in.work.segments.data[which];
    if (key_at >= segment.keys) continue;
    listed = true;
    const auto gradient_at = [&](std::int32_t first) {
      return head_at(std::int64_t{first} + key_at, kv_head, kv_heads, dim) + begin;
    };
    key_gradient = gradient_at(segment.key_gradient_row);
    value_gradient = gradient_at(segment.value_gradient_row);
    const KeyPlace place = key_place(in, segment.first_page, segment.keys, key_at);
    const std::int64_t key = head_at(place.row, kv_head, kv_heads, dim);
    for (int i = larger(0, place.position - segment.position); i < segment.rows; ++i) {
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const Bf16* query = in.query + head_at(segment.query_row + i, head, heads, dim);
        const Bf16* doutput = at.doutput + head_at(segment.gradient_row + i, head, heads, dim);
        const float log_sum =
            log_sum_to_base_2(at.log_sum[head_at(segment.log_sum_row + i, head, heads, 1)]);
        const float delta = at.delta[head_at(segment.gradient_row + i, head, heads, 1)];
        const float score = detail::dot(query, in.key + key, dim) * in.scale * kLog2E;
        const float weight = simt::exp2_fast(score - log_sum);
        const float dscore = weight * (detail::dot(doutput, in.value + key, dim) - delta);
        dvalue.add(weight, doutput + begin, count);
        dkey.add(dscore, query + begin, count);
      }
    }
  }
  if (!listed) return;
  for (std::size_t i = 0; i < kPlainPart; ++i) {
    if (static_cast<int>(i) >= count) continue;
    at.dkey[key_gradient + static_cast<std::int64_t>(i)] += dkey.sum[i] * in.scale;
    at.dvalue[value_gradient + static_cast<std::int64_t>(i)] += dvalue.sum[i];
  }
}

}  // namespace slimpack::cuda::kernels
