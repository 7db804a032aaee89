// SPDX-License-Identifier: Apache-2.0
// Gradients of keys and values with mma.sync: a block has some keys of a sample and one key head,
// and walks over all queries of the launch that see them, of all heads of the group. Sums stay in
// registers and go to memory once, so that their order never changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_mma.cuh"

namespace slimpack::cuda::kernels {

/// Scores are computed transposed, keys as rows: weights are then the left operands of the products
/// that sum gradients, and never leave registers. At head_dim 128 a warp has 16 keys (128 sums a
/// thread) and takes 64 queries at a time, at head_dim 64 it has 32 keys and takes 32 queries.
/// Queries and output gradients come in two buffers of 64 rows: at head_dim 128 97 KB in all, twice
/// on Hopper and once on sm_86.
template <int kDim>
struct MmaBackwardKeys {
  static constexpr int kBlocks = kDim <= 64 ? 2 : 1;  ///< of 16 keys a warp
  static constexpr int kKeys = 16 * kBlocks * kMmaWarps;
  static constexpr int kQueries = 64, kStep = kDim <= 64 ? 32 : 64;
  static constexpr std::uint32_t kKeyAt = 0;
  static constexpr std::uint32_t kValueAt = kKeyAt + kKeys * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kQueryAt = kValueAt + kKeys * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kQueryBytes = kQueries * Rows<kDim>::kBytes;
  static constexpr std::uint32_t kBuffer = 2 * kQueryBytes;  ///< queries, then output gradients
  static constexpr std::uint32_t kNumbersAt = kQueryAt + 2 * kBuffer;
  static constexpr std::uint32_t kNumbers = 2 * 4 * kQueries;  ///< log-sum-exps, then deltas
  static constexpr std::uint32_t kShared = kNumbersAt + 2 * kNumbers;
};

namespace detail {

/// Up to kQueries queries of a segment and one head, of those that see a tile of keys.
struct QueryStep {
  int segment = 0;
  int head = 0;
  int first = 0;  ///< query of the segment
  bool any = false;
};

/// Visits segments in turn (read from the table each time: it takes few registers), in each its
/// queries from the first that sees the tile on, and with each step of queries all heads of the
/// group.
template <int kQueries>
class QuerySteps {
 public:
  SLIMPACK_DEVICE QuerySteps(const AttentionInputs& in, const KeyTile& tile, int position,
                             int kv_head)
      : segments_(in.work.segments.data),
        tile_(tile),
        position_(position),
        group_(in.shape.heads / in.shape.kv_heads),
        first_head_(kv_head * group_) {}

  [[nodiscard]] SLIMPACK_DEVICE QueryStep first() const {
    QueryStep step;
    open(step, tile_.first_segment);
    return step;
  }
  SLIMPACK_DEVICE void advance(QueryStep& step) const {
    if (++step.head < first_head_ + group_) return;
    step.head = first_head_;
    step.first += kQueries;
    if (step.first >= segments_[step.segment].rows) open(step, step.segment + 1);
  }

 private:
  /// Goes to the first step of segment `which` or, where it has none, of one after it.
  SLIMPACK_DEVICE void open(QueryStep& step, int which) const {
    step.head = first_head_;
    step.any = false;
    for (step.segment = which; step.segment < tile_.last_segment; ++step.segment) {
      const AttentionSegment& segment = segments_[step.segment];
      step.first = larger(0, position_ - segment.position);
      if (segment.keys > tile_.first && step.first < segment.rows) {
        step.any = true;
        return;
      }
    }
  }

  const AttentionSegment* segments_;
  const KeyTile& tile_;
  int position_;
  int group_, first_head_;
};

/// Rows are keys and columns queries: sets what is not seen to minus infinity. `key` is the number
/// within its tile of this lane's first row, `listed` how many of the tile the queries compare
/// with, and `ahead` how far the first key of the tile stands after the first query.
template <std::size_t kBlocks, std::size_t kColumns>
SLIMPACK_DEVICE void mask_queries(Sums<kBlocks, kColumns>& scores, int key, int listed, int ahead) {
  const int column = 2 * static_cast<int>(simt::lane_index() % 4);
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t half = 0; half < 2; ++half) {
      const int mine = key + static_cast<int>(16 * m + 8 * half);
      const int least = mine < listed ? ahead + mine : INT32_MAX;  // column that sees it
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < kColumns; ++n) {
        SLIMPACK_UNROLL
        for (std::size_t e = 0; e < 2; ++e) {
          if (column + static_cast<int>(8 * n + e) < least) {
            scores[m][n][2 * half + e] = -infinity();
          }
        }
      }
    }
  }
}

}  // namespace detail

/// kMmaThreads threads, MmaBackwardKeys::kShared bytes; blocks are key tiles x kv heads.
template <int kDim>
SLIMPACK_DEVICE void attention_backward_keys_mma(const AttentionBackward& at) {
  using Tile = MmaBackwardKeys<kDim>;
  constexpr int kBlocks = Tile::kBlocks;
  const AttentionInputs& in = at.in;
  const int heads = in.shape.heads, kv_heads = in.shape.kv_heads;
  const auto [tile_at, kv_head] = tile_and_head(kv_heads);
  const KeyTile& tile = in.work.key_tiles.data[tile_at];
  // Segments of a sample list the same pages, some of them fewer: the longest list says where.
  const AttentionSegment& sample = in.work.segments.data[tile.first_segment];
  const auto longest = [&] {
    int keys = 0;
    for (int which = tile.first_segment; which < tile.last_segment; ++which) {
      keys = larger(keys, in.work.segments.data[which].keys);
    }
    return keys;
  };
  const int all_keys = longest();
  const KeyPlace keys = key_place(in, sample.first_page, all_keys, tile.first);
  const std::int64_t query_stride = std::int64_t{heads} * kDim;
  const std::int64_t key_stride = std::int64_t{kv_heads} * kDim;

  const std::uint32_t shared = simt::shared_address(simt::shared_memory());
  const unsigned thread = simt::thread_index(), lane = simt::lane_index();
  const unsigned row = thread / 32 * (16 * kBlocks);  // first key of the warp
  const std::uint32_t query_tile = shared + Tile::kQueryAt;
  const std::uint32_t number_tile = shared + Tile::kNumbersAt;

  const auto load = [&](const detail::QueryStep& step, std::uint32_t buffer) {
    const AttentionSegment& segment = in.work.segments.data[step.segment];
    const int rows = segment.rows - step.first;
    const std::int64_t query = std::int64_t{segment.query_row} + step.first;
    const std::int64_t gradient = std::int64_t{segment.gradient_row} + step.first;
    load_rows<kDim, Tile::kQueries>(buffer, in.query + head_at(query, step.head, heads, kDim),
                                    query_stride, rows);
    load_rows<kDim, Tile::kQueries>(buffer + Tile::kQueryBytes,
                                    at.doutput + head_at(gradient, step.head, heads, kDim),
                                    query_stride, rows);
  };
  // Each thread brings one number: log-sum-exps the first half of the block, deltas the other.
  static_assert(kMmaThreads == 2 * Tile::kQueries);
  const auto load_number = [&](const detail::QueryStep& step) {
    const bool of_log_sum = thread < Tile::kQueries;
    const AttentionSegment& segment = in.work.segments.data[step.segment];
    const int mine = step.first + static_cast<int>(thread % Tile::kQueries);
    if (mine >= segment.rows) return of_log_sum ? infinity() : 0.0F;
    if (!of_log_sum) {
      return at.delta[head_at(std::int64_t{segment.gradient_row} + mine, step.head, heads, 1)];
    }
    return log_sum_to_base_2(
        at.log_sum[head_at(std::int64_t{segment.log_sum_row} + mine, step.head, heads, 1)]);
  };

  const detail::QuerySteps<Tile::kQueries> steps(in, tile, keys.position, kv_head);
  detail::QueryStep step = steps.first();
  if (!step.any) return;
  const std::int64_t from = head_at(keys.row, kv_head, kv_heads, kDim);
  load_rows<kDim, Tile::kKeys>(shared + Tile::kKeyAt, in.key + from, key_stride,
                               all_keys - tile.first);
  load_rows<kDim, Tile::kKeys>(shared + Tile::kValueAt, in.value + from, key_stride,
                               all_keys - tile.first);
  load(step, query_tile);
  simt::copy_async_commit();
  simt::store_shared(number_tile + 4 * thread, load_number(step));

  const std::uint32_t key_lane = Rows<kDim>::of_lane(shared + Tile::kKeyAt, row);
  const std::uint32_t value_lane = Rows<kDim>::of_lane(shared + Tile::kValueAt, row);
  const std::uint32_t query_lane = Rows<kDim>::of_lane(query_tile, 0);
  const float scale = in.scale * kLog2E;
  Sums<kBlocks, kDim / 8> dkey{}, dvalue{};
  unsigned buffer = 0;
  while (step.any) {
    simt::copy_async_wait<0>();
    simt::sync_block();  // this buffer is filled, and nobody reads the other any more
    const AttentionSegment& segment = in.work.segments.data[step.segment];
    const int seen = smaller(segment.keys - tile.first, Tile::kKeys);
    const int ahead = keys.position - (segment.position + step.first);
    const int rows = smaller(Tile::kQueries, segment.rows - step.first);
    steps.advance(step);
    float number = 0;
    if (step.any) {
      load(step, query_tile + (1 - buffer) * Tile::kBuffer);
      number = load_number(step);
    }
    simt::copy_async_commit();

    SLIMPACK_ROLLED  // both halves at once would need more registers than there are
        for (int begin = 0; begin < Tile::kQueries; begin += Tile::kStep) {
      const int part_ahead = ahead - begin;
      const int first_key = static_cast<int>(row);
      // The last query of the part sees keys of the tile below this.
      const int below = smaller(Tile::kStep, rows - begin) - part_ahead;
      if (begin >= rows || first_key >= smaller(seen, below)) continue;
      const std::uint32_t query =
          query_lane + buffer * Tile::kBuffer + static_cast<unsigned>(begin) * Rows<kDim>::kBytes;
      const std::uint32_t numbers =
          number_tile + buffer * Tile::kNumbers + 4 * static_cast<unsigned>(begin) + 8 * (lane % 4);
      Sums<kBlocks, Tile::kStep / 8> weights{};
      multiply_rows<kDim>(weights, key_lane, query);
      if (seen < Tile::kKeys || part_ahead + first_key + 16 * kBlocks - 1 > 0) {
        detail::mask_queries(weights, first_key + static_cast<int>(lane / 4), seen, part_ahead);
      }
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < Tile::kStep / 8; ++n) {
        const auto log_sums =
            simt::load_shared<std::array<float, 2>>(numbers + 32 * static_cast<std::uint32_t>(n));
        SLIMPACK_UNROLL
        for (std::size_t m = 0; m < kBlocks; ++m) {
          SLIMPACK_UNROLL
          for (std::size_t e = 0; e < 4; ++e) {
            weights[m][n][e] =
                simt::exp2_fast(simt::multiply_add(weights[m][n][e], scale, -log_sums[e % 2]));
          }
        }
      }
      multiply_columns<kDim>(dvalue, to_operands(weights), query + Tile::kQueryBytes);
      Sums<kBlocks, Tile::kStep / 8> dscores{};
      multiply_rows<kDim>(dscores, value_lane, query + Tile::kQueryBytes);
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < Tile::kStep / 8; ++n) {
        const auto deltas = simt::load_shared<std::array<float, 2>>(
            numbers + 4 * Tile::kQueries + 32 * static_cast<std::uint32_t>(n));
        SLIMPACK_UNROLL
        for (std::size_t m = 0; m < kBlocks; ++m) {
          SLIMPACK_UNROLL
          for (std::size_t e = 0; e < 4; ++e) {
            dscores[m][n][e] = weights[m][n][e] * (dscores[m][n][e] - deltas[e % 2]);
          }
        }
      }
      multiply_columns<kDim>(dkey, to_operands(dscores), query);
    }
    buffer = 1 - buffer;
    // Read after the next barrier; whoever reads this buffer's numbers before has passed the last.
    simt::store_shared(number_tile + buffer * Tile::kNumbers + 4 * thread, number);
  }

  // Counted again, so that it takes no register in the loop.
  const int listed = longest() - tile.first;
  const auto to = [&, head = kv_head](std::int32_t first) {
    return head_at(std::int64_t{first} + tile.first, head, kv_heads, kDim);
  };
  add_rows<kDim>(at.dkey + to(sample.key_gradient_row), key_stride, listed, row, dkey, in.scale);
  add_rows<kDim>(at.dvalue + to(sample.value_gradient_row), key_stride, listed, row, dvalue, 1.0F);
}

}  // namespace slimpack::cuda::kernels
