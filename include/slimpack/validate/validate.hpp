// SPDX-License-Identifier: Apache-2.0
// Checks a plan against everything that makes it valid, by formulas of its own.
#pragma once

#include "slimpack/core/compiled.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/violation.hpp"

namespace slimpack {

/// Checks a plan.
///
///     const Validation validation = validate(plan);
///     for (const Violation& violation : validation.violations) {
///       std::cerr << violation.message << '\n';   // "rule 4, sample 1, MicroPack 3, ...: reason"
///     }
///     if (validation.valid()) use(validation.worst_case_peak);
///
/// Lists every violation of the seven rules and of the format, in order of rule, with sample,
/// MicroPack, device and unit. Shares only the data types with planner and simulator. Never throws
/// for what a plan says; of one kind of violation the first hundred are listed and the rest is
/// counted. What a broken table makes impossible to check is left out (docs/validation.md). O(n log
/// n) in slices and units times the ranks of a group.
[[nodiscard]] SLIMPACK_PLANNERS_API Validation validate(const Plan& plan);

}  // namespace slimpack

#ifndef SLIMPACK_COMPILED_PLANNERS
#include "slimpack/validate/detail/validate_plan.hpp"
#endif
