// SPDX-License-Identifier: Apache-2.0
#include "slimpack/core/union_find.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

TEST_CASE("union_find: sets are named by their lowest number and numbered in its order") {
  UnionFind sets(6);
  CHECK(sets.numbered() == std::vector<std::size_t>{0, 1, 2, 3, 4, 5});
  sets.join(5, 3);
  sets.join(3, 1);
  sets.join(4, 4);
  CHECK(sets.find(5) == 1);
  CHECK(sets.numbered() == std::vector<std::size_t>{0, 1, 2, 1, 3, 1});
  CHECK(UnionFind(0).numbered().empty());
}

TEST_CASE("union_find: joins agree with relabelling") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto count = static_cast<std::size_t>(random.between(1, 40));
    UnionFind sets(count);
    std::vector<std::size_t> label;
    for (std::size_t i = 0; i < count; ++i) label.push_back(i);
    for (std::int64_t joins = random.between(0, 40); joins > 0; --joins) {
      const std::size_t a = random.below(count), b = random.below(count);
      sets.join(a, b);
      const std::size_t low = std::min(label[a], label[b]), high = std::max(label[a], label[b]);
      for (std::size_t& each : label) each = each == high ? low : each;
    }
    for (std::size_t i = 0; i < count; ++i) CHECK(sets.find(i) == label[i]);
  }
}
