// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/megatron.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

void check_valid(const Plan& plan) {
  for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
}

}  // namespace

TEST_CASE("megatron-cp: two groups of two ranks, by hand") {
  planners::PlanRequest request = test::request_of({600, 600, 300, 1024});
  request.dp = 4;
  planners::PackedSettings settings;
  settings.ranks = 2;
  settings.cp_block = Tokens{64};
  const Plan plan = planners::build_packed(request, "megatron-cp", settings, one_forward);
  CHECK(
      test::plan_text(plan) ==
      "0F[0:0-600] 1B[0:0-600] 2F[3:0-1024] 3B[3:0-1024] 4F[1:0-600 2:0-300] 5B[1:0-600 2:0-300]\n"
      "0.0: F0.0 H0 B1.0 F2.0 H2 B3.0 R0 O\n"
      "1.0: F0.0 H0 B1.0 F2.0 H2 B3.0 R0 O\n"
      "2.0: F4.0 H4 B5.0 R0 O\n"
      "3.0: F4.0 H4 B5.0 R0 O\n");
  CHECK(plan.groups == std::vector<std::vector<std::int32_t>>{{0, 1}, {2, 3}});
  CHECK(plan.parallel.max_cp == 2);
  CHECK(plan.memory.cp_block_tokens == Tokens{64});
  for (const MicroPack& pack : plan.micropacks) {
    CHECK(pack.exchange == std::vector<RingMode>(pack.slices.size(), RingMode::pass_kv));
  }
  check_valid(plan);
}

TEST_CASE("megatron-cp: degrees are powers of two that divide dp, up to merge") {
  const auto choices = [](std::int32_t dp, std::optional<std::int32_t> max_cp) {
    planners::PlanRequest request = test::request_of({10});
    request.dp = dp;
    request.max_cp = max_cp;
    return planners::context_parallel_choices(request);
  };
  using Degrees = std::vector<std::int32_t>;
  CHECK(choices(1, {}) == Degrees{1});
  CHECK(choices(3, {}) == Degrees{1});
  CHECK(choices(8, {}) == Degrees{1, 2, 4, 8});
  CHECK(choices(12, {}) == Degrees{1, 2, 4});
  CHECK(choices(8, 1) == Degrees{1});
  CHECK(choices(8, 3) == Degrees{1, 2});
  CHECK(choices(8, 4) == Degrees{1, 2, 4});
}

TEST_CASE("megatron-cp: every candidate over random batches and degrees is a valid plan") {
  std::int64_t shared = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed + 500);
    planners::PlanRequest request = test::request_of(
        test::random_lengths(random, random.between(1, 40), 1024), random.between(8, 24));
    request.dp = static_cast<std::int32_t>(random.between(1, 12));
    request.pp = static_cast<std::int32_t>(random.between(1, 6));
    request.granularity = {random.between(1, 200)};
    const auto ranks = planners::context_parallel_choices(request);
    for (const auto& share : planners::block_choices(request, ranks.back())) {
      planners::PackedSettings settings;
      settings.recompute = static_cast<Recompute>(random.below(4));
      settings.packing =
          random.chance(1, 2) ? planners::Packing::in_order : planners::Packing::best_fit;
      settings.assignment_rule = random.chance(1, 2) ? planners::AssignmentRule::in_turn
                                                     : planners::AssignmentRule::balanced;
      settings.ranks = ranks[random.below(ranks.size())];
      settings.cp_block = share;
      Plan plan = planners::build_packed(request, "megatron-cp", settings, one_forward);
      CHECK(planners::predict(plan, request) == std::nullopt);
      check_valid(plan);
      shared += settings.ranks > 1 ? 1 : 0;
    }
  }
  CHECK(shared > 60);
}

TEST_CASE("megatron-cp: sharing a sequence relieves memory that megatron lacks") {
  planners::PlanRequest request = test::request_of({65536, 65536, 65536, 65536});
  request.context = {65536};
  request.dp = 4;
  request.pp = 2;
  request.effort = planners::Effort::normal;
  const auto peak = [](const planners::PlanOutcome& outcome) {
    Bytes most;
    for (const auto& device : plan_of(outcome).prediction.devices) {
      most = std::max(most, device.peak);
    }
    return most;
  };
  request.recompute = Recompute::none;
  request.max_cp = 1;
  const Bytes alone = peak(plan_by("megatron-cp", request));
  CHECK(alone == peak(plan_by("megatron", request)));
  request.max_cp.reset();
  planners::PackedSettings settings;
  settings.ranks = 4;
  Plan shared = planners::build_packed(request, "megatron-cp", settings, one_forward);
  CHECK(planners::predict(shared, request) == std::nullopt);
  // Weights, gradients and optimizer state are not shared by it, nor what is gathered of keys.
  const Bytes least = planners::worst_memory(shared).front();
  CHECK(least.value < alone.value * 3 / 4);
  request.memory.reserved = Bytes{0};
  request.memory.capacity = Bytes{least.value + (alone.value - least.value) / 8};
  CHECK(std::holds_alternative<Infeasible>(plan_by("megatron", request).result));
  const planners::PlanOutcome outcome = plan_by("megatron-cp", request);
  const Plan& plan = plan_of(outcome);
  check_valid(plan);
  CHECK(peak(outcome) <= request.memory.capacity.value());
  CHECK(plan.groups.front().size() >= 4);
  CHECK(outcome.settings.at("context_parallel") == "4");
  CHECK(outcome.settings.contains("share_tokens"));
}

TEST_CASE("megatron-cp: never slower than megatron where everything is tried") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    Random random(seed + 9);
    planners::PlanRequest request = test::request_of(test::random_lengths(random, 12, 1024), 8);
    request.dp = 2;
    request.effort = planners::Effort::thorough;
    CHECK(plan_of(plan_by("megatron-cp", request)).prediction.iteration <=
          plan_of(plan_by("megatron", request)).prediction.iteration);
  }
}

TEST_CASE("packs: a longer context than any sample makes no planner of packs slower") {
  for (const char* name :
       {"megatron", "megatron-interleaved", "megatron-cp", "slimpipe", "wlb-llm", "zeppelin"}) {
    CAPTURE(name);
    planners::PlanRequest request = test::request_of({600, 500, 450, 300, 300, 200, 90, 80, 70});
    request.dp = 2;
    request.pp = 2;
    request.effort = planners::Effort::thorough;
    request.recompute = Recompute::none;
    request.chunks = std::string_view(name) == "megatron-interleaved" ? 2 : 1;
    request.head = LmHead::last;
    request.fewer_last_layers = 0;
    request.memory.cp_block_tokens = Tokens{64};
    request.context = {600};
    const Nanos tight = plan_of(plan_by(name, request)).prediction.iteration;
    request.context = {65536};
    const planners::PlanOutcome loose = plan_by(name, request);
    CHECK(plan_of(loose).prediction.iteration <= tight);
    CHECK(loose.settings.contains("pack_tokens"));
  }
}

TEST_CASE("packs: lengths that are tried") {
  const auto choices = [](std::int64_t longest, std::int64_t context) {
    planners::PlanRequest request = test::request_of({longest, 1});
    request.context = {context};
    return planners::pack_length_choices(request);
  };
  CHECK(choices(8, 8) == test::tokens_of({8}));
  CHECK(choices(8, 15) == test::tokens_of({8, 15}));
  CHECK(choices(8, 16) == test::tokens_of({8, 16}));
  CHECK(choices(8, 40) == test::tokens_of({8, 40, 32, 16}));
}

TEST_CASE("megatron-cp: chunks of shared sequences make valid plans, and may be faster") {
  std::int64_t interleaved = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Random random(seed + 900);
    planners::PlanRequest request = test::request_of(
        test::random_lengths(random, random.between(4, 40), 1024), random.between(16, 24));
    request.dp = 4;
    request.pp = static_cast<std::int32_t>(random.between(2, 5));
    planners::PackedSettings settings;
    settings.ranks = random.chance(1, 2) ? 2 : 4;
    settings.chunks = static_cast<std::int32_t>(random.between(2, 3));
    Plan plan =
        planners::build_packed(request, "megatron-cp", settings, planners::OneForwardOneBackward{});
    CHECK(planners::predict(plan, request) == std::nullopt);
    check_valid(plan);
    settings.chunks = 1;
    Plan single = planners::build_packed(request, "megatron-cp", settings, one_forward);
    CHECK(planners::predict(single, request) == std::nullopt);
    interleaved += plan.prediction.iteration < single.prediction.iteration ? 1 : 0;
  }
  CHECK(interleaved > 0);
}

TEST_CASE(
    "megatron-cp: a request's blocks and chunks are kept; a sharded head is refused as published") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700});
  request.dp = 2;
  request.memory.cp_block_tokens = Tokens{100};
  request.chunks = 2;
  const Plan plan = plan_of(plan_by("megatron-cp", request));
  CHECK(plan.memory.cp_block_tokens == Tokens{100});
  CHECK(plan.parallel.chunks == 2);
  request.chunks.reset();
  request.head = LmHead::shard;
  request.pp = 2;
  CHECK(planners::plan_in(plan_by("megatron-cp", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  const auto why = std::get<Infeasible>(plan_by("megatron-cp", request).result);
  CHECK(why.constraint ==
        "stages with a part of the head, one in megatron-cp's order as published");
}
