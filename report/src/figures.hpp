// SPDX-License-Identifier: Apache-2.0
// Figures that several reports count in the same way.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report::detail {

/// A ratio; zero where the denominator is not positive.
[[nodiscard]] inline double ratio(double numerator, double denominator) noexcept {
  return denominator > 0 ? numerator / denominator : 0;
}

struct ComputeTimes {
  std::vector<Nanos> forward, backward, weight;  ///< by MicroPack of the pass, all virtual stages
  std::vector<Nanos> rank;  ///< F, B, W and H of a data-parallel rank, all its stages
};

/// A MicroPack of a context-parallel group counts as its first rank runs it; all take equally long,
/// but for W, in which every rank has its own tokens.
[[nodiscard]] ComputeTimes compute_times(const Plan& plan, const sim::Dag& dag);

/// The entry of a planner for a step; absent where there is none or it is infeasible.
[[nodiscard]] const ComparedPlan* feasible_entry(const Comparison& comparison,
                                                 std::string_view planner, std::int64_t step);

/// The step of that number; null where there is none.
[[nodiscard]] const ComparedStep* compared_step(const Comparison& comparison, std::int64_t step);

/// Seconds of wall time since an instant.
[[nodiscard]] double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace slimpack::report::detail
