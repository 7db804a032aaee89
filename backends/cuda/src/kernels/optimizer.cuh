// SPDX-License-Identifier: Apache-2.0
// Norms of gradients in two ordered stages, and AdamW.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/functors.hpp"
#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/optimizer.hpp"

namespace slimpack::cuda::kernels {

inline constexpr unsigned kSquareThreads = 256;
inline constexpr std::int64_t kSquarePart = 32768;  // numbers a block

struct SquareSums {
  double* sums;
  const float* values;
  std::int64_t size;
};

[[nodiscard]] inline Launch square_sums_launch(std::int64_t size) {
  return {checked_blocks(divide_up(size, kSquarePart)), kSquareThreads,
          kSquareThreads / 32 * sizeof(double)};
}

/// The sum of squares of part block_index() of the values.
SLIMPACK_DEVICE void square_sum_of_part(const SquareSums& work) {
  const std::int64_t begin = static_cast<std::int64_t>(simt::block_index()) * kSquarePart;
  const std::int64_t left = work.size - begin;
  const std::int64_t count = left < kSquarePart ? left : kSquarePart;
  const float* values = work.values + begin;
  constexpr unsigned kAtOnce = 4;
  double sum = 0;
  for (std::int64_t first = 4 * simt::thread_index(); first < count;
       first += 4 * kAtOnce * kSquareThreads) {
    std::array<Floats<4>, kAtOnce> taken{};
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i) {
      const std::int64_t k = first + std::int64_t{4} * i * kSquareThreads;
      if (k + 4 <= count) {
        taken[i] = load<4>(values + k);
      } else {
        SLIMPACK_UNROLL
        for (unsigned n = 0; n < 4; ++n) {
          if (k + n < count) taken[i][n] = values[k + n];
        }
      }
    }
    float squares = 0;
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i) {
      SLIMPACK_UNROLL
      for (unsigned n = 0; n < 4; ++n) squares += taken[i][n] * taken[i][n];
    }
    sum += static_cast<double>(squares);
  }
  sum = block_sum(sum, reinterpret_cast<double*>(simt::shared_memory()));
  if (simt::thread_index() == 0) work.sums[simt::block_index()] = sum;
}

template <class Number>
struct OrderedSum {
  double* total;
  const Number* values;
  std::int64_t size;
};

/// One block: the whole order is in it.
[[nodiscard]] inline Launch ordered_sum_launch() {
  return {1, 512, 512 / 32 * sizeof(double)};
}

/// total = the sum, or total += the sum if `kAdd`.
template <bool kAdd, class Number>
SLIMPACK_DEVICE void sum_in_order(const OrderedSum<Number>& work) {
  const unsigned step = simt::block_threads();
  std::array<double, 4> sums{};
  std::int64_t k = simt::thread_index();
  for (; k + 3 * step < work.size; k += 4 * step) {
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < 4; ++i) sums[i] += static_cast<double>(work.values[k + i * step]);
  }
  for (; k < work.size; k += step) sums[0] += static_cast<double>(work.values[k]);
  const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]),
                               reinterpret_cast<double*>(simt::shared_memory()));
  if (simt::thread_index() == 0) *work.total = kAdd ? *work.total + sum : sum;
}

/// See Clipping.
SLIMPACK_DEVICE Clipping clipping_of(double sum_of_squares, double largest_norm) {
  const double norm = std::sqrt(sum_of_squares);
  // Neither infinity nor NaN is at most the largest number.
  if (!(norm <= std::numeric_limits<double>::max())) {
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  }
  return {norm, norm > largest_norm ? static_cast<float>(largest_norm / norm) : 1.0F};
}

struct ClipByNorm {
  Clipping* clipping;
  const double* sum_of_squares;
  double largest_norm;
};
SLIMPACK_DEVICE void write_clipping(const ClipByNorm& work) {
  if (simt::thread_index() == 0)
    *work.clipping = clipping_of(*work.sum_of_squares, work.largest_norm);
}

struct AdamWUpdate {
  float* weights;
  Bf16* copy;
  float* first_moment;
  float* second_moment;
  const float* gradients;
  const Clipping* clipping;  ///< null without
  std::int64_t size;
  AdamWStep step;
};

inline constexpr unsigned kAdamWThreads = 256, kAdamWGroups = 2;

/// Two groups of four numbers a thread.
[[nodiscard]] inline Launch adamw_launch(std::int64_t size) {
  return {checked_blocks(divide_up(size, std::int64_t{4} * kAdamWThreads * kAdamWGroups)),
          kAdamWThreads, 0};
}

/// What is the same for all weights, made in fp64.
[[nodiscard]] inline AdamWStep adamw_constants(const AdamW& settings, std::int64_t step) {
  const double correction1 = 1.0 - std::pow(settings.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(settings.beta2, static_cast<double>(step));
  AdamWStep constants{};
  constants.beta1 = static_cast<float>(settings.beta1);
  constants.rest1 = static_cast<float>(1.0 - settings.beta1);
  constants.beta2 = static_cast<float>(settings.beta2);
  constants.rest2 = static_cast<float>(1.0 - settings.beta2);
  constants.rate = static_cast<float>(settings.learning_rate / correction1);
  constants.inverse_correction2 = static_cast<float>(1.0 / correction2);
  constants.epsilon = static_cast<float>(settings.epsilon);
  constants.decay = static_cast<float>(settings.learning_rate * settings.weight_decay);
  return constants;
}

SLIMPACK_DEVICE void adamw_part(const AdamWUpdate& work) {
  const float factor = work.clipping == nullptr ? 1.0F : work.clipping->factor;
  if (factor != factor) return;  // NaN: this step is left out
  const std::int64_t groups = work.size / 4;
  const std::int64_t begin =
      static_cast<std::int64_t>(simt::block_index()) * kAdamWThreads * kAdamWGroups +
      simt::thread_index();
  std::array<Floats<4>, kAdamWGroups> weight{}, first{}, second{}, gradient{};
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kAdamWGroups; ++i) {
    const std::int64_t k = begin + i * kAdamWThreads;
    if (k >= groups) continue;
    gradient[i] = load<4>(work.gradients + 4 * k);
    first[i] = load<4>(work.first_moment + 4 * k);
    second[i] = load<4>(work.second_moment + 4 * k);
    weight[i] = load<4>(work.weights + 4 * k);
  }
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kAdamWGroups; ++i) {
    const std::int64_t k = begin + i * kAdamWThreads;
    if (k >= groups) continue;
    SLIMPACK_UNROLL
    for (unsigned n = 0; n < 4; ++n) {
      const AdamWState next = adamw_update(work.step, {weight[i][n], first[i][n], second[i][n]},
                                           factor * gradient[i][n]);
      weight[i][n] = next.weight;
      first[i][n] = next.first_moment;
      second[i][n] = next.second_moment;
    }
    store<4>(work.weights + 4 * k, weight[i]);
    store<4>(work.first_moment + 4 * k, first[i]);
    store<4>(work.second_moment + 4 * k, second[i]);
    store<4>(work.copy + 4 * k, weight[i]);
  }
  const std::int64_t rest = 4 * groups + simt::thread_index();
  if (simt::block_index() + 1 == simt::grid_blocks() && rest < work.size) {
    const AdamWState next = adamw_update(
        work.step, {work.weights[rest], work.first_moment[rest], work.second_moment[rest]},
        factor * work.gradients[rest]);
    work.weights[rest] = next.weight;
    work.first_moment[rest] = next.first_moment;
    work.second_moment[rest] = next.second_moment;
    store_one(work.copy + rest, next.weight);
  }
}

}  // namespace slimpack::cuda::kernels
