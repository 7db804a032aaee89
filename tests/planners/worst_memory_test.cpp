// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/search/worst_memory.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstdint>
#include <vector>

#include "slimpack/cost/presets.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/random_plan.hpp"
#include "support/random_times.hpp"

using namespace slimpack;

TEST_CASE("worst_memory: what the validator counts, on random plans of every kind") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const Validation validation = validate(plan);
    REQUIRE(validation.valid());
    const auto worst = planners::worst_memory(plan);
    CHECK((validation.worst_case_peak == worst));
  }
}

TEST_CASE("worst_memory: no simulated peak exceeds it, and some reach it") {
  std::int64_t reached = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(1000 + seed, test::may_have_weights(seed % 2 == 0));
    const std::vector<Bytes> worst = planners::worst_memory(plan);
    for (std::uint64_t draw = 0; draw < 8; ++draw) {
      const sim::PlanSimulation simulation =
          sim::simulate_plan(plan, test::RandomTimes{seed * 100 + draw});
      for (std::size_t device = 0; device < worst.size(); ++device) {
        CHECK(simulation.timeline.peak[device].bytes <= worst[device]);
        reached += simulation.timeline.peak[device].bytes == worst[device] ? 1 : 0;
      }
    }
  }
  CHECK(reached > 100);
}
