// SPDX-License-Identifier: Apache-2.0
// What tests of planners share: the order of 1F1B, a planner by name and the plan of an outcome.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/schedule/orders.hpp"

inline constexpr auto one_forward = [](const slimpack::schedule::Pipeline& pipeline,
                                       std::span<const std::int32_t> slices) {
  return slimpack::schedule::one_f_one_b(pipeline.stages, static_cast<std::int32_t>(slices.size()));
};

inline slimpack::planners::PlanOutcome plan_by(std::string_view name,
                                               const slimpack::planners::PlanRequest& request) {
  return slimpack::planners::find_planner(name).plan(request);
}

/// The plan of a feasible outcome, one that is simulated only too; an infeasible one ends the test
/// with its constraint.
inline const slimpack::Plan& plan_of(const slimpack::planners::PlanOutcome& outcome) {
  if (const auto* why = std::get_if<slimpack::Infeasible>(&outcome.result)) {
    FAIL("infeasible: ", why->constraint, " ", why->needed, " of ", why->available);
  }
  return *slimpack::planners::plan_in(outcome.result);
}
