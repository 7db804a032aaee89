// SPDX-License-Identifier: Apache-2.0
// How long a plan takes, how busy its devices are and what they hold at most, without a DAG.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "slimpack/core/error.hpp"
#include "slimpack/core/simulation_hook.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/order_times.hpp"
#include "slimpack/sim/detail/fast_run.hpp"
#include "slimpack/sim/detail/reduction_times.hpp"
#include "slimpack/sim/schedule_tables.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// The figures of a plan whose units take `times`. They are those of `simulate_plan`, several times
/// as fast and in a fraction of the memory. In return O must be the last unit of a device, and R
/// must come in the same order on all ranks.
///
///     const MemoryModel memory(plan);
///     const PlanFigures figures = plan_figures(ScheduleTables(plan, memory), PricedPlan(plan));
///
/// Throws InvalidInput where O or R break these rules, and Deadlock where units wait for each
/// other. O(units log devices).
template <UnitTimes Times>
[[nodiscard]] PlanFigures plan_figures(const ScheduleTables& table, const Times& times) {
  SLIMPACK_ON_SIMULATION(figures, table.plan().schedule.size());
  detail::FastSimulator<Times> simulator(table, times);
  return simulator.run();
}

/// The same, or nothing where the step takes longer than `limit`. That shows as soon as a device
/// has waited too long for its `least_ends`, so that plans which take far longer are found out
/// early. Throws as `plan_figures` does, but may not find out about units that wait for each other.
template <UnitTimes Times>
[[nodiscard]] std::optional<PlanFigures> plan_figures_within(const ScheduleTables& table,
                                                             const Times& times,
                                                             std::span<const Nanos> least_ends,
                                                             Nanos limit) {
  SLIMPACK_ON_SIMULATION(figures, table.plan().schedule.size());
  detail::FastSimulator<Times> simulator(table, times);
  return simulator.run_within(least_ends, limit);
}

/// The same of orders whose times list scheduling has found (`schedule::list_laid_out_part`), which
/// must be exact. Units are not run again. O(devices).
template <UnitTimes Times>
[[nodiscard]] PlanFigures plan_figures(const Plan& plan, const schedule::OrderTimes& order,
                                       const Times& times) {
  SLIMPACK_ASSERT(order.exact && order.devices.size() == plan.schedule.size());
  detail::FastReductions reductions(plan);
  PlanFigures figures;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < order.devices.size(); ++i) {
    const schedule::DeviceTimes& device = order.devices[i];
    for (const schedule::DeviceTimes::Reduction& one : device.reductions) {
      const bool by_layers =
          one.last_of_its_chunk && chunk_layers(plan, plan.schedule[i].pp, one.chunk) > 1;
      reductions.release(i, one.chunk, one.start, one.end, by_layers);
    }
    reductions.optimizer(i, device.end);
    last = std::max(last, device.end);
    figures.busy.push_back(Nanos{device.worked});
    figures.peak.push_back(device.peak);
  }
  figures.iteration = Nanos{std::max(last, reductions.run(times, figures.busy))};
  return figures;
}

}  // namespace slimpack::sim
