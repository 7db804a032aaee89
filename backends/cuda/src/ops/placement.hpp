// SPDX-License-Identifier: Apache-2.0
// On which multiprocessors work runs, for the test of partitions. Not of the emulated library.
#pragma once

#include <cstdint>

#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda::detail {

/// Runs `blocks` blocks and sets numbers of `seen` to 1: those of the multiprocessors that ran one.
void note_multiprocessors(DeviceSpan<std::int32_t> seen, unsigned blocks, StreamView stream);

}  // namespace slimpack::cuda::detail
