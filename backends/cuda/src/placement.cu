// SPDX-License-Identifier: Apache-2.0
#include "ops/placement.hpp"

#include "ops/launch.hpp"

namespace slimpack::cuda::detail {
namespace {

__global__ void __launch_bounds__(1024) placement_kernel(std::int32_t* seen, std::int64_t size) {
  unsigned multiprocessor = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  if (multiprocessor < size) seen[multiprocessor] = 1;
}

}  // namespace

void note_multiprocessors(DeviceSpan<std::int32_t> seen, unsigned blocks, StreamView stream) {
  // At most two blocks fit on a multiprocessor, so that each gets some of many.
  start(placement_kernel, {blocks, 1024, 0}, stream, seen.data, seen.size);
}

}  // namespace slimpack::cuda::detail
