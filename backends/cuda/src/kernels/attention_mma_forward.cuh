// SPDX-License-Identifier: Apache-2.0
// Attention forward with mma.sync: a block has 128 queries of a segment and one head, and walks
// over its keys with a running softmax (Dao, "FlashAttention-2", ICLR 2024).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_mma.cuh"

namespace slimpack::cuda::kernels {

/// 32 rows a warp: each right operand read from shared memory serves two products, which keeps its
/// bandwidth below what the products need. Keys and values come in two buffers: one barrier a tile,
/// and copies have a whole tile's time. At head_dim 128 that is 96 KB: twice on Hopper, where
/// registers allow no more blocks either, and once on sm_86. There a warp takes 32 keys at a time:
/// 64 scores beside 128 sums of outputs would not leave enough of 255 registers.
template <int kDim>
struct MmaForward {
  static constexpr int kRows = 128, kKeys = 64, kStep = kDim <= 64 ? 64 : 32;
  static constexpr std::uint32_t kKeyBytes = kKeys * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kQueryAt = 0;
  static constexpr std::uint32_t kKeyAt = kQueryAt + kRows * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kBuffer = 2 * kKeyBytes;  ///< keys, then values
  static constexpr std::uint32_t kShared = kKeyAt + 2 * kBuffer;
};

namespace detail {

/// The softmax of a warp's rows so far. A lane has rows g and g + 8 of each block of 16, g = lane /
/// 4; the four lanes of a row agree on `largest` and each sums its own columns.
template <std::size_t kBlocks>
struct RunningSoftmax {
  /// Largest score so far times scale and log2(e).
  std::array<std::array<float, 2>, kBlocks> largest;
  std::array<std::array<float, 2>, kBlocks> weights{};

  SLIMPACK_DEVICE RunningSoftmax() {
    SLIMPACK_UNROLL
    for (std::size_t m = 0; m < kBlocks; ++m) largest[m] = {-infinity(), -infinity()};
  }

  /// Turns scores into weights relative to the largest, and brings `output` to the same measure. A
  /// row with no visible key here is left as it was, to the bit.
  template <std::size_t kColumns, std::size_t kOutputs>
  SLIMPACK_DEVICE void take(Sums<kBlocks, kColumns>& scores, Sums<kBlocks, kOutputs>& output,
                            float scale) {
    SLIMPACK_UNROLL
    for (std::size_t m = 0; m < kBlocks; ++m) {
      SLIMPACK_UNROLL
      for (std::size_t half = 0; half < 2; ++half) {
        float highest = -infinity();
        SLIMPACK_UNROLL
        for (std::size_t n = 0; n < kColumns; ++n) {
          highest = simt::maximum(
              highest, simt::maximum(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        highest = simt::maximum(highest, simt::shuffle_xor(highest, 1));
        highest = simt::maximum(highest, simt::shuffle_xor(highest, 2));
        const float before = largest[m][half];
        const float after = simt::maximum(before, highest * scale);
        largest[m][half] = after;
        const float base = after == -infinity() ? 0.0F : after;
        const float shrink = simt::exp2_fast(before - base);
        float sum = 0;
        SLIMPACK_UNROLL
        for (std::size_t n = 0; n < kColumns; ++n) {
          SLIMPACK_UNROLL
          for (std::size_t e = 2 * half; e < 2 * half + 2; ++e) {
            scores[m][n][e] = simt::exp2_fast(simt::multiply_add(scores[m][n][e], scale, -base));
            sum += scores[m][n][e];
          }
        }
        weights[m][half] = simt::multiply_add(weights[m][half], shrink, sum);
        SLIMPACK_UNROLL
        for (std::size_t n = 0; n < kOutputs; ++n) {
          output[m][n][2 * half] *= shrink;
          output[m][n][2 * half + 1] *= shrink;
        }
      }
    }
  }

  /// Sums over the lanes of a row.
  SLIMPACK_DEVICE void finish() {
    SLIMPACK_UNROLL
    for (std::size_t m = 0; m < kBlocks; ++m) {
      SLIMPACK_UNROLL
      for (std::size_t half = 0; half < 2; ++half) {
        weights[m][half] += simt::shuffle_xor(weights[m][half], 1);
        weights[m][half] += simt::shuffle_xor(weights[m][half], 2);
      }
    }
  }
};

/// Rows are queries and columns keys: sets what the queries do not see to minus infinity.
/// `position` is that of this lane's first row, `listed` how many keys there are.
template <std::size_t kBlocks, std::size_t kColumns>
SLIMPACK_DEVICE void mask_keys(Sums<kBlocks, kColumns>& scores, int position, int key_position,
                               int listed) {
  const int column = 2 * static_cast<int>(simt::lane_index() % 4);
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t half = 0; half < 2; ++half) {
      const int seen =
          smaller(listed, position + static_cast<int>(16 * m + 8 * half) - key_position + 1);
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < kColumns; ++n) {
        SLIMPACK_UNROLL
        for (std::size_t e = 0; e < 2; ++e) {
          if (column + static_cast<int>(8 * n + e) >= seen) {
            scores[m][n][2 * half + e] = -infinity();
          }
        }
      }
    }
  }
}

}  // namespace detail

/// kMmaThreads threads, MmaForward::kShared bytes; blocks are query tiles x heads.
template <int kDim>
SLIMPACK_DEVICE void attention_forward_mma(const AttentionForward& at) {
  using Tile = MmaForward<kDim>;
  constexpr int kBlocks = Tile::kRows / kMmaWarps / 16;
  const AttentionInputs& in = at.in;
  const int heads = in.shape.heads, kv_heads = in.shape.kv_heads;
  const auto [tile_at, head] = tile_and_head(heads);
  const QueryTile tile = in.work.query_tiles.data[tile_at];
  const AttentionSegment& segment = in.work.segments.data[tile.segment];
  const int kv_head = head / (heads / kv_heads);
  const int rows = smaller(Tile::kRows, segment.rows - tile.first);
  const int position = segment.position + tile.first;
  const int last_position = position + rows - 1;
  // Below, the segment is read again and again: what is not at hand takes no registers.
  const std::int64_t key_stride = std::int64_t{kv_heads} * kDim;

  const std::uint32_t shared = simt::shared_address(simt::shared_memory());
  const unsigned row = simt::thread_index() / 32 * (16 * kBlocks);  // first of the warp
  const int warp_first = position + static_cast<int>(row);
  const int warp_last = smaller(warp_first + 16 * kBlocks - 1, last_position);
  const auto load = [&](int first, const KeyPlace& place, std::uint32_t buffer) {
    if (place.position <= last_position) {
      const int listed = segment.keys;
      const std::int64_t from = head_at(place.row, kv_head, kv_heads, kDim);
      load_rows<kDim, Tile::kKeys>(buffer, in.key + from, key_stride, listed - first);
      load_rows<kDim, Tile::kKeys>(buffer + Tile::kKeyBytes, in.value + from, key_stride,
                                   listed - first);
    }
    simt::copy_async_commit();
  };

  int key = 0;
  KeyPlace place = key_place(in, segment.first_page, segment.keys, key);
  load_rows<kDim, Tile::kRows>(
      shared + Tile::kQueryAt,
      in.query + head_at(segment.query_row + std::int64_t{tile.first}, head, heads, kDim),
      std::int64_t{heads} * kDim, rows);
  load(key, place, shared + Tile::kKeyAt);

  const std::uint32_t query_lane = Rows<kDim>::of_lane(shared + Tile::kQueryAt, row);
  const std::uint32_t key_lane = Rows<kDim>::of_lane(shared + Tile::kKeyAt, 0);
  const float scale = in.scale * kLog2E;
  detail::RunningSoftmax<kBlocks> softmax;
  Sums<kBlocks, kDim / 8> output{};
  std::uint32_t buffer = 0;
  while (place.position <= last_position) {
    simt::copy_async_wait<0>();
    simt::sync_block();  // this buffer is filled, and nobody reads the other any more
    const KeyPlace next = key_place(in, segment.first_page, segment.keys, key + Tile::kKeys);
    load(key + Tile::kKeys, next, shared + Tile::kKeyAt + (Tile::kBuffer - buffer));
    SLIMPACK_UNROLL
    for (int step = 0; step < Tile::kKeys; step += Tile::kStep) {
      const int listed = segment.keys - key - step, step_position = place.position + step;
      if (listed <= 0 || step_position > warp_last || static_cast<int>(row) >= rows) continue;
      const std::uint32_t keys =
          key_lane + buffer + static_cast<unsigned>(step) * Rows<kDim>::kBytes;
      Sums<kBlocks, Tile::kStep / 8> scores{};
      multiply_rows<kDim>(scores, query_lane, keys);
      if (listed < Tile::kStep || step_position + Tile::kStep - 1 > warp_first) {
        detail::mask_keys(scores, warp_first + static_cast<int>(simt::lane_index() / 4),
                          step_position, listed);
      }
      softmax.take(scores, output, scale);
      multiply_columns<kDim>(output, to_operands(scores), keys + Tile::kKeyBytes);
    }
    place = next;
    key += Tile::kKeys;
    buffer = Tile::kBuffer - buffer;
  }
  simt::copy_async_wait<0>();
  simt::sync_block();  // queries are there even where there was no key

  softmax.finish();
  // The table is read again, so that these rows take no registers in the loop.
  const std::int64_t output_row = segment.output_row + std::int64_t{tile.first};
  const std::int64_t log_sum_row = segment.log_sum_row + std::int64_t{tile.first};
  store_rows<kDim>(at.output + head_at(output_row, head, heads, kDim), std::int64_t{heads} * kDim,
                   rows, shared + Tile::kQueryAt, row, output,
                   [&](std::size_t m, std::size_t half) {
                     const float weights = softmax.weights[m][half];
                     return weights == 0 ? 0.0F : 1.0F / weights;
                   });
  if (simt::lane_index() % 4 != 0) return;
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t half = 0; half < 2; ++half) {
      const int mine = static_cast<int>(row + simt::lane_index() / 4 + 16 * m + 8 * half);
      if (mine >= rows) continue;
      const float weights = softmax.weights[m][half];
      at.log_sum[head_at(log_sum_row + mine, head, heads, 1)] =
          weights == 0 ? -infinity() : (softmax.largest[m][half] + simt::log2_fast(weights)) * kLn2;
    }
  }
}

}  // namespace slimpack::cuda::kernels
