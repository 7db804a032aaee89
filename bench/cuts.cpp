// SPDX-License-Identifier: Apache-2.0
// Cutting a queue of samples into packs of equal time: samples a second, and how equal they are.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/log_normal.hpp"
#include "slimpack/schedule/cut.hpp"

namespace {

using namespace slimpack;

/// About what llama-7b costs on h100: attention weighs as much as the rest at 40,000 tokens.
constexpr schedule::SliceCost kCost{20'000, 80'000, 1};
constexpr Tokens kGranularity{128};

std::vector<schedule::QueuedSample> virtual_stages_of(std::int64_t count) {
  std::vector<schedule::QueuedSample> line;
  for (const Tokens length : bench::log_normal_lengths(count)) {
    line.push_back({static_cast<SampleId>(line.size()), length});
  }
  return line;
}

/// `worst` is the costliest pack over the mean.
void report(benchmark::State& state, const schedule::PackCuts& line) {
  Int128 all = 0, most = 0;
  for (std::size_t i = 0; i < line.packs(); ++i) {
    Int128 pack = 0;
    for (const Slice& slice : line.pack(i)) pack += kCost.slice(slice.begin, slice.end);
    all += pack;
    most = std::max(most, pack);
  }
  state.counters["packs"] = static_cast<double>(line.packs());
  state.counters["worst"] =
      static_cast<double>(most) * static_cast<double>(line.packs()) / static_cast<double>(all);
  state.counters["samples/s"] = benchmark::Counter(static_cast<double>(state.range(0)),
                                                   benchmark::Counter::kIsIterationInvariantRate);
}

template <Pass kPass>
void cut(benchmark::State& state) {
  const std::vector<schedule::QueuedSample> samples = virtual_stages_of(state.range(0));
  schedule::CutRules rules;
  rules.units = state.range(1);
  rules.granularity = kGranularity;
  schedule::PackCuts line;
  for (auto _ : state) {
    line = schedule::cut_packs(samples, kPass, kCost, rules);
    benchmark::DoNotOptimize(line.slices.data());
  }
  report(state, line);
}

/// What one would write first: go through the queue in steps of the granularity and close a pack
/// when it has reached its part of the time.
schedule::PackCuts cut_in_steps(std::span<const schedule::QueuedSample> samples,
                                std::int64_t units) {
  Int128 all = 0;
  for (const schedule::QueuedSample& sample : samples) all += kCost.slice({}, sample.length);
  schedule::PackCuts line;
  Int128 gone = 0;
  for (const schedule::QueuedSample& sample : samples) {
    Tokens open;
    for (Tokens position; position < sample.length;) {
      const Tokens next = std::min(position + kGranularity, sample.length);
      gone +=
          kCost.upto(next) - kCost.upto(position) + (position == Tokens{} ? kCost.per_slice : 0);
      position = next;
      if (gone * units < all * static_cast<Int128>(line.first.size())) continue;
      line.slices.push_back({sample.id, open, position});
      line.first.push_back(line.slices.size());
      open = position;
    }
    if (open < sample.length) line.slices.push_back({sample.id, open, sample.length});
  }
  if (line.slices.size() > line.first.back()) line.first.push_back(line.slices.size());
  return line;
}

void naive_baseline(benchmark::State& state) {
  const std::vector<schedule::QueuedSample> samples = virtual_stages_of(state.range(0));
  schedule::PackCuts line;
  for (auto _ : state) {
    line = cut_in_steps(samples, state.range(1));
    benchmark::DoNotOptimize(line.slices.data());
  }
  report(state, line);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"samples", "packs"})->Unit(benchmark::kMicrosecond);
  bench->Args({64, 64})->Args({4'096, 512})->Args({131'072, 4'096})->Args({1'048'576, 4'096});
}
BENCHMARK(cut<Pass::forward>)->Name("forward")->Apply(sizes);
BENCHMARK(cut<Pass::backward>)->Name("backward")->Apply(sizes);
BENCHMARK(naive_baseline)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
