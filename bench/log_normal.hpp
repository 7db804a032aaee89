// SPDX-License-Identifier: Apache-2.0
// The lengths that solver benchmarks plan: log-normal, as public planners are timed on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack::bench {

inline constexpr std::int64_t kLongestSample = 262'144;

/// `count` lengths, log-normal with mu 7.0 and sigma 1.3, within [1, 256K], in the order drawn.
[[nodiscard]] inline std::vector<Tokens> log_normal_lengths(std::int64_t count,
                                                            std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<Tokens> lengths;
  lengths.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const double drawn = std::exp(7.0 + 1.3 * random.normal());
    lengths.push_back(
        {static_cast<std::int64_t>(std::clamp(drawn, 1.0, static_cast<double>(kLongestSample)))});
  }
  return lengths;
}

}  // namespace slimpack::bench
