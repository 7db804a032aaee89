// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/assign.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

namespace {

std::vector<schedule::SampleNeed> needs_of(const std::vector<std::int64_t>& times) {
  std::vector<schedule::SampleNeed> needs;
  for (const std::int64_t time : times) needs.push_back({time, Bytes{time}});
  return needs;
}

/// The least possible largest load of whole samples.
std::int64_t best_load(const std::vector<std::int64_t>& times, std::size_t i,
                       std::vector<std::int64_t>& load) {
  if (i == times.size()) return *std::max_element(load.begin(), load.end());
  std::int64_t best = INT64_MAX;
  for (std::int64_t& rank : load) {
    rank += times[i];
    best = std::min(best, best_load(times, i + 1, load));
    rank -= times[i];
    if (rank == 0) break;
  }
  return best;
}

}  // namespace

TEST_CASE("assign_samples: moves and swaps rebalance the most loaded rank") {
  schedule::AssignRules rules;
  rules.ranks = 2;
  // Longest first alone gives 3+2+2 and 3+2; a swap cannot help, and 7 is not the best.
  CHECK(schedule::assign_samples(needs_of({3, 3, 2, 2, 2}), rules).load ==
        std::vector<std::int64_t>{6, 6});
  const schedule::Assignment one = schedule::assign_samples(needs_of({5}), rules);
  CHECK(one.load == std::vector<std::int64_t>{5, 0});
  CHECK(one.groups == std::vector<std::vector<std::int32_t>>{{0}, {1}});
}

TEST_CASE("assign_samples: merges by time and by bytes, in the smallest group, inside a node") {
  schedule::AssignRules rules;
  rules.ranks = 4;
  rules.max_cp = 4;
  const schedule::Assignment by_time =
      schedule::assign_samples(needs_of({100, 10, 10, 10, 10}), rules);
  CHECK(by_time.groups.back() == std::vector<std::int32_t>{0, 1, 2, 3});  // sizes divide 4
  CHECK(index(by_time.sample_group[0]) == 4);
  rules.threshold_permille = 1'000'000;
  rules.room = Bytes{60};
  const schedule::Assignment by_bytes =
      schedule::assign_samples(needs_of({100, 10, 10, 10, 10}), rules);
  CHECK(by_bytes.groups.back() == std::vector<std::int32_t>{0, 1});
  rules.ranks = 6;
  rules.node = {0, 1, 1, 1, 2, 2};
  CHECK(schedule::assign_samples(needs_of({100, 10}), rules).groups.back() ==
        std::vector<std::int32_t>{2, 3});
  rules.max_cp = 1;
  CHECK(schedule::assign_samples(needs_of({100, 10}), rules).groups.size() == 6);
}

TEST_CASE("assign_samples: laws and brute force over many draws") {
  std::int64_t in_cp_group = 0, exact = 0, draws = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> times;
    const std::int64_t count = random.between(1, 9);
    for (std::int64_t i = 0; i < count; ++i) {
      times.push_back(random.between(1, random.chance(1, 4) ? 200 : 20));
    }
    schedule::AssignRules rules;
    rules.ranks = static_cast<std::int32_t>(random.between(1, 4));
    rules.max_cp = static_cast<std::int32_t>(random.between(1, 4));
    rules.threshold_permille = random.between(300, 2000);
    const auto needs = needs_of(times);
    const schedule::Assignment result = schedule::assign_samples(needs, rules);
    REQUIRE(result.sample_group.size() == times.size());
    std::vector<std::int64_t> load(static_cast<std::size_t>(rules.ranks));
    bool any = false;
    for (std::size_t i = 0; i < times.size(); ++i) {
      REQUIRE(index(result.sample_group[i]) < result.groups.size());
      const auto& group = result.groups[index(result.sample_group[i])];
      const auto size = static_cast<std::int64_t>(group.size());
      CHECK(size <= std::max(1, rules.max_cp));
      CHECK(group.front() % size == 0);
      any = any || size > 1;
      for (const std::int32_t rank : group) {
        load[static_cast<std::size_t>(rank)] += (times[i] + size - 1) / size;
      }
    }
    CHECK(load == result.load);
    in_cp_group += any ? 1 : 0;
    ++draws;
    if (any) continue;
    std::vector<std::int64_t> empty(static_cast<std::size_t>(rules.ranks));
    const std::int64_t best = best_load(times, 0, empty);
    const std::int64_t most = *std::max_element(load.begin(), load.end());
    CHECK(most >= best);
    // Longest first is within 4/3 - 1/(3m), and what follows never makes it worse.
    CHECK(most * 3 * rules.ranks <= best * (4 * rules.ranks - 1));
    exact += most == best ? 1 : 0;
  }
  MESSAGE("draws ", draws, ", merged ", in_cp_group, ", best possible ", exact, " of ",
          draws - in_cp_group);
  CHECK(in_cp_group > 500);
  CHECK(exact * 10 > (draws - in_cp_group) * 8);
}

TEST_CASE("assign_samples: refuses what makes no sense") {
  const auto needs = needs_of({1, 2});
  schedule::AssignRules rules;
  rules.ranks = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: ranks must be >= 1, got 0", InvalidInput);
  rules = {};
  rules.max_cp = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: max_cp must be >= 1, got 0", InvalidInput);
  rules = {};
  rules.threshold_permille = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: the threshold must be >= 1, got 0", InvalidInput);
  rules = {};
  rules.node = {0, 1};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: there must be a node for every rank, got 2", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs_of({0}), {})),
                       "assign_samples: a sample's time must be >= 1, got 0", InvalidInput);
}
