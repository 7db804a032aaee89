// SPDX-License-Identifier: Apache-2.0
// Random valid plans: the simulator against a machine that reads the plan itself, and its laws.
#include <doctest/doctest.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/plan_machine.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/detail/topological_dag.hpp"
#include "slimpack/sim/jitter.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

constexpr std::uint64_t kPlans = slimpack::test::draws(600U);

/// Short times with many zeros and ties, drawn from a hash of what is asked.
struct TiedTimes {
  std::uint64_t seed;
  [[nodiscard]] Nanos draw(std::uint64_t a, std::uint64_t b, std::uint64_t c) const {
    Random random(seed * 1'000'003 + a * 10'007 + b * 101 + c);
    return {random.chance(1, 4) ? 0 : random.between(0, 6)};
  }
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return draw(1, index(pack), static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos weight(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(50 + rank, index(pack), static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t) const {
    return draw(2, index(pack), rank);
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(3 + rank, index(pack), static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos reduce(std::int32_t pp, std::int32_t chunk) const {
    return draw(99, static_cast<std::uint64_t>(pp), static_cast<std::uint64_t>(chunk)) * 7;
  }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t pp) const {
    return draw(98, static_cast<std::uint64_t>(pp), 0);
  }
};

Plan plan_of(std::uint64_t seed) {
  test::RandomPlanOptions options;
  options.max_tp = 3;
  options.vary_bytes = seed % 3 == 0;
  if (seed % 4 == 0) options.pp = 2;  // both directions share links
  if (seed % 5 == 1) options.uncut = true;
  if (seed % 10 == 1) options.recompute = Recompute::full;
  options.weights = seed % 3 != 1;
  Plan plan = test::random_plan(seed, options);
  plan.cluster.small.shared_links = seed % 2 == 1;
  return plan;
}

template <class Times>
void compare(const Plan& plan, const Times& times) {
  const test::PlanMachine<Times> machine(plan, times);
  REQUIRE(machine.finished);
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, times);
  const sim::Dag& dag = simulation.dag;
  const sim::Timeline& timeline = simulation.timeline;
  CHECK(timeline.makespan.value == machine.makespan);
  std::vector<std::size_t> ran(dag.devices.size(), 0);
  for (std::size_t i = 0; i < dag.size(); ++i) {
    if (!sim::is_compute(dag.label[i].kind)) continue;
    const std::size_t device = index(dag.resource[i]);
    REQUIRE(ran[device] < machine.devices[device].ran.size());
    const auto& [start, end] = machine.devices[device].ran[ran[device]++];
    CHECK(timeline.start[i].value == start);
    CHECK(timeline.end[i].value == end);
  }
  for (std::size_t device = 0; device < dag.devices.size(); ++device) {
    CHECK(ran[device] == machine.devices[device].ran.size());
    CHECK(timeline.busy[device].value == machine.devices[device].busy);
    CHECK(machine.left(device) == 0);
    CHECK(timeline.peak[device].bytes.value ==
          machine.peak(device) + static_bytes(plan, dag.devices[device].pp).total().value);
    CHECK(sim::total(simulation.at_peak[device]) == timeline.peak[device].bytes);
  }
}

}  // namespace

TEST_CASE("simulate_plan: times and memory of a machine that reads the plan itself") {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    compare(plan, PricedPlan(plan));
    compare(plan, TiedTimes{seed});
    ++seen[plan.parallel.chunks > 1 ? "chunks" : "one chunk"];
    ++seen[plan.parallel.head == LmHead::shard ? "sharded head" : "head on the last stage"];
    ++seen[plan.groups.size() > static_cast<std::size_t>(plan.parallel.dp) ? "merged" : "alone"];
    ++seen[plan.model.tied ? "tied" : "not tied"];
    const test::Features found = test::features_of(plan);
    if (found.weights > 0) ++seen["W"];
    if (found.weights_in_groups > 0) ++seen["W of merged groups"];
    if (found.firsts > 0) ++seen["begins on a later rank"];
    ++seen["window " + std::to_string(plan.max_in_flight)];
    if (plan.parallel.pp == 1 && plan.parallel.chunks > 1) ++seen["handed over in place"];
    if (plan.parallel.pp == 2 && plan.parallel.chunks > 1) ++seen["one neighbour"];
    if (plan.parallel.pp > 2 && plan.cluster.small.shared_links) {
      for (const bool one : one_port(plan)) ++seen[one ? "one port" : "two ports"];
    }
  }
  CHECK(seen.size() == 18);
  for (const auto& kind : seen) {
    CAPTURE(kind.first);
    CHECK(kind.second >= slimpack::test::draws(20));
  }
}

TEST_CASE("build_dag: weight slices must hold what is left apart, and W has a name") {
  test::RandomPlanOptions options = test::may_have_weights();
  options.version = 2;
  options.max_granularity = 1;
  std::int64_t named = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options);
    const auto weight = std::ranges::find(plan.micropacks, Pass::weight, &MicroPack::pass);
    if (weight == plan.micropacks.end()) continue;
    const auto id = static_cast<std::size_t>(weight - plan.micropacks.begin());
    const sim::Dag dag = sim::build_dag(plan, TiedTimes{seed});
    for (std::uint32_t i = 0; i < dag.size(); ++i) {
      const std::string name = sim::node_name(dag, sim::NodeId{i});
      const auto& label = dag.label[i];
      if (!sim::is_compute(label.kind) || label.kind == sim::NodeKind::optimizer) continue;
      if (index(label.pack) != id) continue;
      CHECK(name == sim::device_name(label.dp, label.pp) + " W " + std::to_string(id) + " chunk " +
                        std::to_string(label.chunk));
      ++named;
    }
    const auto refuses = [&](const auto& change) {
      Plan wrong = plan;
      Slice& slice = wrong.micropacks[id].slices.front();
      const std::string message =
          "build_dag: the weight slices of sample " + std::to_string(index(slice.sample)) +
          " do not hold what its backward slices leave apart, each token once";
      change(slice);
      CHECK_THROWS_WITH_AS(static_cast<void>(sim::build_dag(wrong, TiedTimes{seed})),
                           message.c_str(), InvalidInput);
    };
    if (weight->slices.front().length() > Tokens{1}) {
      refuses([](Slice& slice) { slice.begin += Tokens{1}; });
      refuses([](Slice& slice) { slice.end -= Tokens{1}; });
    }
    if (weight->slices.front().begin > Tokens{0}) {
      refuses([](Slice& slice) { slice.begin -= Tokens{1}; });
    }
  }
  CHECK(named > 20);
}

TEST_CASE("simulate_plan: memory returns to what is always there") {
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    sim::MemoryCurves curves;
    const sim::PlanSimulation simulation = sim::simulate_plan(plan, TiedTimes{seed}, curves);
    const auto by_kind = sim::memory_curves(simulation.dag, simulation.timeline);
    for (std::size_t device = 0; device < simulation.dag.devices.size(); ++device) {
      const sim::MemoryByKind& always = simulation.dag.devices[device].always;
      CHECK(curves.device[device].back().bytes == sim::total(always));
      for (const sim::KindPoint& point : by_kind[device]) {
        for (const Bytes bytes : point.bytes) CHECK(bytes >= Bytes{});
      }
    }
  }
}

TEST_CASE("simulate_plan: fills iteration, busy time and peaks of the prediction only") {
  Plan plan = plan_of(17);
  plan.prediction.ideal = Nanos{5};
  plan.prediction.devices.resize(99);
  const sim::PlanSimulation simulation = sim::simulate_plan(plan);
  sim::fill_prediction(plan.prediction, simulation);
  CHECK(plan.prediction.iteration == simulation.timeline.makespan);
  CHECK(plan.prediction.ideal == Nanos{5});
  REQUIRE(plan.prediction.devices.size() == plan.schedule.size());
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    CHECK(plan.prediction.devices[i].dp == plan.schedule[i].dp);
    CHECK(plan.prediction.devices[i].pp == plan.schedule[i].pp);
    CHECK(plan.prediction.devices[i].busy == simulation.timeline.busy[i]);
    CHECK(plan.prediction.devices[i].peak == simulation.timeline.peak[i].bytes);
  }
}

TEST_CASE("TopologicalDag: plans run as they were simulated, memory too") {
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan, TiedTimes{seed});
    const sim::TopologicalDag fixed(simulation.dag, simulation.timeline);
    const sim::TopologicalTimes times = sim::run_topological(fixed, simulation.dag.duration);
    CHECK(times.makespan == simulation.timeline.makespan);
    CHECK(times.start == simulation.timeline.start);
    CHECK(times.end == simulation.timeline.end);
    CHECK(sim::memory_peaks(simulation.dag, times.start, times.end) == simulation.timeline.peak);
  }
}

TEST_CASE("find_gaps: gaps partition every device's idle time") {
  std::array<std::int64_t, sim::kGapCauses> seen{};
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan, TiedTimes{seed});
    Bytes limit;
    for (const sim::MemoryPeak& peak : simulation.timeline.peak)
      limit = std::max(limit, peak.bytes);
    const sim::Gaps gaps = sim::find_gaps(simulation.dag, simulation.timeline, limit);
    std::vector<std::vector<std::pair<Nanos, Nanos>>> spans(simulation.dag.devices.size());
    for (std::size_t i = 0; i < simulation.dag.size(); ++i) {
      if (!sim::is_compute(simulation.dag.label[i].kind)) continue;
      if (simulation.dag.duration[i] == Nanos{}) continue;
      spans[index(simulation.dag.resource[i])].emplace_back(simulation.timeline.start[i],
                                                            simulation.timeline.end[i]);
    }
    for (const sim::Gap& gap : gaps.gaps) {
      spans[index(gap.device)].emplace_back(gap.begin, gap.end);
      CHECK(gap.begin < gap.end);
      const bool chosen = gap.cause == sim::GapCause::memory || gap.cause == sim::GapCause::order;
      CHECK(gap.instead.has_value() == chosen);
      if (gap.instead) {  // it runs on this device, but later
        CHECK(simulation.dag.resource[index(*gap.instead)] ==
              simulation.dag.devices[index(gap.device)].compute);
        CHECK(simulation.timeline.start[index(*gap.instead)] >= gap.end);
      }
      seen[static_cast<std::size_t>(gap.cause)] += 1;
    }
    for (auto& row : spans) {
      std::sort(row.begin(), row.end());
      Nanos time;
      for (const auto& [begin, end] : row) {
        CHECK(begin == time);
        time = end;
      }
      CHECK(time == simulation.timeline.makespan);
    }
    Nanos sum, parts;
    for (std::size_t device = 0; device < gaps.device.size(); ++device) {
      sum += simulation.timeline.makespan - simulation.timeline.busy[device];
    }
    for (const Nanos part : gaps.sum) parts += part;
    CHECK(sum == parts);
  }
  for (const std::int64_t count : seen) CHECK(count > 0);
}

TEST_CASE("critical_path: sums to the makespan of every plan") {
  for (std::uint64_t seed = 0; seed < kPlans; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    Nanos sum;
    for (const sim::PathStep& step : sim::critical_path(simulation.dag, simulation.timeline)) {
      sum += simulation.dag.duration[index(step.node)];
    }
    CHECK(sum == simulation.timeline.makespan);
  }
}

TEST_CASE("draw_jitter: no noise changes nothing, more noise stays between its bounds") {
  for (std::uint64_t seed = 0; seed < kPlans / 4; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    sim::JitterOptions options;
    options.draws = 5;
    options.seed = seed;
    options.parts_per_million = 0;
    const sim::Jitter none = sim::draw_jitter(simulation.dag, simulation.timeline, options);
    CHECK(none.least == simulation.timeline.makespan);
    CHECK(none.most == simulation.timeline.makespan);
    options.parts_per_million = 100'000;
    for (const sim::JitterKind kind : {sim::JitterKind::noise, sim::JitterKind::slow_device}) {
      options.kind = kind;
      const sim::Jitter some = sim::draw_jitter(simulation.dag, simulation.timeline, options);
      CHECK(some.makespan ==
            sim::draw_jitter(simulation.dag, simulation.timeline, options).makespan);
      CHECK(some.planned == simulation.timeline.makespan);
      CHECK(some.least <= some.mean);
      CHECK(some.mean <= some.most);
      CHECK(some.most.value <= simulation.timeline.makespan.value * 11 / 10 + 1);
      const std::int64_t low = kind == sim::JitterKind::noise ? 9 : 10;
      CHECK(some.least.value >= simulation.timeline.makespan.value * low / 10 - 1000);
    }
  }
}
