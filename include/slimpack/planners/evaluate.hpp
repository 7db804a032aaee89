// SPDX-License-Identifier: Apache-2.0
// Judges a candidate plan: does it fit, and how long does it take?
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack {

/// The most MicroPacks of one pass that a group has. O(packs).
[[nodiscard]] inline std::int64_t most_units(const Plan& plan) {
  std::vector<std::int64_t> units(plan.groups.size());
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass == Pass::forward) ++units[index(pack.group)];
  }
  return units.empty() ? 0 : *std::max_element(units.begin(), units.end());
}

/// Fills the plan's prediction and says what it lacks, if anything.
[[nodiscard]] inline std::optional<Infeasible> predict(Plan& plan, const PlanRequest& request) {
  if (request.max_units) {
    const std::int64_t units = most_units(plan);
    if (units > *request.max_units) {
      return Infeasible{"MicroPacks a pass and rank (max-units)", units, *request.max_units};
    }
  }
  return std::nullopt;
}

}  // namespace slimpack
