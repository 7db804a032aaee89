// SPDX-License-Identifier: Apache-2.0
// Which data-parallel ranks stand for all where they are too many to show.
#pragma once

#include <cstddef>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report::detail {

/// Ranks from the busiest to the idlest; equal ones by number.
[[nodiscard]] std::vector<std::size_t> ranks_by_work(const Plan& plan,
                                                     const sim::PlanSimulation& simulation);

/// Ranks to draw, at most `most`: from the busiest to the idlest in even steps, by number.
[[nodiscard]] std::vector<std::size_t> drawn_ranks(const Plan& plan,
                                                   const sim::PlanSimulation& simulation,
                                                   std::size_t most);

}  // namespace slimpack::report::detail
