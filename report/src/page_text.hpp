// SPDX-License-Identifier: Apache-2.0
// The HTML report around its data: headings, the table of planners, places for what is drawn.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report::detail {

/// JSON in which nothing can end a script element: '<' occurs inside of strings only.
[[nodiscard]] std::string script_safe(std::string_view json);

/// The whole page. `data` is safe inside of a script element.
[[nodiscard]] std::string page_text(const Comparison& comparison, const std::string& data,
                                    std::size_t entries);

/// A comparison of one plan with nothing.
[[nodiscard]] Comparison comparison_of(const Plan& plan, const sim::PlanSimulation& simulation);

}  // namespace slimpack::report::detail
