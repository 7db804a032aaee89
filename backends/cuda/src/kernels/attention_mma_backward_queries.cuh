// SPDX-License-Identifier: Apache-2.0
// Gradients of queries with mma.sync: a block has 128 queries of a segment and one head, computes
// its weights again from the log-sum-exps and walks over the keys. Scores are computed here and in
// the kernel of keys: seven products in all and not five, but no two blocks add to one place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_mma.cuh"
#include "kernels/attention_mma_forward.cuh"

namespace slimpack::cuda::kernels {

/// Queries and output gradients stay; keys and values come in two buffers. A warp takes 32 rows
/// against 32 keys at a time: at head_dim 128 the sums of a thread are 128 numbers of gradients, 32
/// scores and 32 of their gradients, which fit the 255 registers; 96 KB fit twice on Hopper and
/// once on sm_86.
template <int kDim>
struct MmaBackwardQueries {
  static constexpr int kRows = 128, kKeys = kDim <= 64 ? 64 : 32, kStep = 32;
  static constexpr std::uint32_t kKeyBytes = kKeys * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kQueryAt = 0;
  static constexpr std::uint32_t kGradientAt = kQueryAt + kRows * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kKeyAt = kGradientAt + kRows * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kBuffer = 2 * kKeyBytes;  ///< keys, then values
  static constexpr std::uint32_t kShared = kKeyAt + 2 * kBuffer;
};

/// kMmaThreads threads, MmaBackwardQueries::kShared bytes; blocks are query tiles x heads.
template <int kDim>
SLIMPACK_DEVICE void attention_backward_queries_mma(const AttentionBackward& at) {
  using Tile = MmaBackwardQueries<kDim>;
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
  const std::int64_t query_stride = std::int64_t{heads} * kDim;
  const std::int64_t key_stride = std::int64_t{kv_heads} * kDim;
  const int first_page = segment.first_page, listed = segment.keys;
  const std::int64_t gradient_row = segment.gradient_row + std::int64_t{tile.first};
  const std::int64_t log_sum_row = segment.log_sum_row + std::int64_t{tile.first};

  const std::uint32_t shared = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const unsigned row = simt::thread_index() / 32 * (16 * kBlocks);  // first of the warp
  const int warp_first = position + static_cast<int>(row);
  const int warp_last = smaller(warp_first + 16 * kBlocks - 1, last_position);

  const auto load = [&](int first, const KeyPlace& place, std::uint32_t buffer) {
    if (place.position <= last_position) {
      const std::int64_t from = head_at(place.row, kv_head, kv_heads, kDim);
      load_rows<kDim, Tile::kKeys>(buffer, in.key + from, key_stride, listed - first);
      load_rows<kDim, Tile::kKeys>(buffer + Tile::kKeyBytes, in.value + from, key_stride,
                                   listed - first);
    }
    simt::copy_async_commit();
  };
  int key = 0;
  KeyPlace place = key_place(in, first_page, listed, key);
  load_rows<kDim, Tile::kRows>(
      shared + Tile::kQueryAt,
      in.query + head_at(segment.query_row + std::int64_t{tile.first}, head, heads, kDim),
      query_stride, rows);
  load_rows<kDim, Tile::kRows>(shared + Tile::kGradientAt,
                               at.doutput + head_at(gradient_row, head, heads, kDim), query_stride,
                               rows);
  load(key, place, shared + Tile::kKeyAt);
  std::array<std::array<float, 2>, kBlocks> log_sum, delta;
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t half = 0; half < 2; ++half) {
      const int mine = static_cast<int>(row + lane / 4 + 16 * m + 8 * half);
      const bool inside = mine < rows;
      log_sum[m][half] =
          inside ? log_sum_to_base_2(at.log_sum[head_at(log_sum_row + mine, head, heads, 1)])
                 : infinity();
      delta[m][half] = inside ? at.delta[head_at(gradient_row + mine, head, heads, 1)] : 0.0F;
    }
  }

  const std::uint32_t query_lane = Rows<kDim>::of_lane(shared + Tile::kQueryAt, row);
  const std::uint32_t gradient_lane = Rows<kDim>::of_lane(shared + Tile::kGradientAt, row);
  const std::uint32_t key_lane = Rows<kDim>::of_lane(shared + Tile::kKeyAt, 0);
  const float scale = in.scale * kLog2E;
  Sums<kBlocks, kDim / 8> dquery{};
  std::uint32_t buffer = 0;
  while (place.position <= last_position) {
    simt::copy_async_wait<0>();
    simt::sync_block();  // this buffer is filled, and nobody reads the other any more
    const KeyPlace next = key_place(in, first_page, listed, key + Tile::kKeys);
    load(key + Tile::kKeys, next, shared + Tile::kKeyAt + (Tile::kBuffer - buffer));
    SLIMPACK_UNROLL
    for (int step = 0; step < Tile::kKeys; step += Tile::kStep) {
      const int part_listed = listed - key - step, part_position = place.position + step;
      if (part_listed <= 0 || part_position > warp_last || static_cast<int>(row) >= rows) continue;
      const std::uint32_t keys =
          key_lane + buffer + static_cast<unsigned>(step) * Rows<kDim>::kBytes;
      Sums<kBlocks, Tile::kStep / 8> weights{};
      multiply_rows<kDim>(weights, query_lane, keys);
      if (part_listed < Tile::kStep || part_position + Tile::kStep - 1 > warp_first) {
        detail::mask_keys(weights, warp_first + static_cast<int>(lane / 4), part_position,
                          part_listed);
      }
      Sums<kBlocks, Tile::kStep / 8> dscores{};
      multiply_rows<kDim>(dscores, gradient_lane, keys + Tile::kKeyBytes);
      SLIMPACK_UNROLL
      for (std::size_t m = 0; m < kBlocks; ++m) {
        SLIMPACK_UNROLL
        for (std::size_t n = 0; n < Tile::kStep / 8; ++n) {
          SLIMPACK_UNROLL
          for (std::size_t e = 0; e < 4; ++e) {
            const float weight =
                simt::exp2_fast(simt::multiply_add(weights[m][n][e], scale, -log_sum[m][e / 2]));
            dscores[m][n][e] = weight * (dscores[m][n][e] - delta[m][e / 2]);
          }
        }
      }
      multiply_columns<kDim>(dquery, to_operands(dscores), keys);
    }
    place = next;
    key += Tile::kKeys;
    buffer = Tile::kBuffer - buffer;
  }
  simt::copy_async_wait<0>();
  simt::sync_block();  // queries are there even where there was no key

  // The table is read again, so that the row takes no registers in the loop.
  const std::int64_t to =
      head_at(segment.gradient_row + std::int64_t{tile.first}, head, heads, kDim);
  if (at.dquery != nullptr) {
    store_rows<kDim>(at.dquery + to, query_stride, rows, shared + Tile::kQueryAt, row, dquery,
                     [&](std::size_t, std::size_t) { return in.scale; });
  } else {
    add_rows<kDim>(at.dquery_sum + to, query_stride, rows, row, dquery, in.scale);
  }
}

}  // namespace slimpack::cuda::kernels
