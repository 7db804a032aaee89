// SPDX-License-Identifier: Apache-2.0
#include "slimpack/sim/fast_simulator.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/cost/price.hpp"
#include "slimpack/schedule/list_schedule.hpp"
#include "slimpack/sim/least_ends.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/random_plan.hpp"
#include "support/random_times.hpp"

using namespace slimpack;

namespace {

sim::PlanFigures figures_of(const sim::PlanSimulation& simulation) {
  sim::PlanFigures figures{simulation.timeline.makespan, simulation.timeline.busy, {}};
  for (const sim::MemoryPeak& peak : simulation.timeline.peak) figures.peak.push_back(peak.bytes);
  return figures;
}

template <UnitTimes Times>
sim::PlanFigures clock(const Plan& plan, const Times& times) {
  const MemoryModel memory(plan);
  return sim::plan_figures(sim::ScheduleTables(plan, memory), times);
}

/// Many kinds of plans, by seed.
Plan drawn_plan(std::uint64_t seed) {
  test::RandomPlanOptions options;
  options.large_model = seed % 3 == 0;
  if (seed % 5 == 0) options.pp = 2;
  if (seed % 7 == 0) options.pp = 1;
  options.weights = seed % 4 < 2;
  Plan plan = test::random_plan(seed, options);
  plan.cluster.small.shared_links = seed % 2 == 1;
  return plan;
}

}  // namespace

TEST_CASE("plan_figures: those of the simulated DAG, on random plans and times of every kind") {
  std::int64_t shared = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    const Plan plan = drawn_plan(seed);
    CHECK((clock(plan, PricedPlan(plan)) == figures_of(sim::simulate_plan(plan))));
    const test::RandomTimes times{seed};
    const sim::PlanSimulation simulation = sim::simulate_plan(plan, times);
    CHECK((clock(plan, times) == figures_of(simulation)));
    for (const sim::Resource& resource : simulation.dag.resources)
      shared += resource.first_come ? 1 : 0;
  }
  CHECK(shared > 500);
}

TEST_CASE("plan_figures_within: the same figures, or nothing where the step takes longer") {
  std::int64_t longer = 0, found_before = 0, of_least = 0, of_all = 0;
  const auto check = [&](const Plan& plan, const auto& times) {
    const MemoryModel memory(plan);
    const sim::ScheduleTables table(plan, memory);
    const sim::PlanFigures figures = sim::plan_figures(table, times);
    const std::vector<Nanos> ends = sim::least_ends(plan, times);
    REQUIRE(ends.size() == plan.schedule.size());
    const Nanos least = *std::max_element(ends.begin(), ends.end());
    CHECK(least <= figures.iteration);
    of_least += least.value;
    of_all += figures.iteration.value;
    const Nanos quarter{(figures.iteration - least).value / 4};
    for (const Nanos limit :
         {figures.iteration, figures.iteration + Nanos{1}, figures.iteration - Nanos{1},
          figures.iteration - quarter, figures.iteration - quarter * 3, least - Nanos{1}}) {
      const auto within = sim::plan_figures_within(table, times, ends, limit);
      CHECK(within.has_value() == (figures.iteration <= limit));
      if (within) CHECK((*within == figures));
      longer += within ? 0 : 1;
      found_before += limit < least ? 1 : 0;
    }
  };
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const Plan plan = drawn_plan(seed);
    check(plan, PricedPlan(plan));
    check(plan, test::RandomTimes{seed});
  }
  CHECK(longer > 2000);
  CHECK(found_before >= 800);
  MESSAGE("least ends over times ", static_cast<double>(of_least) / static_cast<double>(of_all));
  CHECK(of_least > of_all / 2);
}

TEST_CASE("plan_figures: units that take no time") {
  struct NoTimes {
    static Nanos compute(PackId, std::int32_t) { return {}; }
    static Nanos head(PackId, std::size_t, std::int32_t) { return {}; }
    static Nanos transfer(PackId, std::int32_t, std::size_t) { return {}; }
    static Nanos reduce(std::int32_t, std::int32_t) { return {}; }
    static Nanos optimizer(std::int32_t, std::int32_t) { return {}; }
  };
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    plan.cluster.small.shared_links = seed % 2 == 1;
    CHECK((clock(plan, NoTimes{}) == figures_of(sim::simulate_plan(plan, NoTimes{}))));
  }
}

TEST_CASE("plan_figures: the times that list scheduling finds are those of its orders") {
  std::int64_t exact = 0, exact_drawn = 0, weights = 0, plans = 0;
  std::size_t longest = 0;  // order of a device; the bytes of long ones are counted on the way
  const auto check = [](Plan& plan, const auto& times, std::uint64_t seed) {
    const MemoryModel memory(plan);
    const schedule::ScheduleParts parts(plan);
    schedule::ListOptions options;
    options.head_batch = static_cast<std::int32_t>(1 + seed % 8);
    options.forward_queue = static_cast<std::int32_t>(seed / 8 % 4) - 1;
    options.head_at_once = seed % 10 == 0;
    schedule::OrderTimes order;
    schedule::ListWorkspace workspace;
    plan.schedule = schedule::empty_schedule(plan);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      schedule::ListPart laid_out;
      schedule::lay_out_part(plan, parts, part, memory, options, laid_out);
      REQUIRE(!laid_out.lacks);
      static_cast<void>(schedule::list_laid_out_part(plan, parts, laid_out, times, options,
                                                     workspace, plan.schedule, &order));
    }
    if (!order.exact) return false;
    CHECK((sim::plan_figures(plan, order, times) == clock(plan, times)));
    return true;
  };
  for (std::uint64_t seed = 0; seed < 800; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.large_model = seed % 3 == 0;
    options.cp_groups = seed % 4 == 1;
    if (seed % 5 == 0) options.pp = 2;
    if (seed % 7 == 0) options.pp = 1;
    if (seed % 6 == 0) options.head = LmHead::shard;
    options.weights = seed % 4 < 2;
    options.max_tp = seed % 9 < 3 ? 4 : 1;
    if (seed % 10 == 3) options.min_samples = options.max_samples = 150;
    Plan plan = test::random_plan(seed, options);
    plan.cluster.small.shared_links = seed % 2 == 1;
    for (const MicroPack& pack : plan.micropacks) weights += pack.pass == Pass::weight ? 1 : 0;
    ++plans;
    if (check(plan, PricedPlan(plan), seed)) ++exact;
    if (check(plan, test::RandomTimes{seed}, seed)) ++exact_drawn;
    for (const DeviceSchedule& device : plan.schedule) {
      longest = std::max(longest, device.order.size());
    }
  }
  MESSAGE("exact ", exact, ", with drawn times ", exact_drawn, " of ", plans, ", of up to ",
          longest, " units a device");
  CHECK(weights > 1000);
  CHECK(longest > 500);
  CHECK(exact * 100 >= plans * 95);
  CHECK(exact_drawn * 2 >= plans);
}

TEST_CASE("plan_figures: orders in which units wait for each other") {
  test::RandomPlanOptions options;
  options.dp = options.chunks = 1;
  options.pp = 2;
  options.head = LmHead::last;
  Plan plan = test::random_plan(3, options);
  auto& order = plan.schedule[1].order;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    if (order[i].kind != UnitKind::head) continue;
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(i),
                order.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    break;
  }
  CHECK_THROWS_AS(clock(plan, PricedPlan(plan)), Deadlock);
}
