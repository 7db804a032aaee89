// SPDX-License-Identifier: Apache-2.0
// Fills device memory with normal random numbers: matrix units draw less power, and so run faster,
// on zeros.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::bench {

/// Mean 0, deviation `scale`; the same numbers for the same seed.
void fill_normal(cuda::DeviceSpan<cuda::Bf16> to, float scale, std::uint64_t seed,
                 cuda::StreamView stream);
void fill_normal(cuda::DeviceSpan<float> to, float scale, std::uint64_t seed,
                 cuda::StreamView stream);
/// Uniform in [0, bound).
void fill_below(cuda::DeviceSpan<std::int32_t> to, std::int32_t bound, std::uint64_t seed,
                cuda::StreamView stream);

/// A new buffer of normal random numbers.
template <class Element>
[[nodiscard]] cuda::DeviceBuffer<Element> random_buffer(std::int64_t size, float scale,
                                                        std::uint64_t seed,
                                                        cuda::StreamView stream) {
  cuda::DeviceBuffer<Element> buffer(size);
  fill_normal(buffer.span(), scale, seed, stream);
  return buffer;
}

}  // namespace slimpack::bench
