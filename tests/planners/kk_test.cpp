// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/kk.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"

using namespace slimpack;

TEST_CASE("kk: ranks and micro-batches of verl's rule, by hand") {
  // Int128 24576 L + L^2 of lengths 1..6. Equal numbers: pairs 6|5, 4|3, 2|1 by their difference;
  // 6+3 = 221229 | 5+4 = 221225, then 2 joins the lighter: lengths {2,4,5} and {1,3,6}.
  // Rank 0 holds 2, 5, 4 (even places, then odd ones backwards) and with 6 tokens a micro-batch
  // needs two: 5 is set against 4, and 2, which differs most, joins the lighter: {2,4} = 147476
  // before {5} = 122905. Rank 1 holds 1, 6, 3: {6} = 147492 before {1,3} = 98314.
  planners::KkRules rules;
  rules.budget = Tokens{6};
  const ModelShape model = test::request_of({1}).model;
  const planners::PackedRanks assigned =
      planners::assign_as_verl(model, test::tokens_of({1, 2, 3, 4, 5, 6}), 2, rules);
  CHECK(assigned.sequences == schedule::Bins{{1, 3}, {4}, {5}, {0, 2}});
  CHECK(assigned.ranks == schedule::ShardLayout{{0, 1}, {2, 3}});
}

TEST_CASE("kk: heavy micro-batches are in the middle, by hand") {
  // Alone in their micro-batches, by falling weight 40 30 20 10: 1st and 3rd backwards, 2nd, 4th.
  const std::vector<Int128> work{10, 40, 20, 30};
  CHECK(planners::detail::kk_micro_batches({0, 1, 2, 3}, work, 4, true) ==
        schedule::Bins{{2}, {1}, {3}, {0}});
  CHECK(planners::detail::kk_micro_batches({0, 1, 2, 3}, work, 4, false) ==
        schedule::Bins{{1}, {3}, {2}, {0}});
  // Five: 50 40 30 20 10 becomes 10 30 50 40 20.
  const std::vector<Int128> five{10, 20, 30, 40, 50};
  CHECK(planners::detail::kk_micro_batches({0, 1, 2, 3, 4}, five, 5, true) ==
        schedule::Bins{{0}, {2}, {4}, {3}, {1}});
}

TEST_CASE("kk: one count of micro-batches for all ranks, no more than samples") {
  const ModelShape model = test::request_of({1}).model;
  planners::KkRules rules;
  rules.budget = Tokens{100};
  // Rank 0 has 100 + 90 tokens in two samples, the other four shorter ones: both run two.
  rules.sizes = schedule::PartSizes::free;
  const planners::PackedRanks assigned =
      planners::assign_as_verl(model, test::tokens_of({100, 90, 60, 50, 40, 40}), 2, rules);
  REQUIRE(assigned.ranks.size() == 2);
  CHECK(assigned.ranks[0].size() == 2);
  CHECK(assigned.ranks[1].size() == 2);
  rules.least = 3;
  const planners::PackedRanks more =
      planners::assign_as_verl(model, test::tokens_of({100, 90, 60, 50, 40, 40}), 2, rules);
  CHECK(more.ranks[0].size() + more.ranks[1].size() >= 5);
  rules.multiple = 4;
  const planners::PackedRanks four =
      planners::assign_as_verl(model, test::tokens_of({9, 9, 9, 9, 9, 9, 9, 9}), 2, rules);
  CHECK(four.ranks[0].size() == 4);
  CHECK(four.ranks[1].size() == 4);
  // Fewer samples than ranks.
  const planners::PackedRanks few =
      planners::assign_as_verl(model, test::tokens_of({5, 7}), 4, rules);
  CHECK(few.ranks[0].size() == 1);
  CHECK(few.ranks[1].size() == 1);
  CHECK(few.ranks[2].empty());
}

TEST_CASE("kk: two stages, two ranks, by hand") {
  planners::PlanRequest request = test::request_of({100, 200, 300, 400, 500, 600});
  request.dp = 2;
  request.pp = 2;
  planners::KkRules rules;
  rules.budget = Tokens{600};
  const Plan plan = planners::build_packed(
      request, "kk", {}, planners::assign_as_verl(request.model, request.batch.samples, 2, rules),
      one_forward);
  CHECK(test::plan_text(plan) ==
        "0F[1:0-200 3:0-400] 1B[1:0-200 3:0-400] 2F[4:0-500] 3B[4:0-500] "
        "4F[5:0-600] 5B[5:0-600] 6F[0:0-100 2:0-300] 7B[0:0-100 2:0-300]\n"
        "0.0: F0.0 F2.0 B1.0 B3.0 R0 O\n"
        "0.1: F0.0 H0 B1.0 F2.0 H2 B3.0 R0 O\n"
        "1.0: F4.0 F6.0 B5.0 B7.0 R0 O\n"
        "1.1: F4.0 H4 B5.0 F6.0 H6 B7.0 R0 O\n");
}

TEST_CASE("kk: every candidate over random batches and degrees is a valid plan") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 40);
    planners::PlanRequest request = test::random_step(random, 40, 9, 5);
    const planners::detail::KkCandidates candidates(request, "kk");
    test::check_candidates(candidates, request, random, 8, "budget_tokens", [](const Plan&) {});
  }
}

TEST_CASE("kk: chunks are kept where asked for, a sharded head is refused as published") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700});
  request.pp = 2;
  request.chunks = 2;
  CHECK(plan_of(plan_by("kk", request)).parallel.chunks == 2);
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("kk", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  const auto why = std::get<Infeasible>(plan_by("kk", request).result);
  CHECK(why.constraint == "stages with a part of the head, one in kk's order as published");
  CHECK(why.needed == 2);
}
