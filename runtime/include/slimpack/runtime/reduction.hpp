// SPDX-License-Identifier: Apache-2.0
// How members' values become one, in the same order and so with the same bits on every transport.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>

#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// into[i] becomes into[i] + from[i] or the larger of both. A reduction over members is member 0's
/// values, then `combine` with each later member's in order. Spans of the same size. O(size).
template <std::floating_point Element>
void combine(std::span<Element> into, std::span<const Element> from, Reduction reduction) noexcept {
  const std::size_t size = into.size();
  Element* const out = into.data();
  const Element* const in = from.data();
  if (reduction == Reduction::sum) {
    for (std::size_t i = 0; i < size; ++i) out[i] = out[i] + in[i];
  } else {
    for (std::size_t i = 0; i < size; ++i) out[i] = std::max(out[i], in[i]);
  }
}

}  // namespace slimpack::runtime
