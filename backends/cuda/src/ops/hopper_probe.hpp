// SPDX-License-Identifier: Apache-2.0
// Runs kernels/hopper_probe.cuh on the device, for its test.
#pragma once

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda::detail {

/// From a[64 x 64], b[up to 128 x 64] and v[64 x 128]: `box`[64 x 64] is a as TMA lays it out in
/// shared memory, `keys`[64 x 128] = a * transpose(b), zero for missing rows of b, and
/// `values`[64 x 128] = a * v. Needs compute capability 9.0.
void hopper_probe(DeviceSpan<Bf16> box, DeviceSpan<float> keys, DeviceSpan<float> values,
                  DeviceSpan<const Bf16> a, DeviceSpan<const Bf16> b, DeviceSpan<const Bf16> v,
                  StreamView stream);

}  // namespace slimpack::cuda::detail
