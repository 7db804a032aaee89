// SPDX-License-Identifier: Apache-2.0
// How long a plan takes, how busy its devices are and what they hold at most, without a DAG.
#pragma once

#include "slimpack/core/simulation_hook.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/sim/detail/fast_run.hpp"
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
  return detail::FastSimulator<Times>(table, times).run();
}

}  // namespace slimpack::sim
