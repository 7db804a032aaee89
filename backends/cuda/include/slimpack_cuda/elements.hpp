// SPDX-License-Identifier: Apache-2.0
// Element by element: sums, conversions, copies, zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

/// Spans of one call are as long as each other and aligned to 16 bytes. Launchers check this
/// (InvalidInput), return on empty work, launch and check the launch (CudaError); they neither
/// allocate nor synchronize.
namespace slimpack::cuda {

/// sums = left + right, each rounded once; `sums` may be `left` or `right`.
void add(DeviceSpan<Bf16> sums, DeviceSpan<const Bf16> left, DeviceSpan<const Bf16> right,
         StreamView stream);
/// into += values.
void add(DeviceSpan<float> into, DeviceSpan<const float> values, StreamView stream);
void add(DeviceSpan<float> into, DeviceSpan<const Bf16> values, StreamView stream);

/// to = from, rounded to the nearest number, of two the even one.
void convert(DeviceSpan<Bf16> to, DeviceSpan<const float> from, StreamView stream);
/// to = from, exactly.
void convert(DeviceSpan<float> to, DeviceSpan<const Bf16> from, StreamView stream);

/// So many bytes from one place of device memory to another.
struct MemoryCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};
/// Makes copies of which none reads or writes what another one writes, in any order. Those whose
/// places and bytes are multiples of 16 go by 128 in one launch, any other by itself
/// (copy_on_device). O(copies) on the host.
void copy_all(std::span<const MemoryCopy> copies, StreamView stream);

/// All bits zero, which is zero in both formats.
template <class Element>
void fill_zeros(DeviceSpan<Element> into, StreamView stream) {
  if (into.size == 0) return;
  detail::fill_bytes(into.data, 0, static_cast<std::size_t>(into.size) * sizeof(Element), stream);
}

}  // namespace slimpack::cuda
