// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/megatron.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

TEST_CASE("megatron: 128K of llama-7b fits h100 at dp 4, pp 8 once everything is made again") {
  constexpr std::int64_t kContext = 131'072;
  planners::PlanRequest request = test::request_of(std::vector<std::int64_t>(16, kContext));
  request.model = model_preset("llama-7b").value();
  request.context = {kContext};
  request.dp = 4;
  request.pp = 8;
  request.recompute = Recompute::full;
  const planners::PlanOutcome outcome = plan_by("megatron", request);
  Plan plan = plan_of(outcome);
  CHECK(validate(plan).valid());
  const auto peak = [](const Plan& of) {
    const sim::PlanSimulation simulation = sim::simulate_plan(of);
    std::int64_t most = 0;
    for (const auto& device : simulation.timeline.peak) {
      most = std::max(most, device.bytes.value);
    }
    return most;
  };
  // Four micro-batches in flight on four layers keep their inputs alone, and B works on one layer.
  const std::int64_t h = 4096, f = 11008;
  const std::int64_t inputs = 4 * 4 * kContext * 2 * h;
  const std::int64_t again = 2 * (5 * h + 3 * f) + 4 * 34;  // what `none` keeps more than `full`
  const std::int64_t work = kContext * (2 * (5 * h + 3 * f) + 4 * 2 * h + again + 2 * 2 * h);
  const std::int64_t always = 4 * (4 * h * h + 3 * h * f + 2 * h) * (2 + 4 + 3);
  CHECK(peak(plan) >= inputs + work + always);
  // Messages of h a token: a gradient in, one out, and inputs that are posted ahead.
  CHECK(peak(plan) <= inputs + work + always + 4 * kContext * 2 * h);
  CHECK(peak(plan) == 62'304'583'680);
  // By the rules of version 1 keys and values of all four, and their gradients, were held too.
  plan.version = 1;
  CHECK(peak(plan) == 111'696'707'584);
  CHECK(!validate(plan).valid());
}
