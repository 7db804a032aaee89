// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/detail/list_rank.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"

namespace slimpack {
namespace {

TEST_CASE("StageRows: each stage has its numbers, neighbours with the same ones share a row") {
  schedule::detail::StageRows rows;  // the same for all, as in a workspace
  std::int64_t shared = 0, apart = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto stages = static_cast<std::uint32_t>(random.between(1, 8));
    const auto items = static_cast<std::size_t>(random.between(0, 12));
    std::vector<std::vector<std::int64_t>> numbers(stages);
    for (std::uint32_t pp = 0; pp < stages; ++pp) {
      if (pp > 0) numbers[pp] = numbers[pp - 1];
      if (pp > 0 && random.chance(1, 2)) continue;
      numbers[pp].resize(items);
      for (std::int64_t& number : numbers[pp]) {
        if (pp == 0 || random.chance(1, 4)) number = random.between(0, 3);
      }
    }
    // Of some stages that have the numbers of the one before it is known.
    const auto as_before = [&](std::int32_t pp) {
      const auto stage = static_cast<std::size_t>(pp);
      return pp % 2 == 1 && numbers[stage] == numbers[stage - 1];
    };
    const auto number = [&](std::int32_t pp, std::size_t item) {
      return numbers[static_cast<std::size_t>(pp)][item];
    };
    rows.fill(static_cast<std::int32_t>(stages), items, as_before, number);
    for (std::uint32_t pp = 0; pp < stages; ++pp) {
      CHECK(std::vector<std::int64_t>(rows.row(pp), rows.row(pp) + items) == numbers[pp]);
      if (pp == 0 || items == 0) continue;
      const bool same = numbers[pp] == numbers[pp - 1];
      CHECK((rows.row(pp) == rows.row(pp - 1)) == same);
      ++(same ? shared : apart);
    }
  }
  CHECK(shared > 100);
  CHECK(apart > 100);
}

}  // namespace
}  // namespace slimpack
