// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over a shard of the vocabulary: a block a row, exponentials made anew in each pass.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "kernels/functors.hpp"
#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/cross_entropy.hpp"

namespace slimpack::cuda::kernels {

inline constexpr unsigned kLogitThreads = 512;  // at most
inline constexpr unsigned kLogitsAtOnce = 4;    // vectors of eight that a thread loads together

struct LogitSums {
  LogitSum* sums;
  const Bf16* logits;
  const std::int32_t* targets;
  LogitShape shape;
};

struct LogitGradients {
  Bf16* logits;
  const LogitSum* sums;
  const std::int32_t* targets;
  LogitShape shape;
  float scale;
};

[[nodiscard]] inline Launch logit_launch(const LogitShape& shape) {
  return {checked_blocks(shape.rows),
          threads_for(divide_up(shape.size, 8 * kLogitsAtOnce), kLogitThreads),
          kLogitThreads / 32 * sizeof(RunningSum)};
}

/// Takes eight logits into `sum`.
SLIMPACK_DEVICE void add_logits(RunningSum& sum, const Floats<8>& logits) {
  float maximum = sum.maximum;
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < 8; ++i) maximum = std::fmax(maximum, logits[i]);
  const float base = exponent_base(maximum);
  float more = 0;
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < 8; ++i) more += exp_fast(logits[i] - base);
  sum.sum = sum.sum * exp_fast(sum.maximum - base) + more;
  sum.maximum = maximum;
}

/// The sum over the block, in thread 0.
SLIMPACK_DEVICE RunningSum merge_in_block(RunningSum sum, RunningSum* scratch) {
  const auto merge_warp = [](RunningSum mine) {
    SLIMPACK_UNROLL
    for (unsigned mask = 16; mask > 0; mask /= 2) {
      const RunningSum other{simt::shuffle_xor(mine.maximum, mask),
                             simt::shuffle_xor(mine.sum, mask)};
      mine = merge(mine, other);
    }
    return mine;
  };
  sum = merge_warp(sum);
  const unsigned warps = simt::block_threads() / 32, lane = simt::lane_index();
  if (warps == 1) return sum;
  if (lane == 0) scratch[simt::thread_index() / 32] = sum;
  simt::sync_block();
  if (simt::thread_index() >= 32) return sum;
  return merge_warp(lane < warps ? scratch[lane] : RunningSum{});
}

/// Row block_index().
SLIMPACK_DEVICE void logit_sum_of_row(const LogitSums& work) {
  constexpr std::uint32_t kTwoInfinities = 0xff80ff80U;  // negative: they add nothing
  const std::int64_t row = simt::block_index();
  const Bf16* logits = work.logits + row * work.shape.stride;
  const std::int64_t chunks = work.shape.size / 8;
  const unsigned step = simt::block_threads();
  RunningSum sum;
  for (std::int64_t first = simt::thread_index(); first < chunks; first += kLogitsAtOnce * step) {
    std::array<Words, kLogitsAtOnce> words;
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kLogitsAtOnce; ++i) {
      const std::int64_t chunk = first + i * step;
      words[i] = {kTwoInfinities, kTwoInfinities, kTwoInfinities, kTwoInfinities};
      if (chunk < chunks) words[i] = simt::load_16(logits + 8 * chunk);
    }
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kLogitsAtOnce; ++i) add_logits(sum, from_bf16(words[i]));
  }
  const std::int64_t rest = 8 * chunks + simt::thread_index();
  if (rest < work.shape.size) sum = merge(sum, RunningSum{load_one(logits + rest), 1.0F});
  sum = merge_in_block(sum, reinterpret_cast<RunningSum*>(simt::shared_memory()));
  if (simt::thread_index() > 0) return;
  const std::int64_t column = work.targets[row] - work.shape.first;
  const bool here = work.targets[row] >= 0 && column >= 0 && column < work.shape.size;
  work.sums[row] = {sum.maximum, sum.sum, here ? load_one(logits + column) : 0.0F};
}

/// Row block_index().
SLIMPACK_DEVICE void logit_gradients_of_row(const LogitGradients& work) {
  const std::int64_t row = simt::block_index();
  Bf16* logits = work.logits + row * work.shape.stride;
  const std::int64_t chunks = work.shape.size / 8;
  const unsigned thread = simt::thread_index(), step = simt::block_threads();
  const std::int64_t rest = 8 * chunks + thread;
  const std::int32_t target = work.targets[row];
  if (target < 0) {
    for (std::int64_t chunk = thread; chunk < chunks; chunk += step) {
      simt::store_16(logits + 8 * chunk, Words{});
    }
    if (rest < work.shape.size) store_one(logits + rest, 0.0F);
    return;
  }
  const LogitSum sum = work.sums[row];
  const std::int64_t from_first = target - work.shape.first;
  // Before the first vector where the target is in another shard.
  const std::int32_t column =
      from_first >= 0 && from_first < work.shape.size ? static_cast<std::int32_t>(from_first) : -8;
  const float inverse = 1.0F / sum.sum;
  const auto gradient = [&](float logit, bool at_target) {
    const float probability = exp_fast(logit - sum.maximum) * inverse;
    return work.scale * (at_target ? probability - 1.0F : probability);
  };
  const auto write = [&](std::int64_t chunk, const Words& words) {
    Floats<8> values = from_bf16(words);
    const std::int32_t place = column - static_cast<std::int32_t>(8 * chunk);
    SLIMPACK_UNROLL
    for (std::int32_t i = 0; i < 8; ++i) {
      float& value = values[static_cast<unsigned>(i)];
      value = gradient(value, i == place);
    }
    store<8>(logits + 8 * chunk, values);
  };
  for (std::int64_t first = thread; first < chunks; first += kLogitsAtOnce * step) {
    std::array<Words, kLogitsAtOnce> words{};
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kLogitsAtOnce; ++i) {
      const std::int64_t chunk = first + i * step;
      if (chunk < chunks) words[i] = simt::load_16(logits + 8 * chunk);
    }
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kLogitsAtOnce; ++i) {
      const std::int64_t chunk = first + i * step;
      if (chunk < chunks) write(chunk, words[i]);
    }
  }
  if (rest < work.shape.size) {
    store_one(logits + rest, gradient(load_one(logits + rest), rest == column));
  }
}

struct MergeLogitSums {
  LogitSum* sums;
  const LogitSum* more;
  std::int64_t rows;
};
SLIMPACK_DEVICE void merge_logit_sum(const MergeLogitSums& work) {
  const std::int64_t row =
      static_cast<std::int64_t>(simt::block_index()) * simt::block_threads() + simt::thread_index();
  if (row < work.rows) work.sums[row] = merge(work.sums[row], work.more[row]);
}

struct CrossEntropyLosses {
  float* losses;
  const LogitSum* sums;
  const std::int32_t* targets;
  std::int64_t rows;
};
SLIMPACK_DEVICE void cross_entropy_loss(const CrossEntropyLosses& work) {
  const std::int64_t row =
      static_cast<std::int64_t>(simt::block_index()) * simt::block_threads() + simt::thread_index();
  if (row >= work.rows) return;
  work.losses[row] = work.targets[row] < 0 ? 0.0F : cross_entropy(work.sums[row]);
}

/// A thread a row.
[[nodiscard]] inline Launch row_by_row_launch(std::int64_t rows) {
  return {checked_blocks(divide_up(rows, 256)), 256, 0};
}

}  // namespace slimpack::cuda::kernels
