// SPDX-License-Identifier: Apache-2.0
// Pieces of an exchange by heads, and how long they last beside attention.
#include "slimpack/cost/head_exchange.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cost/shapes.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/plan/head_pieces.hpp"

using namespace slimpack;

namespace {

HeadSets sets_of(std::array<int, 4> tokens, std::array<int, 4> pairs) {
  HeadSets sets;
  for (std::size_t i = 0; i < 4; ++i) {
    sets.tokens[i] = static_cast<std::uint16_t>(tokens[i]);
    sets.pairs[i] = static_cast<std::uint16_t>(pairs[i]);
  }
  return sets;
}
constexpr int kWhole = static_cast<int>(HeadSets::kWhole);

/// What happens to the pieces of some sets, as a list of operations: each waits for others and for
/// whatever its resource has been given before.
struct Operation {
  bool link = false;
  Picos time = 0;
  std::vector<std::size_t> after;
};
Picos ends(const std::vector<Operation>& operations) {
  std::vector<Picos> end(operations.size());
  std::array<Picos, 2> free{};
  Picos last = 0;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    Picos start = free[operations[i].link ? 1 : 0];
    for (const std::size_t other : operations[i].after) start = std::max(start, end[other]);
    end[i] = free[operations[i].link ? 1 : 0] = start + operations[i].time;
    last = std::max(last, end[i]);
  }
  return last;
}
/// The operations of the executor: before a piece is attended to, the next is given, and the one
/// before last is home.
Picos by_operations(const std::vector<std::array<Picos, 2>>& pieces) {
  const std::size_t count = pieces.size();
  std::vector<Operation> all;
  std::vector<std::size_t> there(count), attended(count), home(count);
  const auto add = [&](bool link, Picos time, std::vector<std::size_t> after) {
    all.push_back({link, time, std::move(after)});
    return all.size() - 1;
  };
  there[0] = add(true, pieces[0][0] / 2, {});
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::size_t> ready{there[i]};
    if (i > 0) ready.push_back(attended[i - 1]);
    if (i > 1) ready.push_back(home[i - 2]);
    const std::size_t begins = add(false, 0, ready);
    if (i + 1 < count) there[i + 1] = add(true, pieces[i + 1][0] / 2, {begins});
    attended[i] = add(false, pieces[i][1], {begins});
    home[i] = add(true, pieces[i][0] / 2, {attended[i]});
  }
  return ends(all);
}

}  // namespace

TEST_CASE("heads_pipeline: by hand") {
  const HeadSets together;
  // One piece hides nothing, four equal ones all but one where attention is longer.
  CHECK(heads_pipeline(100, 80, together, 1) == 180);
  CHECK(heads_pipeline(100, 80, together, 4) == 120);
  CHECK(heads_pipeline(80, 100, together, 2) == 130);
  // Two sets of as many tokens: 4 there, 80 attended to beside what comes next, 16 and the last 4
  // home.
  CHECK(heads_pipeline(96, 16, sets_of({kWhole / 2, kWhole / 2}, {kWhole / 6 * 5, kWhole / 6}),
                       1) == doctest::Approx(104).epsilon(0.02));
  // All attention is in the first of four: 10 there, 100 beside the next, then six more halves.
  const HeadSets first = sets_of({kWhole / 4, kWhole / 4, kWhole / 4, kWhole / 4}, {kWhole});
  CHECK(heads_pipeline(100, 80, first, 1) == 170);
  // A set with nothing in it is none.
  CHECK(heads_pipeline(100, 80, sets_of({kWhole, 0, 0, 0}, {kWhole, 0, 0, 0}), 1) == 180);
}

TEST_CASE("heads_pipeline: as operations one by one, between its bounds, rising in both") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t pieces = random.between(1, 4);
    const auto count = static_cast<std::size_t>(random.between(1, head_sets(pieces)));
    HeadSets sets;
    std::array<std::uint32_t, 2> left{HeadSets::kWhole, HeadSets::kWhole};
    for (std::size_t set = 0; set < count; ++set) {
      for (std::size_t of = 0; of < 2; ++of) {
        const std::uint32_t more = static_cast<std::uint32_t>(count - set - 1);
        const auto part = set + 1 == count
                              ? left[of]
                              : static_cast<std::uint32_t>(random.between(1, left[of] - more));
        left[of] -= part;
        (of == 0 ? sets.tokens : sets.pairs)[set] = static_cast<std::uint16_t>(part);
      }
    }
    // Amounts of which every part is whole.
    const Picos unit = Picos{2} * HeadSets::kWhole * pieces;
    const Picos exchange = random.between(1, 50) * unit, attention = random.between(1, 50) * unit;
    std::vector<std::array<Picos, 2>> all;
    for (std::size_t set = 0; set < count; ++set) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        all.push_back({exchange / HeadSets::kWhole / pieces * sets.tokens[set],
                       attention / HeadSets::kWhole / pieces * sets.pairs[set]});
      }
    }
    const Picos time = heads_pipeline(attention, exchange, sets, pieces);
    CHECK(time == by_operations(all));
    CHECK(time >= std::max(exchange, attention));
    CHECK(time <= exchange + attention);
    CHECK(heads_pipeline(attention + unit, exchange, sets, pieces) >= time);
    CHECK(heads_pipeline(attention, exchange + unit, sets, pieces) >= time);
  }
}

/// What an exchange needs of the terms of a cost model.
struct HeadTerms {
  ModelShape shape;
  [[nodiscard]] const ModelShape& model() const { return shape; }
  [[nodiscard]] RingBytes ring() const { return ring_bytes(shape, {2, 4, 4}); }
  [[nodiscard]] static Picos taken_by_collective(Picos) { return 0; }
};

TEST_CASE("heads_beside: a head of keys on several ranks travels as often as heads of their own") {
  StageLoad stage;
  stage.layers = 3;
  stage.node_ranks = 8;
  for (const std::int64_t ranks : {16, 32}) {
    HeadTerms few{test::llama_7b()}, own = few;
    few.shape.kv_heads = 8;
    own.shape.kv_heads = ranks;
    REQUIRE(divides_heads(few.shape, 1, ranks));
    CHECK(key_copies(few.shape, 1, ranks) == ranks / 8);
    PackLoad load;
    load.ranks = ranks;
    load.heads_sent = Tokens{1000};
    for (const bool back : {false, true}) {
      const auto time = [&](const HeadTerms& terms) {
        return heads_beside(terms, Picos{1'000'000}, load, stage, back, {3.0, 5}, {7.0, 9}, 0);
      };
      CHECK(time(few) == time(own));
      CHECK(time(few) > 0);
    }
  }
  CHECK(key_copies(test::llama_7b(), 4, 8) == 1);
  CHECK_FALSE(divides_heads(test::llama_7b(), 1, 64));
  CHECK_FALSE(divides_heads(test::llama_7b(), 1, 24));
}

TEST_CASE("head_sets_of: whole slices by their middle, of as many sets as heads leave pieces") {
  Plan plan;
  plan.version = 3;
  plan.model = test::llama_7b();
  plan.memory.cp_block_tokens = {10};
  plan.groups.resize(1);
  plan.samples = {{40}, {20}, {10}, {20}, {120}};
  MicroPack pack{Pass::forward, GroupId{}, {}, {}, Recompute::none};
  for (std::uint32_t i = 0; i < 5; ++i) {
    pack.slices.push_back({SampleId{i}, {0}, plan.samples[i]});
    pack.exchange.push_back(RingMode::by_heads);
  }
  const auto parts = [](double part) { return doctest::Approx(part * kWhole).epsilon(1e-3); };
  // The third is one block, which does not travel. Middles of the others, of 200: 20, 50, 70, 140.
  plan.groups[0].resize(32);
  HeadSets sets = head_sets_of(plan, pack);
  CHECK(sets.tokens[0] == parts(0.2));
  CHECK(sets.tokens[1] == parts(0.2));
  CHECK(sets.tokens[2] == parts(0.6));
  CHECK(sets.tokens[3] == 0);
  CHECK(sets.pairs[0] == parts(1600.0 / 16800));
  CHECK(sets.pairs[2] == parts(14400.0 / 16800));
  // Two heads a rank make two pieces and leave two sets.
  plan.groups[0].resize(16);
  sets = head_sets_of(plan, pack);
  CHECK(sets.tokens[0] == parts(0.4));
  CHECK(sets.tokens[1] == parts(0.6));
  for (const std::size_t ranks : {8U, 4U, 2U}) {
    plan.groups[0].resize(ranks);
    CHECK(head_sets_of(plan, pack).tokens[0] == HeadSets::kWhole);
  }
  pack.exchange.assign(5, RingMode::pass_kv);
  CHECK(head_sets_of(plan, pack) == HeadSets{});
  for (std::int64_t count = 1; count <= 9; ++count) {
    const HeadSets equal = equal_head_sets(count);
    CHECK(std::ranges::count(equal.tokens, 0) == 4 - std::min<std::int64_t>(count, 4));
    CHECK(equal.tokens == equal.pairs);
  }
}
