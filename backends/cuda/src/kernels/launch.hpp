// SPDX-License-Identifier: Apache-2.0
// How many threads a kernel runs with: said once, for launchers and for tests on the emulator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "slimpack/core/error.hpp"

namespace slimpack::cuda::kernels {

struct Launch {
  unsigned blocks = 0, threads = 32;
  std::size_t shared_bytes = 0;
};

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t count, std::int64_t by) noexcept {
  return (count + by - 1) / by;
}

/// Whole warps, enough for `items` and at most `most`.
[[nodiscard]] constexpr unsigned threads_for(std::int64_t items, std::int64_t most) noexcept {
  return static_cast<unsigned>(std::clamp<std::int64_t>(divide_up(items, 32) * 32, 32, most));
}

/// Throws InvalidInput where a grid cannot have so many blocks.
[[nodiscard]] inline unsigned checked_blocks(std::int64_t blocks) {
  require(blocks <= std::numeric_limits<std::int32_t>::max(),
          "launch: a grid has at most 2147483647 blocks", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace slimpack::cuda::kernels
