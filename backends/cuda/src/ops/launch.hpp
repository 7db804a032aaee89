// SPDX-License-Identifier: Apache-2.0
// How launchers start kernels: nvcc builds launches on a device; a host compiler builds the same
// sources, and kernels then are work of the emulated streams.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "kernels/launch.hpp"
#include "slimpack_cuda/device.hpp"

#if defined(__CUDACC__)
#include "check.hpp"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLIMPACK_HAS_WGMMA
#endif
#else
#include "emulated/runtime.hpp"
#define SLIMPACK_HAS_WGMMA
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#endif

namespace slimpack::cuda::detail {

/// A launch and the line that asks for it.
struct PlacedLaunch {
  kernels::Launch launch;
  const char* file;
  int line;
  PlacedLaunch(const kernels::Launch& size,  // NOLINT(google-explicit-constructor)
               const char* in = __builtin_FILE(), int at = __builtin_LINE())
      : launch(size), file(in), line(at) {}
  PlacedLaunch(unsigned blocks, unsigned threads, std::size_t shared_bytes,
               const char* in = __builtin_FILE(), int at = __builtin_LINE())
      : PlacedLaunch(kernels::Launch{blocks, threads, shared_bytes}, in, at) {}
};

#if defined(__CUDACC__)

/// Lets a kernel of the current device ask for so much shared memory, which without that is 48 KiB.
/// Asks CUDA once for a kernel, thread and device.
void allow_shared_memory(const void* kernel, std::size_t bytes);
/// Forgets what kernels of this thread were allowed: to be called where another context is current.
void forget_shared_memory();

/// Puts a kernel on a stream; does nothing for no blocks, which CUDA refuses. Throws CudaError.
template <class... Parameters>
void start(void (*kernel)(Parameters...), const PlacedLaunch& at, StreamView stream,
           const std::type_identity_t<Parameters>&... arguments) {
  const auto& [blocks, threads, shared_bytes] = at.launch;
  if (blocks == 0) return;
  if (shared_bytes > 48 * 1024) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes);
  }
  kernel<<<blocks, threads, shared_bytes, stream.get()>>>(arguments...);
  check(cudaGetLastError(), "launch", at.file, at.line);
}

#else

template <class... Parameters>
void start(void (*kernel)(Parameters...), const PlacedLaunch& at, StreamView stream,
           const std::type_identity_t<Parameters>&... arguments) {
  if (at.launch.blocks == 0) return;
  emulated::start_kernel(at.launch, std::string(at.file) + ":" + std::to_string(at.line), stream,
                         [=] { kernel(arguments...); });
}

#endif

}  // namespace slimpack::cuda::detail
