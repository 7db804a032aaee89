// SPDX-License-Identifier: Apache-2.0
// Judges a candidate plan: how long does it take, and does it fit?
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/worst_memory.hpp"
#include "slimpack/sim/fast_simulator.hpp"
#include "slimpack/sim/least_ends.hpp"
#include "slimpack/sim/schedule_tables.hpp"

namespace slimpack::planners {

/// The most MicroPacks of one pass that a group has. O(packs).
[[nodiscard]] inline std::int64_t most_units(const Plan& plan) {
  std::array<std::vector<std::int64_t>, 3> units;
  for (auto& of_pass : units) of_pass.resize(plan.groups.size());
  std::int64_t most = 0;
  for (const MicroPack& pack : plan.micropacks) {
    most = std::max(most, ++units[static_cast<std::size_t>(pack.pass)][index(pack.group)]);
  }
  return most;
}

/// Writes iteration and ideal time, busy times and peaks into a plan's prediction.
inline void write_prediction(Plan& plan, const sim::PlanFigures& figures) {
  plan.prediction.iteration = figures.iteration;
  plan.prediction.ideal = ideal_time(plan);
  plan.prediction.devices.clear();
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    plan.prediction.devices.push_back(
        {plan.schedule[i].dp, plan.schedule[i].pp, figures.busy[i], figures.peak[i]});
  }
}

/// What a plan has too many of: MicroPacks of a pass and rank, if the request bounds them.
/// O(packs).
[[nodiscard]] inline std::optional<Infeasible> exceeds_units(const Plan& plan,
                                                             const PlanRequest& request) {
  if (!request.max_units) return std::nullopt;
  const std::int64_t units = most_units(plan);
  if (units <= *request.max_units) return std::nullopt;
  return Infeasible{"MicroPacks of a pass and rank", units, *request.max_units};
}

namespace detail {

/// What a plan that has been timed lacks.
[[nodiscard]] inline std::optional<Infeasible> lacks_room(const sim::ScheduleTables& table,
                                                          const PlanRequest& request) {
  const Plan& plan = table.plan();
  if (std::optional<Infeasible> units = exceeds_units(plan, request)) return units;
  const std::vector<Bytes> worst = worst_memory(table);
  const auto fullest = std::max_element(worst.begin(), worst.end());
  const Bytes available = plan.memory.capacity - plan.memory.reserved;
  if (*fullest <= available) return std::nullopt;
  const DeviceSchedule& device = plan.schedule[static_cast<std::size_t>(fullest - worst.begin())];
  return Infeasible{"bytes of memory on device dp " + std::to_string(device.dp) + ", pp " +
                        std::to_string(device.pp),
                    fullest->value, available.value};
}

}  // namespace detail

/// Times a plan whose units take `times`, writes iteration and ideal time, busy times and peaks
/// into its prediction, and says what it lacks, if anything: a device's memory, at any times of its
/// units and transfers, must not exceed capacity - reserved, nor a rank's MicroPacks of a pass the
/// request's bound. `memory` is the plan's. Throws as `plan_figures` does.
template <UnitTimes Times>
[[nodiscard]] std::optional<Infeasible> predict(Plan& plan, const PlanRequest& request,
                                                const Times& times, const MemoryModel& memory) {
  const sim::ScheduleTables table(plan, memory);
  write_prediction(plan, sim::plan_figures(table, times));
  return detail::lacks_room(table, request);
}
/// The same at the prices of the plan's own cost model.
[[nodiscard]] inline std::optional<Infeasible> predict(Plan& plan, const PlanRequest& request) {
  const PricedPlan times(plan);
  const MemoryModel memory(plan);
  return predict(plan, request, times, memory);
}

/// The same, but a step that takes longer than `limit` lacks time. That is found out as early as
/// possible: before anything else that it may lack, and without its prediction.
template <UnitTimes Times>
[[nodiscard]] std::optional<Infeasible> predict_within(Plan& plan, const PlanRequest& request,
                                                       Nanos limit, const Times& times) {
  const auto longer_than_limit = [&](Nanos least) {
    return Infeasible{"nanoseconds of a step", least.value, limit.value};
  };
  const std::vector<Nanos> ends = sim::least_ends(plan, times);
  const Nanos least = *std::max_element(ends.begin(), ends.end());
  if (least > limit) return longer_than_limit(least);
  const MemoryModel memory(plan);
  const sim::ScheduleTables table(plan, memory);
  const auto figures = sim::plan_figures_within(table, times, ends, limit);
  if (!figures) return longer_than_limit(limit + Nanos{1});
  write_prediction(plan, *figures);
  return detail::lacks_room(table, request);
}
/// The same at the prices of the plan's own cost model.
[[nodiscard]] inline std::optional<Infeasible> predict_within(Plan& plan,
                                                              const PlanRequest& request,
                                                              Nanos limit) {
  return predict_within(plan, request, limit, PricedPlan(plan));
}

}  // namespace slimpack::planners
