// SPDX-License-Identifier: Apache-2.0
// What attention kernels are given, and how they find rows by the tables.
#pragma once

#include <bit>
#include <cstdint>

#include "simt/simt.hpp"
#include "slimpack_cuda/attention.hpp"

namespace slimpack::cuda::kernels {

struct AttentionInputs {
  const Bf16* query = nullptr;
  const Bf16* key = nullptr;
  const Bf16* value = nullptr;
  AttentionWork work;
  AttentionShape shape;
  float scale = 1;  ///< of scores
};

struct AttentionForward {
  AttentionInputs in;
  Bf16* output = nullptr;
  float* log_sum = nullptr;
};

/// Of dquery and dquery_sum one is null: either gradients are written, or added in fp32.
struct AttentionBackward {
  AttentionInputs in;
  const float* log_sum = nullptr;
  const float* delta = nullptr;
  const Bf16* doutput = nullptr;
  Bf16* dquery = nullptr;
  float* dquery_sum = nullptr;
  float* dkey = nullptr;
  float* dvalue = nullptr;
};

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

SLIMPACK_DEVICE float infinity() {
  return std::bit_cast<float>(0x7f80'0000U);
}

// By value: the standard library's take references, and constants have no address on the device.
SLIMPACK_DEVICE int smaller(int a, int b) {
  return b < a ? b : a;
}
SLIMPACK_DEVICE int larger(int a, int b) {
  return a < b ? b : a;
}

/// Natural logarithms to base 2, and the stand-in for a row without keys: its weights become zero.
SLIMPACK_DEVICE float log_sum_to_base_2(float log_sum) {
  return log_sum == -infinity() ? infinity() : log_sum * kLog2E;
}

/// Where a head's part of a row begins.
SLIMPACK_DEVICE std::int64_t head_at(std::int64_t row, int head, int heads, int head_dim) {
  return (row * heads + head) * head_dim;
}

/// The item of work of a block when blocks count heads fastest, so that the heads that share keys
/// run at about the same time and find them in the cache.
struct TileAndHead {
  unsigned tile;
  int head;
};
SLIMPACK_DEVICE TileAndHead tile_and_head(int heads) {
  const auto count = static_cast<unsigned>(heads);
  return {simt::block_index() / count, static_cast<int>(simt::block_index() % count)};
}

/// Where a key of a segment stands. Those after it in its page stand next to it.
struct KeyPlace {
  int position = INT32_MAX;  ///< in the sample; beyond all where the key is not listed
  int row = 0;               ///< of keys and values
};
SLIMPACK_DEVICE KeyPlace key_place(const AttentionInputs& in, int first_page, int keys, int key) {
  if (key >= keys) return {};
  const int inside = key % in.shape.page_tokens;
  const KeyPage page = in.work.pages.data[first_page + key / in.shape.page_tokens];
  return {page.position + inside, page.row + inside};
}

}  // namespace slimpack::cuda::kernels
