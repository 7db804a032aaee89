// SPDX-License-Identifier: Apache-2.0
// The lower bound against the plans of all planners: never above them, and how near.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "planners/requests.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/search/bound.hpp"

namespace slimpack {
namespace {

struct Nearness {
  int plans = 0;
  double sum = 0, worst = 1;
};

void compare_all(const planners::PlanRequest& request, std::map<std::string, Nearness>& nearness) {
  for (const planners::PlannerInfo& planner : planners::registry()) {
    CAPTURE(planner.name);
    planners::PlanOutcome outcome;
    try {
      outcome = planner.plan(request);
    } catch (const InvalidInput&) {
      continue;  // a request that this planner's system cannot serve
    }
    const Plan* plan = planners::plan_in(outcome.result);
    if (plan == nullptr) continue;
    planners::LowerBound bound = planners::iteration_bound(*plan);
    // The bound is one of plans: what is simulated only may be quicker.
    if (std::holds_alternative<planners::SimulationOnlyPlan>(outcome.result))
      bound.value = plan->prediction.ideal;
    CHECK(bound.value <= plan->prediction.iteration);
    CHECK(bound.value > Nanos{0});
    const double over = seconds(plan->prediction.iteration) / seconds(bound.value);
    Nearness& entry = nearness[std::string(planner.name)];
    ++entry.plans;
    entry.sum += over;
    entry.worst = std::max(entry.worst, over);
  }
}

void report(const std::string& what, const std::map<std::string, Nearness>& nearness) {
  for (const auto& [name, entry] : nearness) {
    MESSAGE(what, ", ", name, ": ", entry.plans, " plans, time over bound mean ",
            entry.sum / entry.plans, ", worst ", entry.worst);
  }
}

TEST_CASE("iteration_bound: no planner's plan is faster") {
  std::map<std::string, Nearness> nearness;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    planners::PlanRequest request =
        test::request_of(test::random_lengths(random, random.between(1, 40), 1024), 8);
    request.dp = static_cast<std::int32_t>(random.between(1, 4));
    request.pp = static_cast<std::int32_t>(std::int64_t{1} << random.between(0, 2));
    if (random.chance(1, 2)) request.cluster.kernel_s = request.cluster.segment_s = 0;
    compare_all(request, nearness);
  }
  report("small model", nearness);
  CHECK(nearness.size() == planners::registry().size());
}

// Lengths up to 128K: without context-parallel groups the longest do not fit into an h100 unless
// recomputed.
TEST_CASE("iteration_bound: near the plans of a real model, memory forced or not") {
  std::map<std::string, Nearness> nearness;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    Random random(seed + 100);
    planners::PlanRequest request = test::request_of(test::random_lengths(random, 100, 131'072));
    request.model = model_preset("llama-7b").value();
    request.context = {131'072};
    request.dp = 2;
    request.pp = 8;
    if (seed % 2 == 0) request.max_cp = 1;
    compare_all(request, nearness);
  }
  report("llama-7b", nearness);
}

}  // namespace
}  // namespace slimpack
