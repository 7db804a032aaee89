// SPDX-License-Identifier: Apache-2.0
// How slimpack plans a step. Reading order: settings.hpp (what is decided), problem.hpp,
// assignment.hpp (phase 1), packs.hpp (phase 2), orders.hpp, candidates.hpp (a candidate's score),
// space.hpp (what is tried), refine.hpp, and this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/detail/climb.hpp"
#include "slimpack/planners/slimpack/candidates.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/refine.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/planners/slimpack/space.hpp"

namespace slimpack::planners {

namespace detail {

/// The search of one request.
class SlimpackSearch {
 public:
  SlimpackSearch(const SlimpackProblem& problem, const SlimpackSpace& space)
      : problem_(problem),
        space_(space),
        candidates_(problem, space),
        climb_{space.settings.sizes(),
               space.settings.flags(&SettingTraits<SlimpackSettings>::ordered), space.starts,
               space.mode},
        refiner_(candidates_, climb_,
                 space.settings.flags(&SettingTraits<SlimpackSettings>::shared)),
        budget_(evaluations(problem.request())) {}

  [[nodiscard]] PlanOutcome run() {
    const ClimbResult found = climb();
    std::vector<SlimpackChoice> choices =
        refiner_.choices(found, std::min(budget_ / 8, left()), problem_.request().threads);
    for (const SlimpackChoice& choice : choices) used_ += choice.evaluations;
    if (!choices.front().scores.empty()) {
      used_ += refiner_.improve(choices.front(), limits(left()));
    }
    return best_of(choices);
  }

 private:
  [[nodiscard]] std::int64_t left() const noexcept { return budget_ - used_; }
  [[nodiscard]] SearchLimits limits(std::int64_t budget) const {
    return {budget, problem_.request().threads, problem_.request().progress};
  }

  /// Searches on the rank component that is likely to take longest. Half of the budget,
  /// unless it is small, is kept for components that turn out slower; where there is only one
  /// component, it has the whole budget.
  [[nodiscard]] ClimbResult climb() {
    const bool halved = budget_ >= 64 && problem_.request().dp > 1;
    ClimbResult found = climb_settings(climb_, limits(halved ? budget_ / 2 : budget_), candidates_);
    used_ = found.evaluations;
    const SettingPoint best = found.ranked.front().second;
    if (left() <= 0 || refiner_.same(best).points.size() > 1) return found;
    climb_.starts = {best};
    climb_.known = std::move(found.ranked);
    found = climb_settings(climb_, limits(left()), candidates_);
    used_ += found.evaluations;
    return found;
  }

  /// Plans choices whole and returns the fastest plan with its bound, or what the first one lacks.
  /// Stops at a plan that takes about as long as expected: ranks that no candidate was timed on may
  /// be far slower, and then another choice may be better.
  [[nodiscard]] PlanOutcome best_of(const std::vector<SlimpackChoice>& choices) const {
    PlanOutcome outcome{Infeasible{}, {}, used_};
    std::optional<Plan> best;
    // A second whole plan takes as long as all of a fast search.
    int tries = problem_.request().effort == Effort::fast ? 1 : 3;
    for (std::size_t i = 0; i < choices.size() && tries > 0; ++i) {
      const SlimpackChoice& choice = choices[i];
      std::vector<SlimpackSettings> settings;
      for (const SettingPoint& point : choice.points) settings.push_back(candidates_.at(point));
      auto [plan, lacks] = candidates_.plan(*choice.assigned, settings);
      if (lacks && i > 0) continue;
      const Nanos time = plan.prediction.iteration;
      if (!best || time < best->prediction.iteration) {
        outcome.settings = describe(settings[choice.assigned->hardest]);
      }
      if (lacks) {
        outcome.result = *std::move(lacks);
        continue;
      }
      if (!best || time < best->prediction.iteration) best = std::move(plan);
      if (time.value <= choice.expected().value / 100 * 103) break;
      --tries;
    }
    if (best) {
      best->prediction.lower_bound = iteration_bound(*best).value;
      outcome.result = *std::move(best);
    }
    return outcome;
  }

  [[nodiscard]] SettingTexts describe(const SlimpackSettings& settings) const {
    SettingTexts texts = space_.settings.describe(settings);
    if (problem_.options().asymmetric) {
      texts["backward_units"] = std::to_string(settings.backward_units());
    }
    return texts;
  }

  const SlimpackProblem& problem_;
  const SlimpackSpace& space_;
  SlimpackCandidates candidates_;
  ClimbSpace climb_;
  SlimpackRefiner refiner_;
  std::int64_t budget_, used_ = 0;  // evaluations
};

}  // namespace detail

SLIMPACK_PLANNERS_API PlanOutcome plan_slimpack(const PlanRequest& request, std::string_view name,
                                                const SlimpackOptions& options) {
  check_request(request);
  const SlimpackProblem problem(request, name, options);
  const SlimpackSpace space = slimpack_space(problem);
  return detail::SlimpackSearch(problem, space).run();
}

}  // namespace slimpack::planners
