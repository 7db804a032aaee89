// SPDX-License-Identifier: Apache-2.0
// The graphs that benchmarks run: 1F1B pipelines with unequal units, as plans.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/build_dag.hpp"

namespace slimpack::bench {

/// Log-normal times (sigma 0.5) that differ by 5 % between stages; every transfer takes 100 us.
class UnequalTimes {
 public:
  UnequalTimes(std::size_t packs, std::int32_t stages, std::uint64_t seed) : stages_(stages) {
    Random random(seed);
    for (std::size_t pack = 0; pack < packs; ++pack) {
      const double mean = 1e6 * std::exp(0.5 * random.normal()) * (pack % 2 == 0 ? 1.0 : 2.0);
      for (std::int32_t stage = 0; stage < stages; ++stage) {
        time_.push_back({static_cast<std::int64_t>(mean * (0.95 + 0.1 * random.unit()))});
      }
    }
  }
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return time_[index(pack) * static_cast<std::size_t>(stages_) + static_cast<std::size_t>(line)];
  }
  [[nodiscard]] Nanos head(PackId, std::size_t, std::int32_t) const { return {50'000}; }
  [[nodiscard]] Nanos transfer(PackId, std::int32_t, std::size_t) const { return {100'000}; }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t) const { return {5'000'000}; }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t) const { return {1'000'000}; }

 private:
  std::int32_t stages_;
  std::vector<Nanos> time_;
};

/// `units` samples of 1024 tokens, one a MicroPack, in 1F1B order on `stages` stages; forward packs
/// have even ids.
[[nodiscard]] inline Plan pipeline_plan(std::int32_t stages, std::uint32_t units) {
  Plan plan;
  plan.planner = "bench";
  plan.model = {"bench", stages, 4096, 32, 32, 128, 11008, 32000, false, 10000.0, 1e-5, 2};
  plan.memory.capacity = Bytes{85'500'000'000};
  plan.parallel.pp = stages;
  plan.groups = {{0}};
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    plan.stages.push_back({stage, 0, stage, stage + 1, stage == 0});
  }
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    plan.samples.push_back(Tokens{1024});
    plan.sample_group.push_back(GroupId{0});
    MicroPack pack;
    pack.slices = {{SampleId{unit}, Tokens{0}, Tokens{1024}}};
    plan.micropacks.push_back(pack);
    pack.pass = Pass::backward;
    plan.micropacks.push_back(std::move(pack));
  }
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    DeviceSchedule schedule{0, stage, {}};
    const auto ahead = std::min(units, static_cast<std::uint32_t>(stages - stage));
    const auto forward = [&](std::uint32_t unit) {
      schedule.order.push_back({UnitKind::forward, PackId{2 * unit}, 0});
      if (stage + 1 == stages) schedule.order.push_back({UnitKind::head, PackId{2 * unit}, 0});
    };
    for (std::uint32_t unit = 0; unit < ahead; ++unit) forward(unit);
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      schedule.order.push_back({UnitKind::backward, PackId{2 * unit + 1}, 0});
      if (unit + ahead < units) forward(unit + ahead);
    }
    schedule.order.push_back({UnitKind::reduce, {}, 0});
    schedule.order.push_back({UnitKind::optimizer, {}, 0});
    plan.schedule.push_back(std::move(schedule));
  }
  return plan;
}

[[nodiscard]] inline sim::Dag pipeline_dag(std::int32_t stages, std::uint32_t units) {
  const Plan plan = pipeline_plan(stages, units);
  return sim::build_dag(plan, UnequalTimes(plan.micropacks.size(), stages, 1));
}

}  // namespace slimpack::bench
