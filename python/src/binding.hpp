// SPDX-License-Identifier: Apache-2.0
// The parts of the extension module, and what crosses between them.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <map>
#include <memory>
#include <string>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::python {

namespace nb = nanobind;

/// What slimpack.Plan holds. Never changes once it is made, so that threads and arrays share it.
struct PlanObject {
  Plan plan;
  std::map<std::string, std::string> settings;  ///< what the planner's search chose
};
using SharedPlan = std::shared_ptr<const PlanObject>;

/// Becomes slimpack.Infeasible.
struct NoFeasiblePlan : std::exception {
  explicit NoFeasiblePlan(Infeasible reason) : why(std::move(reason)) {}
  [[nodiscard]] const char* what() const noexcept override { return why.constraint.c_str(); }
  Infeasible why;
};

void bind_errors(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_search(nb::module_& module);
void bind_simulation(nb::module_& module);
void bind_balance(nb::module_& module);
void bind_program(nb::module_& module);

}  // namespace slimpack::python
