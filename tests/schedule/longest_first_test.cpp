// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/longest_first.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

TEST_CASE("longest_first: falling times, equal ones by number, few items and many") {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t count = random.between(0, seed % 3 == 0 ? 6000 : 200);
    const std::int64_t most = seed % 4 == 0 ? kLargest : random.between(0, 5000);
    std::vector<std::int64_t> times(static_cast<std::size_t>(count));
    for (std::int64_t& time : times) time = random.between(0, most);
    if (seed % 5 == 0) std::sort(times.rbegin(), times.rend());
    std::vector<std::uint32_t> expected(times.size());
    std::iota(expected.begin(), expected.end(), 0U);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return times[a] > times[b]; });
    CHECK(schedule::longest_first(times.size(), [&](std::uint32_t item) { return times[item]; }) ==
          expected);
  }
}
