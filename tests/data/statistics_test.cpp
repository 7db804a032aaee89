// SPDX-License-Identifier: Apache-2.0
#include "slimpack/data/statistics.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"

namespace statistics_test {

using namespace slimpack;

TEST_CASE("length statistics: a case solved by hand") {
  std::vector<Tokens> lengths;
  for (const std::int64_t length : {1, 2, 3, 4, 7, 8, 40000, 32768, 9, 10}) {
    lengths.push_back(Tokens{length});
  }
  const LengthStatistics found = length_statistics(lengths);
  CHECK(found.documents == 10);
  CHECK(found.total == Tokens{72812});
  CHECK(found.min == Tokens{1});
  CHECK(found.max == Tokens{40000});
  CHECK(found.median == Tokens{7});
  CHECK(found.p90 == Tokens{32768});
  CHECK(found.p99 == Tokens{40000});
  CHECK(found.long_documents == 1);
  CHECK(found.long_token_share == doctest::Approx(40000.0 / 72812));
  const double pairs = 1 + 3 + 6 + 10 + 28 + 36 + 45 + 55 + 536887296.0 + 800020000.0;
  CHECK(found.long_pair_share == doctest::Approx(800020000.0 / pairs));
  REQUIRE(found.histogram.size() == 16);
  CHECK(found.histogram[0] == LengthBin{Tokens{1}, 1, Tokens{1}});
  CHECK(found.histogram[1] == LengthBin{Tokens{2}, 2, Tokens{5}});
  CHECK(found.histogram[2] == LengthBin{Tokens{4}, 2, Tokens{11}});
  CHECK(found.histogram[3] == LengthBin{Tokens{8}, 3, Tokens{27}});
  CHECK(found.histogram[4] == LengthBin{Tokens{16}, 0, Tokens{0}});
  CHECK(found.histogram[15] == LengthBin{Tokens{32768}, 2, Tokens{72768}});
}

TEST_CASE("percentile: the least length that so many do not exceed") {
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<Tokens> sorted(static_cast<std::size_t>(random.between(1, 230)));
    for (Tokens& length : sorted) length.value = random.between(1, 60);
    std::sort(sorted.begin(), sorted.end());
    const auto count = static_cast<std::int64_t>(sorted.size());
    for (std::int64_t percent = 1; percent <= 100; ++percent) {
      const Tokens found = percentile(sorted, percent);
      const auto within = std::upper_bound(sorted.begin(), sorted.end(), found) - sorted.begin();
      const auto below = std::lower_bound(sorted.begin(), sorted.end(), found) - sorted.begin();
      CHECK(within * 100 >= percent * count);
      CHECK(below * 100 < percent * count);
    }
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(percentile({}, 50)), "percentile: there must be a length",
                       InvalidInput);
  const std::vector<Tokens> one{Tokens{1}};
  CHECK_THROWS_WITH_AS(static_cast<void>(percentile(one, 0)),
                       "percentile: percent must be in 1 .. 100, got 0", InvalidInput);
}

TEST_CASE("length statistics: the histogram holds everything once, whatever the lengths") {
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<Tokens> lengths(static_cast<std::size_t>(random.between(1, 100)));
    for (Tokens& length : lengths) {
      length.value = random.between(1, std::int64_t{1} << random.between(0, 55));
    }
    const LengthStatistics found = length_statistics(lengths);
    std::int64_t documents = 0;
    Tokens tokens;
    for (const LengthBin& bin : found.histogram) {
      documents += bin.documents;
      tokens += bin.tokens;
      CHECK(bin.tokens >= bin.documents * bin.low);
      CHECK(bin.tokens.value <= bin.documents * (2 * bin.low.value - 1));
    }
    CHECK(documents == found.documents);
    CHECK(tokens == found.total);
    CHECK(found.histogram.front().documents > 0);
    CHECK(found.histogram.back().documents > 0);
    CHECK(found.long_pair_share >= found.long_token_share - 1e-12);
    CHECK(found.long_pair_share <= 1.0);
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(length_statistics({})),
                       "length_statistics: there must be a length", InvalidInput);
  const std::vector<Tokens> wrong{Tokens{3}, Tokens{0}};
  CHECK_THROWS_WITH_AS(static_cast<void>(length_statistics(wrong)),
                       "length_statistics: lengths must be > 0, got 0", InvalidInput);
}

}  // namespace statistics_test
