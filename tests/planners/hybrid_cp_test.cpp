// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/hybrid_cp.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

using Rounds = std::vector<planners::HybridRound>;

Rounds rounds_of(const std::vector<std::int64_t>& numbers, std::int32_t ranks,
                 std::int64_t per_rank = 10, std::optional<std::int32_t> most = {}) {
  return planners::hybrid_cp_rounds(test::tokens_of(numbers),
                                    {ranks, Tokens{per_rank}, most.value_or(ranks)});
}

}  // namespace

TEST_CASE("hybrid-cp: sizes of groups are powers of two") {
  CHECK(planners::hybrid_ranks(Tokens{1}, Tokens{10}) == 1);
  CHECK(planners::hybrid_ranks(Tokens{10}, Tokens{10}) == 1);
  CHECK(planners::hybrid_ranks(Tokens{11}, Tokens{10}) == 2);
  CHECK(planners::hybrid_ranks(Tokens{21}, Tokens{10}) == 4);
  CHECK(planners::hybrid_ranks(Tokens{40}, Tokens{10}) == 4);
  CHECK(planners::hybrid_ranks(Tokens{41}, Tokens{10}) == 8);
}

TEST_CASE("hybrid-cp: rounds, by hand, ten tokens a rank") {
  // 40 takes all four ranks; no bucket's next sample fits beside it. Then 20 takes two and each 10
  // one; 200 against 100 is out of balance, but a group of one sample is never trimmed.
  CHECK(rounds_of({40, 20, 10, 10}, 4) ==
        Rounds{{{0, 4, {0}}}, {{0, 2, {1}}, {2, 1, {2}}, {3, 1, {3}}}});
  // Input order does not matter, equal samples keep theirs.
  CHECK(rounds_of({10, 20, 10, 40}, 4) ==
        Rounds{{{0, 4, {3}}}, {{0, 2, {1}}, {2, 1, {0}}, {3, 1, {2}}}});
  // An idle rank: the first of the smallest groups is doubled, those behind it move on.
  CHECK(rounds_of({20, 10}, 4) == Rounds{{{0, 2, {0}}, {2, 2, {1}}}});
  CHECK(rounds_of({10, 10, 5}, 4) == Rounds{{{0, 2, {0}}, {2, 1, {1}}, {3, 1, {2}}}});
  CHECK(rounds_of({20, 20}, 6) == Rounds{{{0, 4, {0}}, {4, 2, {1}}}});
  // One sample is doubled twice; of three ranks it gets two, then all.
  CHECK(rounds_of({10}, 4) == Rounds{{{0, 4, {0}}}});
  CHECK(rounds_of({10}, 3) == Rounds{{{0, 3, {0}}}});
  // Squares 100 81 64 49 1 to the least loaded of two: 100 + 49 and 81 + 64 + 1.
  CHECK(rounds_of({10, 9, 8, 7, 1}, 2) == Rounds{{{0, 1, {0, 3}}, {1, 1, {1, 2, 4}}}});
  // The third 10 makes 200 against 100: it is given back, and has a round with both ranks.
  CHECK(rounds_of({10, 10, 10}, 2) == Rounds{{{0, 1, {0}}, {1, 1, {1}}}, {{0, 2, {2}}}});
  // After 20 on two ranks and two 10s on each of the others loads are equal: the round ends.
  CHECK(rounds_of({20, 10, 10, 10, 10, 10}, 4) ==
        Rounds{{{0, 2, {0}}, {2, 1, {1, 3}}, {3, 1, {2, 4}}}, {{0, 4, {5}}}});
  // Where all need one rank there is no check: two of six stay on top, removing one helps nothing.
  CHECK(rounds_of({20, 20, 10, 10, 10, 10, 10, 10}, 4) ==
        Rounds{{{0, 2, {0}}, {2, 2, {1}}},
               {{0, 1, {2, 6}}, {1, 1, {3, 7}}, {2, 1, {4}}, {3, 1, {5}}}});
}

TEST_CASE("hybrid-cp: where doubling is not possible ranks stay idle") {
  CHECK(rounds_of({20, 20, 20}, 7) == Rounds{{{0, 2, {0}}, {2, 2, {1}}, {4, 2, {2}}}});
  CHECK(rounds_of({10}, 4, 10, 1) == Rounds{{{0, 1, {0}}}});
  CHECK_THROWS_AS(static_cast<void>(rounds_of({20}, 4, 10, 1)), InvalidInput);
  CHECK_THROWS_AS(static_cast<void>(rounds_of({0}, 4)), InvalidInput);
  CHECK_THROWS_AS(static_cast<void>(rounds_of({5}, 4, 0)), InvalidInput);
}

TEST_CASE("hybrid-cp: rounds hold every sample once, groups share no rank") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed + 5);
    const auto ranks = static_cast<std::int32_t>(random.between(1, 33));
    std::int32_t power = 1;
    while (2 * power <= ranks) power *= 2;
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = random.between(1, 80); i > 0; --i) {
      lengths.push_back(
          random.between(1, random.chance(1, 8) ? 100 * power : 120 % (100 * power) + 1));
    }
    std::vector<int> seen(lengths.size());
    for (const planners::HybridRound& round : rounds_of(lengths, ranks, 100)) {
      std::int32_t next = 0;
      CHECK(!round.empty());
      for (const planners::HybridGroup& group : round) {
        CHECK(group.first == next);
        next += group.ranks;
        CHECK(!group.samples.empty());
        for (const std::size_t sample : group.samples) {
          ++seen[sample];
          CHECK(lengths[sample] <= 100 * group.ranks);
        }
      }
      CHECK(next <= ranks);
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("hybrid-cp: one stage, four ranks, by hand") {
  planners::PlanRequest request = test::request_of({1000, 500, 400, 100, 50});
  request.dp = 4;
  // 250 tokens a rank: 4, 2, 2, 1 and 1 ranks. The first round is the first sample's. In the second
  // 500 and 400 fill all ranks; their squares over two are 125000 and 80000, which no removal
  // evens out. The third has 100 on one rank, doubled, and 50 on one, doubled.
  const auto rounds = planners::hybrid_cp_rounds(request.batch.samples, {4, Tokens{250}, 4});
  const auto batches =
      planners::detail::hybrid_batches(request.batch.samples, rounds, std::nullopt);
  Plan plan = planners::detail::share_batches(request, "hybrid-cp", {}, batches);
  planners::detail::schedule_shared(plan, batches, PricedPlan(plan), MemoryModel(plan), 1,
                                    planners::Runtime::any);
  CHECK(plan.groups ==
        std::vector<std::vector<std::int32_t>>{{0}, {1}, {2}, {3}, {0, 1}, {2, 3}, {0, 1, 2, 3}});
  CHECK(plan.parallel.max_cp == 4);
  CHECK(test::plan_text(plan) ==
        "0F[0:0-1000] 1B[0:0-1000] 2F[1:0-500] 3B[1:0-500] 4F[2:0-400] 5B[2:0-400] "
        "6F[3:0-100] 7B[3:0-100] 8F[4:0-50] 9B[4:0-50]\n"
        "0.0: F0.0 H0 B1.0 F2.0 H2 B3.0 F6.0 H6 B7.0 R0 O\n"
        "1.0: F0.0 H0 B1.0 F2.0 H2 B3.0 F6.0 H6 B7.0 R0 O\n"
        "2.0: F0.0 H0 B1.0 F4.0 H4 B5.0 F8.0 H8 B9.0 R0 O\n"
        "3.0: F0.0 H0 B1.0 F4.0 H4 B5.0 F8.0 H8 B9.0 R0 O\n");
  for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
}

TEST_CASE("hybrid-cp: samples of a group in a row are packed up to the tokens of its ranks") {
  const std::vector<Tokens> lengths{{8}, {6}, {3}, {2}, {1}};
  const Rounds rounds{{{0, 1, {0, 3, 4}}, {1, 1, {1, 2}}}};
  using planners::detail::SharedBatch;
  CHECK(planners::detail::hybrid_batches(lengths, rounds, std::nullopt) ==
        std::vector<planners::detail::SharedBatch>{
            {0, 1, {0}}, {1, 1, {1}}, {0, 1, {3}}, {1, 1, {2}}, {0, 1, {4}}});
  CHECK(planners::detail::hybrid_batches(lengths, rounds, Tokens{10}) ==
        std::vector<planners::detail::SharedBatch>{{0, 1, {0, 3}}, {1, 1, {1, 2}}, {0, 1, {4}}});
}

TEST_CASE("hybrid-cp: every candidate over random batches and degrees is a valid plan") {
  std::int64_t shared = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed + 300);
    planners::PlanRequest request = test::request_of(
        test::random_lengths(random, random.between(1, 40), 1024), random.between(8, 24));
    request.dp = static_cast<std::int32_t>(random.between(1, 12));
    request.pp = static_cast<std::int32_t>(random.between(1, 5));
    if (random.chance(1, 3)) request.max_cp = static_cast<std::int32_t>(random.between(1, 4));
    const planners::detail::HybridCpCandidates candidates(request, "hybrid-cp");
    for (int draw = 0; draw < 5; ++draw) {
      const planners::SettingPoint point = test::random_point(candidates.space(), random);
      Plan plan = candidates.build(candidates.space().at(point));
      CHECK(planners::predict(plan, request) == std::nullopt);
      for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
      CHECK(plan.parallel.max_cp <= request.max_cp.value_or(request.dp));
      shared += plan.parallel.max_cp > 1 ? 1 : 0;
    }
  }
  CHECK(shared > 50);
}

TEST_CASE("hybrid-cp: long samples are shared where a rank alone lacks the memory") {
  planners::PlanRequest request = test::request_of({65536, 65536, 3000, 2000, 1000, 1000});
  request.context = {65536};
  request.dp = 4;
  request.recompute = Recompute::none;
  request.effort = planners::Effort::normal;
  request.max_cp = 1;
  const auto peak = [](const Plan& plan) {
    Bytes most;
    for (const auto& device : plan.prediction.devices) most = std::max(most, device.peak);
    return most;
  };
  const Bytes alone = peak(plan_of(plan_by("hybrid-cp", request)));
  request.max_cp.reset();
  request.memory.reserved = Bytes{0};
  request.memory.capacity = Bytes{alone.value * 3 / 4};
  const planners::PlanOutcome outcome = plan_by("hybrid-cp", request);
  const Plan& plan = plan_of(outcome);
  CHECK(plan.parallel.max_cp > 1);
  CHECK(peak(plan) <= *request.memory.capacity);
  request.max_cp = 1;
  CHECK(std::holds_alternative<Infeasible>(plan_by("hybrid-cp", request).result));
}

TEST_CASE("hybrid-cp: chunks are refused, a sharded head as published") {
  planners::PlanRequest request = test::request_of({1000, 900});
  request.pp = 2;
  request.chunks = 2;
  CHECK(std::get<Infeasible>(plan_by("hybrid-cp", request).result).constraint ==
        "chunks of a stage, one in hybrid-cp's order");
  request.chunks.reset();
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("hybrid-cp", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  CHECK(std::get<Infeasible>(plan_by("hybrid-cp", request).result).constraint ==
        "stages, one in hybrid-cp's order as published");
}
