// SPDX-License-Identifier: Apache-2.0
// How work gets onto the emulated streams.
#pragma once

#include <functional>
#include <string>

#include "kernels/launch.hpp"
#include "simt/simt.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda::emulated {

/// Puts work at the end of a stream. If it throws, whoever waits for it hears of it: "WHAT failed:"
/// and the exception's words.
void enqueue(StreamView stream, std::string what, std::function<void()> work);

/// Throws CudaError, "CALL: " and why, where the stream was made in another partition than the one
/// that is current to this thread, or on another device: nothing can be launched there.
void require_current(StreamView stream, const std::string& call);

/// Puts a kernel, run for every thread of the grid, at the end of a stream. Throws CudaError where
/// a device would not start it. `place` is the line that asks for it.
void start_kernel(const kernels::Launch& launch, const std::string& place, StreamView stream,
                  std::function<void()> thread);

}  // namespace slimpack::cuda::emulated
