// SPDX-License-Identifier: Apache-2.0
// Rotary positions between the QKV projection of a pack and the rows that attention reads.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rope_tables.hpp"

/// Element i < head_dim / 2 of a head turns with element i + head_dim / 2 by position *
/// theta^(-2 i / head_dim). Launchers check shapes and sizes (InvalidInput), return on empty work,
/// launch and check the launch (CudaError); they neither allocate nor synchronize. Matrices are row
/// by row, aligned to 16 bytes. A row's bits depend on nothing but the row.
namespace slimpack::cuda {

/// A projected row is heads query heads, then kv_heads keys, then kv_heads values. head_dim is a
/// multiple of 16, at most 512. No query heads, or no key heads, leave these out.
struct RopeShape {
  std::int64_t rows = 0;
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
};

/// Rows of `qkv` to their places: queries and keys turned, values as they are. No two rows may have
/// the same place. Places, `rows` on the device, must lie inside the matrices: it is not checked.
void rope_forward(DeviceSpan<Bf16> query, DeviceSpan<Bf16> key, DeviceSpan<Bf16> value,
                  DeviceSpan<const Bf16> qkv, DeviceSpan<const RopeRow> rows,
                  DeviceSpan<const std::uint64_t> frequencies, RopeShape shape, StreamView stream);

/// Gradients of the projection from those of its places, with keys' and values' in fp32: turns
/// back. `dqkv` is overwritten.
void rope_backward(DeviceSpan<Bf16> dqkv, DeviceSpan<const Bf16> dquery,
                   DeviceSpan<const float> dkey, DeviceSpan<const float> dvalue,
                   DeviceSpan<const RopeRow> rows, DeviceSpan<const std::uint64_t> frequencies,
                   RopeShape shape, StreamView stream);

}  // namespace slimpack::cuda
