// SPDX-License-Identifier: Apache-2.0
// What the mma.sync kernels of attention share: tiles in shared memory and products of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_arguments.cuh"

namespace slimpack::cuda::kernels {

inline constexpr unsigned kMmaThreads = 128;
inline constexpr int kMmaWarps = 4;

/// Sums of kBlocks x kColumns products of 16 x 8, as multiply_16x8x16 holds them.
template <std::size_t kBlocks, std::size_t kColumns>
using Sums = std::array<std::array<std::array<float, 4>, kColumns>, kBlocks>;
/// kBlocks x kSteps left operands of 16 x 16.
template <std::size_t kBlocks, std::size_t kSteps>
using Operands = std::array<std::array<std::array<std::uint32_t, 4>, kSteps>, kBlocks>;

/// Rows of kDim 16-bit numbers in shared memory. Chunk c (16 bytes) of row r lies in the place of
/// chunk c ^ (r % 8): eight rows at one chunk, what load_matrices reads at a time, then lie in
/// different banks. Tiles begin at multiples of 1024 bytes.
template <int kDim>
struct Rows {
  static constexpr unsigned kBytes = 2 * kDim;
  static constexpr unsigned kChunks = kDim / 8;
  static_assert(kDim % 64 == 0, "fewer than eight chunks cannot be exchanged by r % 8");

  SLIMPACK_DEVICE static std::uint32_t address(std::uint32_t tile, unsigned row, unsigned chunk) {
    return tile + row * kBytes + ((chunk ^ row % 8) << 4U);
  }
  /// What this lane brings to load_matrices for the 16 x 16 numbers at row `row` (a multiple of 8)
  /// and column 0; column 16 k is at this address ^ 32 k, row 16 i at + 16 i * kBytes.
  SLIMPACK_DEVICE static std::uint32_t of_lane(std::uint32_t tile, unsigned row) {
    const unsigned lane = simt::lane_index();
    return address(tile, row + lane % 16, lane / 16);
  }
};

/// Starts copies of kRows rows, `stride` numbers apart, by all threads of the block; rows from
/// `valid` on become zeros and are not read.
template <int kDim, int kRows>
SLIMPACK_DEVICE void load_rows(std::uint32_t tile, const Bf16* from, std::int64_t stride,
                               int valid) {
  constexpr unsigned kAtOnce = kMmaThreads / Rows<kDim>::kChunks;
  static_assert(kRows % kAtOnce == 0 && kAtOnce % 8 == 0);
  const unsigned chunk = simt::thread_index() % Rows<kDim>::kChunks;
  const unsigned first = simt::thread_index() / Rows<kDim>::kChunks;
  const Bf16* at = from + first * stride + 8 * chunk;
  const std::uint32_t to = Rows<kDim>::address(tile, first, chunk);
  SLIMPACK_UNROLL
  for (unsigned row = 0; row < kRows; row += kAtOnce) {
    const bool inside = static_cast<int>(first + row) < valid;
    simt::copy_async_16(to + row * Rows<kDim>::kBytes, inside ? at : from, inside);
    at += kAtOnce * stride;
  }
}

/// sums += left * transpose(right): rows of left against rows of right, both kDim long, at the
/// addresses of Rows::of_lane.
template <int kDim, std::size_t kBlocks, std::size_t kColumns>
SLIMPACK_DEVICE void multiply_rows(Sums<kBlocks, kColumns>& sums, std::uint32_t left,
                                   std::uint32_t right) {
  static_assert(kColumns % 2 == 0);
  SLIMPACK_UNROLL
  for (unsigned k = 0; k < kDim / 16; ++k) {
    Operands<kBlocks, 1> a;
    SLIMPACK_UNROLL
    for (std::size_t m = 0; m < kBlocks; ++m) {
      simt::load_matrices(
          a[m][0], (left ^ 32 * k) + static_cast<std::uint32_t>(m) * 16 * Rows<kDim>::kBytes);
    }
    SLIMPACK_UNROLL
    for (std::size_t n = 0; n < kColumns; n += 2) {
      std::array<std::uint32_t, 4> b;
      simt::load_matrices(
          b, (right ^ 32 * k) + static_cast<std::uint32_t>(n) * 8 * Rows<kDim>::kBytes);
      SLIMPACK_UNROLL
      for (std::size_t m = 0; m < kBlocks; ++m) {
        simt::multiply_16x8x16(sums[m][n], a[m][0], b[0], b[2]);
        simt::multiply_16x8x16(sums[m][n + 1], a[m][0], b[1], b[3]);
      }
    }
  }
}

/// sums += left * right: left in registers, right 16 kSteps rows of kDim numbers at the address of
/// Rows::of_lane.
template <int kDim, std::size_t kBlocks, std::size_t kSteps>
SLIMPACK_DEVICE void multiply_columns(Sums<kBlocks, kDim / 8>& sums,
                                      const Operands<kBlocks, kSteps>& left, std::uint32_t right) {
  SLIMPACK_UNROLL
  for (std::size_t k = 0; k < kSteps; ++k) {
    SLIMPACK_UNROLL
    for (std::size_t n = 0; n < kDim / 8; n += 2) {
      std::array<std::uint32_t, 4> b;
      simt::load_matrices_transposed(b,
                                     (right ^ 16 * static_cast<std::uint32_t>(n)) +
                                         static_cast<std::uint32_t>(k) * 16 * Rows<kDim>::kBytes);
      SLIMPACK_UNROLL
      for (std::size_t m = 0; m < kBlocks; ++m) {
        simt::multiply_16x8x16(sums[m][n], left[m][k], b[0], b[1]);
        simt::multiply_16x8x16(sums[m][n + 1], left[m][k], b[2], b[3]);
      }
    }
  }
}

/// Sums, rounded, as left operands of a product over their columns.
template <std::size_t kBlocks, std::size_t kColumns>
SLIMPACK_DEVICE Operands<kBlocks, kColumns / 2> to_operands(const Sums<kBlocks, kColumns>& sums) {
  static_assert(kColumns % 2 == 0);
  Operands<kBlocks, kColumns / 2> operands;
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t k = 0; k < kColumns / 2; ++k) {
      const auto& low = sums[m][2 * k];
      const auto& high = sums[m][2 * k + 1];
      operands[m][k] = {simt::pack_bf16(low[0], low[1]), simt::pack_bf16(low[2], low[3]),
                        simt::pack_bf16(high[0], high[1]), simt::pack_bf16(high[2], high[3])};
    }
  }
  return operands;
}

/// Writes a warp's sums, times a factor for each row, as bf16 rows `stride` numbers apart, by way
/// of `tile` in shared memory, whose rows from `row` on no other warp uses.
template <int kDim, std::size_t kBlocks, class Factor>
SLIMPACK_DEVICE void store_rows(Bf16* to, std::int64_t stride, int valid, std::uint32_t tile,
                                unsigned row, const Sums<kBlocks, kDim / 8>& sums,
                                const Factor& factor) {
  const unsigned lane = simt::lane_index();
  simt::sync_warp();
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t half = 0; half < 2; ++half) {
      const auto k = row + static_cast<unsigned>(16 * m + 8 * half) + lane / 4;
      const float scale = factor(m, half);
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < kDim / 8; ++n) {
        simt::store_shared(
            Rows<kDim>::address(tile, k, static_cast<unsigned>(n)) + 4 * (lane % 4),
            simt::pack_bf16(sums[m][n][2 * half] * scale, sums[m][n][2 * half + 1] * scale));
      }
    }
  }
  simt::sync_warp();
  constexpr unsigned kAtOnce = 32 / Rows<kDim>::kChunks;
  const unsigned chunk = lane % Rows<kDim>::kChunks;
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < 16 * kBlocks; i += kAtOnce) {
    const unsigned k = row + i + lane / Rows<kDim>::kChunks;
    const auto words =
        simt::load_shared<std::array<std::uint32_t, 4>>(Rows<kDim>::address(tile, k, chunk));
    if (static_cast<int>(k) < valid) simt::store_vector(to + k * stride + 8 * chunk, words);
  }
}

/// Adds a warp's sums, times `factor`, to rows of fp32. Loads go out together before the first
/// store: otherwise each would wait for the one before it.
template <int kDim, std::size_t kBlocks>
SLIMPACK_DEVICE void add_rows(float* to, std::int64_t stride, int valid, unsigned row,
                              const Sums<kBlocks, kDim / 8>& sums, float factor) {
  using Pair = std::array<float, 2>;
  const unsigned lane = simt::lane_index();
  SLIMPACK_UNROLL
  for (std::size_t m = 0; m < kBlocks; ++m) {
    SLIMPACK_UNROLL
    for (std::size_t half = 0; half < 2; ++half) {
      const auto i = row + static_cast<unsigned>(16 * m + 8 * half) + lane / 4;
      if (static_cast<int>(i) >= valid) continue;
      float* place = to + i * stride + 2 * (lane % 4);
      std::array<Pair, kDim / 8> before;
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < kDim / 8; ++n) {
        before[n] = simt::load_vector<Pair>(place + 8 * n);
      }
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < kDim / 8; ++n) {
        simt::store_vector(
            place + 8 * n,
            Pair{simt::multiply_add(sums[m][n][2 * half], factor, before[n][0]),
                 simt::multiply_add(sums[m][n][2 * half + 1], factor, before[n][1])});
      }
    }
  }
}

}  // namespace slimpack::cuda::kernels
