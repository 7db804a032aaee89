// SPDX-License-Identifier: Apache-2.0
// Nodes a second of the simulator on 1F1B pipelines with links, send limits and memory, one thread.
#include <benchmark/benchmark.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/pipeline_graphs.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/detail/topological_dag.hpp"
#include "slimpack/sim/simulator.hpp"

namespace {

using namespace slimpack;

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Args({8, 64})->Args({16, 1024})->Args({32, 8192})->Unit(benchmark::kMillisecond);
}

sim::Dag graph(const benchmark::State& state) {
  return bench::pipeline_dag(static_cast<std::int32_t>(state.range(0)),
                             static_cast<std::uint32_t>(state.range(1)));
}

void count(benchmark::State& state, const sim::Dag& dag) {
  state.counters["nodes"] = static_cast<double>(dag.size());
  state.counters["nodes/s"] = benchmark::Counter(static_cast<double>(dag.size()),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void event_driven(benchmark::State& state) {
  const sim::Dag dag = graph(state);
  for (auto _ : state) benchmark::DoNotOptimize(sim::simulate(dag).makespan);
  count(state, dag);
}
BENCHMARK(event_driven)->Apply(sizes);

/// The same nodes and edges without memory events.
void event_driven_bare(benchmark::State& state) {
  sim::Dag dag = graph(state);
  dag.net.clear();
  dag.net_offset.assign(2 * dag.size() + 1, 0);
  for (auto _ : state) benchmark::DoNotOptimize(sim::simulate(dag).makespan);
  count(state, dag);
}
BENCHMARK(event_driven_bare)->Apply(sizes);

void topological_order(benchmark::State& state) {
  const sim::Dag dag = graph(state);
  const sim::Timeline timeline = sim::simulate(dag);
  const sim::TopologicalDag fixed(dag, timeline);
  const std::vector<Nanos> durations = fixed.arrange(dag.duration);
  std::vector<Nanos> ends(fixed.rows() + 1);
  if (fixed.run(durations, ends) != timeline.makespan) state.SkipWithError("makespans differ");
  for (auto _ : state) benchmark::DoNotOptimize(fixed.run(durations, ends));
  count(state, dag);
}
BENCHMARK(topological_order)->Apply(sizes);

/// Freezing once, for comparison with what it saves.
void freeze(benchmark::State& state) {
  const sim::Dag dag = graph(state);
  const sim::Timeline timeline = sim::simulate(dag);
  for (auto _ : state) benchmark::DoNotOptimize(sim::TopologicalDag(dag, timeline).rows());
  count(state, dag);
}
BENCHMARK(freeze)->Apply(sizes);

/// What one would write first: a priority queue, and vectors of vectors.
struct NaiveGraph {
  struct Node {
    std::int64_t duration = 0;
    std::size_t predecessors = 0;
    std::vector<std::size_t> successors;
    std::vector<std::pair<std::size_t, std::int64_t>> at_start, at_end;
  };
  std::vector<Node> nodes;
  std::size_t devices = 0;

  explicit NaiveGraph(const sim::Dag& dag) : nodes(dag.size()), devices(dag.devices.size()) {
    for (std::size_t i = 0; i < dag.size(); ++i) {
      const sim::NodeId id{static_cast<std::uint32_t>(i)};
      nodes[i].duration = dag.duration[i].value;
      nodes[i].predecessors = dag.predecessor_count[i];
      for (const sim::NodeId next : dag.successors[i]) nodes[i].successors.push_back(index(next));
      for (const sim::MemoryEvent& event : dag.memory_at(id, sim::Moment::start)) {
        nodes[i].at_start.emplace_back(index(event.device), event.bytes.value);
      }
      for (const sim::MemoryEvent& event : dag.memory_at(id, sim::Moment::end)) {
        nodes[i].at_end.emplace_back(index(event.device), event.bytes.value);
      }
    }
  }

  [[nodiscard]] std::int64_t run() const {
    using Event = std::tuple<std::int64_t, int, std::size_t>;  // ends before starts
    std::priority_queue<Event, std::vector<Event>, std::greater<>> queue;
    std::vector<std::size_t> waiting(nodes.size());
    std::vector<std::int64_t> start(nodes.size()), end(nodes.size()), level(devices), peak(devices);
    const auto change = [&](const auto& events) {
      for (const auto& [device, bytes] : events) {
        level[device] += bytes;
        peak[device] = std::max(peak[device], level[device]);
      }
    };
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      waiting[i] = nodes[i].predecessors;
      if (waiting[i] == 0) queue.emplace(0, 1, i);
    }
    std::int64_t now = 0;
    while (!queue.empty()) {
      const auto [time, starts, node] = queue.top();
      queue.pop();
      now = time;
      if (starts == 1) {
        start[node] = now;
        change(nodes[node].at_start);
        queue.emplace(now + nodes[node].duration, 0, node);
        continue;
      }
      end[node] = now;
      change(nodes[node].at_end);
      for (const std::size_t next : nodes[node].successors) {
        if (--waiting[next] == 0) queue.emplace(now, 1, next);
      }
    }
    return now;
  }
};

void naive_baseline(benchmark::State& state) {
  const sim::Dag dag = graph(state);
  const NaiveGraph naive(dag);
  if (naive.run() != sim::simulate(dag).makespan.value) state.SkipWithError("makespans differ");
  for (auto _ : state) benchmark::DoNotOptimize(naive.run());
  count(state, dag);
}
BENCHMARK(naive_baseline)->Apply(sizes);

void build(benchmark::State& state) {
  const Plan plan = bench::pipeline_plan(static_cast<std::int32_t>(state.range(0)),
                                         static_cast<std::uint32_t>(state.range(1)));
  const bench::UnequalTimes times(plan.micropacks.size(), plan.parallel.pp, 1);
  sim::Dag dag;
  for (auto _ : state) dag = sim::build_dag(plan, times);
  count(state, dag);
}
BENCHMARK(build)->Apply(sizes);

void gaps(benchmark::State& state) {
  const sim::Dag dag = graph(state);
  const sim::Timeline timeline = sim::simulate(dag);
  for (auto _ : state) {
    benchmark::DoNotOptimize(sim::find_gaps(dag, timeline, Bytes{85'500'000'000}).gaps.size());
  }
  count(state, dag);
}
BENCHMARK(gaps)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
