// SPDX-License-Identifier: Apache-2.0
// Columns of rows to and from the parts of members.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"

namespace slimpack::cuda::kernels {

/// A word is what a thread moves at a time: 16 bytes, or an element where not all addresses are
/// multiples of 16.
template <class Word>
struct MoveColumns {
  Word* to;
  const Word* from;
  const std::int32_t* table;  ///< null: rows in order
  std::int64_t row_words;     ///< of all members
  std::int64_t part_words;    ///< of a member
  std::int64_t stride_words;  ///< from a member's part to that of the next
};

/// A block a row, up to 4 words a thread before it starts over.
[[nodiscard]] inline Launch columns_launch(std::int64_t rows, std::int64_t row_words) {
  return {checked_blocks(rows), threads_for(divide_up(row_words, 4), 256), 0};
}

template <class Word>
SLIMPACK_DEVICE Word load_word(const Word* from) {
  if constexpr (std::is_same_v<Word, Words>) {
    return simt::load_16(from);
  } else {
    return *from;
  }
}
template <class Word>
SLIMPACK_DEVICE void store_word(Word* to, const Word& word) {
  if constexpr (std::is_same_v<Word, Words>) {
    simt::store_16(to, word);
  } else {
    *to = word;
  }
}

/// From whole rows to parts if `kSplit`, else the other way.
template <bool kSplit, class Word>
SLIMPACK_DEVICE void move_columns(const MoveColumns<Word>& work) {
  const std::int64_t row = simt::block_index();
  const std::int64_t whole =
      (work.table == nullptr ? row : std::int64_t{work.table[row]}) * work.row_words;
  const auto part_words = static_cast<unsigned>(work.part_words);
  const unsigned step = simt::block_threads();
  const auto part = [&](unsigned k) {
    const unsigned member = k / part_words;
    return member * work.stride_words + row * work.part_words + (k - member * part_words);
  };
  for (unsigned begin = simt::thread_index(); begin < work.row_words; begin += 4 * step) {
    std::array<Word, 4> words{};
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned k = begin + i * step;
      if (k < work.row_words) words[i] = load_word(work.from + (kSplit ? whole + k : part(k)));
    }
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned k = begin + i * step;
      if (k < work.row_words) store_word(work.to + (kSplit ? part(k) : whole + k), words[i]);
    }
  }
}

struct AddColumns {
  float* whole;
  const Bf16* parts;
  std::int64_t cols;       ///< of all members
  std::int64_t part_cols;  ///< of a member
  std::int64_t stride;     ///< from a member's part to that of the next
};

/// A block a row, eight numbers a thread before it starts over.
[[nodiscard]] inline Launch add_columns_launch(std::int64_t rows, std::int64_t cols) {
  return {checked_blocks(rows), threads_for(divide_up(cols, 8), 256), 0};
}

SLIMPACK_DEVICE void add_columns_of_row(const AddColumns& work) {
  const std::int64_t row = simt::block_index();
  const auto part_cols = static_cast<unsigned>(work.part_cols);
  for (unsigned col = 8 * simt::thread_index(); col < work.cols; col += 8 * simt::block_threads()) {
    const unsigned member = col / part_cols;
    const Floats<8> more = load<8>(work.parts + member * work.stride + row * work.part_cols +
                                   (col - member * part_cols));
    float* const to = work.whole + row * work.cols + col;
    Floats<8> sums = load<8>(to);
    SLIMPACK_UNROLL
    for (unsigned n = 0; n < 8; ++n) sums[n] += more[n];
    store<8>(to, sums);
  }
}

struct GatherConverted {
  Bf16* to;
  const float* from;
  const std::int32_t* table;
  std::int64_t cols;
};

/// A block a row, as add_columns_launch.
SLIMPACK_DEVICE void gather_converted_row(const GatherConverted& work) {
  const std::int64_t row = simt::block_index();
  const float* const from = work.from + work.table[row] * work.cols;
  Bf16* const to = work.to + row * work.cols;
  for (std::int64_t col = 8 * simt::thread_index(); col < work.cols;
       col += 8 * simt::block_threads()) {
    store<8>(to + col, load<8>(from + col));
  }
}

}  // namespace slimpack::cuda::kernels
