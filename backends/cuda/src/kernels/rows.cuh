// SPDX-License-Identifier: Apache-2.0
// Rows by a table: moving them, and summing those of one embedding.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"

namespace slimpack::cuda::kernels {

enum class RowMove : std::uint8_t {
  gather,   ///< to[r] = from[table[r]]
  scatter,  ///< to[table[r]] = from[r]
  add,      ///< to[table[r]] += from[r], fp32
};

struct MoveRows {
  void* to;
  const void* from;
  const std::int32_t* table;
  std::int64_t row_words;  ///< words of 16 bytes
};

/// A block a row, up to 4 words of 16 bytes a thread before it starts over.
[[nodiscard]] inline Launch move_rows_launch(std::int64_t rows, std::int64_t row_words) {
  return {checked_blocks(rows), threads_for(divide_up(row_words, 4), 256), 0};
}

template <RowMove kMove>
SLIMPACK_DEVICE void move_row(const MoveRows& work) {
  const std::int64_t row = simt::block_index(), other = work.table[row];
  auto* to =
      static_cast<Words*>(work.to) + (kMove == RowMove::gather ? row : other) * work.row_words;
  const auto* from = static_cast<const Words*>(work.from) +
                     (kMove == RowMove::gather ? other : row) * work.row_words;
  const unsigned step = simt::block_threads();
  for (std::int64_t begin = simt::thread_index(); begin < work.row_words; begin += 4 * step) {
    std::array<Words, 4> words{}, sums{};
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const std::int64_t k = begin + i * step;
      if (k >= work.row_words) continue;
      words[i] = simt::load_16(from + k);
      if constexpr (kMove == RowMove::add) sums[i] = simt::load_16(to + k);
    }
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const std::int64_t k = begin + i * step;
      if constexpr (kMove == RowMove::add) {
        SLIMPACK_UNROLL
        for (unsigned n = 0; n < 4; ++n) {
          words[i][n] = std::bit_cast<std::uint32_t>(std::bit_cast<float>(sums[i][n]) +
                                                     std::bit_cast<float>(words[i][n]));
        }
      }
      if (k < work.row_words) simt::store_16(to + k, words[i]);
    }
  }
}

struct LargestByRow {
  float* largest;
  const Bf16* rows;
  std::int64_t row_count;
  std::int64_t row_words;  ///< words of 16 bytes
};

/// A warp a row.
[[nodiscard]] inline Launch largest_by_row_launch(std::int64_t rows) {
  return {checked_blocks(divide_up(rows, 8)), 256, 0};
}

/// Magnitudes are compared as bits: those of a NaN are above those of infinity, and these above
/// those of any number.
SLIMPACK_DEVICE void largest_of_rows(const LargestByRow& work) {
  const std::int64_t row = std::int64_t{simt::block_index()} * 8 + simt::thread_index() / 32;
  if (row >= work.row_count) return;
  const Bf16* from = work.rows + row * work.row_words * 8;
  std::uint32_t largest = 0;
  for (std::int64_t i = simt::lane_index(); i < work.row_words; i += 32) {
    for (const std::uint32_t pair : simt::load_16(from + i * 8)) {
      const std::uint32_t low = (pair & 0x7fffU) << 16U, high = pair & 0x7fff0000U;
      const std::uint32_t larger = low > high ? low : high;
      largest = larger > largest ? larger : largest;
    }
  }
  SLIMPACK_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) {
    const std::uint32_t other = simt::shuffle_xor(largest, mask);
    largest = other > largest ? other : largest;
  }
  if (simt::lane_index() == 0) work.largest[row] = std::bit_cast<float>(largest);
}

struct EmbeddingBackward {
  float* dtable;
  const Bf16* dout;
  const std::int32_t* tokens;
  const std::int32_t* begin;
  const std::int32_t* rows;
  std::int64_t hidden;
  unsigned parts;  ///< blocks a token
};

struct EmbeddingLaunch {
  Launch launch;
  unsigned parts;
};
/// A warp takes 128 columns, four a lane; eight warps share the rows of a token.
[[nodiscard]] inline EmbeddingLaunch embedding_backward_launch(std::int64_t distinct,
                                                               std::int64_t hidden) {
  const std::int64_t parts = divide_up(hidden, 128);
  return {{checked_blocks(distinct * parts), 256, 8 * 128 * sizeof(float)},
          static_cast<unsigned>(parts)};
}

/// Token block_index() / parts: warp w sums every eighth row from the w-th on, then warps are added
/// in their order.
SLIMPACK_DEVICE void embedding_backward_token(const EmbeddingBackward& work) {
  auto* scratch = reinterpret_cast<float*>(simt::shared_memory());
  constexpr std::int32_t kWarps = 8;
  const unsigned token = simt::block_index() / work.parts, part = simt::block_index() % work.parts;
  const auto warp = static_cast<std::int32_t>(simt::thread_index() / 32);
  const unsigned lane = simt::lane_index();
  const std::int64_t col = std::int64_t{part} * 128 + 4 * lane;
  const bool inside = col < work.hidden;
  const std::int32_t begin = work.begin[token], end = work.begin[token + 1];
  Floats<4> sum{};
  if (inside) {
    const Bf16* dout = work.dout + col;
    std::int32_t k = begin + warp;
    for (; k + 3 * kWarps < end; k += 4 * kWarps) {
      std::array<Floats<4>, 4> values;
      SLIMPACK_UNROLL
      for (std::int32_t i = 0; i < 4; ++i) {
        values[static_cast<unsigned>(i)] = load<4>(dout + work.rows[k + i * kWarps] * work.hidden);
      }
      SLIMPACK_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        SLIMPACK_UNROLL
        for (unsigned n = 0; n < 4; ++n) sum[n] += values[i][n];
      }
    }
    for (; k < end; k += kWarps) {
      const Floats<4> values = load<4>(dout + work.rows[k] * work.hidden);
      SLIMPACK_UNROLL
      for (unsigned n = 0; n < 4; ++n) sum[n] += values[n];
    }
  }
  if (warp > 0) simt::store_shared(simt::shared_address(scratch + 128 * warp + 4 * lane), sum);
  simt::sync_block();
  if (warp > 0 || !inside) return;
  float* into = work.dtable + work.tokens[token] * work.hidden + col;
  Floats<4> total = load<4>(into);
  const std::int32_t count = end - begin;
  for (std::int32_t other = 1; other < kWarps && other < count; ++other) {
    const Floats<4> more = load<4>(scratch + 128 * other + 4 * lane);
    SLIMPACK_UNROLL
    for (unsigned n = 0; n < 4; ++n) sum[n] += more[n];
  }
  SLIMPACK_UNROLL
  for (unsigned n = 0; n < 4; ++n) total[n] += sum[n];
  store<4>(into, total);
}

}  // namespace slimpack::cuda::kernels
