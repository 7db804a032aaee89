// SPDX-License-Identifier: Apache-2.0
// Consecutive numbers of a row, moved by single accesses and held as fp32; sums over a warp and a
// block.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "simt/simt.hpp"
#include "slimpack_cuda/bf16.hpp"

namespace slimpack::cuda::kernels {

/// Eight numbers in bf16 or four in fp32, as they lie in memory.
using Words = std::array<std::uint32_t, 4>;

template <std::size_t kCount>
using Floats = std::array<float, kCount>;

template <class Element>
concept StoredNumber = std::is_same_v<Element, Bf16> || std::is_same_v<Element, float>;

template <std::size_t kWords>
SLIMPACK_DEVICE Floats<2 * kWords> from_bf16(const std::array<std::uint32_t, kWords>& words) {
  Floats<2 * kWords> values;
  SLIMPACK_UNROLL
  for (std::size_t i = 0; i < kWords; ++i) {
    values[2 * i] = std::bit_cast<float>(words[i] << 16U);
    values[2 * i + 1] = std::bit_cast<float>(words[i] & 0xffff0000U);
  }
  return values;
}

template <std::size_t kCount>
SLIMPACK_DEVICE std::array<std::uint32_t, kCount / 2> as_bf16(const Floats<kCount>& values) {
  std::array<std::uint32_t, kCount / 2> words;
  SLIMPACK_UNROLL
  for (std::size_t i = 0; i < kCount / 2; ++i) {
    words[i] = simt::pack_bf16(values[2 * i], values[2 * i + 1]);
  }
  return words;
}

/// kCount numbers at an address aligned to them, or to 16 bytes where they are more.
template <std::size_t kCount, StoredNumber Element>
SLIMPACK_DEVICE Floats<kCount> load(const Element* from) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    static_assert(kCount == 4 || kCount == 8);
    if constexpr (kCount == 8) {
      return from_bf16(simt::load_16(from));
    } else {
      return from_bf16(simt::load_8(from));
    }
  } else {
    static_assert(kCount % 4 == 0);
    Floats<kCount> values;
    SLIMPACK_UNROLL
    for (std::size_t part = 0; part < kCount; part += 4) {
      const Words words = simt::load_16(from + part);
      SLIMPACK_UNROLL
      for (std::size_t i = 0; i < 4; ++i) values[part + i] = std::bit_cast<float>(words[i]);
    }
    return values;
  }
}

template <std::size_t kCount, StoredNumber Element>
SLIMPACK_DEVICE void store(Element* to, const Floats<kCount>& values) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    static_assert(kCount == 4 || kCount == 8);
    if constexpr (kCount == 8) {
      simt::store_16(to, as_bf16(values));
    } else {
      simt::store_8(to, as_bf16(values));
    }
  } else {
    static_assert(kCount % 4 == 0);
    SLIMPACK_UNROLL
    for (std::size_t part = 0; part < kCount; part += 4) {
      Words words;
      SLIMPACK_UNROLL
      for (std::size_t i = 0; i < 4; ++i) {
        words[i] = std::bit_cast<std::uint32_t>(values[part + i]);
      }
      simt::store_16(to + part, words);
    }
  }
}

SLIMPACK_DEVICE float load_one(const Bf16* from) {
  return to_float(*from);
}
SLIMPACK_DEVICE float load_one(const float* from) {
  return *from;
}
SLIMPACK_DEVICE void store_one(Bf16* to, float value) {
  to->bits = static_cast<std::uint16_t>(simt::pack_bf16(value, 0.0F) & 0xffffU);
}
SLIMPACK_DEVICE void store_one(float* to, float value) {
  *to = value;
}

/// The sum over a warp, the same bits in every lane.
template <class Number>
SLIMPACK_DEVICE Number warp_sum(Number value) {
  SLIMPACK_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) value += simt::shuffle_xor(value, mask);
  return value;
}

/// The sum over a block of whole warps, the same bits in every thread. `scratch` is shared, one
/// number a warp. Who calls it again gives other scratch, or first synchronizes the block.
template <class Number>
SLIMPACK_DEVICE Number block_sum(Number value, Number* scratch) {
  value = warp_sum(value);
  const unsigned warps = simt::block_threads() / 32;
  if (warps == 1) return value;
  const unsigned lane = simt::lane_index();
  if (lane == 0) scratch[simt::thread_index() / 32] = value;
  simt::sync_block();
  return warp_sum(lane < warps ? scratch[lane] : Number{0});
}

}  // namespace slimpack::cuda::kernels
