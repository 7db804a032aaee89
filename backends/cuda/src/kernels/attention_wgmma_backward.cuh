// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper, without atomics: gradients of keys and values, 128 keys of a key
// head a block. Those of queries are in attention_wgmma_backward_queries.cuh.
#pragma once

#include <type_traits>

#include "kernels/attention_wgmma.cuh"

namespace slimpack::cuda::kernels::wgmma {

/// What both kernels read. `log_sum` by log_sum_row, `delta` by gradient_row, one a row and head.
struct BackwardTask {
  Work work;
  const float* log_sum = nullptr;
  const float* delta = nullptr;
};

/// Offsets in shared memory of the kernel of keys, bytes.
template <int kHeadDim>
struct KeyShared {
  /// Queries that come together: as many as leave registers for the sums of gradients.
  static constexpr int kQueries = 64;
  static constexpr int kStages = 3;
  static constexpr std::uint32_t kPanelBytes = kQueries * simt::kPanelRowBytes;
  static constexpr std::uint32_t kTileBytes = kHeadDim / simt::kPanelCols * kPanelBytes;
  static constexpr std::uint32_t kValues = kConsumers * kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kQuery = 2 * kValues;
  static constexpr std::uint32_t kGradient = kQuery + kStages * kTileBytes;
  /// For every query of a stage its log-sum-exp in base 2, then its delta, then an Arrival.
  static constexpr std::uint32_t kLogSum = kGradient + kStages * kTileBytes;
  static constexpr std::uint32_t kDelta = kLogSum + kStages * kQueries * 4;
  static constexpr std::uint32_t kArrival = kDelta + kStages * kQueries * 4;
  static constexpr std::uint32_t kKeysFull = kArrival + kStages * 16;
  static constexpr std::uint32_t kTailLanded = kKeysFull + 8;
  static constexpr std::uint32_t kFull = kTailLanded + 8;
  static constexpr std::uint32_t kEmpty = kFull + 8 * kStages;
  static constexpr std::uint32_t kBytes = kEmpty + 8 * kStages;
};

/// What the producer says of a tile of queries.
struct Arrival {
  std::int32_t rows = 0;      ///< 0: no more come
  std::int32_t position = 0;  ///< of its first query
  std::int32_t keys = 0;      ///< of the block's that its segment lists
  std::int32_t unused = 0;    ///< one access of 16 bytes
};

/// The producer's warp: keys and values, then queries and gradients of outputs of all segments that
/// see them and of all heads that share the key head.
template <int kHeadDim>
SLIMPACK_DEVICE void keys_produce(const simt::TileMap& query, const simt::TileMap& key,
                                  const simt::TileMap& value, const simt::TileMap& dout,
                                  const BackwardTask& task, const KeyTile& tile, int kv_head,
                                  int keys) {
  using Shared = KeyShared<kHeadDim>;
  const Work& work = task.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const bool leader = lane == 0;
  const int group = work.heads / work.kv_heads;
  const AttentionSegment sample = work.segments[tile.first_segment];
  const KeyPage* list = work.pages + sample.first_page;
  if (leader) {
    simt::prefetch_map(query);
    simt::prefetch_map(dout);
    const std::uint32_t full = base + Shared::kKeysFull;
    for (int half = 0; half * kRows < keys; ++half) {
      const int first = tile.first + half * kRows;
      const int row = list[first / work.page_tokens].row + first % work.page_tokens;
      const std::uint32_t to = base + static_cast<std::uint32_t>(half) * kRowsBytes<kHeadDim>;
      simt::barrier_expect(full, 2 * kRowsBytes<kHeadDim>);
      load_rows<kHeadDim>(to, simt::kBoxBytes, key, full, kv_head * kHeadDim, row);
      load_rows<kHeadDim>(to + Shared::kValues, simt::kBoxBytes, value, full, kv_head * kHeadDim,
                          row);
    }
    simt::barrier_arrive(full);
  }
  const int key_position =
      list[tile.first / work.page_tokens].position + tile.first % work.page_tokens;
  Ring<Shared::kStages> ring;
  std::uint32_t tails = 0;
  for (int k = tile.first_segment; k < tile.last_segment; ++k) {
    const AttentionSegment& segment = work.segments[k];  // read again when needed: few registers
    if (segment.keys <= tile.first) continue;
    for (int begin = std::max(0, key_position - segment.position); begin < segment.rows;
         begin += Shared::kQueries) {
      const int rows = std::min(int{Shared::kQueries}, segment.rows - begin);
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head, ring.advance()) {
        constexpr unsigned kOfLane = Shared::kQueries / 32;
        std::array<float, kOfLane> log_sums, deltas;
        SLIMPACK_UNROLL
        for (unsigned i = 0; i < kOfLane; ++i) {
          const int row = static_cast<int>(lane + 32 * i);
          log_sums[i] = kInfinity, deltas[i] = 0;  // weights of rows that are none become zero
          if (row >= rows) continue;
          const auto index = [&](int first) {
            return static_cast<std::int64_t>(first + begin + row) * work.heads + head;
          };
          log_sums[i] = task.log_sum[index(segment.log_sum_row)] * kLog2E;
          deltas[i] = task.delta[index(segment.gradient_row)];
        }
        const std::uint32_t full = base + Shared::kFull + ring.stage * 8;
        const std::uint32_t landed = rows < Shared::kQueries ? base + Shared::kTailLanded : full;
        const std::uint32_t queries = base + Shared::kQuery + ring.stage * Shared::kTileBytes;
        const std::uint32_t gradients = base + Shared::kGradient + ring.stage * Shared::kTileBytes;
        simt::barrier_wait(base + Shared::kEmpty + ring.stage * 8, ring.parity ^ 1U);
        if (leader) {
          simt::barrier_expect(landed, 2 * Shared::kTileBytes);
          for (int part = 0; part < Shared::kQueries; part += kRows) {
            const std::uint32_t to = static_cast<std::uint32_t>(part) * simt::kPanelRowBytes;
            load_rows<kHeadDim>(queries + to, Shared::kPanelBytes, query, landed, head * kHeadDim,
                                segment.query_row + begin + part);
            load_rows<kHeadDim>(gradients + to, Shared::kPanelBytes, dout, landed, head * kHeadDim,
                                segment.gradient_row + begin + part);
          }
          simt::store_shared(base + Shared::kArrival + ring.stage * 16,
                             Arrival{rows, segment.position + begin, segment.keys - tile.first, 0});
        }
        SLIMPACK_UNROLL
        for (unsigned i = 0; i < kOfLane; ++i) {
          const std::uint32_t to = base + 4 * (ring.stage * Shared::kQueries + lane + 32 * i);
          simt::store_shared(to + Shared::kLogSum, log_sums[i]);
          simt::store_shared(to + Shared::kDelta, deltas[i]);
        }
        if (rows < Shared::kQueries) {
          if (leader) simt::barrier_arrive(landed);
          simt::barrier_wait(landed, tails++ & 1U);
          zero_rows<kHeadDim>(queries, rows, Shared::kQueries);
          zero_rows<kHeadDim>(gradients, rows, Shared::kQueries);
        }
        simt::sync_warp();
        if (leader) simt::barrier_arrive(full);
      }
    }
  }
  simt::barrier_wait(base + Shared::kEmpty + ring.stage * 8, ring.parity ^ 1U);
  if (leader) {
    simt::store_shared(base + Shared::kArrival + ring.stage * 16, Arrival{});
    simt::barrier_arrive(base + Shared::kFull + ring.stage * 8);
  }
}

/// Adds factor * sums to two rows a thread of a matrix of `rows` rows. A quad's four pairs are the
/// 32 bytes that memory moves at once.
template <int kHeadDim>
SLIMPACK_DEVICE void add_rows(float* to, std::int64_t row_stride, int rows,
                              const std::array<float, kHeadDim / 2>& sums, float factor) {
  struct alignas(8) Pair {
    float first, second;
  };
  const unsigned lane = simt::lane_index();
  const unsigned warp_row = simt::thread_index() % kWarpgroup / 32 * 16;
  SLIMPACK_UNROLL
  for (unsigned j = 0; j < 2; ++j) {
    const unsigned row = warp_row + lane / 4 + 8 * j;
    if (static_cast<int>(row) >= rows) continue;
    float* into = to + row * row_stride + lane % 4 * 2;
    SLIMPACK_UNROLL
    for (unsigned block = 0; block < kHeadDim / 8; ++block) {
      auto* pair = reinterpret_cast<Pair*>(into + block * 8);
      Pair value = *pair;
      value.first += sums[4 * block + 2 * j] * factor;
      value.second += sums[4 * block + 2 * j + 1] * factor;
      *pair = value;
    }
  }
}

/// 64 keys: transposed scores, so that weights and their gradients are left factors in registers.
template <int kHeadDim>
SLIMPACK_DEVICE void keys_consume(float* dkey, float* dvalue, const BackwardTask& task,
                                  const KeyTile& tile, int kv_head, int consumer, int keys) {
  using Shared = KeyShared<kHeadDim>;
  constexpr int kQueries = Shared::kQueries;
  const Work& work = task.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const std::uint32_t own_keys = base + static_cast<std::uint32_t>(consumer) * kRowsBytes<kHeadDim>;
  const std::uint32_t own_values = own_keys + Shared::kValues;
  const float scale_log2 = work.scale * kLog2E;
  const int first = tile.first + consumer * kRows;
  const AttentionSegment sample = work.segments[tile.first_segment];
  const int position =
      work.pages[sample.first_page + first / work.page_tokens].position + first % work.page_tokens;
  const int row = static_cast<int>(simt::thread_index() % kWarpgroup / 32 * 16 + lane / 4);

  std::array<float, kHeadDim / 2> key_sums{}, value_sums{};
  std::array<float, kQueries / 2> weights, gradients;
  std::array<std::array<std::uint32_t, 4>, kQueries / 16> packed_weights, packed_gradients;
  simt::barrier_wait(base + Shared::kKeysFull, 0);

  const auto step = [&](std::uint32_t stage, const Arrival& arrival, auto masked) {
    constexpr bool kMasked = decltype(masked)::value;
    // Key j of this thread is seen by queries from `least` on.
    std::array<int, 2> least{};
    SLIMPACK_UNROLL
    for (unsigned j = 0; kMasked && j < 2; ++j) {
      const int i = row + 8 * static_cast<int>(j);
      least[j] = consumer * kRows + i < arrival.keys ? position + i - arrival.position : kQueries;
    }
    const auto hidden = [&](unsigned i) {
      return kMasked && static_cast<int>(i / 4 * 8 + lane % 4 * 2 + i % 2) < least[i / 2 % 2];
    };
    simt::product_wait<1>();
    simt::products_arrived(weights);
    const float* log_sum = in_shared<float>(Shared::kLogSum) + stage * kQueries + lane % 4 * 2;
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kQueries / 2; ++i) {
      const float weight = simt::exp2_fast(weights[i] * scale_log2 - log_sum[i / 4 * 8 + i % 2]);
      weights[i] = hidden(i) ? 0.0F : weight;
    }
    pack(packed_weights, weights);
    simt::product_fence();
    multiply_rows<kHeadDim>(value_sums, packed_weights,
                            base + Shared::kGradient + stage * Shared::kTileBytes);
    simt::product_commit();
    simt::product_wait<1>();
    simt::products_arrived(gradients);
    const float* delta = in_shared<float>(Shared::kDelta) + stage * kQueries + lane % 4 * 2;
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kQueries / 2; ++i) {
      const float gradient = weights[i] * (gradients[i] - delta[i / 4 * 8 + i % 2]);
      gradients[i] = hidden(i) ? 0.0F : gradient;
    }
    pack(packed_gradients, gradients);
    simt::product_fence();
    multiply_rows<kHeadDim>(key_sums, packed_gradients,
                            base + Shared::kQuery + stage * Shared::kTileBytes);
    simt::product_commit();
  };

  Ring<Shared::kStages> ring;
  std::uint32_t before = 0;
  for (bool begun = false;; begun = true, ring.advance()) {
    simt::barrier_wait(base + Shared::kFull + ring.stage * 8, ring.parity);
    const Arrival arrival = *in_shared<Arrival>(Shared::kArrival + ring.stage * 16);
    if (arrival.rows == 0) break;
    simt::product_fence();
    multiply_tiles<kHeadDim, kQueries>(weights, own_keys, simt::kBoxBytes,
                                       base + Shared::kQuery + ring.stage * Shared::kTileBytes,
                                       Shared::kPanelBytes);
    simt::product_commit();
    // The sums of the stage before end here; until then their factors take registers.
    simt::product_wait<1>();
    simt::sync_warp();  // all lanes have read the numbers of that stage
    if (begun && lane == 0) simt::barrier_arrive(base + Shared::kEmpty + before * 8);
    before = ring.stage;
    simt::product_fence();
    multiply_tiles<kHeadDim, kQueries>(gradients, own_values, simt::kBoxBytes,
                                       base + Shared::kGradient + ring.stage * Shared::kTileBytes,
                                       Shared::kPanelBytes);
    simt::product_commit();
    if (position + kRows - 1 > arrival.position || (consumer + 1) * kRows > arrival.keys) {
      step(ring.stage, arrival, std::true_type{});
    } else {
      step(ring.stage, arrival, std::false_type{});
    }
  }
  simt::product_wait<0>();
  simt::products_arrived(key_sums);
  simt::products_arrived(value_sums);
  const std::int64_t width = static_cast<std::int64_t>(work.kv_heads) * kHeadDim;
  const auto to = [&](std::int32_t numbered) {
    return (std::int64_t{numbered} + first) * width + kv_head * kHeadDim;
  };
  const int rows = keys - consumer * kRows;
  add_rows<kHeadDim>(dvalue + to(sample.value_gradient_row), width, rows, value_sums, 1.0F);
  add_rows<kHeadDim>(dkey + to(sample.key_gradient_row), width, rows, key_sums, work.scale);
}

/// One block: a key tile and a key head, heads of a tile next to each other.
template <int kHeadDim>
SLIMPACK_DEVICE void attention_backward_keys(float* dkey, float* dvalue, const simt::TileMap& query,
                                             const simt::TileMap& key, const simt::TileMap& value,
                                             const simt::TileMap& dout, const BackwardTask& task) {
  using Shared = KeyShared<kHeadDim>;
  const Work& work = task.work;
  const int block = static_cast<int>(simt::block_index());
  const int kv_head = block % work.kv_heads;
  const KeyTile tile = work.key_tiles[block / work.kv_heads];
  int keys = 0;
  for (int i = tile.first_segment; i < tile.last_segment; ++i) {
    keys = std::max(keys, work.segments[i].keys - tile.first);
  }
  keys = std::min(int{kKeyTile}, keys);
  const int active = (keys + kRows - 1) / kRows;
  run_roles(
      active,
      [&](std::uint32_t base) {
        simt::barrier_init(base + Shared::kKeysFull, 1);
        simt::barrier_init(base + Shared::kTailLanded, 1);
        init_ring<Shared::kStages>(base + Shared::kFull, base + Shared::kEmpty, active);
      },
      [&] { keys_produce<kHeadDim>(query, key, value, dout, task, tile, kv_head, keys); },
      [&](int consumer) {
        keys_consume<kHeadDim>(dkey, dvalue, task, tile, kv_head, consumer, keys);
      });
}

}  // namespace slimpack::cuda::kernels::wgmma
