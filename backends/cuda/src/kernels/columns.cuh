// SPDX-License-Identifier: Apache-2.0
// Columns of rows to and from the parts of members.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/columns.hpp"

namespace slimpack::cuda::kernels {

/// A word is what a thread moves at a time: 16 bytes, or an element where not all addresses are
/// multiples of 16.
template <class Word>
struct MoveColumns {
  Word* to;
  const Word* from;
  const std::int32_t* table;  ///< null: rows in order
  std::int64_t row_words;     ///< of all members
  std::int64_t member_words;  ///< of a member's columns
  std::int64_t head_words;    ///< of a head's
  std::int64_t first_words;   ///< of a member's columns, before the first that moves
  std::int64_t count;         ///< of heads of a member that move
  std::int64_t stride_words, head_stride_words;  ///< between parts of members, and of heads
  std::int64_t moved_words;                      ///< of a row
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
  const auto head_words = static_cast<unsigned>(work.head_words);
  const auto count = static_cast<unsigned>(work.count);
  const unsigned step = simt::block_threads();
  const auto at = [&](unsigned k, bool in_whole) {
    const unsigned head = k / head_words, word = k - head * head_words;
    const unsigned member = head / count, i = head - member * count;
    if (in_whole) {
      return whole + member * work.member_words + work.first_words + i * work.head_words + word;
    }
    return member * work.stride_words + i * work.head_stride_words + row * work.head_words + word;
  };
  for (unsigned begin = simt::thread_index(); begin < work.moved_words; begin += 4 * step) {
    std::array<Word, 4> words{};
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned k = begin + i * step;
      if (k < work.moved_words) words[i] = load_word(work.from + at(k, kSplit));
    }
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned k = begin + i * step;
      if (k < work.moved_words) store_word(work.to + at(k, !kSplit), words[i]);
    }
  }
}

struct AddColumns {
  float* whole;
  const Bf16* parts;
  std::int64_t cols;                 ///< of all members
  std::int64_t member_cols;          ///< of a member
  std::int64_t head_cols;            ///< of a head
  std::int64_t first_cols;           ///< of a member, before the first that moves
  std::int64_t count;                ///< of heads of a member that move
  std::int64_t stride, head_stride;  ///< between parts of members, and of heads
  std::int64_t moved_cols;           ///< of a row
};

/// A block a row, eight numbers a thread before it starts over.
[[nodiscard]] inline Launch add_columns_launch(std::int64_t rows, std::int64_t cols) {
  return {checked_blocks(rows), threads_for(divide_up(cols, 8), 256), 0};
}

SLIMPACK_DEVICE void add_columns_of_row(const AddColumns& work) {
  const std::int64_t row = simt::block_index();
  const auto head_cols = static_cast<unsigned>(work.head_cols);
  const auto count = static_cast<unsigned>(work.count);
  for (unsigned k = 8 * simt::thread_index(); k < work.moved_cols; k += 8 * simt::block_threads()) {
    const unsigned head = k / head_cols, col = k - head * head_cols;
    const unsigned member = head / count, i = head - member * count;
    const Floats<8> more = load<8>(work.parts + member * work.stride + i * work.head_stride +
                                   row * work.head_cols + col);
    float* const to = work.whole + row * work.cols + member * work.member_cols + work.first_cols +
                      i * work.head_cols + col;
    Floats<8> sums = load<8>(to);
    SLIMPACK_UNROLL
    for (unsigned n = 0; n < 8; ++n) sums[n] += more[n];
    store<8>(to, sums);
  }
}

/// Rows of keys and values in a message, and in a memory by heads (KeyRow).
template <class To, class From>
struct MoveKeys {
  To* to;
  const From* from;
  const KeyRow* table;
  std::int64_t head_dim;
  std::int64_t heads, first, count;
  std::int64_t head_stride, value;
  std::int64_t layer;
};

/// From the message to the memory if `kStore`, else the other way, rounded if need be. A block a
/// row, as add_columns_launch of all that moves.
template <bool kStore, class To, class From>
SLIMPACK_DEVICE void move_keys_of_row(const MoveKeys<To, From>& work) {
  const std::int64_t row = simt::block_index();
  const KeyRow place = work.table[row];
  if (place.at < 0) return;
  const auto dim = static_cast<unsigned>(work.head_dim), count = static_cast<unsigned>(work.count);
  for (unsigned k = 8 * simt::thread_index(); k < 2 * count * dim; k += 8 * simt::block_threads()) {
    const unsigned head = k / dim, col = k - head * dim;
    const unsigned value = head / count, i = head - value * count;
    const std::int64_t in_message =
        i * work.head_stride + value * work.value + row * work.head_dim + col;
    const std::int64_t in_memory =
        place.at + col +
        (work.layer * place.layer_rows + (value * work.heads + work.first + i) * place.head_rows) *
            work.head_dim;
    store<8>(work.to + (kStore ? in_memory : in_message),
             load<8>(work.from + (kStore ? in_message : in_memory)));
  }
}

}  // namespace slimpack::cuda::kernels
