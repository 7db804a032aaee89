// SPDX-License-Identifier: Apache-2.0
#include "slimpack/plan/tensor_rows.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

TEST_CASE("tensor rows: every row has one device, and the shares count it there") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t devices = random.between(1, 9);
    TensorShares shares(devices);
    std::vector<Tokens> counted(static_cast<std::size_t>(devices));
    for (std::int64_t i = random.between(1, 6); i > 0; --i) {
      const auto sample = static_cast<SampleId>(random.between(0, 20));
      const Tokens begin{random.between(0, 50)}, end = begin + Tokens{random.between(0, 40)};
      shares.add(sample, begin, end);
      std::vector<Tokens> own(counted.size());
      for (Tokens at = begin; at < end; at += Tokens{1}) {
        own[static_cast<std::size_t>(TensorRows{0, devices}.owner(sample, at))] += Tokens{1};
      }
      for (std::int64_t device = 0; device < devices; ++device) {
        const auto here = static_cast<std::size_t>(device);
        CHECK(TensorRows{device, devices}.between(sample, begin, end) == own[here]);
        counted[here] += own[here];
      }
    }
    CHECK(shares.largest() == *std::max_element(counted.begin(), counted.end()));
  }
}
