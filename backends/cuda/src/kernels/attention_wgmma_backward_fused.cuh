// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper in five products: gradients of keys and values, 128 keys of a key
// head a block, and beside them those of queries, added up over blocks in a fixed order.
#pragma once

#include <type_traits>

#include "kernels/attention_wgmma_backward.cuh"

namespace slimpack::cuda::kernels::wgmma {

/// A launch of it. `turns` has a number for each row and head of `dquery`, zero to begin with:
/// where a tile of queries begins, one more than the key tile that has added to it last. `tickets`
/// is zero to begin with.
struct FusedTask {
  BackwardTask of;
  float* dquery = nullptr;  ///< by gradient_row
  float* dkey = nullptr;
  float* dvalue = nullptr;
  std::int32_t* turns = nullptr;
  std::int32_t* tickets = nullptr;
};

/// Offsets in shared memory, bytes.
template <int kHeadDim>
struct FusedShared {
  static constexpr int kQueries = kRows;  ///< that come together
  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;
  static constexpr std::uint32_t kTileBytes = kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kValues = kConsumers * kRowsBytes<kHeadDim>;
  static constexpr std::uint32_t kQuery = 2 * kValues;
  static constexpr std::uint32_t kGradient = kQuery + kStages * kTileBytes;
  /// Gradients of scores, 64 keys x 64 queries of each consumer; two tiles in turn.
  static constexpr std::uint32_t kScores = kGradient + kStages * kTileBytes;
  /// Gradients of queries in fp32, of all keys, or where a head is one panel of each consumer's;
  /// rows so far apart that a warp's stores meet no bank twice.
  static constexpr std::uint32_t kSums = kScores + 2 * kConsumers * simt::kBoxBytes;
  static constexpr std::uint32_t kParts = kHeadDim == 64 ? kConsumers : 1;
  static constexpr std::uint32_t kSumRowBytes = kHeadDim * 4 + 32;
  static constexpr std::uint32_t kPartBytes = kQueries * kSumRowBytes;
  /// For every query of a stage its log-sum-exp in base 2, then its delta, then what is said of it.
  static constexpr std::uint32_t kLogSum = kSums + kParts * kPartBytes;
  static constexpr std::uint32_t kDelta = kLogSum + kStages * kQueries * 4;
  static constexpr std::uint32_t kArrival = kDelta + kStages * kQueries * 4;
  static constexpr std::uint32_t kTarget = kArrival + kStages * 16;
  static constexpr std::uint32_t kTicket = kTarget + kStages * 16;
  static constexpr std::uint32_t kKeysFull = kTicket + 16;
  static constexpr std::uint32_t kKeysLanded = kKeysFull + 8;
  static constexpr std::uint32_t kTailLanded = kKeysLanded + 8;
  static constexpr std::uint32_t kSumsFull = kTailLanded + 8;
  static constexpr std::uint32_t kSumsEmpty = kSumsFull + 8;
  static constexpr std::uint32_t kFull = kSumsEmpty + 8;
  static constexpr std::uint32_t kEmpty = kFull + 8 * kStages;
  static constexpr std::uint32_t kBytes = kEmpty + 8 * kStages;
};

/// Where the gradients of a tile of queries belong.
struct Target {
  std::int32_t row = 0;  ///< gradient_row of its first query
  std::int32_t head = 0;
  std::int32_t after = 0;  ///< whether the next key tile adds to it too, and before this one
  std::int32_t unused = 0;
};

/// First tile of queries of a segment that the keys of a tile from `key_position` on have to do
/// with; none where the segment lists none of them, or ends before them.
template <int kQueries>
SLIMPACK_DEVICE int first_queries(const AttentionSegment& segment, int first_key,
                                  int key_position) {
  const int seen = std::max(0, key_position - segment.position);
  if (segment.keys <= first_key || seen >= segment.rows) return segment.rows;
  return seen / kQueries * kQueries;
}

using Two = std::array<float, 2>;

/// What a block works on, by the number that it took. Heads of a tile are next to each other, tiles
/// from the last of the table to the first.
struct FusedPlace {
  KeyTile tile;
  int kv_head;
};
template <int kHeadDim>
SLIMPACK_DEVICE FusedPlace fused_place(const Work& work) {
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const int ticket = simt::load_shared<int>(base + FusedShared<kHeadDim>::kTicket);
  const int place = static_cast<int>(simt::grid_blocks()) - 1 - ticket;
  return {work.key_tiles[place / work.kv_heads], place % work.kv_heads};
}

/// The producer's warp: keys and values, then queries and gradients of outputs of all segments that
/// see them and of all heads that share the key head. Tiles of queries are the same for all blocks.
template <int kHeadDim>
SLIMPACK_DEVICE void fused_produce(const simt::TileMap& query, const simt::TileMap& key,
                                   const simt::TileMap& value, const simt::TileMap& dout,
                                   const BackwardTask& task, const KeyTile& tile, int kv_head,
                                   int keys) {
  using Shared = FusedShared<kHeadDim>;
  const Work& work = task.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const bool leader = lane == 0;
  const int group = work.heads / work.kv_heads;
  const KeyPage* list = work.pages + work.segments[tile.first_segment].first_page;
  const std::uint32_t landed_keys =
      base + (keys < kKeyTile ? Shared::kKeysLanded : Shared::kKeysFull);
  if (leader) {
    simt::prefetch_map(query);
    simt::prefetch_map(dout);
    for (int half = 0; half * kRows < keys; ++half) {
      const int first = tile.first + half * kRows;
      const int row = list[first / work.page_tokens].row + first % work.page_tokens;
      const std::uint32_t to = base + static_cast<std::uint32_t>(half) * kRowsBytes<kHeadDim>;
      simt::barrier_expect(landed_keys, 2 * kRowsBytes<kHeadDim>);
      load_rows<kHeadDim>(to, simt::kBoxBytes, key, landed_keys, kv_head * kHeadDim, row);
      load_rows<kHeadDim>(to + Shared::kValues, simt::kBoxBytes, value, landed_keys,
                          kv_head * kHeadDim, row);
    }
    simt::barrier_arrive(landed_keys);
  }
  if (keys < kKeyTile) {  // gradients of queries are sums over all 128
    simt::barrier_wait(landed_keys, 0);
    for (int half = 0; half < kConsumers; ++half) {
      const int first = std::min(int{kRows}, std::max(0, keys - half * kRows));
      zero_rows<kHeadDim>(base + static_cast<std::uint32_t>(half) * kRowsBytes<kHeadDim>, first,
                          kRows);
    }
    simt::sync_warp();
    if (leader) simt::barrier_arrive(base + Shared::kKeysFull);
  }
  const auto position_of = [&](int first) {
    return list[first / work.page_tokens].position + first % work.page_tokens;
  };
  int most = 0;  // keys that a segment lists
  for (int k = tile.first_segment; k < tile.last_segment; ++k) {
    most = std::max(most, work.segments[k].keys);
  }
  const int key_position = position_of(tile.first);
  const int next_first = tile.first + kKeyTile;
  const int next_position = next_first < most ? position_of(next_first) : 0;
  Ring<Shared::kStages> ring;
  std::uint32_t tails = 0;
  for (int k = tile.first_segment; k < tile.last_segment; ++k) {
    const AttentionSegment& segment = work.segments[k];  // read again when needed: few registers
    const int others = next_first < most
                           ? first_queries<Shared::kQueries>(segment, next_first, next_position)
                           : segment.rows;
    for (int begin = first_queries<Shared::kQueries>(segment, tile.first, key_position);
         begin < segment.rows; begin += Shared::kQueries) {
      const int rows = std::min(int{Shared::kQueries}, segment.rows - begin);
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head, ring.advance()) {
        const std::uint32_t slot = ring.stage * 8;
        const std::uint32_t full = base + Shared::kFull + slot;
        const std::uint32_t landed = rows < Shared::kQueries ? base + Shared::kTailLanded : full;
        const std::uint32_t queries = base + Shared::kQuery + ring.stage * Shared::kTileBytes;
        const std::uint32_t gradients = base + Shared::kGradient + ring.stage * Shared::kTileBytes;
        simt::barrier_wait(base + Shared::kEmpty + slot, ring.parity ^ 1U);
        if (leader) {
          simt::barrier_expect(landed, 2 * Shared::kTileBytes);
          load_rows<kHeadDim>(queries, simt::kBoxBytes, query, landed, head * kHeadDim,
                              segment.query_row + begin);
          load_rows<kHeadDim>(gradients, simt::kBoxBytes, dout, landed, head * kHeadDim,
                              segment.gradient_row + begin);
          simt::store_shared(base + Shared::kArrival + ring.stage * 16,
                             Arrival{rows, segment.position + begin, segment.keys - tile.first, 0});
          simt::store_shared(
              base + Shared::kTarget + ring.stage * 16,
              Target{segment.gradient_row + begin, head, others <= begin ? 1 : 0, 0});
        }
        SLIMPACK_ROLLED
        for (unsigned row = lane; row < Shared::kQueries; row += 32) {
          float log_sum = kInfinity, delta = 0;  // weights of rows that are none become zero
          if (static_cast<int>(row) < rows) {
            const auto index = [&](int first) {
              return static_cast<std::int64_t>(first + begin + static_cast<int>(row)) * work.heads +
                     head;
            };
            log_sum = task.log_sum[index(segment.log_sum_row)] * kLog2E;
            delta = task.delta[index(segment.gradient_row)];
          }
          const std::uint32_t to = base + 4 * (ring.stage * Shared::kQueries + row);
          simt::store_shared(to + Shared::kLogSum, log_sum);
          simt::store_shared(to + Shared::kDelta, delta);
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

/// The warp that adds gradients of queries to memory. Key tiles add to a tile of queries in falling
/// order, the order in which blocks begin: the last one that has to do with it first.
template <int kHeadDim>
SLIMPACK_DEVICE void fused_add(const FusedTask& task, int key_tile) {
  using Shared = FusedShared<kHeadDim>;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const unsigned lane = simt::lane_index();
  const int heads = task.of.work.heads;
  Ring<Shared::kStages> ring;
  for (std::uint32_t turn = 0;; ++turn, ring.advance()) {
    simt::barrier_wait(base + Shared::kFull + ring.stage * 8, ring.parity);
    const int rows = simt::load_shared<Arrival>(base + Shared::kArrival + ring.stage * 16).rows;
    const auto target = simt::load_shared<Target>(base + Shared::kTarget + ring.stage * 16);
    simt::sync_warp();
    if (rows == 0) return;
    if (lane == 0) simt::barrier_arrive(base + Shared::kEmpty + ring.stage * 8);
    const std::int64_t first = static_cast<std::int64_t>(target.row) * heads + target.head;
    if (target.after != 0) simt::await_turn(task.turns + first, key_tile + 2);
    simt::barrier_wait(base + Shared::kSumsFull, turn & 1U);
    SLIMPACK_ROLLED
    for (std::uint32_t part = 0; part < Shared::kParts; ++part) {
      SLIMPACK_ROLLED
      for (int row = static_cast<int>(lane); row < rows; row += 32) {
        simt::add_in_bulk(task.dquery + (first + static_cast<std::int64_t>(row) * heads) * kHeadDim,
                          base + Shared::kSums + part * Shared::kPartBytes +
                              static_cast<std::uint32_t>(row) * Shared::kSumRowBytes,
                          kHeadDim * 4);
      }
      simt::await_bulk();
    }
    simt::sync_warp();
    if (lane == 0) {
      simt::give_turn(task.turns + first, key_tile + 1);
      simt::barrier_arrive(base + Shared::kSumsEmpty);
    }
  }
}

/// 64 keys: transposed scores, so that weights and their gradients are left factors in registers.
/// Of gradients of queries a consumer computes 64 columns, of two panels its own one from the keys
/// of both consumers, of one panel a part from its own keys.
template <int kHeadDim>
SLIMPACK_DEVICE void fused_consume(const FusedTask& task, int consumer, int keys) {
  using Shared = FusedShared<kHeadDim>;
  constexpr int kQueries = Shared::kQueries;
  constexpr bool kShares = kHeadDim > 64;
  constexpr unsigned kExchange = 1;  // barriers of threads
  const Work& work = task.of.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const auto own = static_cast<std::uint32_t>(consumer);
  const float scale_log2 = work.scale * kLog2E;
  // What is needed at both ends is read again: while tiles are computed there is no register for
  // it.
  const auto first_key = [&] {
    return fused_place<kHeadDim>(work).tile.first +
           (consumer * kRows < keys ? consumer * kRows : 0);
  };
  const int position = [&] {
    const int first = first_key();
    const int page = work.segments[fused_place<kHeadDim>(work).tile.first_segment].first_page;
    return work.pages[page + first / work.page_tokens].position + first % work.page_tokens;
  }();

  std::array<float, kHeadDim / 2> key_sums{}, value_sums{};
  std::array<float, kQueries / 2> weights, gradients, query_sums;
  std::array<std::array<std::uint32_t, 4>, kQueries / 16> packed_weights, packed_gradients;
  simt::barrier_wait(base + Shared::kKeysFull, 0);

  const auto step = [&](std::uint32_t stage, std::uint32_t turn, const Arrival& arrival,
                        auto masked) {
    constexpr bool kMasked = decltype(masked)::value;
    // Made again for every tile: addresses that are kept over the loop would be spilled.
    std::array<std::uint32_t, 3> place{simt::thread_index() % kWarpgroup, own, base};
    simt::keep_words(place);
    const auto [thread, self, memory] = place;
    const std::uint32_t warp_row = thread / 32 * 16, lane = thread % 32;
    const std::uint32_t own_keys = memory + self * kRowsBytes<kHeadDim>;
    const std::uint32_t own_values = own_keys + Shared::kValues;
    const std::uint32_t queries = memory + Shared::kQuery + stage * Shared::kTileBytes;
    const std::uint32_t gradients_out = memory + Shared::kGradient + stage * Shared::kTileBytes;
    const std::uint32_t scores = memory + Shared::kScores + turn % 2 * kConsumers * simt::kBoxBytes;
    // Key j of this thread is seen by queries from `least` on.
    std::array<int, 2> least{};
    SLIMPACK_UNROLL
    for (unsigned j = 0; kMasked && j < 2; ++j) {
      const int i = static_cast<int>(warp_row + lane / 4 + 8 * j);
      least[j] = consumer * kRows + i < arrival.keys ? position + i - arrival.position : kQueries;
    }
    const auto hidden = [&](unsigned i) {
      return kMasked && static_cast<int>(i / 4 * 8 + lane % 4 * 2 + i % 2) < least[i / 2 % 2];
    };
    simt::product_fence();
    multiply_tiles<kHeadDim, kQueries>(weights, own_keys, simt::kBoxBytes, queries,
                                       simt::kBoxBytes);
    simt::product_commit();
    multiply_tiles<kHeadDim, kQueries>(gradients, own_values, simt::kBoxBytes, gradients_out,
                                       simt::kBoxBytes);
    simt::product_commit();
    simt::product_wait<1>();
    simt::products_arrived(weights);
    const std::uint32_t numbers = memory + 4 * (stage * kQueries + lane % 4 * 2);
    SLIMPACK_UNROLL
    for (unsigned block = 0; block < kQueries / 8; ++block) {
      const auto log_sum = simt::load_shared<Two>(numbers + Shared::kLogSum + block * 32);
      SLIMPACK_UNROLL
      for (unsigned i = 4 * block; i < 4 * block + 4; ++i) {
        const float weight = simt::exp2_fast(weights[i] * scale_log2 - log_sum[i % 2]);
        weights[i] = hidden(i) ? 0.0F : weight;
      }
    }
    pack(packed_weights, weights);
    simt::product_fence();
    multiply_rows<kHeadDim>(value_sums, packed_weights, gradients_out);
    simt::product_commit();
    simt::product_wait<1>();
    simt::products_arrived(gradients);
    SLIMPACK_UNROLL
    for (unsigned block = 0; block < kQueries / 8; ++block) {
      const auto delta = simt::load_shared<Two>(numbers + Shared::kDelta + block * 32);
      SLIMPACK_UNROLL
      for (unsigned i = 4 * block; i < 4 * block + 4; ++i) {
        const float gradient = weights[i] * (gradients[i] - delta[i % 2]);
        gradients[i] = hidden(i) ? 0.0F : gradient;
      }
    }
    pack(packed_gradients, gradients);

    // Gradients of scores, for the product that reads them as rows of keys.
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kQueries / 4; ++i) {
      simt::store_shared(
          scores + self * simt::kBoxBytes +
              simt::swizzled((warp_row + lane / 4 + i % 2 * 8) * 128 + i / 2 * 16 + lane % 4 * 4),
          packed_gradients[i / 4][i % 4]);
    }
    simt::async_proxy_fence();
    if constexpr (kShares) {
      simt::sync_threads(kExchange, kConsumers * kWarpgroup);
    } else {
      simt::sync_threads(kExchange + self, kWarpgroup);
    }
    simt::product_fence();
    const std::uint64_t left =
        simt::matrix_descriptor(scores + (kShares ? 0 : self * simt::kBoxBytes), 0);
    const std::uint64_t right =
        simt::matrix_descriptor(kShares ? memory + self * simt::kBoxBytes : own_keys, 0);
    SLIMPACK_UNROLL
    for (std::uint32_t k = 0; k < (kShares ? kKeyTile : kRows) / 16; ++k) {
      const std::uint32_t half = k / 4, inside = k % 4 * 16 * simt::kPanelRowBytes;
      simt::multiply_shared_rows<64>(
          query_sums, simt::further(left, half * simt::kBoxBytes + inside),
          simt::further(right, half * kRowsBytes<kHeadDim> + inside), k > 0);
    }
    simt::product_commit();
    multiply_rows<kHeadDim>(key_sums, packed_gradients, queries);
    simt::product_commit();
    simt::product_wait<1>();
    simt::products_arrived(query_sums);
    simt::barrier_wait(memory + Shared::kSumsEmpty, (turn & 1U) ^ 1U);
    SLIMPACK_UNROLL
    for (unsigned j = 0; j < 2; ++j) {
      const std::uint32_t to = memory + Shared::kSums +
                               (kShares ? 256 : Shared::kPartBytes) * self +
                               (warp_row + lane / 4 + 8 * j) * Shared::kSumRowBytes + lane % 4 * 8;
      SLIMPACK_UNROLL
      for (unsigned block = 0; block < 8; ++block) {
        simt::store_shared(to + block * 32, Two{query_sums[4 * block + 2 * j] * work.scale,
                                                query_sums[4 * block + 2 * j + 1] * work.scale});
      }
    }
    simt::async_proxy_fence();
    simt::sync_warp();
    if (lane == 0) simt::barrier_arrive(memory + Shared::kSumsFull);
    simt::product_wait<0>();
    if (lane == 0) simt::barrier_arrive(memory + Shared::kEmpty + stage * 8);
  };

  Ring<Shared::kStages> ring;
  for (std::uint32_t turn = 0;; ++turn, ring.advance()) {
    simt::barrier_wait(base + Shared::kFull + ring.stage * 8, ring.parity);
    const auto arrival = simt::load_shared<Arrival>(base + Shared::kArrival + ring.stage * 16);
    if (arrival.rows == 0) break;
    if (position + kRows - 1 > arrival.position || (consumer + 1) * kRows > arrival.keys) {
      step(ring.stage, turn, arrival, std::true_type{});
    } else {
      step(ring.stage, turn, arrival, std::false_type{});
    }
  }
  simt::products_arrived(key_sums);
  simt::products_arrived(value_sums);
  const int rows = keys - consumer * kRows;
  if (rows <= 0) return;
  const FusedPlace place = fused_place<kHeadDim>(work);
  const AttentionSegment& sample = work.segments[place.tile.first_segment];
  const std::int64_t width = static_cast<std::int64_t>(work.kv_heads) * kHeadDim;
  const int first = first_key();
  const auto to = [&](std::int32_t numbered) {
    return (std::int64_t{numbered} + first) * width + std::int64_t{place.kv_head} * kHeadDim;
  };
  add_rows<kHeadDim>(task.dvalue + to(sample.value_gradient_row), width, rows, value_sums, 1.0F);
  add_rows<kHeadDim>(task.dkey + to(sample.key_gradient_row), width, rows, key_sums, work.scale);
}

/// One block: a key tile and a key head, heads of a tile next to each other, tiles from the last of
/// the table to the first. A block waits for blocks that have begun before it alone.
template <int kHeadDim>
SLIMPACK_DEVICE void attention_backward_fused(const simt::TileMap& query, const simt::TileMap& key,
                                              const simt::TileMap& value, const simt::TileMap& dout,
                                              const FusedTask& task) {
  using Shared = FusedShared<kHeadDim>;
  const Work& work = task.of.work;
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  if (simt::thread_index() == 0) {
    simt::store_shared(base + Shared::kTicket, simt::take_ticket(task.tickets));
  }
  simt::sync_block();
  const FusedPlace place = fused_place<kHeadDim>(work);
  const auto& tile = place.tile;
  int keys = 0;
  for (int i = tile.first_segment; i < tile.last_segment; ++i) {
    keys = std::max(keys, work.segments[i].keys - tile.first);
  }
  keys = std::min(int{kKeyTile}, keys);
  run_roles(
      kConsumers,
      [&](std::uint32_t barriers) {
        constexpr unsigned kWarps = kWarpgroup / 32;
        simt::barrier_init(barriers + Shared::kKeysFull, 1);
        simt::barrier_init(barriers + Shared::kKeysLanded, 1);
        simt::barrier_init(barriers + Shared::kTailLanded, 1);
        simt::barrier_init(barriers + Shared::kSumsFull, kConsumers * kWarps);
        simt::barrier_init(barriers + Shared::kSumsEmpty, 1);
        for (std::uint32_t slot = 0; slot < 8 * Shared::kStages; slot += 8) {
          simt::barrier_init(barriers + Shared::kFull + slot, 1);
          simt::barrier_init(barriers + Shared::kEmpty + slot, kConsumers * kWarps + 1);
        }
      },
      [&] { fused_produce<kHeadDim>(query, key, value, dout, task.of, tile, place.kv_head, keys); },
      [&](int consumer) { fused_consume<kHeadDim>(task, consumer, keys); },
      [&] { fused_add<kHeadDim>(task, tile.first / kKeyTile); });
}

}  // namespace slimpack::cuda::kernels::wgmma
