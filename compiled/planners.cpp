// SPDX-License-Identifier: Apache-2.0
#include "compiled/planners.hpp"

#include "slimpack/planners/registry.hpp"

namespace slimpack::compiled {

std::span<const PlannerInfo> planners() noexcept {
  return slimpack::planners();
}

const PlannerInfo& find_planner(std::string_view name) {
  return slimpack::find_planner(name);
}

}  // namespace slimpack::compiled
