// SPDX-License-Identifier: Apache-2.0
// Planning a whole step, from lengths in memory to a complete plan: time, memory, efficiency.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include "bench/log_normal.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/planners/registry.hpp"

namespace {

using namespace slimpack;

/// A line of Linux's /proc/self/status in MB; 0 elsewhere.
double status_mb(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stod(line.substr(key.size() + 1)) * 1024e-6;
  }
  return 0;
}

/// The peak of resident memory begins anew at what is resident now.
void reset_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

planners::PlanRequest request_of(const benchmark::State& state, planners::Effort effort) {
  planners::PlanRequest request;
  request.batch.samples = bench::log_normal_lengths(state.range(0));
  for (std::size_t i = 0; i < request.batch.samples.size(); ++i) {
    request.batch.origin.push_back({0, static_cast<std::int64_t>(i), {}});
    request.batch.target_tokens += request.batch.samples[i].value - 1;
  }
  request.sources = {{"log-normal", state.range(0), ""}};
  request.model = model_preset("llama-7b").value();
  request.cluster = cluster_preset("h100").value();
  request.dp = request.pp = 8;
  request.context = {bench::kLongestSample};
  request.effort = effort;
  return request;
}

/// Counters: samples planned a second; units and efficiency of the plan, 0 where none fits;
/// candidates tried; most memory of the process while it plans; the least time that one plan took,
/// which says more than the mean where others use the machine.
void plan_with(benchmark::State& state, std::string_view name, planners::Effort effort) {
  const planners::PlannerInfo& planner = planners::find_planner(name);
  const planners::PlanRequest request = request_of(state, effort);
  double efficiency = 0, units = 0, candidates = 0, least = std::numeric_limits<double>::infinity();
  reset_peak();
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    const planners::PlanOutcome outcome = planner.plan(request);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
    candidates = static_cast<double>(outcome.evaluations);
    if (const auto* plan = std::get_if<Plan>(&outcome.result)) {
      efficiency = seconds(plan->prediction.ideal) / seconds(plan->prediction.iteration);
      units = 0;
      for (const DeviceSchedule& device : plan->schedule) {
        units += static_cast<double>(device.order.size());
      }
    } else {
      state.SetLabel("no plan fits: " + std::get<Infeasible>(outcome.result).constraint);
    }
  }
  state.counters["least_ms"] = least;
  state.counters["peak_MB"] = status_mb("VmHWM:");
  state.counters["units"] = units;
  state.counters["efficiency"] = efficiency;
  state.counters["candidates"] = candidates;
  state.counters["samples/s"] = benchmark::Counter(static_cast<double>(state.range(0)),
                                                   benchmark::Counter::kIsIterationInvariantRate);
}

void fast(benchmark::State& state) {
  plan_with(state, "slimpack", planners::Effort::fast);
}
void normal(benchmark::State& state) {
  plan_with(state, "slimpack", planners::Effort::normal);
}

/// What long contexts are trained with today, context parallelism: samples packed whole up to the
/// context, each micro-batch spread over a fixed number of ranks, one forward, one backward. As
/// many candidates, every one of them built and simulated in full.
void naive_baseline(benchmark::State& state) {
  plan_with(state, "megatron-cp", planners::Effort::normal);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("samples")->Unit(benchmark::kMillisecond);
  bench->Arg(512)->Arg(4'096)->Arg(32'768)->Arg(262'144)->Arg(1'048'576);
}
BENCHMARK(fast)->Apply(sizes);
BENCHMARK(normal)->Apply(sizes);

void fewer_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("samples")->Unit(benchmark::kMillisecond);
  bench->Arg(512)->Arg(4'096)->Arg(32'768)->Arg(262'144);
}
BENCHMARK(naive_baseline)->Apply(fewer_sizes);

}  // namespace

BENCHMARK_MAIN();
