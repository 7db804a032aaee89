// SPDX-License-Identifier: Apache-2.0
// One planner, one step: planned, simulated, measured.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// A plan and its simulation, to be drawn.
struct ComparedTimeline {
  Plan plan;
  sim::PlanSimulation simulation;
};

/// An entry of a comparison, and what it is made of where there is a feasible plan.
struct ComparedOutcome {
  ComparedPlan entry;
  std::optional<ComparedTimeline> timeline;
};

namespace detail {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace detail

/// The entry of an answer that took `plan_seconds`; a modelled step is simulated at its own times.
/// Throws as `simulate_plan` does.
[[nodiscard]] inline ComparedOutcome compare_outcome(const planners::PlannerInfo& planner,
                                                     std::int64_t step,
                                                     planners::PlanOutcome&& outcome,
                                                     double plan_seconds) {
  ComparedOutcome compared;
  ComparedPlan& entry = compared.entry;
  entry.planner = planner.name;
  entry.step = step;
  entry.plan_seconds = plan_seconds;
  entry.settings = std::move(outcome.settings);
  entry.evaluations = outcome.evaluations;
  if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
    entry.why = why_infeasible(*none);
    return compared;
  }
  const auto start = std::chrono::steady_clock::now();
  if (auto* modelled = std::get_if<planners::SimulationOnlyPlan>(&outcome.result)) {
    sim::PlanSimulation simulation = sim::simulate_plan(modelled->plan, modelled->times);
    entry.simulate_seconds = detail::seconds_since(start);
    entry.metrics = metrics_of(*modelled, simulation);
    compared.timeline = {std::move(modelled->plan), std::move(simulation)};
  } else {
    Plan& plan = std::get<Plan>(outcome.result);
    sim::PlanSimulation simulation = sim::simulate_plan(plan);
    entry.simulate_seconds = detail::seconds_since(start);
    entry.metrics = metrics_of(plan, simulation);
    compared.timeline = {std::move(plan), std::move(simulation)};
  }
  return compared;
}

/// Plans and simulates one step by the clock. Throws as the planner does.
[[nodiscard]] inline ComparedOutcome compare_step(const planners::PlannerInfo& planner,
                                                  const planners::PlanRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  planners::PlanOutcome outcome = planner.plan(request);
  const double plan_seconds = detail::seconds_since(start);
  return compare_outcome(planner, request.batch.step, std::move(outcome), plan_seconds);
}

/// Consecutive steps as a planner takes them.
[[nodiscard]] inline std::vector<planners::PlanRequest> steps_of(
    const planners::PlannerInfo& planner, std::vector<planners::PlanRequest> steps) {
  return planner.rebatch == nullptr ? std::move(steps) : planner.rebatch(std::move(steps));
}

}  // namespace slimpack::report
