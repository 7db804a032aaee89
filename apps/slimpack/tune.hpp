// SPDX-License-Identifier: Apache-2.0
// What slimpack tune does between its options and its reports.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/report/tune.hpp"
#include "slimpack/report/tune_report.hpp"

namespace slimpack::app {

/// Common options in which degrees are searched.
[[nodiscard]] inline CommonOptions any_degrees() {
  CommonOptions options;
  options.dp = options.pp = options.tp = "auto";
  return options;
}

/// What `slimpack tune` is asked, as text. `common.batch_tokens` may be several with commas
/// between.
struct TuneTask {
  CommonOptions common = any_degrees();
  std::vector<std::string> planners{"slimpack"};
  std::string gpus, steps = "1", finalists = "3";
};

/// A task that has been checked.
struct CheckedTuning {
  std::vector<planners::PlannerInfo> planners;
  report::TuneOptions options;
  std::vector<std::vector<planners::PlanRequest>> requests;  ///< by batch size, then step
  report::TuneReport report;                                 ///< without results
};

/// Checks all that planners will be given. Throws InvalidInput.
[[nodiscard]] CheckedTuning check_tuning(const TuneTask& task, RequestMaker& maker);

/// Tunes every planner for every batch size and returns the report. `progress` hears of how much is
/// done of how much.
[[nodiscard]] report::TuneReport tune_planners(
    CheckedTuning checked,
    const std::function<void(std::int64_t done, std::int64_t most)>& progress);

}  // namespace slimpack::app
