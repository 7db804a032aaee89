// SPDX-License-Identifier: Apache-2.0
// How many random cases a law is tried on, and how many of a kind there must then be.
#pragma once

namespace slimpack::test {

/// `full`, or a twelfth of it where each case costs many times as much, under a sanitizer.
template <class Count>
[[nodiscard]] constexpr Count draws(Count full) noexcept {
#ifdef SLIMPACK_FEW_DRAWS
  return full / 12;
#else
  return full;
#endif
}

}  // namespace slimpack::test
