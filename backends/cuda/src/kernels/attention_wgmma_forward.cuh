// SPDX-License-Identifier: Apache-2.0
// Attention forward on Hopper: 128 queries of a head at a time, keys and values 128 at a time. A
// block goes from one tile of queries to the next: queries, keys and values of the next are loaded
// while the one before is summed and written.
#pragma once

#include "kernels/attention_wgmma.cuh"

namespace slimpack::cuda::kernels::wgmma {

/// Offsets in shared memory, bytes.
template <int kHeadDim>
struct ForwardShared {
  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;
  static constexpr std::uint32_t kTileBytes = 2 * kRowsBytes<kHeadDim>;
  static constexpr int kConsumers = ForwardSize<kHeadDim>::kConsumers;
  static constexpr std::uint32_t kKeys = kConsumers * kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kValues = kKeys + kStages * kTileBytes;
  static constexpr std::uint32_t kOutput = kValues + kStages * kTileBytes;
  /// What the producer has looked up of the tile of queries, a QueryBlock.
  static constexpr std::uint32_t kBlock = kOutput + kConsumers * kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kQueryFull = kBlock + (sizeof(QueryBlock) + 15) / 16 * 16;
  static constexpr std::uint32_t kQueryEmpty = kQueryFull + 8;
  static constexpr std::uint32_t kTailLanded = kQueryEmpty + 8;
  static constexpr std::uint32_t kKeyFull = kTailLanded + 8;
  static constexpr std::uint32_t kKeyEmpty = kKeyFull + 8 * kStages;
  static constexpr std::uint32_t kValueFull = kKeyEmpty + 8 * kStages;
  static constexpr std::uint32_t kValueEmpty = kValueFull + 8 * kStages;
  static constexpr std::uint32_t kBytes = kValueEmpty + 8 * kStages;
};

struct ForwardTask {
  Work work;
  Bf16* output = nullptr;
  float* log_sum = nullptr;
  int items = 0;  ///< query tiles x heads
};

/// Calls visit(item) for what a block works on: in turn from both ends of as many items as there
/// are blocks, which are sorted, so that all blocks get about as much.
template <class Visit>
SLIMPACK_DEVICE void for_each_item(int items, const Visit& visit) {
  const int blocks = static_cast<int>(simt::grid_blocks());
  const int block = static_cast<int>(simt::block_index());
  bool backwards = false;
  for (int begin = 0; begin < items; begin += blocks, backwards = !backwards) {
    const int item = begin + (backwards ? blocks - 1 - block : block);
    if (item < items) visit(item);
  }
}

/// What goes on from one tile of queries to the next.
template <int kHeadDim>
struct ForwardState {
  using Slots = Ring<ForwardShared<kHeadDim>::kStages>;
  Slots keys, values;
  std::uint32_t queries = 0;  ///< parity of their full barrier
  std::uint32_t tails = 0;    ///< parity of the barrier of tiles that end early
};

/// The producer's warp: what consumers work on and its queries, then keys and values from the last
/// visible tile to the first.
template <int kHeadDim>
SLIMPACK_DEVICE void forward_produce(const simt::TileMap& query, const simt::TileMap& key,
                                     const simt::TileMap& value, const Work& work,
                                     const QueryBlock& at, ForwardState<kHeadDim>& state) {
  using Shared = ForwardShared<kHeadDim>;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const bool leader = simt::lane_index() == 0;
  const AttentionSegment& segment = at.segment;
  const int kv_head = at.head / (work.heads / work.kv_heads);
  simt::barrier_wait(base + Shared::kQueryEmpty, state.queries ^ 1U);
  state.queries ^= 1U;
  if (leader) {
    *in_shared<QueryBlock>(Shared::kBlock) = at;
    for (int part = 0; part < at.active && at.tiles > 0; ++part) {
      const std::uint32_t full = base + Shared::kQueryFull;
      simt::barrier_expect(full, kRowsBytes<kHeadDim>);
      load_rows<kHeadDim>(base + static_cast<std::uint32_t>(part) * kRowsBytes<kHeadDim>,
                          simt::kBoxBytes, query, full, at.head * kHeadDim,
                          segment.query_row + at.first + part * kRows);
    }
    simt::barrier_arrive(base + Shared::kQueryFull);
  }
  auto& ring = state.keys;
  for (int tile = at.tiles - 1; tile >= 0; --tile, ring.advance()) {
    const std::uint32_t slot = ring.stage * 8, offset = ring.stage * Shared::kTileBytes;
    simt::barrier_wait(base + Shared::kKeyEmpty + slot, ring.parity ^ 1U);
    if (leader) {
      const std::uint32_t full = base + Shared::kKeyFull + slot;
      load_keys<kHeadDim>(base + Shared::kKeys + offset, key, full, work, segment, kv_head,
                          tile * kKeyTile);
      simt::barrier_arrive(full);
    }
    simt::barrier_wait(base + Shared::kValueEmpty + slot, ring.parity ^ 1U);
    const std::uint32_t full = base + Shared::kValueFull + slot;
    const std::uint32_t values = base + Shared::kValues + offset;
    const int listed = segment.keys - tile * kKeyTile;
    const std::uint32_t landed = listed < kKeyTile ? base + Shared::kTailLanded : full;
    if (leader) {
      load_keys<kHeadDim>(values, value, landed, work, segment, kv_head, tile * kKeyTile);
      simt::barrier_arrive(landed);
    }
    if (listed < kKeyTile) {
      simt::barrier_wait(landed, state.tails);
      state.tails ^= 1U;
      zero_rows<kHeadDim>(values, listed, kKeyTile);
      simt::sync_warp();
      if (leader) simt::barrier_arrive(full);
    }
  }
}

/// Running softmax of a thread's two rows; scores before scaling.
struct Softmax {
  std::array<float, 2> largest{-kInfinity, -kInfinity};
  std::array<float, 2> sum{};     ///< of this thread's columns
  std::array<float, 2> shrink{};  ///< of what was summed before the last tile

  /// Turns scores into weights.
  SLIMPACK_DEVICE void add(std::array<float, kKeyTile / 2>& scores, float scale_log2) {
    SLIMPACK_UNROLL
    for (unsigned row = 0; row < 2; ++row) {
      float most = largest[row];
      SLIMPACK_UNROLL
      for (unsigned block = 0; block < kKeyTile / 8; ++block) {
        const unsigned i = 4 * block + 2 * row;
        most = simt::maximum(most, simt::maximum(scores[i], scores[i + 1]));
      }
      most = quad_max(most);
      const float from = most == -kInfinity ? 0.0F : most * scale_log2;
      shrink[row] = simt::exp2_fast(largest[row] * scale_log2 - from);
      largest[row] = most;
      float more = 0;
      SLIMPACK_UNROLL
      for (unsigned block = 0; block < kKeyTile / 8; ++block) {
        const unsigned i = 4 * block + 2 * row;
        scores[i] = simt::exp2_fast(scores[i] * scale_log2 - from);
        scores[i + 1] = simt::exp2_fast(scores[i + 1] * scale_log2 - from);
        more += scores[i] + scores[i + 1];
      }
      sum[row] = sum[row] * shrink[row] + more;
    }
  }
};

/// Scores of keys from `limit` on, as they lie from `first` on, become minus infinity.
SLIMPACK_DEVICE void mask_keys(std::array<float, kKeyTile / 2>& scores, int first,
                               const std::array<int, 2>& limit) {
  const int col = first + static_cast<int>(simt::lane_index() % 4 * 2);
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kKeyTile / 2; ++i) {
    if (col + static_cast<int>(i / 4 * 8 + i % 2) >= limit[i / 2 % 2]) scores[i] = -kInfinity;
  }
}

template <int kHeadDim>
SLIMPACK_DEVICE void forward_consume(const ForwardTask& task, int consumer,
                                     ForwardState<kHeadDim>& state) {
  using Shared = ForwardShared<kHeadDim>;
  constexpr unsigned kTurn = 1;  // barriers of threads
  const Work& work = task.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const auto self = static_cast<unsigned>(consumer);
  const std::uint32_t queries = base + self * kRowsBytes<kHeadDim>;
  const float scale_log2 = work.scale * kLog2E;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) simt::barrier_arrive(barrier);
  };
  simt::barrier_wait(base + Shared::kQueryFull, state.queries);
  state.queries ^= 1U;
  const auto [head, first, segment, active, tiles] = *in_shared<QueryBlock>(Shared::kBlock);
  simt::sync_warp();                           // lane 0 lets the producer write the next one
  const int begin = first + consumer * kRows;  // query of the segment
  const int row = static_cast<int>(simt::thread_index() % kWarpgroup / 32 * 16 + lane / 4);
  auto& key_ring = state.keys;
  auto& value_ring = state.values;
  if (consumer >= active) {  // no queries: what comes is not looked at
    for (int tile = 0; tile < tiles; ++tile) {
      simt::barrier_wait(base + Shared::kKeyFull + key_ring.stage * 8, key_ring.parity);
      release(base + Shared::kKeyEmpty + key_ring.stage * 8);
      simt::barrier_wait(base + Shared::kValueFull + value_ring.stage * 8, value_ring.parity);
      release(base + Shared::kValueEmpty + value_ring.stage * 8);
      key_ring.advance(), value_ring.advance();
    }
    return release(base + Shared::kQueryEmpty);
  }

  std::array<float, kHeadDim / 2> out{};
  std::array<float, kKeyTile / 2> scores;
  std::array<std::array<std::uint32_t, 4>, kKeyTile / 16> weights;
  Softmax softmax;

  // Warpgroups issue their products in turn, so that one computes weights while the others'
  // products run.
  const bool turns = active > 1, last = consumer == active - 1;
  const auto take_turn = [&] {
    if (turns) simt::sync_threads(kTurn + self, 2 * kWarpgroup);
  };
  const auto pass_turn = [&] {
    if (turns) simt::arrive_threads(kTurn + (last ? 0 : self + 1), 2 * kWarpgroup);
  };

  if (tiles > 0) {
    simt::barrier_wait(base + Shared::kKeyFull + key_ring.stage * 8, key_ring.parity);
    simt::product_fence();
    multiply_tiles<kHeadDim, kKeyTile>(scores, queries, simt::kBoxBytes,
                                       base + Shared::kKeys + key_ring.stage * Shared::kTileBytes,
                                       kKeyPanelBytes);
    simt::product_commit();
    std::array<int, 2> limit;
    SLIMPACK_UNROLL
    for (int j = 0; j < 2; ++j) {
      limit[static_cast<std::size_t>(j)] =
          visible_keys(work, segment, std::min(begin + row + 8 * j, segment.rows - 1));
    }
    const int unmasked = visible_keys(work, segment, begin) / kKeyTile;  // tiles
    simt::product_wait<0>();
    simt::products_arrived(scores);
    release(base + Shared::kKeyEmpty + key_ring.stage * 8);
    key_ring.advance();
    if (tiles == 1) release(base + Shared::kQueryEmpty);
    if (last && tiles > 1) pass_turn();
    if (tiles > unmasked) mask_keys(scores, (tiles - 1) * kKeyTile, limit);
    softmax.add(scores, scale_log2);
    pack(weights, scores);

    // Scores of a tile while the values of the one before are summed.
    const auto step = [&](int tile, auto masked) {
      simt::barrier_wait(base + Shared::kKeyFull + key_ring.stage * 8, key_ring.parity);
      take_turn();
      simt::product_fence();
      multiply_tiles<kHeadDim, kKeyTile>(scores, queries, simt::kBoxBytes,
                                         base + Shared::kKeys + key_ring.stage * Shared::kTileBytes,
                                         kKeyPanelBytes);
      simt::product_commit();
      simt::barrier_wait(base + Shared::kValueFull + value_ring.stage * 8, value_ring.parity);
      multiply_rows<kHeadDim>(out, weights,
                              base + Shared::kValues + value_ring.stage * Shared::kTileBytes);
      simt::product_commit();
      if (!last || tile > 0) pass_turn();
      simt::product_wait<1>();
      simt::products_arrived(scores);
      release(base + Shared::kKeyEmpty + key_ring.stage * 8);
      key_ring.advance();
      if (tile == 0) release(base + Shared::kQueryEmpty);
      if constexpr (decltype(masked)::value) mask_keys(scores, tile * kKeyTile, limit);
      softmax.add(scores, scale_log2);
      keep_order(base + Shared::kValueFull + value_ring.stage * 8, value_ring.parity);
      simt::product_wait<0>();
      simt::products_arrived(out);
      release(base + Shared::kValueEmpty + value_ring.stage * 8);
      value_ring.advance();
      SLIMPACK_UNROLL
      for (std::size_t i = 0; i < out.size(); ++i) out[i] *= softmax.shrink[i / 2 % 2];
      pack(weights, scores);
    };
    int tile = tiles - 2;
    for (; tile >= unmasked; --tile) step(tile, std::true_type{});
    for (; tile >= 0; --tile) step(tile, std::false_type{});

    simt::barrier_wait(base + Shared::kValueFull + value_ring.stage * 8, value_ring.parity);
    simt::product_fence();
    multiply_rows<kHeadDim>(out, weights,
                            base + Shared::kValues + value_ring.stage * Shared::kTileBytes);
    simt::product_commit();
    simt::product_wait<0>();
    simt::products_arrived(out);
    release(base + Shared::kValueEmpty + value_ring.stage * 8);
    value_ring.advance();
  } else {
    release(base + Shared::kQueryEmpty);
  }

  const int rows = std::min(int{kRows}, segment.rows - begin);
  std::array<float, 2> inverse;
  SLIMPACK_UNROLL
  for (unsigned j = 0; j < 2; ++j) {
    const float sum = quad_sum(softmax.sum[j]);
    inverse[j] = sum > 0 ? 1.0F / sum : 0.0F;
    const int i = row + 8 * static_cast<int>(j);
    if (lane % 4 == 0 && i < rows) {
      task.log_sum[static_cast<std::int64_t>(segment.log_sum_row + begin + i) * work.heads + head] =
          sum > 0 ? (softmax.largest[j] * scale_log2 + simt::log2_fast(sum)) * kLn2 : -kInfinity;
    }
  }
  const std::int64_t width = static_cast<std::int64_t>(work.heads) * kHeadDim;
  store_rows<kHeadDim>(task.output + (segment.output_row + begin) * width + head * kHeadDim, width,
                       rows, out, inverse, base + Shared::kOutput + self * kRowsBytes<kHeadDim>);
}

/// Some blocks, each several query tiles and heads; heads of a tile are next to each other.
template <int kHeadDim>
SLIMPACK_DEVICE void attention_forward(const simt::TileMap& query, const simt::TileMap& key,
                                       const simt::TileMap& value, const ForwardTask& task) {
  using Shared = ForwardShared<kHeadDim>;
  using Size = ForwardSize<kHeadDim>;
  run_roles<Size::kProducerRegisters, Size::kConsumerRegisters>(
      Shared::kConsumers,
      [&](std::uint32_t base) {
        simt::barrier_init(base + Shared::kQueryFull, 1);
        simt::barrier_init(base + Shared::kQueryEmpty, Shared::kConsumers * (kWarpgroup / 32));
        simt::barrier_init(base + Shared::kTailLanded, 1);
        init_ring<Shared::kStages>(base + Shared::kKeyFull, base + Shared::kKeyEmpty,
                                   Shared::kConsumers);
        init_ring<Shared::kStages>(base + Shared::kValueFull, base + Shared::kValueEmpty,
                                   Shared::kConsumers);
      },
      [&] {
        if (simt::lane_index() == 0) {
          simt::prefetch_map(query);
          simt::prefetch_map(key);
          simt::prefetch_map(value);
        }
        ForwardState<kHeadDim> state;
        for_each_item(task.items, [&](int item) {
          forward_produce<kHeadDim>(query, key, value, task.work,
                                    query_block(task.work, item, 0, Size::kQueryTile), state);
        });
      },
      [&](int consumer) {
        ForwardState<kHeadDim> state;
        for_each_item(task.items, [&](int) { forward_consume<kHeadDim>(task, consumer, state); });
      });
}

}  // namespace slimpack::cuda::kernels::wgmma
