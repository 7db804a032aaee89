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
  std::int32_t distinct;  ///< tokens
  unsigned parts;         ///< blocks that share the columns of eight tokens
};

/// Tokens of a block, one a warp; a warp takes 256 columns, eight a lane.
inline constexpr std::int32_t kEmbeddingTokens = 8;
/// Rows that a warp sums alone. Most tokens of a pack have one or two; what all eight warps share
/// waits for all of them.
inline constexpr std::int32_t kEmbeddingAlone = 64;

struct EmbeddingLaunch {
  Launch launch;
  unsigned parts;
};
[[nodiscard]] inline EmbeddingLaunch embedding_backward_launch(std::int64_t distinct,
                                                               std::int64_t hidden) {
  const std::int64_t parts = divide_up(hidden, 256);
  return {{checked_blocks(divide_up(distinct, kEmbeddingTokens) * parts), 32 * kEmbeddingTokens,
           kEmbeddingTokens * 256 * sizeof(float)},
          static_cast<unsigned>(parts)};
}

/// The sum of rows first, first + step and so on below `end` of the table, in their order.
SLIMPACK_DEVICE Floats<8> sum_of_rows(const Bf16* dout, const std::int32_t* rows,
                                      std::int64_t hidden, std::int32_t first, std::int32_t end,
                                      std::int32_t step) {
  Floats<8> sum{};
  std::int32_t k = first;
  for (; k + 3 * step < end; k += 4 * step) {
    std::array<Words, 4> words;
    SLIMPACK_UNROLL
    for (std::int32_t i = 0; i < 4; ++i) {
      words[static_cast<unsigned>(i)] = simt::load_16(dout + rows[k + i * step] * hidden);
    }
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const Floats<8> values = from_bf16(words[i]);
      SLIMPACK_UNROLL
      for (unsigned n = 0; n < 8; ++n) sum[n] += values[n];
    }
  }
  for (; k < end; k += step) {
    const Floats<8> values = load<8>(dout + rows[k] * hidden);
    SLIMPACK_UNROLL
    for (unsigned n = 0; n < 8; ++n) sum[n] += values[n];
  }
  return sum;
}

SLIMPACK_DEVICE void add_and_store(float* into, Floats<8> before, const Floats<8>& sum) {
  SLIMPACK_UNROLL
  for (unsigned n = 0; n < 8; ++n) before[n] += sum[n];
  store<8>(into, before);
}

/// Eight tokens from 8 * (block_index() / parts) on: warp w sums all rows of the w-th where they
/// are few, in their order; of a token with more, warp w sums every eighth row from the w-th on,
/// then warps are added in their order.
SLIMPACK_DEVICE void embedding_backward_tokens(const EmbeddingBackward& work) {
  auto* scratch = reinterpret_cast<float*>(simt::shared_memory());
  const auto first = static_cast<std::int32_t>(simt::block_index() / work.parts) * kEmbeddingTokens;
  const unsigned part = simt::block_index() % work.parts;
  const auto warp = static_cast<std::int32_t>(simt::thread_index() / 32);
  const std::int64_t col = std::int64_t{part} * 256 + 8 * simt::lane_index();
  const bool inside = col < work.hidden;
  const Bf16* dout = work.dout + col;
  const auto into = [&](std::int32_t token) {
    return work.dtable + work.tokens[token] * work.hidden + col;
  };
  if (first + warp < work.distinct && inside) {
    const std::int32_t begin = work.begin[first + warp], end = work.begin[first + warp + 1];
    if (end - begin <= kEmbeddingAlone) {
      float* const to = into(first + warp);
      const Floats<8> before = load<8>(to);  // on its way while rows are
      add_and_store(to, before, sum_of_rows(dout, work.rows, work.hidden, begin, end, 1));
    }
  }
  for (std::int32_t token = first; token < first + kEmbeddingTokens; ++token) {
    if (token >= work.distinct) return;
    const std::int32_t begin = work.begin[token], end = work.begin[token + 1];
    if (end - begin <= kEmbeddingAlone) continue;
    Floats<8> sum{};
    if (inside) {
      sum = sum_of_rows(dout, work.rows, work.hidden, begin + warp, end, kEmbeddingTokens);
    }
    float* const mine = scratch + 8 * simt::thread_index();
    simt::sync_block();  // what was there has been read
    SLIMPACK_UNROLL
    for (unsigned half = 0; half < 8; half += 4) {
      simt::store_shared(simt::shared_address(mine + half),
                         Floats<4>{sum[half], sum[half + 1], sum[half + 2], sum[half + 3]});
    }
    simt::sync_block();
    if (warp > 0 || !inside) continue;
    for (std::int32_t other = 1; other < kEmbeddingTokens; ++other) {
      const Floats<8> more = load<8>(mine + 256 * other);
      SLIMPACK_UNROLL
      for (unsigned n = 0; n < 8; ++n) sum[n] += more[n];
    }
    add_and_store(into(token), load<8>(into(token)), sum);
  }
}

}  // namespace slimpack::cuda::kernels
