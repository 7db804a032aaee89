// SPDX-License-Identifier: Apache-2.0
// RMS normalisation: a block holds a row in registers and passes over memory once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/norm.hpp"

namespace slimpack::cuda::kernels {

inline constexpr unsigned kNormThreads = 512;  // at most

struct NormForward {
  Bf16* out;
  float* inverse_rms;
  Bf16* sum;  ///< null without residual
  const Bf16* in;
  const Bf16* residual;  ///< null without
  const Bf16* gain;
  std::int64_t cols;
  float epsilon;
};

struct NormBackward {
  Bf16* din;
  float* dgain_parts;  ///< one row a block
  const Bf16* dout;
  const Bf16* dresidual;  ///< null without
  const Bf16* in;
  const Bf16* gain;
  const float* inverse_rms;
  std::int64_t rows, cols;
};

/// Calls `run` with the number of vectors of 8 columns that a thread holds, a constant.
template <class Run>
void with_forward_vectors(std::int64_t cols, const Run& run) {
  if (cols > 2048) {
    run(std::integral_constant<unsigned, 4>{});
  } else if (cols > 1024) {
    run(std::integral_constant<unsigned, 2>{});
  } else {
    run(std::integral_constant<unsigned, 1>{});
  }
}
/// The backward pass: how many vectors a thread holds, threads of a block at most, and how many
/// such blocks a multiprocessor has the registers for.
template <unsigned kHeld, unsigned kMost, unsigned kResident>
struct NormBackwardSize {
  static constexpr unsigned kVectors = kHeld, kThreads = kMost, kBlocks = kResident;
};
template <class Run>
void with_backward_size(std::int64_t cols, const Run& run) {
  if (cols > 4096) {
    run(NormBackwardSize<4, 512, 1>{});
  } else if (cols > 1024) {
    run(NormBackwardSize<2, 256, 3>{});
  } else {
    run(NormBackwardSize<1, 128, 8>{});
  }
}

[[nodiscard]] inline unsigned norm_threads(std::int64_t cols, unsigned vectors) {
  return threads_for(divide_up(cols / 8, vectors), kNormThreads);
}

[[nodiscard]] inline Launch norm_forward_launch(RowShape shape, unsigned vectors) {
  return {checked_blocks(shape.rows), norm_threads(shape.cols, vectors),
          kNormThreads / 32 * sizeof(float)};
}

/// As many blocks as run at once on a large device: a number that depends on no device, so that
/// sums over blocks do not either.
[[nodiscard]] inline Launch norm_backward_launch(RowShape shape) {
  Launch launch;
  with_backward_size(shape.cols, [&](auto size) {
    constexpr std::int64_t kThreadsInAll = 132 * size.kThreads * size.kBlocks;
    launch.threads = norm_threads(shape.cols, size.kVectors);
    launch.blocks =
        static_cast<unsigned>(std::min<std::int64_t>(shape.rows, kThreadsInAll / launch.threads));
    launch.shared_bytes = 2 * (size.kThreads / 32) * sizeof(float);
  });
  return launch;
}

/// Row block_index().
template <unsigned kVectors>
SLIMPACK_DEVICE void rms_norm_forward_row(const NormForward& work) {
  const std::int64_t begin = static_cast<std::int64_t>(simt::block_index()) * work.cols;
  const auto chunks = static_cast<unsigned>(work.cols / 8);
  const unsigned thread = simt::thread_index(), step = simt::block_threads();
  std::array<Words, kVectors> words{}, gain{};
  SLIMPACK_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    const unsigned chunk = thread + v * step;
    if (chunk < chunks) words[v] = simt::load_16(work.in + begin + 8 * chunk);
  }
  if (work.residual != nullptr) {
    std::array<Words, kVectors> residual{};
    SLIMPACK_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      const unsigned chunk = thread + v * step;
      if (chunk < chunks) residual[v] = simt::load_16(work.residual + begin + 8 * chunk);
    }
    SLIMPACK_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      const unsigned chunk = thread + v * step;
      Floats<8> sum = from_bf16(words[v]);
      const Floats<8> more = from_bf16(residual[v]);
      SLIMPACK_UNROLL
      for (unsigned i = 0; i < 8; ++i) sum[i] += more[i];
      // The norm is that of the rounded sum: it is what the backward pass finds.
      words[v] = as_bf16(sum);
      if (chunk < chunks) simt::store_16(work.sum + begin + 8 * chunk, words[v]);
    }
  }
  SLIMPACK_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    const unsigned chunk = thread + v * step;
    if (chunk < chunks) gain[v] = simt::load_16(work.gain + 8 * chunk);
  }
  float squares = 0;
  SLIMPACK_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    const Floats<8> x = from_bf16(words[v]);
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 8; ++i) squares += x[i] * x[i];
  }
  squares = block_sum(squares, reinterpret_cast<float*>(simt::shared_memory()));
  const float inverse =
      simt::reciprocal_root(squares / static_cast<float>(work.cols) + work.epsilon);
  if (thread == 0) work.inverse_rms[simt::block_index()] = inverse;
  SLIMPACK_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    const unsigned chunk = thread + v * step;
    Floats<8> x = from_bf16(words[v]);
    const Floats<8> g = from_bf16(gain[v]);
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 8; ++i) x[i] = x[i] * inverse * g[i];
    if (chunk < chunks) store<8>(work.out + begin + 8 * chunk, x);
  }
}

/// Rows block_index(), block_index() + grid_blocks() and so on, and what they add to dgain.
template <class Size>
SLIMPACK_DEVICE void rms_norm_backward_rows(const NormBackward& work) {
  constexpr unsigned kVectors = Size::kVectors;
  auto* scratch = reinterpret_cast<float*>(simt::shared_memory());
  const auto chunks = static_cast<unsigned>(work.cols / 8);
  const unsigned thread = simt::thread_index(), step = simt::block_threads();
  std::array<Words, kVectors> gain{};
  std::array<Floats<8>, kVectors> dgain{};
  SLIMPACK_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    const unsigned chunk = thread + v * step;
    if (chunk < chunks) gain[v] = simt::load_16(work.gain + 8 * chunk);
  }
  unsigned half = 0;
  for (std::int64_t row = simt::block_index(); row < work.rows; row += simt::grid_blocks()) {
    const std::int64_t begin = row * work.cols;
    std::array<Words, kVectors> in{}, dout{}, dresidual{};
    SLIMPACK_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      const unsigned chunk = thread + v * step;
      if (chunk >= chunks) continue;
      in[v] = simt::load_16(work.in + begin + 8 * chunk);
      dout[v] = simt::load_16(work.dout + begin + 8 * chunk);
    }
    if (work.dresidual != nullptr) {
      SLIMPACK_UNROLL
      for (unsigned v = 0; v < kVectors; ++v) {
        const unsigned chunk = thread + v * step;
        if (chunk < chunks) dresidual[v] = simt::load_16(work.dresidual + begin + 8 * chunk);
      }
    }
    const float inverse = work.inverse_rms[row];
    float along = 0;  // of the gradient on the normalised row
    SLIMPACK_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      const Floats<8> x = from_bf16(in[v]), dy = from_bf16(dout[v]), g = from_bf16(gain[v]);
      SLIMPACK_UNROLL
      for (unsigned i = 0; i < 8; ++i) along += dy[i] * g[i] * x[i];
    }
    along = block_sum(along, scratch + half * (Size::kThreads / 32));
    half ^= 1U;  // others may still read this half
    SLIMPACK_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      simt::keep_words(in[v]), simt::keep_words(dout[v]), simt::keep_words(gain[v]);
    }
    along *= inverse / static_cast<float>(work.cols);
    SLIMPACK_UNROLL
    for (unsigned v = 0; v < kVectors; ++v) {
      const unsigned chunk = thread + v * step;
      const Floats<8> x = from_bf16(in[v]), dy = from_bf16(dout[v]), g = from_bf16(gain[v]);
      Floats<8> dx = from_bf16(dresidual[v]);
      SLIMPACK_UNROLL
      for (unsigned i = 0; i < 8; ++i) {
        const float normalised = x[i] * inverse;
        dx[i] += inverse * (dy[i] * g[i] - normalised * along);
        dgain[v][i] += dy[i] * normalised;
      }
      if (chunk < chunks) store<8>(work.din + begin + 8 * chunk, dx);
    }
  }
  float* part = work.dgain_parts + static_cast<std::int64_t>(simt::block_index()) * work.cols;
  SLIMPACK_UNROLL
  for (unsigned v = 0; v < kVectors; ++v) {
    const unsigned chunk = thread + v * step;
    if (chunk < chunks) store<8>(part + 8 * chunk, dgain[v]);
  }
}

struct ColumnSums {
  float* into;
  const float* parts;
  std::int64_t rows, cols;
};

[[nodiscard]] inline Launch column_sums_launch(std::int64_t cols) {
  return {checked_blocks(divide_up(cols, 32)), 512, 512 * sizeof(float)};
}

/// into[c] += the sum of column c of `parts`: a lane a column, each warp every 16th row, then warps
/// in their order.
SLIMPACK_DEVICE void add_column_sums(const ColumnSums& work) {
  auto* scratch = reinterpret_cast<float*>(simt::shared_memory());
  const unsigned warps = simt::block_threads() / 32, warp = simt::thread_index() / 32;
  const unsigned lane = simt::lane_index();
  const std::int64_t col = static_cast<std::int64_t>(simt::block_index()) * 32 + lane;
  const bool inside = col < work.cols;
  std::array<float, 4> sums{};
  if (inside) {
    const float* at = work.parts + col;
    std::int64_t row = warp;
    for (; row + 3 * warps < work.rows; row += 4 * warps) {
      SLIMPACK_UNROLL
      for (unsigned i = 0; i < 4; ++i) sums[i] += at[(row + i * warps) * work.cols];
    }
    for (; row < work.rows; row += warps) sums[0] += at[row * work.cols];
  }
  scratch[simt::thread_index()] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  simt::sync_block();
  if (warp > 0 || !inside) return;
  float sum = 0;
  for (unsigned other = 0; other < warps; ++other) sum += scratch[32 * other + lane];
  work.into[col] += sum;
}

}  // namespace slimpack::cuda::kernels
