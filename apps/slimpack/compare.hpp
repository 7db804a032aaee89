// SPDX-License-Identifier: Apache-2.0
// What slimpack compare does between its options and its reports.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/report/compare.hpp"

namespace slimpack::app {

/// What `slimpack compare` is asked, as text.
struct CompareTask {
  CommonOptions common;
  std::vector<std::string> planners;  ///< none: all
  std::string steps = "1";
  std::string baseline{report::kDefaultBaseline};
};

/// A task that has been checked.
struct CheckedComparison {
  std::vector<planners::PlannerInfo> planners;
  std::vector<planners::PlanRequest> requests;  ///< one a step
};

/// Checks all that planners will be given. Throws InvalidInput.
[[nodiscard]] CheckedComparison check_comparison(const CompareTask& task, RequestMaker& maker);

/// Planners side by side, and the timelines of each one's first step where they are to be drawn.
struct DrawnComparison {
  report::Comparison comparison;
  std::vector<report::ComparedTimeline> drawn;
};

/// Plans every step with every planner. `progress` hears of each simulation how many are done of
/// how many at most.
[[nodiscard]] DrawnComparison compare_planners(
    const CompareTask& task, const CheckedComparison& checked, bool drawing,
    const std::function<void(std::int64_t done, std::int64_t most)>& progress);

}  // namespace slimpack::app
