// SPDX-License-Identifier: Apache-2.0
// The gated product of the feed-forward block, forward and backward.
#pragma once

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/row_shape.hpp"

/// Matrices are row by row, aligned to 16 bytes. `shape.cols`, a multiple of 8, is the width of the
/// product; a row of `gate_up` is so many gates, then so many ups. Launchers check shapes and sizes
/// (InvalidInput), return on empty work, launch and check the launch (CudaError); they neither
/// allocate nor synchronize.
namespace slimpack::cuda {

/// product = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
void swiglu_forward(DeviceSpan<Bf16> product, DeviceSpan<const Bf16> gate_up, RowShape shape,
                    StreamView stream);

/// Overwrites `dgate_up`, which may be `gate_up`.
void swiglu_backward(DeviceSpan<Bf16> dgate_up, DeviceSpan<const Bf16> dproduct,
                     DeviceSpan<const Bf16> gate_up, RowShape shape, StreamView stream);

}  // namespace slimpack::cuda
