// SPDX-License-Identifier: Apache-2.0
// Rotary positions: a block makes the angles of a few rows once and turns all their heads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/functors.hpp"
#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/rope.hpp"

namespace slimpack::cuda::kernels {

inline constexpr unsigned kRopeRows = 4;  // a block
inline constexpr std::int32_t kLargestRopeHead = 512;

struct RopeForward {
  Bf16* query;
  Bf16* key;
  Bf16* value;
  const Bf16* qkv;
  const RopeRow* rows;
  const std::uint64_t* frequencies;
  RopeShape shape;
};

struct RopeBackward {
  Bf16* dqkv;
  const Bf16* dquery;
  const float* dkey;
  const float* dvalue;
  const RopeRow* rows;
  const std::uint64_t* frequencies;
  RopeShape shape;
};

[[nodiscard]] inline Launch rope_launch(const RopeShape& shape) {
  const auto half = static_cast<std::size_t>(shape.head_dim / 2);
  return {checked_blocks(divide_up(shape.rows, kRopeRows)), 256,
          kRopeRows * (2 * half * sizeof(float) + sizeof(RopeRow))};
}

/// Shared memory of a block. Of each row cosines and sines lie in four planes, elements 8 c to
/// 8 c + 3 of all c first, then 8 c + 4 to 8 c + 7: lanes with consecutive c read without conflict.
struct RopeAngles {
  float* turns;
  RopeRow* rows;
  unsigned half;  ///< head_dim / 2

  [[nodiscard]] SLIMPACK_DEVICE float* plane(unsigned row, unsigned i) const {
    return turns + row * 2 * half + i * (half / 2);
  }
};

/// Fills them for `count` rows from `first` on; all threads of the block.
SLIMPACK_DEVICE RopeAngles rope_angles(const RopeRow* rows, const std::uint64_t* frequencies,
                                       std::int64_t first, unsigned count, unsigned half) {
  RopeAngles angles{};
  angles.turns = reinterpret_cast<float*>(simt::shared_memory());
  angles.rows = reinterpret_cast<RopeRow*>(angles.turns + std::size_t{kRopeRows} * 2 * half);
  angles.half = half;
  for (unsigned k = simt::thread_index(); k < count * half; k += simt::block_threads()) {
    const unsigned row = k / half, i = k % half;
    const Turn turn = turn_at(rows[first + row].position, frequencies[i]);
    const unsigned high = i % 8 / 4, place = i / 8 * 4 + i % 4;
    angles.plane(row, high)[place] = turn.cosine;
    angles.plane(row, 2 + high)[place] = turn.sine;
  }
  if (simt::thread_index() < count) {
    angles.rows[simt::thread_index()] = rows[first + simt::thread_index()];
  }
  simt::sync_block();
  return angles;
}

/// Turns elements 8 chunk.. of the lower half with those of the upper; back if `kInverse`.
template <bool kInverse>
SLIMPACK_DEVICE void turn_chunk(Floats<8>& low, Floats<8>& high, const RopeAngles& angles,
                                unsigned row, unsigned chunk) {
  SLIMPACK_UNROLL
  for (unsigned part = 0; part < 2; ++part) {
    const Floats<4> cosine = load<4>(angles.plane(row, part) + 4 * chunk);
    const Floats<4> sine = load<4>(angles.plane(row, 2 + part) + 4 * chunk);
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const float a = low[4 * part + i], b = high[4 * part + i];
      const float s = kInverse ? -sine[i] : sine[i];
      low[4 * part + i] = a * cosine[i] - b * s;
      high[4 * part + i] = b * cosine[i] + a * s;
    }
  }
}

/// The part of a block's work that one thread does at a time.
struct RopeItem {
  unsigned row, head, chunk;
};
/// Chunks lie together, then heads, then rows.
SLIMPACK_DEVICE RopeItem rope_item(unsigned i, unsigned heads, unsigned chunks) {
  const unsigned rest = i / chunks;
  return {rest / heads, rest % heads, i % chunks};
}

/// Rows kRopeRows * block_index().. of the pack.
SLIMPACK_DEVICE void rope_forward_rows_of_block(const RopeForward& work) {
  const std::int64_t first = static_cast<std::int64_t>(simt::block_index()) * kRopeRows;
  const std::int64_t left = work.shape.rows - first;
  const unsigned count = left < kRopeRows ? static_cast<unsigned>(left) : kRopeRows;
  const auto dim = static_cast<unsigned>(work.shape.head_dim), half = dim / 2;
  const auto heads = static_cast<unsigned>(work.shape.heads);
  const auto kv_heads = static_cast<unsigned>(work.shape.kv_heads);
  const unsigned width = (heads + 2 * kv_heads) * dim;
  const RopeAngles angles = rope_angles(work.rows, work.frequencies, first, count, half);
  const Bf16* qkv = work.qkv + first * width;
  for (unsigned i = simt::thread_index(); i < count * (heads + kv_heads) * (half / 8);
       i += simt::block_threads()) {
    const RopeItem item = rope_item(i, heads + kv_heads, half / 8);
    const Bf16* from = qkv + item.row * width + item.head * dim + 8 * item.chunk;
    Floats<8> low = load<8>(from), high = load<8>(from + half);
    turn_chunk<false>(low, high, angles, item.row, item.chunk);
    const RopeRow& place = angles.rows[item.row];
    Bf16* to =
        item.head < heads
            ? work.query + (static_cast<std::int64_t>(place.query_row) * heads + item.head) * dim
            : work.key +
                  (static_cast<std::int64_t>(place.key_row) * kv_heads + item.head - heads) * dim;
    store<8>(to + 8 * item.chunk, low);
    store<8>(to + 8 * item.chunk + half, high);
  }
  const unsigned value_chunks = kv_heads * dim / 8;
  for (unsigned i = simt::thread_index(); i < count * value_chunks; i += simt::block_threads()) {
    const unsigned row = i / value_chunks, chunk = i % value_chunks;
    const Words words = simt::load_16(qkv + row * width + (heads + kv_heads) * dim + 8 * chunk);
    simt::store_16(work.value +
                       static_cast<std::int64_t>(angles.rows[row].value_row) * kv_heads * dim +
                       8 * chunk,
                   words);
  }
}

/// The same back.
SLIMPACK_DEVICE void rope_backward_rows_of_block(const RopeBackward& work) {
  const std::int64_t first = static_cast<std::int64_t>(simt::block_index()) * kRopeRows;
  const std::int64_t left = work.shape.rows - first;
  const unsigned count = left < kRopeRows ? static_cast<unsigned>(left) : kRopeRows;
  const auto dim = static_cast<unsigned>(work.shape.head_dim), half = dim / 2;
  const auto heads = static_cast<unsigned>(work.shape.heads);
  const auto kv_heads = static_cast<unsigned>(work.shape.kv_heads);
  const unsigned width = (heads + 2 * kv_heads) * dim;
  const RopeAngles angles = rope_angles(work.rows, work.frequencies, first, count, half);
  Bf16* dqkv = work.dqkv + first * width;
  for (unsigned i = simt::thread_index(); i < count * (heads + kv_heads) * (half / 8);
       i += simt::block_threads()) {
    const RopeItem item = rope_item(i, heads + kv_heads, half / 8);
    const RopeRow& place = angles.rows[item.row];
    Floats<8> low, high;
    if (item.head < heads) {
      const Bf16* from = work.dquery +
                         (static_cast<std::int64_t>(place.query_row) * heads + item.head) * dim +
                         8 * item.chunk;
      low = load<8>(from), high = load<8>(from + half);
    } else {
      const float* from =
          work.dkey +
          (static_cast<std::int64_t>(place.key_row) * kv_heads + item.head - heads) * dim +
          8 * item.chunk;
      low = load<8>(from), high = load<8>(from + half);
    }
    turn_chunk<true>(low, high, angles, item.row, item.chunk);
    Bf16* to = dqkv + item.row * width + item.head * dim + 8 * item.chunk;
    store<8>(to, low);
    store<8>(to + half, high);
  }
  const unsigned value_chunks = kv_heads * dim / 8;
  for (unsigned i = simt::thread_index(); i < count * value_chunks; i += simt::block_threads()) {
    const unsigned row = i / value_chunks, chunk = i % value_chunks;
    const Floats<8> values =
        load<8>(work.dvalue +
                static_cast<std::int64_t>(angles.rows[row].value_row) * kv_heads * dim + 8 * chunk);
    store<8>(dqkv + row * width + (heads + kv_heads) * dim + 8 * chunk, values);
  }
}

}  // namespace slimpack::cuda::kernels
