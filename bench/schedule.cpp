// SPDX-License-Identifier: Apache-2.0
// List scheduling: units a second, and the efficiency that its orders reach.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "bench/list_plans.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/schedule/execution.hpp"
#include "slimpack/schedule/list_schedule.hpp"
#include "slimpack/schedule/orders.hpp"

namespace {

using namespace slimpack;

constexpr std::int64_t kTokens = 1'000'000;
constexpr std::int64_t kSeeds = 8;

/// A rank of kTokens tokens in samples of up to `longest`, on memory that never binds unless given.
Plan drawn_plan(std::int32_t stages, LmHead head, std::int64_t units, std::int64_t longest,
                std::uint64_t seed, Bytes capacity = Bytes{400'000'000'000}) {
  Plan plan = bench::list_plan(stages, head, units, bench::drawn_lengths(kTokens, longest, seed));
  plan.memory.capacity = capacity;
  return plan;
}

std::int64_t count_units(const std::vector<DeviceSchedule>& schedule) {
  std::int64_t units = 0;
  for (const DeviceSchedule& device : schedule) {
    units += static_cast<std::int64_t>(device.order.size());
  }
  return units;
}

void per_second(benchmark::State& state, std::int64_t units) {
  state.counters["units"] = static_cast<double>(units);
  state.counters["units/s"] =
      benchmark::Counter(static_cast<double>(units), benchmark::Counter::kIsIterationInvariantRate);
}

/// Everything but prices and the memory model, in a workspace that is used again.
void list_orders(benchmark::State& state) {
  const auto stages = static_cast<std::int32_t>(state.range(0));
  const LmHead head = state.range(2) == 0 ? LmHead::last : LmHead::shard;
  const Plan plan = drawn_plan(stages, head, state.range(1), 131'072, 1);
  const PricedPlan times(plan);
  const MemoryModel memory(plan);
  const schedule::ScheduleParts parts(plan);
  schedule::ListWorkspace workspace;
  std::vector<DeviceSchedule> schedule = schedule::empty_schedule(plan);
  for (auto _ : state) {
    const schedule::ListOutcome outcome =
        schedule::list_schedule_part(plan, parts, 0, times, memory, {}, workspace, schedule);
    if (outcome.infeasible) state.SkipWithError("memory does not suffice");
  }
  per_second(state, count_units(schedule));
}
BENCHMARK(list_orders)
    ->ArgNames({"stages", "packs", "shard"})
    ->Args({8, 128, 0})
    ->Args({8, 512, 0})
    ->Args({8, 512, 1})
    ->Args({16, 2048, 0})
    ->Args({16, 2048, 1})
    ->Unit(benchmark::kMicrosecond);

/// The same with a new workspace, the parts and the memory model each time.
void list_orders_anew(benchmark::State& state) {
  const Plan plan = drawn_plan(8, LmHead::shard, state.range(0), 131'072, 1);
  const PricedPlan times(plan);
  std::int64_t units = 0;
  for (auto _ : state) {
    const auto result = schedule::list_schedule(plan, times, MemoryModel(plan));
    units = count_units(std::get<std::vector<DeviceSchedule>>(result));
  }
  per_second(state, units);
}
BENCHMARK(list_orders_anew)->ArgName("packs")->Arg(128)->Arg(512)->Unit(benchmark::kMicrosecond);

/// A fixed order for comparison: one forward, one backward, run once without prices or memory.
void one_forward_one_backward(benchmark::State& state) {
  const auto stages = static_cast<std::int32_t>(state.range(0));
  const auto packs = static_cast<std::int32_t>(state.range(1));
  for (auto _ : state) {
    const schedule::StageOrders orders = schedule::one_f_one_b(stages, packs);
    benchmark::DoNotOptimize(schedule::execute_abstractly({stages, 1}, orders, 2).size());
  }
  per_second(state, std::int64_t{2} * stages * packs);
}
BENCHMARK(one_forward_one_backward)
    ->ArgNames({"stages", "packs"})
    ->Args({8, 512})
    ->Args({16, 2048})
    ->Unit(benchmark::kMicrosecond);

/// Counters, means over seeds: work over devices times time (`busy`), ideal over time
/// (`efficiency`) of F, B and H with llama-7b on h100, 8 stages, and the share that 1 + 7 / packs
/// alone would leave
/// (`ceiling`).
void efficiency(benchmark::State& state) {
  const LmHead head = state.range(0) == 0 ? LmHead::last : LmHead::shard;
  schedule::ListOptions options;
  options.head_batch = static_cast<std::int32_t>(state.range(3));
  const auto chunks = static_cast<std::int32_t>(state.range(4));
  double busy = 0, ideal = 0, seeds = 0;
  for (auto _ : state) {
    busy = ideal = seeds = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      Plan plan = drawn_plan(8, head, state.range(2), state.range(1) * 1024, seed);
      plan.parallel.chunks = chunks;
      plan.stages = planners::spread_layers(plan.model.layers, virtual_stages_of(plan));
      const PricedPlan times(plan);
      schedule::ListWorkspace workspace;
      const auto result =
          schedule::list_schedule(plan, times, MemoryModel(plan), options, workspace);
      if (std::holds_alternative<Infeasible>(result)) continue;
      std::int64_t work = 0;
      for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
        const auto pack = static_cast<PackId>(i);
        for (std::int32_t line = 0; line < 8 * chunks; ++line) {
          work += times.compute(pack, line).value;
        }
        if (plan.micropacks[i].pass == Pass::forward) {
          work += (head == LmHead::shard ? 8 : 1) * times.head(pack, 0, 7).value;
        }
      }
      const auto end = static_cast<double>(workspace.end.value);
      busy += static_cast<double>(work) / (8 * end);
      ideal += static_cast<double>(ideal_time(plan).value) / end;
      ++seeds;
    }
  }
  state.counters["busy"] = busy / seeds;
  state.counters["efficiency"] = ideal / seeds;
  const auto packs = static_cast<double>(state.range(2));
  state.counters["ceiling"] = packs / (packs + 7.0 / chunks);
}
void efficiency_cases(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"shard", "longest_Ki", "packs", "batch", "chunks"})->Iterations(1);
  for (const std::int64_t longest : {32, 128, 256}) {
    for (const std::int64_t packs : {128, 256, 512}) {
      bench->Args({0, longest, packs, 1, 1});
      for (const std::int64_t batch : {1, 4, 8, 16, 32}) bench->Args({1, longest, packs, batch, 1});
      for (const std::int64_t chunks : {2, 4}) bench->Args({1, longest, packs, 16, chunks});
    }
  }
}
BENCHMARK(efficiency)->Apply(efficiency_cases)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
