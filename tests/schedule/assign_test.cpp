// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/assign.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/schedule/assign_bound.hpp"

using namespace slimpack;

namespace {

std::vector<schedule::SampleNeed> needs_of(const std::vector<std::int64_t>& times) {
  std::vector<schedule::SampleNeed> needs;
  for (const std::int64_t time : times) needs.push_back({time, Bytes{time}});
  return needs;
}

/// Up to so many times, a quarter of them of up to 2000, the others of up to 100.
std::vector<std::int64_t> random_times(Random& random, std::int64_t most) {
  std::vector<std::int64_t> times;
  for (std::int64_t i = random.between(1, most); i > 0; --i) {
    times.push_back(random.between(1, random.chance(1, 4) ? 2000 : 100));
  }
  return times;
}

/// The least possible largest load of whole samples, added to what ranks have.
std::int64_t best_load(const std::vector<std::int64_t>& times, std::size_t i,
                       std::vector<std::int64_t>& load) {
  if (i == times.size()) return *std::max_element(load.begin(), load.end());
  std::int64_t best = INT64_MAX;
  for (auto rank = load.begin(); rank != load.end(); ++rank) {
    if (std::find(load.begin(), rank, *rank) != rank) continue;  // as good as an earlier one
    *rank += times[i];
    best = std::min(best, best_load(times, i + 1, load));
    *rank -= times[i];
  }
  return best;
}

/// The least possible largest load where any ranks, up to `max_cp`, may share a sample.
std::int64_t best_shared(const std::vector<std::vector<std::int64_t>>& parts, std::size_t i,
                         std::int32_t max_cp, std::vector<std::int64_t>& load) {
  if (i == parts.size()) return *std::max_element(load.begin(), load.end());
  std::int64_t best = INT64_MAX;
  for (std::uint32_t members = 1; members < 1U << load.size(); ++members) {
    const int size = std::popcount(members);
    if (size > max_cp) continue;
    const auto add = [&](std::int64_t sign) {
      for (std::size_t rank = 0; rank < load.size(); ++rank) {
        if ((members >> rank & 1U) == 0) continue;
        load[rank] += sign * parts[i][static_cast<std::size_t>(size - 1)];
      }
    };
    add(1);
    best = std::min(best, best_shared(parts, i + 1, max_cp, load));
    add(-1);
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

TEST_CASE("assign_samples: the smallest groups are balanced like single ranks") {
  schedule::AssignRules rules;
  rules.ranks = 4;
  rules.min_cp = rules.max_cp = 2;
  const schedule::Assignment two = schedule::assign_samples(needs_of({6, 6, 4, 4, 4}), rules);
  CHECK(two.load == std::vector<std::int64_t>{6, 6, 6, 6});
  CHECK(two.groups == std::vector<std::vector<std::int32_t>>{{0}, {1}, {2}, {3}, {0, 1}, {2, 3}});
  rules.max_cp = 4;
  rules.threshold_permille = 500;
  const schedule::Assignment both = schedule::assign_samples(needs_of({40, 6, 6, 4, 4, 4}), rules);
  CHECK(index(both.sample_group[0]) == 6);
  CHECK(both.load == std::vector<std::int64_t>{16, 16, 16, 16});

  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> times;
    for (std::int64_t i = random.between(1, 8); i > 0; --i) times.push_back(random.between(1, 20));
    const auto width = static_cast<std::int32_t>(random.between(1, 3));
    schedule::AssignRules wide;
    wide.ranks = 3 * width;
    wide.min_cp = wide.max_cp = width;
    wide.part = [&](std::size_t sample, std::int32_t) { return times[sample]; };
    schedule::AssignRules single;
    single.ranks = 3;
    const schedule::Assignment groups = schedule::assign_samples(needs_of(times), wide);
    const schedule::Assignment alone = schedule::assign_samples(needs_of(times), single);
    for (std::size_t rank = 0; rank < groups.load.size(); ++rank) {
      CHECK(groups.load[rank] == alone.load[rank / static_cast<std::size_t>(width)]);
    }
    for (std::size_t i = 0; i < times.size(); ++i) {
      const auto& ranks = groups.groups[index(groups.sample_group[i])];
      CHECK(ranks.size() == static_cast<std::size_t>(width));
      CHECK(ranks.front() == width * static_cast<std::int32_t>(index(alone.sample_group[i])));
    }
  }
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

TEST_CASE("assign_samples: groups of any size share no rank and lie on few nodes") {
  schedule::AssignRules rules;
  rules.ranks = 16;
  rules.max_cp = 16;
  rules.groups = schedule::GroupRule::disjoint;
  for (std::int64_t rank = 0; rank < 16; ++rank) rules.node.push_back(rank / 4);
  // 64, 64, 48 and 33 on 4, 4, 3 and 3 ranks take 16 at most; with less all ranks would not do.
  const schedule::Assignment four = schedule::assign_samples(needs_of({64, 33, 48, 64}), rules);
  using Ranks = std::vector<std::int32_t>;
  REQUIRE(four.groups.size() == 20);
  CHECK(four.groups[16] == Ranks{8, 9, 10});
  CHECK(four.groups[17] == Ranks{12, 13, 14});
  CHECK(four.groups[18] == Ranks{0, 1, 2, 3});
  CHECK(four.groups[19] == Ranks{4, 5, 6, 7});
  CHECK(*std::max_element(four.load.begin(), four.load.end()) == 16);
  // Groups that no node holds take what is free on those with most: 20 takes 5 ranks at T = 4.
  const schedule::Assignment wide = schedule::assign_samples(needs_of({20, 20, 20}), rules);
  REQUIRE(wide.groups.size() == 19);
  CHECK(wide.groups[16] == Ranks{0, 1, 2, 3, 4});
  CHECK(wide.groups[17] == Ranks{5, 8, 9, 10, 11});
  CHECK(wide.groups[18] == Ranks{6, 12, 13, 14, 15});
  // What takes no longer than others stays alone; a sample without room is shared all the same.
  CHECK(schedule::assign_samples(needs_of(std::vector<std::int64_t>(32, 5)), rules).groups.size() ==
        16);
  rules.room = Bytes{1};
  std::vector<schedule::SampleNeed> large = needs_of({5, 5});
  large[1].bytes = Bytes{2};
  CHECK(schedule::assign_samples(large, rules).groups.back().size() >= 2);
  rules.min_cp = 2;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(large, rules)),
                       "assign_samples: groups that share no rank have a min_cp of 1, got 2",
                       InvalidInput);
}

TEST_CASE("assign_samples: even groups share what would make a rank fuller than others") {
  schedule::AssignRules rules;
  rules.ranks = 16;
  rules.min_cp = 4;
  rules.max_cp = 8;
  rules.groups = schedule::GroupRule::even;
  for (std::int64_t rank = 0; rank < 16; ++rank) rules.node.push_back(rank / 4);
  // Six equal samples on four nodes: one a node, and two on two nodes each.
  const schedule::Assignment six =
      schedule::assign_samples(needs_of(std::vector<std::int64_t>(6, 32)), rules);
  using Ranks = std::vector<std::int32_t>;
  REQUIRE(six.groups.size() == 22);
  CHECK(six.groups[16] == Ranks{0, 1, 2, 3});
  CHECK(six.groups[20] == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(six.groups[21] == Ranks{8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(six.load == std::vector<std::int64_t>(16, 12));
  // By threshold all or none of them are on eight ranks.
  rules.groups = schedule::GroupRule::threshold;
  const schedule::Assignment none =
      schedule::assign_samples(needs_of(std::vector<std::int64_t>(6, 32)), rules);
  CHECK(*std::max_element(none.load.begin(), none.load.end()) == 16);
  // Three nodes of four are a size, though twelve does not divide sixteen.
  rules.groups = schedule::GroupRule::even;
  rules.min_cp = 1;
  rules.max_cp = 16;
  const schedule::Assignment twelve = schedule::assign_samples(needs_of({120, 20, 20}), rules);
  CHECK(twelve.groups[index(twelve.sample_group[0])].size() == 12);
  CHECK(*std::max_element(twelve.load.begin(), twelve.load.end()) == 10);
  // A sample without room on fewer ranks goes to more of them.
  rules.room = Bytes{10};
  const schedule::Assignment large =
      schedule::assign_samples(needs_of({35, 35, 35, 35, 35}), rules);
  for (const GroupId group : large.sample_group) CHECK(large.groups[index(group)].size() >= 4);
}

TEST_CASE("assign_samples: laws of even groups, beside the bound, over many draws") {
  std::int64_t shared = 0, draws = 0, better = 0, worse = 0;
  double over_least = 0, by_threshold = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::vector<std::int64_t> times = random_times(random, 40);
    schedule::AssignRules rules;
    rules.min_cp = static_cast<std::int32_t>(random.between(1, 3));
    rules.ranks = rules.min_cp * static_cast<std::int32_t>(random.between(1, 6));
    rules.max_cp = random.chance(1, 2) ? rules.ranks : 2 * rules.min_cp;
    rules.groups = schedule::GroupRule::even;
    const std::int64_t overhead = random.between(0, 20), node = random.between(1, 5);
    for (std::int64_t rank = 0; rank < rules.ranks; ++rank) rules.node.push_back(rank / node);
    rules.part = [&](std::size_t sample, std::int32_t size) {
      return (times[sample] + size - 1) / size + overhead;
    };
    const schedule::Assignment result = schedule::assign_samples(needs_of(times), rules);
    std::vector<std::int64_t> load(static_cast<std::size_t>(rules.ranks));
    for (std::size_t i = 0; i < times.size(); ++i) {
      const auto& group = result.groups[index(result.sample_group[i])];
      const auto size = static_cast<std::int32_t>(group.size());
      CHECK(size >= rules.min_cp);
      CHECK(size <= rules.max_cp);
      shared += size > rules.min_cp ? 1 : 0;
      for (const std::int32_t rank : group) {
        load[static_cast<std::size_t>(rank)] += size == 1 ? times[i] : rules.part(i, size);
      }
    }
    CHECK(load == result.load);
    const std::int64_t most = *std::max_element(load.begin(), load.end());
    const std::int64_t least =
        schedule::least_fullest_load(times, rules.ranks, rules.max_cp, rules.part);
    CHECK(most >= least);
    rules.groups = schedule::GroupRule::threshold;
    const schedule::Assignment other = schedule::assign_samples(needs_of(times), rules);
    const std::int64_t fullest = *std::max_element(other.load.begin(), other.load.end());
    better += most < fullest ? 1 : 0;
    worse += most > fullest ? 1 : 0;
    over_least += static_cast<double>(most) / static_cast<double>(least);
    by_threshold += static_cast<double>(fullest) / static_cast<double>(least);
    ++draws;
  }
  const auto mean = [&](double sum) { return sum / static_cast<double>(draws); };
  MESSAGE("samples on more than the fewest ranks ", shared, ", fullest rank over the bound ",
          mean(over_least), ", by a threshold of the mean ", mean(by_threshold), ", better ",
          better, ", worse ", worse, " of ", draws);
  CHECK(shared > 1000);
  CHECK(over_least < 1.1 * static_cast<double>(draws));
  CHECK(better > 2 * worse);
}

TEST_CASE("assign_samples: laws of groups of any size, beside the bound, over many draws") {
  std::int64_t shared = 0, ranks_of_three = 0, exact = 0, draws = 0;
  double over_least = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::vector<std::int64_t> times = random_times(random, 20);
    schedule::AssignRules rules;
    rules.ranks = static_cast<std::int32_t>(random.between(1, 12));
    rules.max_cp = static_cast<std::int32_t>(random.between(1, rules.ranks));
    rules.groups = schedule::GroupRule::disjoint;
    const std::int64_t overhead = random.between(0, 20), node = random.between(1, 5);
    for (std::int64_t rank = 0; rank < rules.ranks; ++rank) rules.node.push_back(rank / node);
    rules.part = [&](std::size_t sample, std::int32_t size) {
      return (times[sample] + size - 1) / size + overhead;
    };
    const schedule::Assignment result = schedule::assign_samples(needs_of(times), rules);
    std::vector<std::int64_t> load(static_cast<std::size_t>(rules.ranks)), groups(load);
    for (const auto& group : result.groups) {
      CHECK(std::is_sorted(group.begin(), group.end()));
      CHECK(static_cast<std::int32_t>(group.size()) <= rules.max_cp);
      if (group.size() == 1) continue;
      ++shared;
      ranks_of_three += group.size() % 3 == 0 ? 1 : 0;
      for (const std::int32_t rank : group) {
        CHECK(++groups[static_cast<std::size_t>(rank)] == 1);
      }
    }
    for (std::size_t i = 0; i < times.size(); ++i) {
      const auto& group = result.groups[index(result.sample_group[i])];
      const auto size = static_cast<std::int32_t>(group.size());
      for (const std::int32_t rank : group) {
        load[static_cast<std::size_t>(rank)] += size == 1 ? times[i] : rules.part(i, size);
      }
    }
    CHECK(load == result.load);
    const std::int64_t most = *std::max_element(load.begin(), load.end());
    const std::int64_t least =
        schedule::least_fullest_load(times, rules.ranks, rules.max_cp, rules.part);
    CHECK(most >= least);
    CHECK(most <= std::max(2 * least, *std::max_element(times.begin(), times.end())));
    over_least += static_cast<double>(most) / static_cast<double>(least);
    exact += most == least ? 1 : 0;
    ++draws;
  }
  MESSAGE("groups ", shared, ", fullest rank over the bound ",
          over_least / static_cast<double>(draws), ", at the bound ", exact, " of ", draws);
  CHECK(shared > 1000);
  CHECK(ranks_of_three > 100);
  CHECK(over_least < 1.1 * static_cast<double>(draws));
}

TEST_CASE("least_fullest_load: no assignment of tiny instances does better") {
  // By hand: 30 shared by two takes 16 each; alone it takes longer than all of a rank.
  const std::vector<std::int64_t> times{30, 4, 4};
  CHECK(schedule::least_fullest_load(times, 2, 1, {}) == 30);
  CHECK(schedule::least_fullest_load(times, 2, 2, [](std::size_t, std::int32_t) { return 16; }) ==
        20);
  CHECK(schedule::least_fullest_load(std::vector<std::int64_t>{7, 7, 7}, 2, 1, {}) == 14);
  CHECK(schedule::least_fullest_load({}, 2, 1, {}) == 0);

  std::int64_t exact = 0, above_mean = 0;
  constexpr std::int64_t kDraws = 1500;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto ranks = static_cast<std::int32_t>(random.between(1, 4));
    const auto max_cp = static_cast<std::int32_t>(random.between(1, ranks));
    std::vector<std::vector<std::int64_t>> parts;
    std::vector<std::int64_t> alone;
    Int128 sum = 0;
    for (std::int64_t i = random.between(1, 4); i > 0; --i) {
      alone.push_back(random.between(1, random.chance(1, 3) ? 90 : 20));
      sum += alone.back();
      parts.push_back({alone.back()});
      for (std::int32_t size = 2; size <= ranks; ++size) {
        parts.back().push_back((alone.back() + size - 1) / size + random.between(0, 9));
      }
    }
    const std::int64_t least =
        schedule::least_fullest_load(alone, ranks, max_cp, [&](std::size_t i, std::int32_t size) {
          return parts[i][static_cast<std::size_t>(size - 1)];
        });
    std::vector<std::int64_t> empty(static_cast<std::size_t>(ranks));
    const std::int64_t best = best_shared(parts, 0, max_cp, empty);
    CHECK(least <= best);
    CHECK(Int128{least} * ranks >= sum);
    exact += least == best ? 1 : 0;
    above_mean += Int128{least} * ranks >= sum + ranks ? 1 : 0;

    schedule::AssignRules rules;
    rules.ranks = ranks;
    rules.max_cp = max_cp;
    rules.part = [&](std::size_t i, std::int32_t size) {
      return parts[i][static_cast<std::size_t>(size - 1)];
    };
    const std::vector<std::int64_t> load = schedule::assign_samples(needs_of(alone), rules).load;
    CHECK(*std::max_element(load.begin(), load.end()) >= best);
  }
  MESSAGE("exact in ", exact, " of ", kDraws, ", above the mean in ", above_mean);
  CHECK(exact * 2 > kDraws);
  CHECK(above_mean * 3 > kDraws);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::least_fullest_load(times, 0, 1, {})),
                       "least_fullest_load: ranks must be >= 1, got 0", InvalidInput);
}

TEST_CASE("assign_samples: what ranks have besides counts as load, over many draws") {
  using enum schedule::GroupRule;
  std::int64_t exact = 0, alone = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::vector<std::int64_t> times = random_times(random, 7);
    const auto needs = needs_of(times);
    schedule::AssignRules rules;
    rules.ranks = static_cast<std::int32_t>(random.between(1, 4));
    const auto ranks = static_cast<std::size_t>(rules.ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rules.besides.push_back(random.between(0, 3000));
    }
    const auto fullest = [&](const schedule::Assignment& result) {
      std::int64_t most = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        most = std::max(most, result.load[rank] + rules.besides[rank]);
      }
      return most;
    };
    std::vector<std::int64_t> load = rules.besides;
    const std::int64_t best = best_load(times, 0, load);
    const std::int64_t most = fullest(schedule::assign_samples(needs, rules));
    CHECK(most >= best);
    CHECK(most <= 2 * best);
    exact += most == best ? 1 : 0;
    ++alone;

    rules.max_cp = rules.ranks;
    rules.room = Bytes{random.between(100, 2000)};
    const std::int32_t narrowest = rules.ranks % 2 == 0 && random.chance(1, 2) ? 2 : 1;
    for (const schedule::GroupRule groups : {threshold, even, disjoint}) {
      CAPTURE(static_cast<int>(groups));
      rules.groups = groups;
      rules.min_cp = groups == disjoint ? 1 : narrowest;
      const schedule::Assignment result = schedule::assign_samples(needs, rules);
      std::vector<std::int64_t> parts(ranks);
      for (std::size_t i = 0; i < times.size(); ++i) {
        const auto& group = result.groups[index(result.sample_group[i])];
        const auto size = static_cast<std::int64_t>(group.size());
        for (const std::int32_t rank : group) {
          parts[static_cast<std::size_t>(rank)] += (times[i] + size - 1) / size;
        }
      }
      CHECK(parts == result.load);
      if (groups == even) continue;
      // What all have alike changes nothing.
      schedule::AssignRules none = rules, all = rules;
      none.besides.clear();
      all.besides.assign(ranks, 500);
      CHECK(schedule::assign_samples(needs, none).sample_group ==
            schedule::assign_samples(needs, all).sample_group);
    }
  }
  MESSAGE("best possible ", exact, " of ", alone);
  CHECK(exact * 10 > alone * 8);
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
                       "assign_samples: max_cp must be >= 1 and >= min_cp, got 0", InvalidInput);
  rules = {};
  rules.ranks = 3;
  rules.min_cp = 2;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: min_cp must divide the ranks, got 2", InvalidInput);
  rules.ranks = 4;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: max_cp must be >= 1 and >= min_cp, got 1", InvalidInput);
  rules = {};
  rules.threshold_permille = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: the threshold must be >= 1, got 0", InvalidInput);
  rules = {};
  rules.node = {0, 1};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: there must be a node for every rank, got 2", InvalidInput);
  rules = {};
  rules.besides = {0, 1};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: there must be a time besides for every rank, got 2",
                       InvalidInput);
  rules.besides = {-1};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs, rules)),
                       "assign_samples: a rank's time besides must be >= 0, got -1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_samples(needs_of({0}), {})),
                       "assign_samples: a sample's time must be >= 1, got 0", InvalidInput);
}
