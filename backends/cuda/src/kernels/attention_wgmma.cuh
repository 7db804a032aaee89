// SPDX-License-Identifier: Apache-2.0
// What the Hopper attention kernels share: rows in shared memory, products of tiles, masks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "simt/hopper.hpp"
#include "slimpack_cuda/attention_tables.hpp"

/// A block is a producer warpgroup, of which one warp copies tiles to shared memory, and consumer
/// warpgroups that compute 64 rows each. Matrices lie in shared memory as panels (hopper.hpp).
namespace slimpack::cuda::kernels::wgmma {

inline constexpr int kRows = 64;      ///< of a warpgroup's products
inline constexpr int kKeyTile = 128;  ///< keys that come together
inline constexpr int kConsumers = 2;  ///< warpgroups
inline constexpr int kQueryTile = kConsumers * kRows;
inline constexpr unsigned kWarpgroup = 128;
inline constexpr unsigned kThreads = (1 + kConsumers) * kWarpgroup;
/// Of 65536 registers: 168 a thread to begin with, then shared out again.
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
/// The forward pass has more consumers where a head is one panel: their sums are half as many, and
/// each computes weights while two others' products run.
template <int kHeadDim>
struct ForwardSize {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kQueryTile = kConsumers * kRows;
  static constexpr unsigned kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kProducerRegisters = kHeadDim == 64 ? 32 : 24;
  static constexpr int kConsumerRegisters = kHeadDim == 64 ? 160 : 240;
};
inline constexpr float kLog2E = 1.44269504088896341F, kLn2 = 0.693147180559945309F;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Tables and shape of a launch.
struct Work {
  const AttentionSegment* segments = nullptr;
  const KeyPage* pages = nullptr;
  const QueryTile* query_tiles = nullptr;
  const KeyTile* key_tiles = nullptr;
  int heads = 0, kv_heads = 0, page_tokens = 0;
  float scale = 0;  ///< of scores
};

/// Slots of a queue in shared memory, each used again and again: consumers wait for `parity` of its
/// full barrier, the producer for the other one of its empty barrier.
template <int kStages>
struct Ring {
  std::uint32_t stage = 0, parity = 0;
  SLIMPACK_DEVICE void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1U;
  }
};

/// What lies at an offset of shared memory.
template <class Element>
SLIMPACK_DEVICE Element* in_shared(std::uint32_t offset) {
  return reinterpret_cast<Element*>(simt::shared_memory() + offset);
}

/// Keys of the segment that its query `at` sees (visible_keys of attention_tables.hpp).
SLIMPACK_DEVICE int visible_keys(const Work& work, const AttentionSegment& segment, int k) {
  const int position = segment.position + k;
  const int count = (segment.keys + work.page_tokens - 1) / work.page_tokens;
  const KeyPage* list = work.pages + segment.first_page;
  // Page i begins at position i * page_tokens or later; without gaps the last candidate is it.
  int low = 0, high = std::min(count, position / work.page_tokens + 1);
  if (high > 0 && list[high - 1].position <= position) low = high;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list[middle].position <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) return 0;
  const int inside = std::min(work.page_tokens, position - list[low - 1].position + 1);
  return std::min(segment.keys, (low - 1) * work.page_tokens + inside);
}

/// Initialises the barriers of a ring's slots: full when the producer says so, empty when each warp
/// of `active` consumers does.
template <int kStages>
SLIMPACK_DEVICE void init_ring(std::uint32_t full, std::uint32_t empty, int active) {
  const auto warps = static_cast<unsigned>(active) * (kWarpgroup / 32);
  for (std::uint32_t slot = 0; slot < 8 * kStages; slot += 8) {
    simt::barrier_init(full + slot, 1);
    simt::barrier_init(empty + slot, warps);
  }
}

/// Keeps what comes before it ahead of the wait that follows: the compiler moves a wait for
/// products up over all that does not need them, so that nothing would run beside them, but not
/// into another basic block. `barrier` has ended the phase of `parity` and does not end the next
/// one meanwhile, so that this never waits.
SLIMPACK_DEVICE void keep_order(std::uint32_t barrier, std::uint32_t parity) {
  simt::barrier_wait(barrier, parity);
}

/// Lets one thread initialise barriers, then one warp produce and `active` warpgroups consume, each
/// given its number. `init` is given the address of shared memory.
template <int kOfProducer = kProducerRegisters, int kOfConsumer = kConsumerRegisters, class Init,
          class Produce, class Consume>
SLIMPACK_DEVICE void run_roles(int active, const Init& init, const Produce& produce,
                               const Consume& consume) {
  if (simt::thread_index() == 0) {
    init(simt::shared_address(simt::shared_memory()));
    simt::barrier_init_fence();
  }
  simt::sync_block();
  const int warpgroup = static_cast<int>(simt::shuffle(simt::thread_index() / kWarpgroup, 0));
  if (warpgroup == 0) {
    simt::registers_decrease<kOfProducer>();
    if (simt::shuffle(simt::thread_index() / 32, 0) == 0) produce();
  } else {
    simt::registers_increase<kOfConsumer>();
    if (warpgroup <= active) consume(warpgroup - 1);
  }
}

/// A query tile and head, or a part of one; heads of a tile are next to each other.
struct QueryBlock {
  int head, first;           ///< query of the segment
  AttentionSegment segment;  ///< of the tile
  int active;                ///< consumers with queries
  int tiles;                 ///< of keys that some query sees
};
/// Queries [begin, end) of the tile of an item; none where its segment ends before.
SLIMPACK_DEVICE QueryBlock query_block(const Work& work, int block, int begin, int end) {
  const QueryTile tile = work.query_tiles[block / work.heads];
  const AttentionSegment segment = work.segments[tile.segment];
  const int first = tile.first + begin;
  const int rows = std::min(end - begin, segment.rows - first);
  if (rows <= 0) return {block % work.heads, first, segment, 0, 0};
  return {block % work.heads, first, segment, (rows + kRows - 1) / kRows,
          (visible_keys(work, segment, first + rows - 1) + kKeyTile - 1) / kKeyTile};
}

/// Copies 64 rows, kHeadDim columns wide.
template <int kHeadDim>
SLIMPACK_DEVICE void load_rows(std::uint32_t to, std::uint32_t panel_bytes,
                               const simt::TileMap& map, std::uint32_t barrier, int col, int row) {
  SLIMPACK_UNROLL
  for (int panel = 0; panel < kHeadDim / simt::kPanelCols; ++panel) {
    simt::load_tile(to + static_cast<std::uint32_t>(panel) * panel_bytes, map, barrier,
                    col + panel * simt::kPanelCols, row);
  }
}
/// Bytes of 64 rows.
template <int kHeadDim>
inline constexpr std::uint32_t kRowsBytes = kHeadDim / simt::kPanelCols * simt::kBoxBytes;
/// Bytes of one panel of a tile of keys.
inline constexpr std::uint32_t kKeyPanelBytes = kKeyTile * simt::kPanelRowBytes;

/// Copies keys [first, first + 128) of a segment, or their values; where they end in the first half
/// the other is left as it is. Pages hold multiples of 64 keys.
template <int kHeadDim>
SLIMPACK_DEVICE void load_keys(std::uint32_t to, const simt::TileMap& map, std::uint32_t barrier,
                               const Work& work, const AttentionSegment& segment, int kv_head,
                               int first) {
  SLIMPACK_UNROLL
  for (int half = 0; half < kKeyTile; half += kRows) {
    const int key = first + half;
    if (key >= segment.keys) return;
    simt::barrier_expect(barrier, kRowsBytes<kHeadDim>);
    const KeyPage page = work.pages[segment.first_page + key / work.page_tokens];
    load_rows<kHeadDim>(to + static_cast<std::uint32_t>(half) * simt::kPanelRowBytes,
                        kKeyPanelBytes, map, barrier, kv_head * kHeadDim,
                        page.row + key % work.page_tokens);
  }
}

/// A warp writes zeros to rows [first, rows) of a tile: what lies there belongs to others and may
/// be NaN, which times zero is NaN.
template <int kHeadDim>
SLIMPACK_DEVICE void zero_rows(std::uint32_t tile, int first, int rows) {
  using Chunk = std::array<std::uint32_t, 4>;
  constexpr int kChunks = simt::kPanelRowBytes / sizeof(Chunk);
  for (int panel = 0; panel < kHeadDim / simt::kPanelCols; ++panel) {
    for (int i = first * kChunks + static_cast<int>(simt::lane_index()); i < rows * kChunks;
         i += 32) {
      simt::store_shared(tile + static_cast<std::uint32_t>((panel * rows * kChunks + i) * 16),
                         Chunk{});
    }
  }
  simt::async_proxy_fence();
}

/// Issues d[64 x kCols] = a * transpose(b) of tiles kHeadDim wide, their first rows at `a` and `b`.
template <int kHeadDim, int kCols>
SLIMPACK_DEVICE void multiply_tiles(std::array<float, kCols / 2>& d, std::uint32_t a,
                                    std::uint32_t a_panel_bytes, std::uint32_t b,
                                    std::uint32_t b_panel_bytes) {
  const std::uint64_t left = simt::matrix_descriptor(a, 0), right = simt::matrix_descriptor(b, 0);
  SLIMPACK_UNROLL
  for (std::uint32_t step = 0; step < kHeadDim / 16; ++step) {
    const std::uint32_t panel = step / 4, inside = step % 4 * 32;
    simt::multiply_shared<kCols>(d, simt::further(left, panel * a_panel_bytes + inside),
                                 simt::further(right, panel * b_panel_bytes + inside), step > 0);
  }
}
/// Issues d[64 x kHeadDim] += a[64 x 16 kSteps] * b, `b` the address of 16 kSteps rows.
template <int kHeadDim, std::size_t kSteps>
SLIMPACK_DEVICE void multiply_rows(std::array<float, kHeadDim / 2>& d,
                                   const std::array<std::array<std::uint32_t, 4>, kSteps>& a,
                                   std::uint32_t b) {
  const std::uint64_t right =
      simt::matrix_descriptor(b, std::uint32_t{16 * kSteps} * simt::kPanelRowBytes);
  SLIMPACK_UNROLL
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    simt::multiply_registers<kHeadDim>(
        d, a[step], simt::further(right, step * 16 * simt::kPanelRowBytes), true);
  }
}

/// Sums rounded to bf16 as the left factor of a product.
template <std::size_t kSums>
SLIMPACK_DEVICE void pack(std::array<std::array<std::uint32_t, 4>, kSums / 8>& packed,
                          const std::array<float, kSums>& sums) {
  SLIMPACK_UNROLL
  for (std::size_t i = 0; i < kSums / 2; ++i) {
    packed[i / 4][i % 4] = simt::pack_bf16(sums[2 * i], sums[2 * i + 1]);
  }
}

/// Largest and sum over the four lanes that share a row, in a fixed order.
SLIMPACK_DEVICE float quad_max(float value) {
  value = simt::maximum(value, simt::shuffle_xor(value, 1));
  return simt::maximum(value, simt::shuffle_xor(value, 2));
}
SLIMPACK_DEVICE float quad_sum(float value) {
  value += simt::shuffle_xor(value, 1);
  return value + simt::shuffle_xor(value, 2);
}

/// Writes sums[64 x kHeadDim], row j of a thread's two times factor[j], as bf16 to `rows` rows of
/// `row_stride` numbers, by way of 64 rows of shared memory at `staging`, which no product reads. A
/// warp uses its own 16 rows of these.
template <int kHeadDim>
SLIMPACK_DEVICE void store_rows(Bf16* to, std::int64_t row_stride, int rows,
                                const std::array<float, kHeadDim / 2>& sums,
                                const std::array<float, 2>& factor, std::uint32_t staging) {
  const unsigned lane = simt::lane_index();
  const unsigned warp_row = simt::thread_index() % kWarpgroup / 32 * 16;
  simt::sync_warp();  // what it has staged before is written
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kHeadDim / 4; ++i) {
    const unsigned row = warp_row + lane / 4 + i % 2 * 8, block = i / 2;
    // plus zero: no sign of zero tells which keys were skipped
    const std::uint32_t pair =
        simt::pack_bf16(sums[2 * i] * factor[i % 2] + 0.0F, sums[2 * i + 1] * factor[i % 2] + 0.0F);
    simt::store_shared(staging + block / 8 * simt::kBoxBytes +
                           simt::swizzled(row * 128 + block % 8 * 16 + lane % 4 * 4),
                       pair);
  }
  simt::sync_warp();
  constexpr unsigned kRowChunks = kHeadDim / 8;
  SLIMPACK_UNROLL
  for (unsigned i = lane; i < 16 * kRowChunks; i += 32) {
    const unsigned row = warp_row + i / kRowChunks, chunk = i % kRowChunks;
    if (static_cast<int>(row) >= rows) continue;
    simt::store_16(
        to + row * row_stride + chunk * 8,
        simt::load_shared<std::array<std::uint32_t, 4>>(
            staging + chunk / 8 * simt::kBoxBytes + simt::swizzled(row * 128 + chunk % 8 * 16)));
  }
}

}  // namespace slimpack::cuda::kernels::wgmma
