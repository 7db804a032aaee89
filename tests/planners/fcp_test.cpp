// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/fcp.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

using Division = std::vector<std::int64_t>;

/// The least time of the slowest group over all divisions of the ranks.
std::int64_t least_by_trying(const Division& fewest, const std::vector<Division>& times,
                             std::size_t group, std::int64_t ranks) {
  if (group == fewest.size()) return 0;
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < times[group].size(); ++i) {
    const std::int64_t used = fewest[group] + static_cast<std::int64_t>(i);
    if (used > ranks) break;
    const std::int64_t rest = least_by_trying(fewest, times, group + 1, ranks - used);
    best = std::min(best, std::max(times[group][i], rest));
  }
  return best;
}

}  // namespace

TEST_CASE("pack_by_memory: best fit decreasing on the fewest ranks, by hand") {
  const auto lengths = test::tokens_of({25, 4, 9, 10, 3, 30});
  // 30 fills three ranks; 25 takes three and has room for 5; 10 one; 9 one and room for 1.
  const std::vector<planners::FcpGroup> expected{
      {3, {5}}, {3, {0, 1}}, {1, {3}}, {1, {2}}, {1, {4}}};
  CHECK(planners::pack_by_memory(lengths, Tokens{10}) == expected);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::pack_by_memory(lengths, Tokens{0})),
                       "pack_by_memory: capacity must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_AS(static_cast<void>(planners::pack_by_memory(test::tokens_of({0}), Tokens{1})),
                  InvalidInput);
}

TEST_CASE("fill_micro_batches: most work first where ranks are left, by hand") {
  const std::vector<planners::FcpGroup> groups{{3, {0}}, {1, {1}}, {2, {2}}, {1, {3}}};
  const std::vector<Int128> work{90, 80, 70, 10};
  using Batches = std::vector<std::vector<std::size_t>>;
  CHECK(planners::fill_micro_batches(groups, work, 4, 1) == Batches{{0, 1}, {2, 3}});
  CHECK(planners::fill_micro_batches(groups, work, 4, 2) == Batches{{0, 3}, {1, 2}});
  CHECK(planners::fill_micro_batches(groups, work, 4, 9) == Batches{{0}, {1}, {2}, {3}});
  CHECK_THROWS_AS(static_cast<void>(planners::fill_micro_batches(groups, work, 2, 1)),
                  InvalidInput);
}

TEST_CASE("divide_ranks: by hand") {
  // Six ranks: 100 alone is 34 on three; 60 is 30 on two; 30 on one.
  const std::vector<Division> times{{100, 50, 34, 25}, {60, 30, 20}, {30, 15}};
  CHECK(planners::divide_ranks(Division{1, 1, 1}, times, 6) == Division{3, 2, 1});
  CHECK(planners::divide_ranks(Division{1, 1, 1}, times, 3) == Division{1, 1, 1});
  // More ranks than help are left idle, and a time that rises with ranks is no choice.
  CHECK(planners::divide_ranks(Division{2}, {{50, 70, 40}}, 9) == Division{4});
  CHECK(planners::divide_ranks(Division{2}, {{50, 70}}, 9) == Division{2});
  CHECK_THROWS_AS(static_cast<void>(planners::divide_ranks(Division{2, 2}, {{5}, {5}}, 3)),
                  InvalidInput);
}

TEST_CASE("divide_ranks: the slowest group takes the least time of all divisions") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t ranks = random.between(1, 10);
    Division fewest;
    std::vector<Division> times;
    std::int64_t left = ranks;
    while (left > 0 && fewest.size() < 4) {
      fewest.push_back(random.between(1, left));
      left -= fewest.back();
      auto& own = times.emplace_back();
      for (std::int64_t k = fewest.back(); k <= ranks; ++k) own.push_back(random.between(1, 40));
    }
    const Division division = planners::divide_ranks(fewest, times, ranks);
    REQUIRE(division.size() == fewest.size());
    std::int64_t slowest = 0, sum = 0;
    for (std::size_t i = 0; i < division.size(); ++i) {
      CHECK(division[i] >= fewest[i]);
      slowest = std::max(slowest, times[i][static_cast<std::size_t>(division[i] - fewest[i])]);
      sum += division[i];
    }
    CHECK(sum <= ranks);
    CHECK(slowest == least_by_trying(fewest, times, 0, ranks));
  }
}

TEST_CASE("place_groups: groups share no rank, and lie inside nodes where they fit") {
  CHECK(planners::place_groups(Division{3, 5, 5, 3}, 16, 8) ==
        std::vector<std::int32_t>{5, 0, 8, 13});
  CHECK(planners::place_groups(Division{2, 9, 5}, 16, 8) == std::vector<std::int32_t>{14, 0, 9});
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t ranks = random.between(1, 40), node = random.between(1, 9);
    Division sizes;
    std::int64_t left = ranks;
    while (left > 0 && random.chance(9, 10)) {
      sizes.push_back(random.between(1, left));
      left -= sizes.back();
    }
    const auto first = planners::place_groups(sizes, ranks, node);
    std::set<std::int64_t> seen;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::int64_t of = 0; of < sizes[i]; ++of) {
        CHECK(first[i] + of < ranks);
        CHECK(seen.insert(first[i] + of).second);
      }
    }
  }
}

TEST_CASE("fcp: one stage, groups of three and one ranks, by hand") {
  planners::PlanRequest request = test::request_of({3000, 900});
  request.context = {4096};
  request.dp = 4;
  const planners::detail::FcpCandidates candidates(request, "fcp");
  const std::vector<planners::detail::SharedBatch> batches{{0, 3, {0}, 0}, {3, 1, {1}, 0}};
  Plan plan = planners::detail::share_batches(request, "fcp", {}, batches);
  planners::detail::schedule_shared(plan, batches, PricedPlan(plan), MemoryModel(plan), 1,
                                    planners::Runtime::any);
  CHECK(test::plan_text(plan) ==
        "0F[0:0-3000] 1B[0:0-3000] 2F[1:0-900] 3B[1:0-900]\n"
        "0.0: F0.0 H0 B1.0 R0 O\n"
        "1.0: F0.0 H0 B1.0 R0 O\n"
        "2.0: F0.0 H0 B1.0 R0 O\n"
        "3.0: F2.0 H2 B3.0 R0 O\n");
  CHECK(planners::predict(plan, request) == std::nullopt);
  for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
}

TEST_CASE("fcp: every candidate over random batches and degrees is a valid plan") {
  std::set<std::int32_t> widths;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 4000);
    planners::PlanRequest request = test::random_step(random, 40, 13, 5);
    if (random.chance(1, 3)) request.max_cp = static_cast<std::int32_t>(random.between(1, 5));
    if (random.chance(1, 2)) request.cluster.kernel_s = 0;
    request.cluster.devices_per_node = random.between(1, 8);
    const planners::detail::FcpCandidates candidates(request, "fcp");
    test::check_candidates(candidates, request, random, 4, "recompute", [&](const Plan& plan) {
      CHECK(plan.parallel.max_cp <= request.max_cp.value_or(request.dp));
      std::vector<std::int64_t> runs(plan.samples.size());
      for (const MicroPack& pack : plan.micropacks) {
        widths.insert(static_cast<std::int32_t>(plan.groups[index(pack.group)].size()));
        for (const Slice& slice : pack.slices) ++runs[index(slice.sample)];
      }
      CHECK(std::all_of(runs.begin(), runs.end(), [](std::int64_t count) { return count == 2; }));
    });
  }
  // Not powers of two alone.
  CHECK(widths.contains(3));
  CHECK(widths.size() >= 5);
}

TEST_CASE("fcp: a long sample gets the ranks that short ones leave, whatever their number") {
  planners::PlanRequest request = test::request_of({60'000, 1000, 1000, 1000});
  request.context = {65'536};
  request.dp = 7;
  request.cluster.kernel_s = 0;
  request.effort = planners::Effort::normal;
  const planners::PlanOutcome outcome = plan_by("fcp", request);
  CHECK(plan_of(outcome).parallel.max_cp > 4);
  CHECK(outcome.settings.contains("largest_group"));
}

TEST_CASE("fcp: chunks are refused, a sharded head as published") {
  planners::PlanRequest request = test::request_of({1000, 900});
  request.pp = 2;
  request.chunks = 2;
  CHECK(std::get<Infeasible>(plan_by("fcp", request).result).constraint ==
        "chunks of a stage, one in fcp's order");
  request.chunks.reset();
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("fcp", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  CHECK(std::get<Infeasible>(plan_by("fcp", request).result).constraint ==
        "stages with a part of the head, one in fcp's order as published");
}
