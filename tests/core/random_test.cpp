// SPDX-License-Identifier: Apache-2.0
#include "slimpack/core/random.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"

using namespace slimpack;

TEST_CASE("Random: the first draws of seed 0 are those of the published SplitMix64") {
  Random random(0);
  CHECK(random.bits() == 0xe220a8397b1dcdafU);
  CHECK(random.bits() == 0x6e789e6aa1b965f4U);
  CHECK(random.bits() == 0x06c45d188009454fU);
}

TEST_CASE("Random: draws stay in their bounds and reach both ends") {
  Random random(7);
  std::array<int, 5> seen{};
  for (int draw = 0; draw < 5000; ++draw) {
    ++seen[static_cast<std::size_t>(random.between(-2, 2) + 2)];
    const double unit = random.unit();
    CHECK((unit >= 0.0 && unit < 1.0));
  }
  for (const int count : seen) CHECK(count > 800);
  CHECK_THROWS_WITH_AS(random.between(3, 2), "Random::between: low must be <= high, got 3",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(random.below(0), "Random::below: bound must be > 0", InvalidInput);
}

TEST_CASE("Random: a shuffle keeps every element") {
  Random random(11);
  std::vector<int> values(100);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span(values));
  CHECK_FALSE(std::is_sorted(values.begin(), values.end()));
  std::sort(values.begin(), values.end());
  for (int i = 0; i < 100; ++i) CHECK(values[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("CpShard: ranks of a group partition every range, as counting token by token says") {
  Random random(3);
  for (int draw = 0; draw < 300; ++draw) {
    CAPTURE(draw);
    const std::int64_t ranks = random.between(1, 5);
    const Tokens block{random.between(1, 9)};
    const Tokens begin{random.between(0, 60)};
    const Tokens end{begin.value + random.between(0, 90)};
    const std::int64_t begins = random.between(0, ranks - 1);
    Tokens sum;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const CpShard shard{rank, ranks, block, begins};
      CHECK(shard.owns(Tokens{0}) == (rank == begins));
      CHECK(CpShard{begins, ranks, block, begins}.of(rank).before(end) == shard.before(end));
      // Counted round from the first rank, the part is the same.
      const CpShard counted_round{(rank - begins + ranks) % ranks, ranks, block};
      CHECK(shard.between(begin, end) == counted_round.between(begin, end));
      Tokens counted, in_runs;
      for (Tokens position = begin; position < end; position += Tokens{1})
        counted += Tokens{shard.owns(position) ? 1 : 0};
      Tokens last{-1};
      shard.for_each_run(begin, end, [&](Tokens first, Tokens stop) {
        CHECK(first > last);  // maximal runs never touch
        CHECK(first < stop);
        for (Tokens position = first; position < stop; position += Tokens{1}) {
          CHECK(shard.owns(position));
          CHECK(shard.token(shard.before(position).value) == position);
        }
        in_runs += stop - first;
        last = stop;
      });
      CHECK(shard.between(begin, end) == counted);
      CHECK(in_runs == counted);
      sum += counted;
    }
    CHECK(sum == end - begin);
  }
}
