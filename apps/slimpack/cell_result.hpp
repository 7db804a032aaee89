// SPDX-License-Identifier: Apache-2.0
// What a planner made of a cell, as the line that a store keeps.
#pragma once

#include <string>

#include "matrix.hpp"
#include "slimpack/report/tune.hpp"

namespace slimpack::app {

/// The key of a result in a store.
[[nodiscard]] std::string result_key(const EvaluationCell& cell, std::string_view planner);

/// The best degrees at the cell's effort; where fast effort finds no plan at any degrees, those of
/// normal effort, so that nobody fails for want of candidates. Throws as `tune` does.
[[nodiscard]] report::Tuning evaluate_cell(const EvaluationCell& cell,
                                           const planners::PlannerInfo& planner);

/// One line of JSON (docs/schemas.md).
/// `commit` says which planner made it.
[[nodiscard]] std::string result_line(const EvaluationCell& cell, const report::Tuning& tuning,
                                      const std::string& commit);

/// The line that says which results a matrix consists of. Every group must have its planners.
[[nodiscard]] std::string matrix_line(const EvaluationMatrix& matrix);

}  // namespace slimpack::app
