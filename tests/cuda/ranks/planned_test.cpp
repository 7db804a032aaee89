// SPDX-License-Identifier: Apache-2.0
// Plans that the planners make for real document lengths, on emulated devices.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack/planners/registry.hpp"
#include "support/directory.hpp"
#include "support/scaled_request.hpp"

namespace planned_test {

using namespace slimpack;

TEST_CASE("ranks: every planner's plans of real lengths give the oracle's loss and gradients") {
  std::int64_t executed = 0, cp_groups = 0;
  double worst = 0;
  std::uint64_t seed = 0;
  const auto run = [&](const planners::PlannerInfo& planner, test::ScaledSet set, std::int32_t dp,
                       std::int32_t pp) {
    ++seed;
    CAPTURE(seed);
    CAPTURE(std::string(planner.name));
    set.batch_tokens = 200;
    const LengthSet lengths = test::scaled_lengths(set, test::directory() + "/../examples/data");
    planners::PlanRequest request = test::scaled_request(set, lengths, seed, dp, pp);
    if (planner.name.starts_with("megatron")) {
      request.head.reset();
      if (planner.name != "megatron-interleaved") request.chunks.reset();
    }
    ModelShape& model = request.model;
    model.hidden = 32;
    model.heads = 4;
    model.kv_heads = seed % 2 == 0 ? 1 : 2;
    model.head_dim = 16;
    model.ffn = 48;
    model.vocab = 163;
    model.bytes_per_element = 2;
    request.memory.gradient_bytes = 4;
    const planners::PlanOutcome outcome = planner.plan(request);
    if (std::holds_alternative<Infeasible>(outcome.result)) return;
    const Plan plan = *planners::plan_in(outcome.result);
    const test::RankCheck found = test::check_ranks(plan, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
    worst = std::max(worst, found.gradient);
    ++executed;
    for (const auto& group : plan.groups) cp_groups += group.size() > 1 ? 1 : 0;
  };
  for (const planners::PlannerInfo& planner : planners::registry())
    run(planner, test::kScaledSets[1], 2, 2);
  run(planners::find_planner("slimpack"), test::kScaledSets[0], 2, 1);
  run(planners::find_planner("slimpack"), test::kScaledSets[3], 3, 1);
  std::printf("  %lld plans, %lld context-parallel groups, largest difference of gradients %.1e\n",
              static_cast<long long>(executed), static_cast<long long>(cp_groups), worst);
  CHECK(executed >= 5);
}

}  // namespace planned_test
