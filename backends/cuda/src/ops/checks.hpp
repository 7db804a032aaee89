// SPDX-License-Identifier: Apache-2.0
// What every launcher checks of its spans. Rules name the launcher and the span.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda::detail {

/// Kernels load 16 bytes at a time.
template <class Element>
void require_aligned(DeviceSpan<Element> span, std::string_view rule) {
  require(std::bit_cast<std::uintptr_t>(span.data) % 16 == 0, rule);
}

template <class Element>
void require_size(DeviceSpan<Element> span, std::int64_t size, std::string_view rule) {
  require(span.size == size, rule, span.size);
}

/// Throws InvalidInput unless the product of a matrix's rows and columns can be counted.
inline void require_shape(std::int64_t rows, std::int64_t cols, std::string_view rule) {
  std::int64_t size = 0;
  require(rows >= 0 && cols >= 0 && !__builtin_mul_overflow(rows, cols, &size), rule,
          rows < 0 ? rows : cols);
}

}  // namespace slimpack::cuda::detail
