// SPDX-License-Identifier: Apache-2.0
// Builds, schedules and times the candidates of the slimpack planner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/detail/slimpack_build.hpp"
#include "slimpack/planners/detail/slimpack_settings.hpp"
#include "slimpack/planners/packed_sequences.hpp"
#include "slimpack/planners/search.hpp"
#include "slimpack/schedule/list_schedule.hpp"

namespace slimpack::detail {

[[nodiscard]] inline ListOptions list_options(const SlimpackSettings& settings) {
  ListOptions options;
  options.head_batch = settings.head.batch;
  return options;
}

/// Scores points of a space by scheduling the ranks that are likely to take longest.
class SlimpackCandidates {
 public:
  SlimpackCandidates(const SlimpackProblem& problem, const SlimpackSpace& space)
      : problem_(problem), space_(space) {}

  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const SlimpackSettings settings = space_.at(point);
    if (!leaves_layers(problem_.request(), settings.chunks, settings.head.place)) return false;
    return settings.merge_permille == 0 || problem_.deal(settings)->widest > 1;
  }

  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    const SlimpackSettings settings = space_.at(point);
    const Plan plan = problem_.build(settings, problem_.deal(settings)->hardest);
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    const ScheduleParts parts(plan);
    std::vector<DeviceSchedule> schedule = empty_schedule(plan);
    ListWorkspace workspace;
    CandidateScore score;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const ListOutcome outcome = list_schedule_part(plan, parts, part, times, memory,
                                                     list_options(settings), workspace, schedule);
      if (outcome.infeasible) {
        score.excess =
            std::max(score.excess, outcome.infeasible->needed - outcome.infeasible->available);
      }
      score.time = std::max(score.time, outcome.end);
    }
    if (score.excess > 0) score.time = {};
    score.time += end_of_step(plan, times);
    return score;
  }

  /// The whole plan of a point, scheduled, without a prediction.
  [[nodiscard]] std::variant<Plan, Infeasible> plan(const SettingPoint& point) const {
    const SlimpackSettings settings = space_.at(point);
    Plan plan = problem_.build(settings, std::nullopt);
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    auto scheduled = list_schedule(plan, times, memory, list_options(settings));
    if (auto* why = std::get_if<Infeasible>(&scheduled)) return std::move(*why);
    plan.schedule = std::get<std::vector<DeviceSchedule>>(std::move(scheduled));
    return plan;
  }

 private:
  /// What follows the last B on the slowest stage.
  [[nodiscard]] static Nanos end_of_step(const Plan& plan, const PricedPlan& times) {
    Nanos longest;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      longest = std::max(longest, times.reduce(pp, 0) + times.optimizer(0, pp));
    }
    return longest;
  }

  const SlimpackProblem& problem_;
  const SlimpackSpace& space_;
};

}  // namespace slimpack::detail
