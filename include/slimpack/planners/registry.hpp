// SPDX-License-Identifier: Apache-2.0
// All planners by name.
#pragma once

#include <span>
#include <string_view>

#include "slimpack/planners/planner.hpp"

namespace slimpack::planners {

/// Every planner, in the order in which lists print them. The list is in planners/all_planners.hpp.
[[nodiscard]] SLIMPACK_PLANNERS_API std::span<const PlannerInfo> registry() noexcept;

/// The published systems among them, held to their publications: `NAME-published` for `NAME`
/// (`PlanRequest::as_published`), in the same order.
[[nodiscard]] SLIMPACK_PLANNERS_API std::span<const PlannerInfo> published_forms() noexcept;

/// The planner of that name, in either form. Throws InvalidInput that lists the names there are.
/// O(planners).
[[nodiscard]] SLIMPACK_PLANNERS_API const PlannerInfo& find_planner(std::string_view name);

}  // namespace slimpack::planners

#ifndef SLIMPACK_COMPILED_PLANNERS
#include "slimpack/planners/all_planners.hpp"
#endif
