// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/bfd.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"

using namespace slimpack;

TEST_CASE("bfd: TRL's packs, by hand") {
  // The example of its documentation, the first document already cut to four tokens.
  CHECK(planners::pack_as_trl(test::tokens_of({4, 2, 3, 1}), Tokens{4}) ==
        schedule::Bins{{0}, {2, 3}, {1}});
  // 14 leaves 6, 11 leaves 9, 7 goes there and leaves 2, then 4 leaves 2 in the first pack: of the
  // two the second has had that room for longer and gets the 1.
  CHECK(planners::pack_as_trl(test::tokens_of({14, 11, 7, 4, 1}), Tokens{20}) ==
        schedule::Bins{{0, 3}, {1, 2, 4}});
  // The next 1 has the tighter second pack filled up, the third goes to the first.
  CHECK(planners::pack_as_trl(test::tokens_of({14, 11, 7, 4, 1, 1, 1}), Tokens{20}) ==
        schedule::Bins{{0, 3, 6}, {1, 2, 4, 5}});
  // Equal samples in input order; a full pack takes no more.
  CHECK(planners::pack_as_trl(test::tokens_of({5, 10, 5, 5}), Tokens{10}) ==
        schedule::Bins{{1}, {0, 2}, {3}});
  CHECK_THROWS_AS(static_cast<void>(planners::pack_as_trl(test::tokens_of({5}), Tokens{4})),
                  InvalidInput);
}

TEST_CASE("bfd: packs to ranks, by hand") {
  const std::vector<Tokens> lengths = test::tokens_of({9, 8, 7, 6, 5});
  const planners::PackedRanks one = planners::assign_as_trl(lengths, 2, {Tokens{10}, 1, 0});
  CHECK(one.sequences == schedule::Bins{{0}, {1}, {2}, {3}, {4}});
  CHECK(one.ranks == schedule::ShardLayout{{0, 2, 4}, {1, 3}});
  const planners::PackedRanks two = planners::assign_as_trl(lengths, 2, {Tokens{10}, 2, 0});
  CHECK(two.sequences == schedule::Bins{{0, 1}, {2, 3}, {4}});
  CHECK(two.ranks == schedule::ShardLayout{{0, 2}, {1}});
  planners::PackedRanks drawn = planners::assign_as_trl(lengths, 2, {Tokens{10}, 1, 1});
  CHECK(drawn.ranks == one.ranks);
  std::sort(drawn.sequences.begin(), drawn.sequences.end());
  CHECK(drawn.sequences == one.sequences);
}

TEST_CASE("bfd: two stages, two ranks, by hand") {
  planners::PlanRequest request = test::request_of({600, 500, 424, 1024, 400});
  request.dp = 2;
  request.pp = 2;
  const Plan plan = planners::build_packed(
      request, "bfd", {},
      planners::assign_as_trl(request.batch.samples, 2, {request.context, 1, 0}), one_forward);
  CHECK(test::plan_text(plan) ==
        "0F[3:0-1024] 1B[3:0-1024] 2F[1:0-500 4:0-400] 3B[1:0-500 4:0-400] "
        "4F[0:0-600 2:0-424] 5B[0:0-600 2:0-424]\n"
        "0.0: F0.0 F2.0 B1.0 B3.0 R0 O\n"
        "0.1: F0.0 H0 B1.0 F2.0 H2 B3.0 R0 O\n"
        "1.0: F4.0 B5.0 R0 O\n"
        "1.1: F4.0 H4 B5.0 R0 O\n");
}

TEST_CASE("bfd: every candidate over random batches and degrees is a valid plan") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 70);
    planners::PlanRequest request = test::random_step(random, 40, 9, 5);
    const planners::detail::BfdCandidates candidates(request, "bfd");
    test::check_candidates(candidates, request, random, 8, "sampler", [](const Plan&) {});
  }
}

TEST_CASE("bfd: chunks are refused, a sharded head as published") {
  planners::PlanRequest request = test::request_of({1000, 900});
  request.pp = 2;
  request.chunks = 2;
  CHECK(std::get<Infeasible>(plan_by("bfd", request).result).constraint ==
        "chunks of a stage, one in bfd's order");
  request.chunks.reset();
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("bfd", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  CHECK(std::get<Infeasible>(plan_by("bfd", request).result).constraint ==
        "stages, one in bfd's order as published");
}
