// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/worst_memory.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstdint>
#include <vector>

#include "slimpack/cost/presets.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// Durations drawn at random, equal for the ranks and stages that meet.
struct RandomTimes {
  std::uint64_t seed;
  [[nodiscard]] Nanos draw(std::uint64_t a, std::uint64_t b) const {
    Random random(seed ^ (a << 20U) ^ (b << 44U));
    return {static_cast<std::int64_t>(random.below(random.chance(1, 5) ? 5000 : 50))};
  }
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return draw(index(pack), static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t) const {
    return draw(index(pack), 100 + rank);
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(index(pack), 200 + 50 * rank + static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t chunk) const {
    return draw(0, 900 + static_cast<std::uint64_t>(chunk));
  }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t pp) const {
    return draw(0, 950 + static_cast<std::uint64_t>(pp));
  }
};
static_assert(UnitTimes<RandomTimes>);

}  // namespace

TEST_CASE("worst_memory: what the validator counts, on random plans of every kind") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const Validation validation = validate(plan);
    REQUIRE(validation.valid());
    const auto worst = worst_memory(plan, build_dag(plan, RandomTimes{seed}));
    CHECK((validation.worst_case_peak == worst));
  }
}

TEST_CASE("worst_memory: no simulated peak exceeds it, and some reach it") {
  std::int64_t reached = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(1000 + seed);
    std::vector<Bytes> highest(plan.schedule.size());
    for (std::uint64_t draw = 0; draw < 8; ++draw) {
      const PlanSimulation simulation = simulate_plan(plan, RandomTimes{seed * 100 + draw});
      const auto worst = worst_memory(plan, simulation.dag);
      for (std::size_t device = 0; device < worst.size(); ++device) {
        CHECK(simulation.timeline.peak[device].bytes <= worst[device]);
        reached += simulation.timeline.peak[device].bytes == worst[device] ? 1 : 0;
      }
    }
  }
  CHECK(reached > 100);
}
