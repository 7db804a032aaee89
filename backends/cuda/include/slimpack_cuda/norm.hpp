// SPDX-License-Identifier: Apache-2.0
// RMS normalisation of rows, with the residual sum before it, forward and backward.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/row_shape.hpp"

/// Matrices are row by row, aligned to 16 bytes. Launchers check shapes and sizes (InvalidInput),
/// return on empty work, launch and check the launch (CudaError); they neither allocate nor
/// synchronize. The number of columns is a multiple of 8, at most kLargestNormCols. A row's bits
/// depend on nothing but the row; two runs give the same bits.
namespace slimpack::cuda {

inline constexpr std::int64_t kLargestNormCols = 16384;

/// out = in * inverse_rms * gain, inverse_rms = 1 / sqrt(mean(in^2) + epsilon), one a row.
void rms_norm_forward(DeviceSpan<Bf16> out, DeviceSpan<float> inverse_rms,
                      DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> gain, RowShape shape,
                      float epsilon, StreamView stream);

/// sum = in + residual, rounded, and of this sum what rms_norm_forward does. `sum` may be `in` or
/// `residual`.
void rms_norm_forward_residual(DeviceSpan<Bf16> out, DeviceSpan<float> inverse_rms,
                               DeviceSpan<Bf16> sum, DeviceSpan<const Bf16> in,
                               DeviceSpan<const Bf16> residual, DeviceSpan<const Bf16> gain,
                               RowShape shape, float epsilon, StreamView stream);

/// Numbers that rms_norm_backward wants as workspace: a function of the shape alone.
[[nodiscard]] std::int64_t rms_norm_backward_workspace(RowShape shape);

/// din = d(loss)/d(in), plus `dresidual` where it is not empty: the gradient that reaches `in` past
/// the norm; dgain += d(loss)/d(gain). `din` may be `dout` or `dresidual`. `workspace` is left with
/// whatever is there.
void rms_norm_backward(DeviceSpan<Bf16> din, DeviceSpan<float> dgain, DeviceSpan<float> workspace,
                       DeviceSpan<const Bf16> dout, DeviceSpan<const Bf16> dresidual,
                       DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> gain,
                       DeviceSpan<const float> inverse_rms, RowShape shape, StreamView stream);

}  // namespace slimpack::cuda
