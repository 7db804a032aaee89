// SPDX-License-Identifier: Apache-2.0
// Assigning samples to data-parallel ranks: samples a second, and how even the loads are.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "bench/log_normal.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace {

using namespace slimpack;

std::vector<schedule::SampleNeed> needs_of(std::int64_t count) {
  const ModelShape model = model_preset("llama-7b").value();
  std::vector<schedule::SampleNeed> needs;
  for (const Tokens length : bench::log_normal_lengths(count)) {
    needs.push_back(
        {static_cast<std::int64_t>(schedule::sample_work(model, length) / 1'000'000) + 1, {}});
  }
  return needs;
}

/// `worst` is the largest load over the mean.
void report(benchmark::State& state, std::span<const std::int64_t> load) {
  double all = 0, most = 0;
  for (const std::int64_t one : load) {
    all += static_cast<double>(one);
    most = std::max(most, static_cast<double>(one));
  }
  state.counters["worst"] = most * static_cast<double>(load.size()) / all;
  state.counters["samples/s"] = benchmark::Counter(static_cast<double>(state.range(0)),
                                                   benchmark::Counter::kIsIterationInvariantRate);
}

void assign_to(benchmark::State& state, std::int32_t max_cp) {
  const std::vector<schedule::SampleNeed> needs = needs_of(state.range(0));
  schedule::AssignRules rules;
  rules.ranks = static_cast<std::int32_t>(state.range(1));
  rules.max_cp = max_cp;
  rules.threshold_permille = 100;
  schedule::Assignment assignment;
  for (auto _ : state) {
    assignment = schedule::assign_samples(needs, rules);
    benchmark::DoNotOptimize(assignment.load.data());
  }
  state.counters["merged_groups"] =
      static_cast<double>(assignment.groups.size()) - static_cast<double>(rules.ranks);
  report(state, assignment.load);
}

void assign(benchmark::State& state) {
  assign_to(state, 1);
}
void assign_merging(benchmark::State& state) {
  assign_to(state, 8);
}

/// What one would write first: sort, then each to the least loaded rank, found by looking at all.
void naive_baseline(benchmark::State& state) {
  const std::vector<schedule::SampleNeed> needs = needs_of(state.range(0));
  std::vector<std::int64_t> load;
  for (auto _ : state) {
    load.assign(static_cast<std::size_t>(state.range(1)), 0);
    std::vector<std::size_t> order(needs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return needs[a].time > needs[b].time; });
    std::vector<std::vector<std::size_t>> hands(load.size());
    for (const std::size_t sample : order) {
      const auto least =
          static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      hands[least].push_back(sample);
      load[least] += needs[sample].time;
    }
    benchmark::DoNotOptimize(hands.data());
  }
  report(state, load);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"samples", "ranks"})->Unit(benchmark::kMicrosecond);
  for (const std::int64_t samples : {512, 32'768, 1'048'576}) {
    for (const std::int64_t ranks : {8, 64}) bench->Args({samples, ranks});
  }
}
BENCHMARK(assign)->Apply(sizes);
BENCHMARK(assign_merging)->Apply(sizes);
BENCHMARK(naive_baseline)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
