// SPDX-License-Identifier: Apache-2.0
// How many random cases a law is tried on, and how many of a kind there must then be.
#pragma once

namespace slimpack::test {

/// `full` before a release, a third of it for each change, and a twelfth where a case costs many
/// times as much, under a sanitizer.
template <class Count>
[[nodiscard]] constexpr Count draws(Count full) noexcept {
#ifdef SLIMPACK_FEW_DRAWS
  return full / 12;
#elif defined(SLIMPACK_ALL_DRAWS)
  return full;
#else
  return full / 3;
#endif
}

}  // namespace slimpack::test
