// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper, gradients of queries: 128 queries of a head a block.
#pragma once

#include <type_traits>

#include "kernels/attention_wgmma_backward.cuh"

namespace slimpack::cuda::kernels::wgmma {

/// Offsets in shared memory of the kernel of queries, bytes.
template <int kHeadDim>
struct QueryShared {
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr std::uint32_t kTileBytes = 2 * kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kGradient = kConsumers * kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kKeys = 2 * kGradient;
  static constexpr std::uint32_t kValues = kKeys + kStages * kTileBytes;
  static constexpr std::uint32_t kQueryFull = kValues + kStages * kTileBytes;
  static constexpr std::uint32_t kTailLanded = kQueryFull + 8;
  static constexpr std::uint32_t kFull = kTailLanded + 8;
  static constexpr std::uint32_t kEmpty = kFull + 8 * kStages;
  static constexpr std::uint32_t kBytes = kEmpty + 8 * kStages;
};

/// The producer's warp: queries and gradients of outputs, then keys and values from the last
/// visible tile to the first.
template <int kHeadDim>
SLIMPACK_DEVICE void queries_produce(const simt::TileMap& query, const simt::TileMap& key,
                                     const simt::TileMap& value, const simt::TileMap& dout,
                                     const Work& work, const AttentionSegment& segment, int first,
                                     int head, int active, int tiles) {
  using Shared = QueryShared<kHeadDim>;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const bool leader = simt::lane_index() == 0;
  const int kv_head = head / (work.heads / work.kv_heads);
  if (leader) {
    simt::prefetch_map(key);
    simt::prefetch_map(value);
    const std::uint32_t full = base + Shared::kQueryFull;
    for (int part = 0; part < active; ++part) {
      const std::uint32_t to = base + static_cast<std::uint32_t>(part) * kRowsBytes<kHeadDim>;
      simt::barrier_expect(full, 2 * kRowsBytes<kHeadDim>);
      load_rows<kHeadDim>(to, simt::kBoxBytes, query, full, head * kHeadDim,
                          segment.query_row + first + part * kRows);
      load_rows<kHeadDim>(to + Shared::kGradient, simt::kBoxBytes, dout, full, head * kHeadDim,
                          segment.gradient_row + first + part * kRows);
    }
    simt::barrier_arrive(full);
  }
  Ring<Shared::kStages> ring;
  for (int tile = tiles - 1; tile >= 0; --tile, ring.advance()) {
    const std::uint32_t full = base + Shared::kFull + ring.stage * 8;
    const std::uint32_t keys = base + Shared::kKeys + ring.stage * Shared::kTileBytes;
    const int listed = segment.keys - tile * kKeyTile;
    const std::uint32_t landed = listed < kKeyTile ? base + Shared::kTailLanded : full;
    simt::barrier_wait(base + Shared::kEmpty + ring.stage * 8, ring.parity ^ 1U);
    if (leader) {
      load_keys<kHeadDim>(keys, key, landed, work, segment, kv_head, tile * kKeyTile);
      load_keys<kHeadDim>(keys + (Shared::kValues - Shared::kKeys), value, landed, work, segment,
                          kv_head, tile * kKeyTile);
      simt::barrier_arrive(landed);
    }
    if (listed < kKeyTile) {  // at most once: the last tile of the list
      simt::barrier_wait(landed, 0);
      zero_rows<kHeadDim>(keys, listed, kKeyTile);
      simt::sync_warp();
      if (leader) simt::barrier_arrive(full);
    }
  }
}

template <int kHeadDim, class Out>
SLIMPACK_DEVICE void queries_consume(Out* dquery, const BackwardTask& task,
                                     const AttentionSegment& segment, int first, int head,
                                     int consumer, int tiles) {
  using Shared = QueryShared<kHeadDim>;
  const Work& work = task.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const std::uint32_t queries = base + static_cast<std::uint32_t>(consumer) * kRowsBytes<kHeadDim>;
  const std::uint32_t gradients_out = queries + Shared::kGradient;
  const int begin = first + consumer * kRows;  // query of the segment
  const int row = static_cast<int>(simt::thread_index() % kWarpgroup / 32 * 16 + lane / 4);
  const float scale_log2 = work.scale * kLog2E;

  std::array<int, 2> limit;
  std::array<float, 2> log_sum, delta;
  SLIMPACK_UNROLL
  for (unsigned j = 0; j < 2; ++j) {
    const int i = std::min(begin + row + 8 * static_cast<int>(j), segment.rows - 1);
    limit[j] = visible_keys(work, segment, i);
    const auto index = [&](int from) {
      return static_cast<std::int64_t>(from + i) * work.heads + head;
    };
    log_sum[j] = task.log_sum[index(segment.log_sum_row)] * kLog2E;
    delta[j] = task.delta[index(segment.gradient_row)];
  }
  const int unmasked = visible_keys(work, segment, begin) / kKeyTile;  // tiles

  std::array<float, kHeadDim / 2> sums{};
  std::array<float, kKeyTile / 2> weights, gradients;
  std::array<std::array<std::uint32_t, 4>, kKeyTile / 16> packed;
  Ring<Shared::kStages> ring;
  std::uint32_t before = 0;
  const auto step = [&](int tile, auto masked) {
    const std::uint32_t keys = base + Shared::kKeys + ring.stage * Shared::kTileBytes;
    simt::barrier_wait(base + Shared::kFull + ring.stage * 8, ring.parity);
    simt::product_fence();
    multiply_tiles<kHeadDim, kKeyTile>(weights, queries, simt::kBoxBytes, keys, kKeyPanelBytes);
    simt::product_commit();
    // The sums of the stage before end here; until then their factors take registers.
    simt::product_wait<1>();
    if (tile < tiles - 1 && lane == 0) simt::barrier_arrive(base + Shared::kEmpty + before * 8);
    before = ring.stage;
    simt::product_fence();
    multiply_tiles<kHeadDim, kKeyTile>(gradients, gradients_out, simt::kBoxBytes,
                                       keys + (Shared::kValues - Shared::kKeys), kKeyPanelBytes);
    simt::product_commit();
    const int col = tile * kKeyTile + static_cast<int>(lane % 4 * 2);
    const auto hidden = [&](unsigned i) {
      return decltype(masked)::value &&
             col + static_cast<int>(i / 4 * 8 + i % 2) >= limit[i / 2 % 2];
    };
    simt::product_wait<1>();
    simt::products_arrived(weights);
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kKeyTile / 2; ++i) {
      const float weight = simt::exp2_fast(weights[i] * scale_log2 - log_sum[i / 2 % 2]);
      weights[i] = hidden(i) ? 0.0F : weight;
    }
    keep_order(base + Shared::kFull + ring.stage * 8, ring.parity);
    simt::product_wait<0>();
    simt::products_arrived(gradients);
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kKeyTile / 2; ++i) {
      const float gradient = weights[i] * (gradients[i] - delta[i / 2 % 2]);
      gradients[i] = hidden(i) ? 0.0F : gradient;
    }
    pack(packed, gradients);
    simt::product_fence();
    multiply_rows<kHeadDim>(sums, packed, keys);
    simt::product_commit();
    ring.advance();
  };
  if (tiles > 0) simt::barrier_wait(base + Shared::kQueryFull, 0);
  int tile = tiles - 1;
  for (; tile >= unmasked; --tile) step(tile, std::true_type{});
  for (; tile >= 0; --tile) step(tile, std::false_type{});
  simt::product_wait<0>();
  simt::products_arrived(sums);

  const int rows = std::min(int{kRows}, segment.rows - begin);
  const std::int64_t width = static_cast<std::int64_t>(work.heads) * kHeadDim;
  Out* to = dquery + (segment.gradient_row + begin) * width + head * kHeadDim;
  if constexpr (std::is_same_v<Out, float>) {
    add_rows<kHeadDim>(to, width, rows, sums, work.scale);
  } else {
    simt::sync_threads(1 + static_cast<unsigned>(consumer), kWarpgroup);  // its products have ended
    store_rows<kHeadDim>(to, width, rows, sums, {work.scale, work.scale}, queries);
  }
}

/// Blocks that a query tile of the tables makes.
template <int kHeadDim>
inline constexpr int kQueryParts =
    (ForwardSize<kHeadDim>::kQueryTile + kQueryTile - 1) / kQueryTile;

/// One block: a part of a query tile and a head, heads of a tile next to each other. Overwrites
/// bf16 gradients, adds to fp32 ones.
template <int kHeadDim, class Out>
SLIMPACK_DEVICE void attention_backward_queries(Out* dquery, const simt::TileMap& query,
                                                const simt::TileMap& key,
                                                const simt::TileMap& value,
                                                const simt::TileMap& dout,
                                                const BackwardTask& task) {
  using Shared = QueryShared<kHeadDim>;
  constexpr int kParts = kQueryParts<kHeadDim>;
  const auto block = static_cast<int>(simt::block_index());
  const int begin = block % kParts * kQueryTile;
  const QueryBlock at =
      query_block(task.work, block / kParts, begin,
                  std::min(begin + kQueryTile, int{ForwardSize<kHeadDim>::kQueryTile}));
  run_roles(
      at.active,
      [&](std::uint32_t base) {
        simt::barrier_init(base + Shared::kQueryFull, 1);
        simt::barrier_init(base + Shared::kTailLanded, 1);
        init_ring<Shared::kStages>(base + Shared::kFull, base + Shared::kEmpty, at.active);
      },
      [&] {
        if (at.tiles == 0) return;
        queries_produce<kHeadDim>(query, key, value, dout, task.work, at.segment, at.first, at.head,
                                  at.active, at.tiles);
      },
      [&](int consumer) {
        queries_consume<kHeadDim>(dquery, task, at.segment, at.first, at.head, consumer, at.tiles);
      });
}

}  // namespace slimpack::cuda::kernels::wgmma
