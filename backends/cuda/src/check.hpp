// SPDX-License-Identifier: Apache-2.0
// Turns CUDA's error codes into CudaError.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda::detail {

inline void check(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next launch would report it once more
  throw CudaError(std::string(call) + " failed at " + file + ":" + std::to_string(line) + ": " +
                  cudaGetErrorString(error));
}

}  // namespace slimpack::cuda::detail

/// Throws CudaError unless the call, evaluated once, succeeds.
#define SLIMPACK_CUDA_CHECK(call) ::slimpack::cuda::detail::check((call), #call, __FILE__, __LINE__)
