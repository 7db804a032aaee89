// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "../../backends/cuda/src/check.hpp"
#include "fill.hpp"

namespace slimpack::bench {
namespace {

using cuda::Bf16;

/// 64 mixed bits of a counter (the finalizer of SplitMix64).
__device__ std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

/// Box and Muller's cosine of two uniform numbers.
__device__ float normal(std::uint64_t bits) {
  const float radius = static_cast<float>((bits >> 40U) + 1) * 0x1p-24F;  // in (0, 1]
  const float angle = static_cast<float>((bits & 0xff'ffffU)) * 0x1p-23F;
  return sqrtf(-2.0F * __logf(radius)) * cospif(angle);
}

__device__ void store(float* to, float value) {
  *to = value;
}
__device__ void store(Bf16* to, float value) {  // rounded as to_bf16 does; no NaN comes here
  const unsigned bits = __float_as_uint(value);
  to->bits = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

template <class Element>
__global__ void fill_normal_kernel(Element* to, std::int64_t size, float scale,
                                   std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       at < size; at += step) {
    const std::uint64_t counter = seed + (static_cast<std::uint64_t>(at) + 1) * 0x9e3779b97f4a7c15U;
    store(to + at, scale * normal(mixed(counter)));
  }
}

__global__ void fill_below_kernel(std::int32_t* to, std::int64_t size, std::int32_t bound,
                                  std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       at < size; at += step) {
    const std::uint64_t counter = seed + (static_cast<std::uint64_t>(at) + 1) * 0x9e3779b97f4a7c15U;
    to[at] = static_cast<std::int32_t>(
        (mixed(counter) >> 32U) * static_cast<std::uint64_t>(bound) >> 32U);
  }
}

constexpr unsigned kThreads = 256, kBlocks = 2048;

template <class Element>
void fill(cuda::DeviceSpan<Element> to, float scale, std::uint64_t seed, cuda::StreamView stream) {
  if (to.size == 0) return;
  fill_normal_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(to.data, to.size, scale, seed);
  SLIMPACK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void fill_normal(cuda::DeviceSpan<Bf16> to, float scale, std::uint64_t seed,
                 cuda::StreamView stream) {
  fill(to, scale, seed, stream);
}
void fill_normal(cuda::DeviceSpan<float> to, float scale, std::uint64_t seed,
                 cuda::StreamView stream) {
  fill(to, scale, seed, stream);
}
void fill_below(cuda::DeviceSpan<std::int32_t> to, std::int32_t bound, std::uint64_t seed,
                cuda::StreamView stream) {
  if (to.size == 0) return;
  fill_below_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(to.data, to.size, bound, seed);
  SLIMPACK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace slimpack::bench
