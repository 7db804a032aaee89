// SPDX-License-Identifier: Apache-2.0
// The validator beside the simulator and the plan file: what the others say must fit its answer.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "slimpack/core/random.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// Times without any sense: every unit, transfer and collective takes what its name hashes to.
struct WildTimes {
  std::uint64_t seed = 0;
  std::uint64_t slowest = 1000;
  template <class... Values>
  Nanos draw(Values... values) const {
    std::uint64_t state = seed;
    ((state = Random(state ^ static_cast<std::uint64_t>(values)).bits()), ...);
    // Mostly short, at times very long.
    const std::uint64_t most = state % 8 == 0 ? slowest * 50 : slowest;
    return {static_cast<std::int64_t>(Random(state).below(most))};
  }
  Nanos compute(PackId pack, std::int32_t line) const { return draw(1, index(pack), line); }
  Nanos weight(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(6, index(pack), line, rank);
  }
  Nanos head(PackId pack, std::size_t rank, std::int32_t) const {
    return draw(2, index(pack), rank);
  }
  Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(3, index(pack), line, rank);
  }
  Nanos reduce(std::int32_t pp, std::int32_t chunk) const { return draw(4, pp, chunk); }
  Nanos optimizer(std::int32_t dp, std::int32_t pp) const { return draw(5, dp, pp); }
};

}  // namespace

TEST_CASE("rule 7: no timing exceeds the worst case") {
  std::int64_t runs = 0, tight = 0, devices = 0;
  double held = 0, excess = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(400U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.max_tp = 2;
    options.vary_bytes = true;
    if (seed % 3 == 0) options.cp_groups = true;
    options.weights = seed % 2 == 0;
    const Plan plan = test::random_plan(seed, options);
    const Validation validation = validate(plan);
    REQUIRE(validation.valid());
    for (std::uint64_t draw = 0; draw < 6; ++draw) {
      CAPTURE(draw);
      const sim::PlanSimulation simulation = sim::simulate_plan(plan, WildTimes{seed * 10 + draw});
      ++runs;
      for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
        CAPTURE(device);
        const std::int64_t simulated = simulation.timeline.peak[device].bytes.value;
        const std::int64_t bound = validation.worst_case_peak[device].value;
        REQUIRE(simulated <= bound);
        ++devices;
        tight += simulated == bound ? 1 : 0;
        held += static_cast<double>(simulated);
        excess += static_cast<double>(bound - simulated);
      }
    }
  }
  MESSAGE(runs << " runs, on " << tight << " of " << devices
               << " devices the worst case was reached, mean excess " << 100 * excess / held
               << " %");
  CHECK(tight > devices / 4);
}

TEST_CASE("rule 6: the validator finds a deadlock where the simulator does") {
  std::int64_t free = 0, stuck = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(4000U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    test::RandomPlanOptions options;
    options.max_samples = 6;
    if (seed % 2 == 0) options.cp_groups = true;
    options.weights = seed % 8 >= 4;
    Plan plan = test::random_plan(seed, options);
    if (random.chance(1, 4)) plan.max_in_flight = 1;
    for (std::int64_t swaps = random.between(1, 4); swaps > 0; --swaps) {
      auto& order = plan.schedule[random.below(plan.schedule.size())].order;
      const auto i = static_cast<std::size_t>(random.below(order.size() - 1));
      if (order[i + 1].kind != UnitKind::optimizer) std::swap(order[i], order[i + 1]);
    }
    const Validation validation = validate(plan);
    bool other_rules = false;
    for (const Violation& violation : validation.violations) {
      other_rules = other_rules || violation.rule != 6 ||
                    violation.message.find("the channel of group") != std::string::npos;
    }
    if (other_rules) continue;
    bool ends = true;
    try {
      const sim::PlanSimulation simulation = sim::simulate_plan(plan, WildTimes{seed});
    } catch (const Deadlock&) {
      ends = false;
    }
    INFO((validation.valid() ? std::string() : validation.violations[0].message));
    REQUIRE(ends == validation.valid());
    ++(ends ? free : stuck);
  }
  MESSAGE(free << " plans end, " << stuck << " are stuck");
  CHECK(free > slimpack::test::draws(300));
  CHECK(stuck > slimpack::test::draws(200));
}

TEST_CASE("plan.json: random plans come back as they were") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.max_tp = 2;
    options.vary_bytes = true;
    options.weights = seed % 2 == 0;
    const Plan plan = test::random_plan(seed, options);
    const Plan again = plan_from_json(plan_to_json(plan), "random");
    REQUIRE(again == plan);
    REQUIRE(validate(again).valid());
  }
}
