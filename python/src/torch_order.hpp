// SPDX-License-Identifier: Apache-2.0
// Plans as PyTorch's pipeline runtime executes them.
#pragma once

#include <optional>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::python {

/// Whether every weight pack is a union of whole backward packs: what PyTorch's runtime, which
/// keeps one W for each B, can run. O(slices log slices).
[[nodiscard]] bool weight_packs_are_unions(const Plan& plan);

/// Moves every H to right behind the F that it reads, which is where PyTorch's runtime computes the
/// loss, and predicts the plan again. Its head must be on the last stage. Gives what is lacking
/// where that order no longer fits into memory. O(plan) and a simulation.
[[nodiscard]] std::optional<Infeasible> order_for_torch(Plan& plan);

}  // namespace slimpack::python
