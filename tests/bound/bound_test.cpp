// SPDX-License-Identifier: Apache-2.0
// The lower bound never exceeds a simulated plan, and is the known optimum where one is known.
#include "slimpack/planners/search/bound.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cost/shapes.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

CostSpec small_cost(std::uint64_t kind) {
  if (kind == 1) return test::some_fit();
  if (kind == 2) {
    TableCost table = test::exact_table(4e-6, 6.6e-7, 3.3e-9);
    for (Tokens& tokens : table.tokens) tokens = {tokens.value / 16};
    for (Tokens& context : table.context) context = {context.value / 32};
    return table;
  }
  return AnalyticCost{};
}

/// Half of the draws get the memory that they need at their peaks and no more.
TEST_CASE("iteration_bound: no simulated plan is faster") {
  std::map<std::string, int> terms;
  int in_cp_group = 0, chunks = 0, tight = 0, forced = 0, weights = 0;
  double closest = 0;
  constexpr std::uint64_t kDraws = slimpack::test::draws(4000U);
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.max_tp = 2;
    options.vary_bytes = seed % 2 == 0;
    options.max_samples = 1 + static_cast<std::int64_t>(seed % 20);
    options.cp_groups = seed % 3 == 0 && seed % 5 != 0;
    if (seed % 5 == 0) options.max_dp = 1;
    if (seed % 11 == 0) options.recompute = static_cast<Recompute>(1 + seed % 3);
    if (seed % 4 == 1) options.uncut = true;  // of one sample at times, which memory binds
    if (seed % 12 == 1) options.recompute = Recompute::full;
    const std::uint64_t cost = seed % 4 == 0 ? 0 : seed % 3;
    options.weights = seed % 8 < 3 && cost != 2;  // a table has no prices of W
    Plan plan = test::random_plan(seed, options);
    plan.cluster.small.shared_links = seed % 2 == 1;
    plan.cost = small_cost(cost);
    if (seed % 7 == 0) plan.cluster.kernel_s = plan.cluster.segment_s = 0;
    if (seed % 13 == 0) plan.cluster.tile_tokens = 1 + static_cast<std::int64_t>(seed % 8);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    if (seed % 2 == 1) {
      ++tight;
      Bytes most;
      for (const sim::MemoryPeak& peak : simulation.timeline.peak)
        most = std::max(most, peak.bytes);
      plan.memory.capacity = most + plan.memory.reserved;
    }
    const planners::LowerBound bound = planners::iteration_bound(plan);
    const Nanos simulated = simulation.timeline.makespan;
    CHECK(bound.value <= simulated);
    CHECK(bound.value > Nanos{0});
    ++terms[bound.term];
    in_cp_group += plan.parallel.max_cp > 1 ? 1 : 0;
    chunks += plan.parallel.chunks > 1 ? 1 : 0;
    forced += bound.term.ends_with("+memory") ? 1 : 0;
    weights += std::any_of(plan.micropacks.begin(), plan.micropacks.end(),
                           [](const MicroPack& pack) { return pack.pass == Pass::weight; })
                   ? 1
                   : 0;
    closest = std::max(closest, seconds(bound.value) / seconds(simulated));
    CHECK(planners::iteration_bound(plan) == bound);
  }
  MESSAGE(kDraws, " plans, merging allowed ", in_cp_group, ", chunks ", chunks, ", tight memory ",
          tight, ", recomputation forced ", forced, ", W ", weights,
          "; closest bound over simulated: ", closest);
  for (const auto& [term, count] : terms) MESSAGE(term, ": ", count);
  for (const char* term : {"work", "sample", "ranks", "path"}) CHECK(terms[term] > 0);
  CHECK(forced > 0);
  CHECK(weights > 0);
  CHECK(closest > 0.95);
}

// One device, one sample, no fixed cost: the plan can do nothing but the work.
TEST_CASE("iteration_bound: reached by one device with one unit") {
  Plan plan;
  plan.model = test::llama_7b();
  plan.cluster = test::h100();
  plan.cluster.kernel_s = plan.cluster.segment_s = 0;
  plan.memory.capacity = {1'000'000'000'000};
  plan.samples = {{16'384}};
  plan.origin = {{}};
  plan.placement = {{0, 0, 0, 0}};
  plan.stages = {{0, 0, 0, 32, true}};
  plan.groups = {{0}};
  plan.sample_group = {GroupId{}};
  const Slice slice{SampleId{}, {0}, {16'384}};
  plan.micropacks = {{Pass::forward, GroupId{}, {slice}, {}, Recompute::none},
                     {Pass::backward, GroupId{}, {slice}, {}, Recompute::none}};
  plan.schedule = {{0,
                    0,
                    {{UnitKind::forward, PackId{0}, 0},
                     {UnitKind::head, PackId{0}, 0},
                     {UnitKind::backward, PackId{1}, 0},
                     {UnitKind::reduce, {}, 0},
                     {UnitKind::optimizer, {}, 0}}}};
  const planners::LowerBound bound = planners::iteration_bound(plan);
  const Nanos simulated = sim::simulate_plan(plan).timeline.makespan;
  CHECK(bound.value <= simulated);
  // 128 slices are allowed, each with up to 148 ps of rounding in F, in B and in H.
  CHECK((simulated - bound.value).value <= 60);
  CHECK(bound.term == "work");
}

Plan many(std::vector<Tokens> samples, std::int32_t dp, std::int32_t pp) {
  Plan plan;
  plan.model = test::llama_7b();
  plan.cluster = test::h100();
  plan.memory.capacity = {1'000'000'000'000'000};
  plan.samples = std::move(samples);
  plan.parallel.dp = dp;
  plan.parallel.pp = pp;
  for (std::int32_t i = 0; i < pp; ++i) {
    plan.stages.push_back({i, 0, 32 * i / pp, 32 * (i + 1) / pp, i == 0});
  }
  return plan;
}

TEST_CASE("iteration_bound: names the term that binds") {
  CHECK(planners::iteration_bound(many(std::vector<Tokens>(64, Tokens{8192}), 4, 4)).term ==
        "work");
  CHECK(planners::iteration_bound(many({{200'000}, {100}, {100}}, 4, 1)).term == "sample");
  CHECK(planners::iteration_bound(many({{50'000}, {50'000}, {50'000}}, 2, 2)).term == "ranks");
  // A sample must pass both chunks of all stages.
  Plan chunked = many({{256}, {256}, {256}}, 4, 8);
  chunked.parallel.chunks = 2;
  chunked.stages.clear();
  for (std::int32_t i = 0; i < 16; ++i) {
    chunked.stages.push_back({i % 8, i / 8, 2 * i, 2 * i + 2, i == 0});
  }
  CHECK(planners::iteration_bound(chunked).term == "path");
  // The head makes the last of equal stages the slowest; sharded it is the first, which embeds.
  Plan plan = many(std::vector<Tokens>(64, Tokens{2048}), 2, 8);
  CHECK(planners::iteration_bound(plan).pp == 7);
  const Nanos last = planners::iteration_bound(plan).value;
  plan.parallel.head = LmHead::shard;
  CHECK(planners::iteration_bound(plan).value < last);
  // A context-parallel group lets ranks compute the long sample together.
  Plan in_cp_group = many({{200'000}, {100}, {100}}, 4, 1);
  const Nanos alone = planners::iteration_bound(in_cp_group).value;
  in_cp_group.parallel.max_cp = 4;
  CHECK(planners::iteration_bound(in_cp_group).term == "work");
  CHECK(planners::iteration_bound(in_cp_group).value * 2 < alone);
}

// llama-7b without recomputation keeps 128K tokens of one stage of eight in more than an h100 has.
TEST_CASE("iteration_bound: counts recomputation where memory forces it") {
  Plan plan = many({{131'072}, {100}, {100}, {100}}, 4, 8);
  plan.model = test::llama_7b();
  const planners::LowerBound free = planners::iteration_bound(plan);
  CHECK(free.term == "sample");
  plan.memory.capacity = {85'500'000'000};
  plan.memory.reserved = {6'000'000'000};
  const planners::LowerBound forced = planners::iteration_bound(plan);
  CHECK(forced.term == "sample+memory");
  CHECK(forced.value > free.value);
  CHECK(seconds(forced.value) < 1.02 * seconds(free.value));
  // Half as many tokens fit, and two ranks hold what one cannot.
  plan.parallel.max_cp = 2;
  CHECK(planners::iteration_bound(plan).term == "sample");
  plan.parallel.max_cp = 1;
  plan.samples[0] = {65'536};
  CHECK(planners::iteration_bound(plan).term == "sample");
}

TEST_CASE("least_added: the cheapest mix of modes") {
  using planners::detail::ModeEffect;
  const std::array<planners::detail::ModeEffect, kRecomputeModes> modes = {
      planners::detail::ModeEffect{0, 0}, planners::detail::ModeEffect{40, 8},
      planners::detail::ModeEffect{60, 60}, planners::detail::ModeEffect{100, 60}};
  CHECK(static_cast<int>(planners::detail::least_added(modes, 0)) == 0);
  CHECK(static_cast<int>(planners::detail::least_added(modes, 10)) == 2);
  CHECK(static_cast<int>(planners::detail::least_added(modes, 40)) == 8);
  // Half of `light` and half of `full`.
  CHECK(std::abs(static_cast<int>(planners::detail::least_added(modes, 70)) - 34) <= 1);
  CHECK(static_cast<int>(planners::detail::least_added(modes, 100)) == 60);
  CHECK(static_cast<int>(planners::detail::least_added(modes, 101)) == 60);
}

TEST_CASE(
    "iteration_bound: is at least the ideal but for rounding, and grows with fill and drain") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<Tokens> samples;
    for (int i = 0; i < 50; ++i) samples.push_back({random.between(1, 30'000)});
    const Plan plan = many(samples, 4, 8);
    CHECK(planners::iteration_bound(plan).value + Nanos{1000} >= ideal_time(plan));
  }
}

TEST_CASE("iteration_bound: no sample, and what is out of range") {
  CHECK(planners::iteration_bound(many({}, 2, 2)) == planners::LowerBound{Nanos{0}, "work", 0});
  const auto refuses = [](const auto& change, const char* message) {
    Plan plan = many({{100}}, 2, 2);
    change(plan);
    CHECK_THROWS_WITH_AS(static_cast<void>(planners::iteration_bound(plan)), message, InvalidInput);
  };
  refuses([](Plan& plan) { plan.parallel.pp = 0; },
          "iteration_bound: dp, pp, tp and chunks must be > 0");
  refuses([](Plan& plan) { plan.parallel.max_cp = 0; },
          "iteration_bound: max_cp must be > 0, got 0");
  refuses([](Plan& plan) { plan.parallel.granularity = {0}; },
          "iteration_bound: granularity must be > 0, got 0");
  refuses([](Plan& plan) { plan.samples[0] = {0}; },
          "iteration_bound: a sample's length must be in [1, 2^31], got 0");
  refuses([](Plan& plan) { plan.samples[0] = {(std::int64_t{1} << 31) + 1}; },
          "iteration_bound: a sample's length must be in [1, 2^31], got 2147483649");
}

}  // namespace
}  // namespace slimpack
