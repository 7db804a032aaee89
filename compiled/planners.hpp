// SPDX-License-Identifier: Apache-2.0
// All planners by name for the programs of this tree, compiled once: no other source needs as long.
#pragma once

#include <span>
#include <string_view>

#include "slimpack/planners/planner.hpp"

namespace slimpack::compiled {

/// As slimpack::planners of slimpack/planners/registry.hpp.
[[nodiscard]] std::span<const PlannerInfo> planners() noexcept;

/// As slimpack::find_planner of slimpack/planners/registry.hpp.
[[nodiscard]] const PlannerInfo& find_planner(std::string_view name);

}  // namespace slimpack::compiled
