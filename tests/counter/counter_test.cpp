// SPDX-License-Identifier: Apache-2.0
// What all planners simulate, counted from outside: by a hook in the simulators and in the pricing
// of plans, not by the planners' own counter.
#include <doctest/doctest.h>
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/simulation_hook.hpp"
#include "slimpack/planners/registry.hpp"
#include "support/draws.hpp"

using namespace slimpack;

namespace {

/// Everything about a small request is drawn: often memory does not suffice.
planners::PlanRequest random_request(Random& random) {
  planners::PlanRequest request =
      test::request_of(test::random_lengths(random, random.between(1, 12), 1024), 8);
  request.dp = static_cast<std::int32_t>(random.between(1, 5));
  request.pp = static_cast<std::int32_t>(random.between(1, 3));
  if (random.chance(1, 6)) request.tp = 2;
  request.cluster.devices_per_node = random.chance(1, 2) ? 2 : 8;
  if (random.chance(1, 5)) request.chunks = random.chance(1, 2) ? 1 : 2;
  if (random.chance(1, 5)) request.head = random.chance(1, 2) ? LmHead::last : LmHead::shard;
  if (random.chance(1, 6)) request.recompute = static_cast<Recompute>(random.between(0, 3));
  if (random.chance(1, 6)) request.max_units = random.between(1, 6);
  if (random.chance(1, 6)) request.max_cp = static_cast<std::int32_t>(random.between(1, 4));
  if (random.chance(1, 2)) {
    request.memory.reserved = Bytes{0};
    request.memory.capacity = Bytes{random.between(60, 500) * 1'000'000};
  }
  if (random.chance(1, 8)) request.effort = planners::Effort::normal;
  if (random.chance(1, 2)) request.budget = random.between(1, 30);
  request.threads = static_cast<std::int32_t>(random.between(1, 2));
  return request;
}

[[nodiscard]] bool is_ours(std::string_view name) {
  return name.starts_with("slimpack");
}

}  // namespace

TEST_CASE("counter: no planner simulates more than its budget, nor more than it says") {
  constexpr std::uint64_t kDraws = test::draws(300U);
  std::vector<planners::PlannerInfo> all(planners::registry().begin(), planners::registry().end());
  all.insert(all.end(), planners::published_forms().begin(), planners::published_forms().end());
  auto& heard = slimpack::detail::simulations_heard;
  std::int64_t infeasible = 0, ours_heard = 0, ours_said = 0, rivals_heard = 0, rivals_said = 0;
  std::map<std::string_view, std::int64_t> full;  // by planner: budgets that were used up
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const planners::PlanRequest request = random_request(random);
    const std::int64_t budget = planners::evaluations(request) * planners::all_devices(request);
    for (const planners::PlannerInfo& planner : all) {
      CAPTURE(planner.name);
      heard.prices = heard.orders = heard.figures = 0;
      const planners::PlanOutcome outcome = planner.plan(request);
      const std::int64_t orders = heard.orders * request.tp;
      const std::int64_t figures = heard.figures * request.tp;
      CHECK(orders <= budget);
      CHECK(figures <= budget);
      CHECK(outcome.simulated_devices <= budget);
      CHECK(orders <= outcome.simulated_devices);
      CHECK(outcome.cpu_seconds >= 0);
      if (is_ours(planner.name)) {
        CHECK(figures <= outcome.simulated_devices);
        // A candidate is priced twice more where samples may be exchanged by heads.
        CHECK(heard.prices <= 3 * outcome.evaluations + 2);
        ours_heard += orders;
        ours_said += outcome.simulated_devices;
      } else {
        // Candidates that take too long by the sum of their units alone are not simulated.
        CHECK(figures <= outcome.simulated_devices);
        rivals_heard += figures;
        rivals_said += outcome.simulated_devices;
        // Some systems price a plan once more to make their orders or their own times.
        CHECK(heard.prices <= 2 * outcome.evaluations);
        CHECK(outcome.evaluations * planners::all_devices(request) == outcome.simulated_devices);
        if (outcome.simulated_devices == budget) ++full[planner.name];
      }
      if (std::holds_alternative<Infeasible>(outcome.result)) ++infeasible;
    }
  }
  MESSAGE("infeasible ", infeasible, " of ", kDraws * all.size());
  CHECK(infeasible > static_cast<std::int64_t>(kDraws));
  // Every published system uses budgets up, in both forms.
  CHECK(full.size() == 2 * planners::published_forms().size());
  // Ranks without a sample are said to be simulated, and are not heard of; candidates that another
  // search of the request has scored are not said to be.
  MESSAGE("devices heard of ", ours_heard, ", said ", ours_said);
  CHECK(ours_heard > ours_said / 100 * 95);
  MESSAGE("devices of other planners heard of ", rivals_heard, ", said ", rivals_said);
  CHECK(rivals_heard > rivals_said / 2);
}

TEST_CASE("counter: a component of ranks costs its share of the step") {
  planners::PlanRequest request = test::request_of(std::vector<std::int64_t>(64, 900), 8);
  request.dp = 8;
  request.pp = 2;
  request.max_cp = 1;  // every rank is a component
  const planners::PlanOutcome outcome = planners::find_planner("slimpack").plan(request);
  REQUIRE(std::holds_alternative<Plan>(outcome.result));
  // One whole plan of 16 devices; all other evaluations, candidates and witnesses of those that
  // would be the best, each once, simulate the two devices of a rank.
  CHECK(outcome.simulated_devices == 16 + (outcome.evaluations - 1) * 2);
  CHECK(outcome.evaluations == 5);
}
