// SPDX-License-Identifier: Apache-2.0
// Rows of the embedding table by token, and their gradients.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/row_tables.hpp"

/// Matrices are row by row, aligned to 16 bytes; the width `hidden` is a multiple of 8. Launchers
/// check sizes (InvalidInput), return on empty work, launch and check the launch (CudaError); they
/// neither allocate nor synchronize. Tokens are checked on the host (check_tokens), before they are
/// uploaded.
namespace slimpack::cuda {

/// TokenRows in device memory.
struct DeviceTokenRows {
  DeviceSpan<const std::int32_t> tokens, begin, rows;
};

/// out[r] = table[tokens[r]].
void embedding_forward(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> table,
                       DeviceSpan<const std::int32_t> tokens, std::int64_t vocab,
                       std::int64_t hidden, StreamView stream);

/// dtable[token] += the sum of its rows of `dout`, which may have others too, in an order that
/// depends on their number alone: two runs give the same bits.
void embedding_backward(DeviceSpan<float> dtable, DeviceSpan<const Bf16> dout,
                        const DeviceTokenRows& order, std::int64_t vocab, std::int64_t hidden,
                        StreamView stream);

}  // namespace slimpack::cuda
