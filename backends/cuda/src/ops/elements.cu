// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/elements.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/elements.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

template <bool kAdd, class To, class From>
__global__ void __launch_bounds__(kElementThreads) elements_kernel(Elements<To, From> work) {
  write_elements<kAdd>(work);
}

__global__ void __launch_bounds__(kElementThreads)
    copy_kernel(const __grid_constant__ CopyList list) {
  copy_listed(list);
}

constexpr std::int64_t kMostBlocks = 1 << 20;  ///< of a launch of copies

/// `addend` is for sums of bf16; else null.
template <bool kAdd, class To, class From>
void launch_elements(DeviceSpan<To> to, const To* addend, DeviceSpan<const From> from,
                     StreamView stream) {
  detail::require_size(from, to.size, "elements: both spans must be as long");
  detail::require_aligned(to, "elements: the first span is not aligned to 16 bytes");
  detail::require_aligned(from, "elements: the second span is not aligned to 16 bytes");
  if (to.size == 0) return;
  const Launch launch = elements_launch<To, From>(to.size);
  detail::start(elements_kernel<kAdd, To, From>, launch, stream,
                {to.data, addend, from.data, to.size});
}

}  // namespace

void add(DeviceSpan<Bf16> sums, DeviceSpan<const Bf16> left, DeviceSpan<const Bf16> right,
         StreamView stream) {
  detail::require_size(left, sums.size, "elements: all spans must be as long");
  detail::require_aligned(left, "elements: an addend is not aligned to 16 bytes");
  launch_elements<true>(sums, left.data, right, stream);
}
void add(DeviceSpan<float> into, DeviceSpan<const float> values, StreamView stream) {
  launch_elements<true>(into, static_cast<const float*>(nullptr), values, stream);
}
void add(DeviceSpan<float> into, DeviceSpan<const Bf16> values, StreamView stream) {
  launch_elements<true>(into, static_cast<const float*>(nullptr), values, stream);
}
void convert(DeviceSpan<Bf16> to, DeviceSpan<const float> from, StreamView stream) {
  launch_elements<false>(to, static_cast<const Bf16*>(nullptr), from, stream);
}
void convert(DeviceSpan<float> to, DeviceSpan<const Bf16> from, StreamView stream) {
  launch_elements<false>(to, static_cast<const float*>(nullptr), from, stream);
}

void copy_all(std::span<const MemoryCopy> copies, StreamView stream) {
  CopyList list;
  unsigned listed = 0, blocks = 0;
  const auto launch = [&] {
    for (unsigned i = listed; i < CopyList::kMost; ++i) list.begin[i] = blocks;
    detail::start(copy_kernel, {blocks, kElementThreads, 0}, stream, list);
    listed = blocks = 0;
  };
  for (const MemoryCopy& copy : copies) {
    const auto together = std::bit_cast<std::uintptr_t>(copy.to) |
                          std::bit_cast<std::uintptr_t>(copy.from) |
                          static_cast<std::uintptr_t>(copy.bytes);
    const std::int64_t own = divide_up(copy.bytes, kCopyBytes);
    if (together % 16 != 0 || own > kMostBlocks) {
      copy_on_device(copy.to, copy.from, static_cast<std::size_t>(copy.bytes), stream);
      continue;
    }
    if (own == 0) continue;
    if (listed == CopyList::kMost || blocks + own > kMostBlocks) launch();
    list.copies[listed] = copy;
    list.begin[listed++] = blocks;
    blocks += static_cast<unsigned>(own);
  }
  launch();
}

}  // namespace slimpack::cuda
