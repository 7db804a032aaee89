// SPDX-License-Identifier: Apache-2.0
// Laws of the simulator over random graphs, against a plain reference.
#include <doctest/doctest.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/reference.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/detail/topological_dag.hpp"
#include "slimpack/sim/simulator.hpp"
#include "slimpack/sim/timeline.hpp"
#include "support/draws.hpp"

using namespace slimpack;

namespace {

constexpr std::uint64_t kSeeds = slimpack::test::draws(3000U);

/// Nodes in turn start after their predecessors and after the turn before them: the longest path,
/// by repeated relaxation.
std::vector<std::int64_t> longest_ends(const sim::Dag& dag, const sim::NodeLists& turns,
                                       const std::vector<Nanos>& duration) {
  std::vector<std::int64_t> end(dag.size());
  for (std::size_t i = 0; i < dag.size(); ++i) end[i] = duration[i].value;
  bool changed = true;
  const auto relax = [&](std::size_t from, std::size_t to) {
    const std::int64_t later = end[from] + duration[to].value;
    changed = changed || later > end[to];
    end[to] = std::max(end[to], later);
  };
  while (changed) {
    changed = false;
    for (std::size_t from = 0; from < dag.size(); ++from) {
      for (const sim::NodeId to : dag.successors[from]) relax(from, index(to));
    }
    for (std::size_t row = 0; row < turns.rows(); ++row) {
      for (std::size_t i = 1; i < turns[row].size(); ++i) {
        relax(index(turns[row][i - 1]), index(turns[row][i]));
      }
    }
  }
  return end;
}

}  // namespace

TEST_CASE("simulate: every start and end is that of the plain reference") {
  std::size_t nodes = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = test::random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
    const test::Reference reference(dag);
    REQUIRE(timeline.makespan.value == reference.makespan);
    for (std::size_t i = 0; i < dag.size(); ++i) {
      REQUIRE(reference.start[i].has_value());
      CHECK(timeline.start[i].value == *reference.start[i]);
      CHECK(timeline.end[i].value == *reference.end[i]);
    }
    nodes += dag.size();
  }
  CHECK(nodes > 20 * kSeeds / 2);
}

TEST_CASE("simulate: the makespan is at least each resource's work and the longest path") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = test::random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
    std::vector<std::int64_t> work(dag.resources.size());
    for (std::size_t i = 0; i < dag.size(); ++i) {
      if (dag.resource[i] != sim::kNoResource)
        work[index(dag.resource[i])] += dag.duration[i].value;
    }
    for (const std::int64_t load : work) CHECK(timeline.makespan.value >= load);
    for (const std::int64_t end : longest_ends(dag, {}, dag.duration)) {
      CHECK(timeline.makespan.value >= end);
    }
    for (std::size_t device = 0; device < dag.devices.size(); ++device) {
      CHECK(timeline.busy[device].value == work[index(dag.devices[device].compute)]);
    }
    for (std::size_t row = 0; row < timeline.turns.rows(); ++row) {
      const auto turns = timeline.turns[row];
      for (std::size_t i = 1; i < turns.size(); ++i) {
        CHECK(timeline.end[index(turns[i - 1])] <= timeline.start[index(turns[i])]);
      }
    }
  }
}

TEST_CASE("simulate: memory of every instant, its peaks and their kinds") {
  for (std::uint64_t seed = 0; seed < kSeeds / 3; ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = test::random_dag(seed);
    sim::MemoryCurves curves;
    const sim::Timeline timeline = sim::simulate(dag, curves);
    const auto at_peak = sim::memory_at_peaks(dag, timeline);
    const auto by_kind = sim::memory_curves(dag, timeline);
    CHECK(sim::memory_peaks(dag, timeline.start, timeline.end) == timeline.peak);
    for (std::size_t i = 0; i < dag.devices.size(); ++i) {
      const sim::DeviceId device{static_cast<std::uint32_t>(i)};
      sim::MemoryPeak peak;
      Nanos last{-1};
      for (const sim::MemoryPoint& point : curves.device[i]) {
        CHECK(point.time > last);
        last = point.time;
        CHECK(point.bytes.value == test::bytes_at(dag, timeline, device, point.time));
        if (point.bytes > peak.bytes) peak = {point.bytes, point.time};
      }
      CHECK(timeline.peak[i] == peak);
      if (peak.bytes > Bytes{}) CHECK(sim::total(at_peak[i]) == peak.bytes);
      REQUIRE(by_kind[i].size() <= curves.device[i].size());
      std::size_t same = 0;
      for (const sim::KindPoint& point : by_kind[i]) {
        while (curves.device[i][same].time < point.time) ++same;
        CHECK(curves.device[i][same].bytes == sim::total(point.bytes));
      }
    }
  }
}

TEST_CASE("TopologicalDag: the same times as the simulation that it follows") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = test::random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
    const sim::TopologicalTimes times =
        sim::run_topological(sim::TopologicalDag(dag, timeline), dag.duration);
    CHECK(times.makespan == timeline.makespan);
    CHECK(times.start == timeline.start);
    CHECK(times.end == timeline.end);
  }
}

TEST_CASE("TopologicalDag: with other durations the longest path through the fixed orders") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = test::random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
    const sim::TopologicalDag fixed(dag, timeline);
    Random random(seed);
    std::vector<Nanos> duration(dag.size());
    for (Nanos& time : duration) time = Nanos{random.between(0, 30)};
    const sim::TopologicalTimes times = sim::run_topological(fixed, duration);
    const std::vector<std::int64_t> ends = longest_ends(dag, timeline.turns, duration);
    std::int64_t makespan = 0;
    for (std::size_t i = 0; i < dag.size(); ++i) {
      CHECK(times.end[i].value == ends[i]);
      CHECK(times.end[i] - times.start[i] == duration[i]);
      makespan = std::max(makespan, ends[i]);
    }
    CHECK(times.makespan.value == makespan);
  }
}

TEST_CASE("TopologicalDag: refuses what is not of its size, or of another DAG") {
  const sim::Dag dag = test::random_dag(5);
  const sim::Timeline timeline = sim::simulate(dag);
  const sim::TopologicalDag fixed(dag, timeline);
  std::vector<Nanos> short_by_one(fixed.rows() - 1), ends(fixed.rows() + 1);
  CHECK_THROWS_AS(static_cast<void>(fixed.run(short_by_one, ends)), InvalidInput);
  CHECK_THROWS_AS(static_cast<void>(fixed.arrange(std::vector<Nanos>(dag.size() + 1))),
                  InvalidInput);
  CHECK_THROWS_WITH_AS(sim::TopologicalDag(dag, sim::Timeline{}),
                       "TopologicalDag: the timeline is of another DAG, got 0", InvalidInput);
}

TEST_CASE("critical_path: durations sum to the makespan, each step starts where the last ended") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const sim::Dag dag = test::random_dag(seed);
    const sim::Timeline timeline = sim::simulate(dag);
    const std::vector<sim::PathStep> path = sim::critical_path(dag, timeline);
    if (dag.size() == 0) {
      CHECK(path.empty());
      continue;
    }
    Nanos time;
    for (std::size_t step = 0; step < path.size(); ++step) {
      CHECK(timeline.start[index(path[step].node)] == time);
      time = timeline.end[index(path[step].node)];
      CHECK((path[step].reason == sim::PathReason::start) == (step == 0));
    }
    CHECK(time == timeline.makespan);
  }
}

TEST_CASE("simulate: who becomes possible first goes first on a shared link, ties by id") {
  sim::DagBuilder builder;
  const sim::ResourceId link = builder.add_resource({sim::ResourceKind::link, 0, 0, 1, true});
  const auto timed = [&](std::int64_t after, std::int64_t duration) {
    const sim::NodeId delay = builder.add_node(Nanos{after}, sim::kNoResource);
    const sim::NodeId node = builder.add_node(Nanos{duration}, link);
    builder.add_edge(delay, node);
    return node;
  };
  const sim::NodeId fourth = timed(9, 1);
  const sim::NodeId second = timed(5, 4);
  const sim::NodeId first = timed(1, 5);
  const sim::NodeId third = timed(5, 4);
  const sim::Dag dag = std::move(builder).finish();
  const sim::Timeline timeline = sim::simulate(dag);
  const std::vector<sim::NodeId> turns(timeline.turns[0].begin(), timeline.turns[0].end());
  CHECK(turns == std::vector<sim::NodeId>{first, second, third, fourth});
  CHECK(timeline.start[index(second)] == Nanos{6});
  CHECK(timeline.start[index(third)] == Nanos{10});
  CHECK(timeline.start[index(fourth)] == Nanos{14});
}

TEST_CASE("simulate: an empty DAG takes no time") {
  const sim::Timeline timeline = sim::simulate(sim::DagBuilder().finish());
  CHECK(timeline.makespan == Nanos{});
  CHECK(timeline.start.empty());
}
