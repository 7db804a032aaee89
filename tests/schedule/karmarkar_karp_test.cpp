// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

namespace {

/// The method as it is told: every state has all its sets, items are kept in the order of joining,
/// and the next state is looked for among all.
class PlainDifferencing {
 public:
  struct Set {
    std::int64_t sum = 0;
    std::vector<std::int64_t> items;
  };
  using State = std::vector<Set>;

  static bool larger(const Set& a, const Set& b) {
    if (a.sum != b.sum) return a.sum > b.sum;
    if (a.items.size() != b.items.size()) return a.items.size() > b.items.size();
    return a.items > b.items;
  }
  static bool first(const State& a, const State& b) {
    const auto spread = [](const State& s) { return s.front().sum - s.back().sum; };
    return spread(a) != spread(b) ? spread(a) > spread(b) : larger(a.front(), b.front());
  }
  static State take(std::vector<State>& states) {
    const auto found = std::min_element(states.begin(), states.end(), first);
    State state = *found;
    states.erase(found);
    return state;
  }
  static schedule::ShardLayout deal(const std::vector<std::int64_t>& work, std::size_t parts,
                                    bool equal) {
    std::vector<std::pair<std::int64_t, std::int64_t>> ascending;
    for (std::size_t i = 0; i < work.size(); ++i) {
      ascending.emplace_back(work[i], static_cast<std::int64_t>(i));
    }
    std::sort(ascending.begin(), ascending.end());
    std::vector<State> states;
    for (std::size_t i = 0; i < ascending.size(); i += equal ? parts : 1) {
      State state(parts);
      for (std::size_t of = 0; of < (equal ? parts : 1); ++of) {
        state[of] = {ascending[i + of].first, {ascending[i + of].second}};
      }
      std::stable_sort(state.begin(), state.end(), larger);
      states.push_back(state);
    }
    while (states.size() > 1) {
      State a = take(states);
      const State b = take(states);
      for (std::size_t i = 0; i < parts; ++i) {
        const Set& other = b[parts - 1 - i];
        a[i].sum += other.sum;
        a[i].items.insert(a[i].items.end(), other.items.begin(), other.items.end());
      }
      std::stable_sort(a.begin(), a.end(), larger);
      states.push_back(a);
    }
    schedule::ShardLayout result(parts);
    for (std::size_t part = 0; part < parts; ++part) {
      for (const std::int64_t item : states.front()[part].items) {
        result[part].push_back(static_cast<std::size_t>(item));
      }
      std::sort(result[part].begin(), result[part].end());
    }
    return result;
  }
};

std::vector<Int128> as_work(const std::vector<std::int64_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

std::int64_t largest(const std::vector<std::int64_t>& work, const schedule::ShardLayout& deal) {
  std::int64_t most = 0;
  for (const auto& part : deal) {
    std::int64_t sum = 0;
    for (const std::size_t item : part) sum += work[item];
    most = std::max(most, sum);
  }
  return most;
}

/// The least largest sum of any assignment.
std::int64_t best(const std::vector<std::int64_t>& work, std::size_t parts) {
  std::vector<std::int64_t> sums(parts);
  std::int64_t least = INT64_MAX;
  const auto place = [&](const auto& self, std::size_t item) -> void {
    if (item == work.size()) {
      least = std::min(least, *std::max_element(sums.begin(), sums.end()));
      return;
    }
    for (std::int64_t& sum : sums) {
      sum += work[item];
      self(self, item + 1);
      sum -= work[item];
    }
  };
  place(place, 0);
  return least;
}

}  // namespace

TEST_CASE("assign_karmarkar_karp: by hand") {
  // 8-7 and 6-5 are set against each other, 4 joins 7, then 5; 6 joins 8.
  CHECK(schedule::assign_karmarkar_karp(as_work({8, 7, 6, 5, 4}), 2, schedule::PartSizes::free) ==
        schedule::ShardLayout{{1, 3, 4}, {0, 2}});
  // Pairs 6|5 and 4|3 give 6+3 | 5+4; of these equal sets that of the later item counts as larger,
  // so 2 joins 5+4 and 1 joins 6+3.
  CHECK(
      schedule::assign_karmarkar_karp(as_work({1, 2, 3, 4, 5, 6}), 2, schedule::PartSizes::equal) ==
      schedule::ShardLayout{{1, 3, 4}, {0, 2, 5}});
  // One part, as many parts as items, and more.
  CHECK(schedule::assign_karmarkar_karp(as_work({3, 1, 2}), 1, schedule::PartSizes::free) ==
        schedule::ShardLayout{{0, 1, 2}});
  CHECK(schedule::assign_karmarkar_karp(as_work({3, 1, 2}), 3, schedule::PartSizes::free) ==
        schedule::ShardLayout{{0}, {2}, {1}});
  CHECK(schedule::assign_karmarkar_karp(as_work({3, 1, 2}), 5, schedule::PartSizes::free) ==
        schedule::ShardLayout{{0}, {2}, {1}, {}, {}});
  CHECK(schedule::assign_karmarkar_karp(as_work({3, 1, 2}), 3, schedule::PartSizes::equal) ==
        schedule::ShardLayout{{0}, {2}, {1}});
  CHECK(schedule::assign_karmarkar_karp({}, 2, schedule::PartSizes::equal) ==
        schedule::ShardLayout{{}, {}});
}

TEST_CASE("assign_karmarkar_karp: as told, on random items with many ties") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto parts = static_cast<std::size_t>(random.between(1, 9));
    const bool equal = random.chance(1, 2);
    std::int64_t count = random.between(1, 40);
    if (equal) count = static_cast<std::int64_t>(parts) * random.between(1, 6);
    const std::int64_t most = random.chance(1, 2) ? 6 : 100'000;
    std::vector<std::int64_t> work;
    for (std::int64_t i = 0; i < count; ++i) work.push_back(random.between(1, most));
    CHECK(
        schedule::assign_karmarkar_karp(
            as_work(work), parts, equal ? schedule::PartSizes::equal : schedule::PartSizes::free) ==
        PlainDifferencing::deal(work, parts, equal));
  }
}

TEST_CASE("assign_karmarkar_karp: near the best there is, and far nearer with many items") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 900);
    std::vector<std::int64_t> work;
    for (std::int64_t i = random.between(4, 8); i > 0; --i) {
      work.push_back(random.between(1, 100));
    }
    const auto parts = static_cast<std::size_t>(random.between(2, 3));
    const std::int64_t found = largest(
        work, schedule::assign_karmarkar_karp(as_work(work), parts, schedule::PartSizes::free));
    const std::int64_t least = best(work, parts);
    CHECK(found >= least);
    CHECK(3 * found <= 4 * least);  // as LPT
  }
  Random random(7);
  std::vector<std::int64_t> work;
  std::int64_t total = 0;
  for (int i = 0; i < 1000; ++i) total += work.emplace_back(random.between(1, 1'000'000));
  const schedule::ShardLayout deal =
      schedule::assign_karmarkar_karp(as_work(work), 64, schedule::PartSizes::free);
  CHECK(largest(work, deal) * 64 <= total + total / 500);
}

TEST_CASE("assign_karmarkar_karp: nonsense is refused") {
  CHECK_THROWS_AS(static_cast<void>(
                      schedule::assign_karmarkar_karp(as_work({1}), 0, schedule::PartSizes::free)),
                  InvalidInput);
  CHECK_THROWS_AS(static_cast<void>(schedule::assign_karmarkar_karp(as_work({1, 0}), 2,
                                                                    schedule::PartSizes::free)),
                  InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_karmarkar_karp(
                           as_work({1, 2, 3}), 2, schedule::PartSizes::equal)),
                       "assign_karmarkar_karp: equal parts must divide the items, got 3",
                       InvalidInput);
}
