// SPDX-License-Identifier: Apache-2.0
// The norm of gradients, clipping by it, and AdamW on fp32 weights with a copy in bf16.
#pragma once

#include <cstdint>
#include <limits>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

/// Numbers aligned to 16 bytes. Launchers check sizes (InvalidInput), return on empty work, launch
/// and check the launch (CudaError); they neither allocate nor synchronize, and nothing of a step
/// comes back to the host. Two runs give the same bits.
namespace slimpack::cuda {

/// AdamW with bias correction, on all weights alike. Gradients whose norm over the whole model is
/// larger than `largest_norm` are scaled down to it.
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double largest_norm = std::numeric_limits<double>::infinity();
  friend bool operator==(const AdamW&, const AdamW&) = default;
};

/// The norm over the whole model and what gradients are multiplied by. Both are NaN where a
/// gradient is not finite.
struct Clipping {
  double norm = 0;
  float factor = 1;
};

/// How many sums square_sums makes of `size` numbers.
[[nodiscard]] std::int64_t square_sums_count(std::int64_t size);

/// Sums of squares of parts of `values`: together their sum of squares. NaN or infinity where a
/// value is not finite; squares are summed in fp32 sixteen at a time, then in fp64.
void square_sums(DeviceSpan<double> sums, DeviceSpan<const float> values, StreamView stream);

/// total[0] = the sum of `values` in a fixed order; that of none is zero.
void ordered_sum(DeviceSpan<double> total, DeviceSpan<const double> values, StreamView stream);

/// total[0] += the sum of `values` in a fixed order.
void add_ordered_sum(DeviceSpan<double> total, DeviceSpan<const float> values, StreamView stream);

/// clipping[0] from the sum of squares of all gradients: factor = largest_norm / norm where the
/// norm is larger, else 1.
void clip_by_norm(DeviceSpan<Clipping> clipping, DeviceSpan<const double> sum_of_squares,
                  double largest_norm, StreamView stream);

/// One update; `step` counts from 1. `copy` becomes `weights` rounded. `clipping` is empty or holds
/// one; where its factor is NaN, weights, moments and copy stay as they are.
void adamw_step(DeviceSpan<float> weights, DeviceSpan<Bf16> copy, DeviceSpan<float> first_moment,
                DeviceSpan<float> second_moment, DeviceSpan<const float> gradients,
                DeviceSpan<const Clipping> clipping, const AdamW& settings, std::int64_t step,
                StreamView stream);

}  // namespace slimpack::cuda
