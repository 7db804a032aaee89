// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/ranks.hpp"

using namespace slimpack;

namespace {

std::vector<Tokens> lengths(std::initializer_list<std::int64_t> values) {
  std::vector<Tokens> result;
  for (const std::int64_t value : values) result.push_back({value});
  return result;
}

std::vector<Tokens> random_lengths(Random& random, std::int64_t most, std::int64_t capacity) {
  std::vector<Tokens> result(static_cast<std::size_t>(random.between(0, most)));
  for (Tokens& length : result) {
    length.value = random.chance(1, 8) ? capacity : random.between(1, random.between(1, capacity));
  }
  return result;
}

Tokens sum(std::span<const Tokens> items, const std::vector<std::size_t>& bin) {
  Tokens total;
  for (const std::size_t item : bin) total += items[item];
  return total;
}

/// Every item in exactly one bin, no bin empty or over capacity, items ascending.
void check_bins(const schedule::Bins& bins, std::span<const Tokens> items, Tokens capacity) {
  std::vector<std::size_t> all;
  for (const auto& bin : bins) {
    CHECK(!bin.empty());
    CHECK(sum(items, bin) <= capacity);
    CHECK(std::is_sorted(bin.begin(), bin.end()));
    all.insert(all.end(), bin.begin(), bin.end());
  }
  std::sort(all.begin(), all.end());
  CHECK(all.size() == items.size());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

}  // namespace

TEST_CASE("pack_next_fit: by hand") {
  const auto items = lengths({5, 3, 3, 8, 1, 1});
  CHECK(schedule::pack_next_fit(items, {8}) == schedule::Bins{{0, 1}, {2}, {3}, {4, 5}});
  CHECK(schedule::pack_next_fit({}, {8}).empty());
}

TEST_CASE("pack_best_fit_decreasing: by hand, ties to the first") {
  const auto items = lengths({5, 3, 3, 8, 1, 1});
  CHECK(schedule::pack_best_fit_decreasing(items, {8}) == schedule::Bins{{3}, {0, 1}, {2, 4, 5}});
  // The item of 2 goes to the fullest bin that takes it, not to the first.
  CHECK(schedule::pack_best_fit_decreasing(lengths({5, 6, 2}), {8}) == schedule::Bins{{1, 2}, {0}});
  CHECK(schedule::pack_best_fit_decreasing(lengths({5, 5, 3}), {8}) == schedule::Bins{{0, 2}, {1}});
}

TEST_CASE("packing: every item once, no bin over capacity") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Tokens capacity{random.between(1, 300)};
    const auto items = random_lengths(random, 200, capacity.value);
    const schedule::Bins next = schedule::pack_next_fit(items, capacity);
    check_bins(next, items, capacity);
    for (std::size_t bin = 1; bin < next.size(); ++bin) {
      CHECK(next[bin].front() == next[bin - 1].back() + 1);
      CHECK(sum(items, next[bin - 1]) + items[next[bin].front()] > capacity);
    }
    const schedule::Bins best = schedule::pack_best_fit_decreasing(items, capacity);
    check_bins(best, items, capacity);
    Tokens total;
    for (const Tokens item : items) total += item;
    CHECK(static_cast<std::int64_t>(best.size()) >=
          (total.value + capacity.value - 1) / capacity.value);
    // Best fit decreasing needs at most 11/9 of the optimum and one bin; twice the total bounds the
    // optimum of anything that leaves no two bins both at most half full.
    CHECK(static_cast<std::int64_t>(best.size()) <= 2 * total.value / capacity.value + 1);
    CHECK(best == schedule::pack_best_fit_decreasing(items, capacity));
  }
}

TEST_CASE("pack_best_fit_decreasing: agrees with trying every bin") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed + 1000);
    const Tokens capacity{random.between(1, 40)};
    const auto items = random_lengths(random, 60, capacity.value);
    std::vector<std::size_t> order(items.size());
    for (std::size_t item = 0; item < order.size(); ++item) order[item] = item;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return items[a] > items[b]; });
    schedule::Bins expected;
    for (const std::size_t item : order) {
      std::size_t chosen = expected.size();
      for (std::size_t bin = 0; bin < expected.size(); ++bin) {
        const Tokens filled = sum(items, expected[bin]);
        if (filled + items[item] > capacity) continue;
        if (chosen == expected.size() || filled > sum(items, expected[chosen])) chosen = bin;
      }
      if (chosen == expected.size()) expected.emplace_back();
      expected[chosen].push_back(item);
    }
    for (auto& bin : expected) std::sort(bin.begin(), bin.end());
    CHECK(schedule::pack_best_fit_decreasing(items, capacity) == expected);
  }
}

TEST_CASE("packing: nonsense is refused") {
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::pack_next_fit(lengths({3, 9}), {8})),
                       "packing: an item must not exceed the capacity, got 9", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::pack_best_fit_decreasing(lengths({0}), {8})),
                       "packing: an item must be > 0 tokens, got 0", InvalidInput);
}

TEST_CASE("assign_round_robin: by hand") {
  CHECK(schedule::assign_round_robin(5, 2) == schedule::ShardLayout{{0, 2, 4}, {1, 3}});
  CHECK(schedule::assign_round_robin(1, 3) == schedule::ShardLayout{{0}, {}, {}});
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_round_robin(1, 0)),
                       "assign_round_robin: ranks must be >= 1, got 0", InvalidInput);
}

TEST_CASE("assign_balanced: by hand, ties to the first") {
  const std::array<Int128, 5> work{1, 9, 5, 5, 2};
  // Rounds: 9 and 5; 5 and 2, the 5 to the lighter second rank; 1 to the second (10 against 11).
  CHECK(schedule::assign_balanced(work, 2) == schedule::ShardLayout{{1, 4}, {0, 2, 3}});
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::assign_balanced(work, 0)),
                       "assign_balanced: ranks must be >= 1, got 0", InvalidInput);
}

TEST_CASE("assignments: every micro-batch once, numbers equal but for one") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto ranks = static_cast<std::int32_t>(random.between(1, 9));
    std::vector<Int128> work(static_cast<std::size_t>(random.between(0, 40)));
    for (Int128& item : work) item = random.between(1, 1000);
    Int128 heaviest = 0;
    for (const Int128 item : work) heaviest = std::max(heaviest, item);
    for (const schedule::ShardLayout& deal : {schedule::assign_round_robin(work.size(), ranks),
                                              schedule::assign_balanced(work, ranks)}) {
      REQUIRE(deal.size() == static_cast<std::size_t>(ranks));
      std::vector<std::size_t> all;
      std::size_t fewest = work.size();
      std::size_t most = 0;
      for (const auto& items : deal) {
        CHECK(std::is_sorted(items.begin(), items.end()));
        all.insert(all.end(), items.begin(), items.end());
        fewest = std::min(fewest, items.size());
        most = std::max(most, items.size());
      }
      CHECK(most - fewest <= 1);
      std::sort(all.begin(), all.end());
      CHECK(all.size() == work.size());
      CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    }
    // Rounds of one a rank in falling order keep loads within the heaviest micro-batch.
    Int128 least = -1;
    Int128 greatest = 0;
    for (const auto& items : schedule::assign_balanced(work, ranks)) {
      Int128 load = 0;
      for (const std::size_t item : items) load += work[item];
      least = least < 0 ? load : std::min(least, load);
      greatest = std::max(greatest, load);
    }
    CHECK(greatest - least <= heaviest);
  }
}

TEST_CASE("sample_work: half the FLOPs of a layer's products and causal attention") {
  ModelShape model;
  model.hidden = 8;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 4;
  model.ffn = 16;
  // 8 (2 8 + 2 4) + 3 8 16 = 576 weights, queries 8 wide.
  CHECK(schedule::sample_work(model, {10}) == Int128{10 * 576 + 100 * 8});
}

TEST_CASE("cut_uniformly: by hand") {
  const std::array<schedule::PackedSample, 2> sequence{
      {{SampleId{3}, {500}}, {SampleId{5}, {300}}}};
  using Runs = std::vector<std::vector<Slice>>;
  const SampleId a{3};
  const SampleId b{5};
  // Wishes 200, 400, 600: 256 (nearer than 128), 384, then 500 + 128 (nearer than 500).
  CHECK(schedule::cut_uniformly(sequence, 4, {128}) == Runs{{{a, {0}, {256}}},
                                                            {{a, {256}, {384}}},
                                                            {{a, {384}, {500}}, {b, {0}, {128}}},
                                                            {{b, {128}, {300}}}});
  CHECK(schedule::cut_uniformly(sequence, 1, {128}) == Runs{{{a, {0}, {500}}, {b, {0}, {300}}}});
  // The wish 400 has 0 and 500 around it: the end of a sample is a legal place.
  CHECK(schedule::cut_uniformly(sequence, 2, {1024}) == Runs{{{a, {0}, {500}}}, {{b, {0}, {300}}}});
  // Half way between 0 and 4: the lower, which is no cut.
  const std::array<schedule::PackedSample, 1> short_one{{{a, {4}}}};
  CHECK(schedule::cut_uniformly(short_one, 2, {4}) == Runs{{{a, {0}, {4}}}});
  CHECK(schedule::cut_uniformly(short_one, 9, {2}) == Runs{{{a, {0}, {2}}}, {{a, {2}, {4}}}});
  CHECK(schedule::cut_uniformly({}, 3, {1}).empty());
}

TEST_CASE("cut_uniformly: a partition at legal places, each nearest to its wish") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Tokens granularity{random.between(1, 40)};
    std::vector<schedule::PackedSample> sequence(static_cast<std::size_t>(random.between(1, 12)));
    Tokens total;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      sequence[i] = {static_cast<SampleId>(i), {random.between(1, random.between(1, 400))}};
      total += sequence[i].length;
    }
    const std::int64_t count = random.between(1, 20);
    const auto runs = schedule::cut_uniformly(sequence, count, granularity);
    CHECK(static_cast<std::int64_t>(runs.size()) <= count);
    std::vector<Tokens> reached(sequence.size());
    std::size_t sample = 0;
    Tokens longest;
    for (const auto& run : runs) {
      REQUIRE(!run.empty());
      Tokens tokens;
      for (std::size_t i = 0; i < run.size(); ++i) {
        const Slice& slice = run[i];
        CHECK(slice.length().value > 0);
        CHECK(index(slice.sample) >= sample);
        CHECK((i == 0 || run[i - 1].sample < slice.sample));
        sample = index(slice.sample);
        CHECK(slice.begin == reached[sample]);
        CHECK((slice.end == sequence[sample].length || slice.end.value % granularity.value == 0));
        reached[sample] = slice.end;
        tokens += slice.length();
      }
      longest = std::max(longest, tokens);
    }
    for (std::size_t i = 0; i < sequence.size(); ++i) CHECK(reached[i] == sequence[i].length);
    // Each cut is within half a granule of its wish.
    if (static_cast<std::int64_t>(runs.size()) == count) {
      CHECK(longest.value <= total.value / count + 1 + granularity.value);
    }
  }
}

TEST_CASE("cut_uniformly: thousands of samples in one sequence") {
  std::vector<schedule::PackedSample> sequence(5000);
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    sequence[i] = {static_cast<SampleId>(i), {7}};
  }
  const auto runs = schedule::cut_uniformly(sequence, 35, {128});
  REQUIRE(runs.size() == 35);
  for (const auto& run : runs) {
    Tokens tokens;
    for (const Slice& slice : run) tokens += slice.length();
    CHECK((tokens.value >= 993 && tokens.value <= 1007));
  }
}

TEST_CASE("cut_uniformly: nonsense is refused") {
  const std::array<schedule::PackedSample, 1> sequence{{{SampleId{0}, {4}}}};
  const std::array<schedule::PackedSample, 1> empty{{{SampleId{0}, {0}}}};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::cut_uniformly(sequence, 0, {1})),
                       "cut_uniformly: count must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::cut_uniformly(sequence, 1, {0})),
                       "cut_uniformly: granularity must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::cut_uniformly(empty, 1, {1})),
                       "cut_uniformly: a length must be >= 1, got 0", InvalidInput);
}
