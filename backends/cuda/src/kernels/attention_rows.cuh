// SPDX-License-Identifier: Apache-2.0
// What attention needs besides attention, each row and head by itself: delta, and how
// partial results are combined. kLanes threads share a row and head of 8 * kLanes numbers; kLanes =
// 1 is for any other length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_arguments.cuh"

namespace slimpack::cuda::kernels {

inline constexpr unsigned kRowThreads = 128;

namespace detail {

using Eight = std::array<std::uint32_t, 4>;  ///< numbers of bf16

SLIMPACK_DEVICE float low_of(std::uint32_t pair) {
  return std::bit_cast<float>(pair << 16U);
}
SLIMPACK_DEVICE float high_of(std::uint32_t pair) {
  return std::bit_cast<float>(pair & 0xffff'0000U);
}

/// The two states of a row, as factors of their outputs that sum to one, and the log-sum-exp of
/// both. A state without keys has the factor zero.
struct Mixture {
  float first, second, log_sum;
};
SLIMPACK_DEVICE Mixture mixture(float a, float b) {
  const float largest = simt::maximum(a, b);
  if (largest == -infinity()) return {0, 0, largest};
  const float first = simt::exp2_fast((a - largest) * kLog2E);
  const float second = simt::exp2_fast((b - largest) * kLog2E);
  const float sum = first + second;
  return {first / sum, second / sum, largest + simt::log2_fast(sum) * kLn2};
}
/// What a factor of zero multiplies counts for nothing, even where it is not a number.
SLIMPACK_DEVICE float mixed(const Mixture& of, float a, float b) {
  const float first = of.first == 0 ? 0.0F : of.first * a;
  return of.second == 0 ? first : simt::multiply_add(of.second, b, first);
}

}  // namespace detail

struct AttentionDelta {
  float* delta = nullptr;
  const Bf16* output = nullptr;
  const Bf16* doutput = nullptr;
  AttentionWork work;
  AttentionShape shape;
  int query_tile = 128;
};

/// kRowThreads threads; blocks are query tiles x heads.
template <int kLanes>
SLIMPACK_DEVICE void attention_delta(const AttentionDelta& at) {
  constexpr int kAtOnce = static_cast<int>(kRowThreads) / kLanes;
  const int heads = at.shape.heads, dim = at.shape.head_dim;
  const auto [tile_at, head] = tile_and_head(heads);
  const QueryTile tile = at.work.query_tiles.data[tile_at];
  const AttentionSegment& segment = at.work.segments.data[tile.segment];
  const int rows = smaller(at.query_tile, segment.rows - tile.first);
  const std::int64_t output_row = segment.output_row + std::int64_t{tile.first};
  const std::int64_t gradient_row = segment.gradient_row + std::int64_t{tile.first};
  const int lane = static_cast<int>(simt::thread_index()) % kLanes;
  // All threads go through all rounds, because the lanes of a row meet.
  for (int first = 0; first < rows; first += kAtOnce) {
    const int row = first + static_cast<int>(simt::thread_index()) / kLanes;
    const bool inside = row < rows;
    float sum = 0;
    if (inside) {
      const Bf16* output = at.output + head_at(output_row + row, head, heads, dim);
      const Bf16* doutput = at.doutput + head_at(gradient_row + row, head, heads, dim);
      if constexpr (kLanes == 1) {
        for (int i = 0; i < dim; ++i) {
          sum = simt::multiply_add(to_float(output[i]), to_float(doutput[i]), sum);
        }
      } else {
        const auto a = simt::load_vector<detail::Eight>(output + 8 * lane);
        const auto b = simt::load_vector<detail::Eight>(doutput + 8 * lane);
        SLIMPACK_UNROLL
        for (std::size_t i = 0; i < 4; ++i) {
          sum = simt::multiply_add(detail::low_of(a[i]), detail::low_of(b[i]), sum);
          sum = simt::multiply_add(detail::high_of(a[i]), detail::high_of(b[i]), sum);
        }
      }
    }
    SLIMPACK_UNROLL
    for (unsigned mask = 1; mask < kLanes; mask *= 2) sum += simt::shuffle_xor(sum, mask);
    if (inside && lane == 0) at.delta[head_at(gradient_row + row, head, heads, 1)] = sum;
  }
}

/// kRowThreads threads, any number of blocks; `items` are rows * heads.
template <int kLanes>
SLIMPACK_DEVICE void attention_merge(Bf16* output, float* log_sum, const Bf16* more,
                                     const float* more_log_sum, std::int64_t items, int dim) {
  constexpr std::int64_t kAtOnce = kRowThreads / kLanes;
  const int lane = static_cast<int>(simt::thread_index()) % kLanes;
  const std::int64_t mine = static_cast<std::int64_t>(simt::thread_index()) / kLanes;
  // All threads go through all rounds, because those of a warp meet.
  for (std::int64_t first = kAtOnce * simt::block_index(); first < items;
       first += kAtOnce * simt::grid_blocks()) {
    const std::int64_t item = first + mine;
    const bool inside = item < items;
    detail::Mixture mix{};
    if (inside) {
      mix = detail::mixture(log_sum[item], more_log_sum[item]);
      if constexpr (kLanes == 1) {
        for (std::int64_t i = item * dim; i < (item + 1) * dim; ++i) {
          output[i] = to_bf16(detail::mixed(mix, to_float(output[i]), to_float(more[i])));
        }
      } else {
        Bf16* place = output + item * (8 * kLanes) + 8 * lane;
        const auto a = simt::load_vector<detail::Eight>(place);
        const auto b = simt::load_vector<detail::Eight>(more + item * (8 * kLanes) + 8 * lane);
        detail::Eight both;
        SLIMPACK_UNROLL
        for (std::size_t i = 0; i < 4; ++i) {
          both[i] =
              simt::pack_bf16(detail::mixed(mix, detail::low_of(a[i]), detail::low_of(b[i])),
                              detail::mixed(mix, detail::high_of(a[i]), detail::high_of(b[i])));
        }
        simt::store_vector(place, both);
      }
    }
    simt::sync_warp();  // all lanes have read the log-sum-exp
    if (inside && lane == 0) log_sum[item] = mix.log_sum;
  }
}

}  // namespace slimpack::cuda::kernels
