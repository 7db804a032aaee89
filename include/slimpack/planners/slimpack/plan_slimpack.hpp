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
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/thread_seconds.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"
#include "slimpack/planners/slimpack/candidates.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/refine.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/planners/slimpack/space.hpp"

namespace slimpack::planners {

namespace detail {

/// The search of one request. Every simulation passes the counter, whose budget is hard. Besides,
/// it ends after as many candidates that fit as the budget has steps, to save time: candidates of
/// one component of many cost little of the budget.
class SlimpackSearch {
 public:
  SlimpackSearch(const SlimpackProblem& problem, const SlimpackSpace& settings, double cpu_start)
      : problem_(problem),
        settings_(settings),
        candidates_(problem, settings),
        space_(climb_space(settings)),
        refiner_(candidates_, space_, settings.flags(&SettingTraits<SlimpackSettings>::shared)),
        counter_(problem.request(), cpu_start),
        most_(most_fitting(problem.request())) {}

  [[nodiscard]] PlanOutcome run() {
    PlanOutcome outcome = best_of(choices());
    counter_.report(outcome);
    return outcome;
  }

 private:
  [[nodiscard]] static SearchSpace climb_space(const SlimpackSpace& settings) {
    SearchSpace space = search_space(settings);
    space.everywhere = false;
    return space;
  }
  /// As many candidates that fit as the budget has steps; of a budget that the request gives, where
  /// that is little, up to four times as many, for each may cost a part of a step.
  [[nodiscard]] static std::int64_t most_fitting(const PlanRequest& request) noexcept {
    const std::int64_t steps = evaluations(request);
    return request.budget ? std::max(steps, std::min(4 * steps, kMany)) : steps;
  }
  [[nodiscard]] std::int64_t left() const noexcept { return most_ - used_; }
  /// Whole plans that are built in the end. A second one takes as long as all of a fast search.
  [[nodiscard]] int tries() const noexcept {
    return problem_.request().effort == Effort::fast || most_ < kMany ? 1 : 3;
  }
  /// So many candidates that fit at most, and a budget that leaves whole plans and `keep` devices.
  [[nodiscard]] SearchLimits limits(std::int64_t fitting, std::int64_t keep = 0) {
    return {&counter_, std::max(keep, tries() * counter_.step_devices()), fitting};
  }

  /// What is worth planning whole, the best first; at least one.
  [[nodiscard]] std::vector<SlimpackChoice> choices() {
    const SearchResult found = climb();
    if (found.ranked.empty()) {
      return {refiner_.same(
          *std::find_if(space_.starts.begin(), space_.starts.end(),
                        [&](const SettingPoint& start) { return candidates_.exists(start); }))};
    }
    const std::int64_t before = counter_.evaluations();
    std::vector<SlimpackChoice> choices =
        refiner_.choices(found, std::min(most_ / 8, left()), limits(left()));
    used_ += counter_.evaluations() - before;
    if (!choices.front().scores.empty()) refiner_.improve(choices.front(), limits(left()));
    return choices;
  }

  /// Searches on the rank component that is likely to take longest. Half of the budget, unless it
  /// is small, is kept for components that turn out slower; where there is only one component, it
  /// has the whole budget.
  [[nodiscard]] SearchResult climb() {
    const bool halved = most_ >= kMany && problem_.request().dp > 1;
    SearchResult found = search_settings(
        space_, halved ? limits(most_ / 2, counter_.budget() / 2) : limits(most_), candidates_);
    used_ = found.fitting;
    if (found.ranked.empty()) return found;
    const SettingPoint best = found.ranked.front().second;
    if (left() <= 0 || refiner_.same(best).points.size() > 1) return found;
    SearchSpace again = space_;
    again.starts = {best};
    again.known = std::move(found.ranked);
    found = search_settings(again, limits(left()), candidates_);
    used_ += found.fitting;
    return found;
  }

  /// Plans choices whole and returns the fastest plan with its bound, or what the first one lacks.
  /// Stops at a plan that takes about as long as expected: ranks that no candidate was timed on may
  /// be far slower, and then another choice may be better. Stops, too, where the budget ends.
  [[nodiscard]] PlanOutcome best_of(const std::vector<SlimpackChoice>& choices) {
    PlanOutcome outcome;
    std::optional<Plan> best;
    int left = tries();
    for (std::size_t i = 0; i < choices.size() && left > 0; ++i) {
      const SlimpackChoice& choice = choices[i];
      std::vector<SlimpackSettings> settings;
      for (const SettingPoint& point : choice.points) settings.push_back(candidates_.at(point));
      Plan plan;
      std::optional<Infeasible> lacks;
      const std::int64_t cost = counter_.step_devices();
      if (counter_
              .run({&cost, 1}, 0,
                   [&](std::size_t) {
                     std::tie(plan, lacks) = candidates_.plan(*choice.assigned, settings);
                   })
              .empty()) {
        break;
      }
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
      --left;
    }
    if (best) {
      best->prediction.lower_bound = iteration_bound(*best).value;
      outcome.result = *std::move(best);
    }
    return outcome;
  }

  [[nodiscard]] SettingTexts describe(const SlimpackSettings& settings) const {
    SettingTexts texts = settings_.describe(settings);
    if (problem_.options().asymmetric) {
      texts["backward_units"] = std::to_string(settings.backward_units());
    }
    return texts;
  }

  static constexpr std::int64_t kMany = 64;  // enough to search components and to plan thrice

  const SlimpackProblem& problem_;
  const SlimpackSpace& settings_;
  SlimpackCandidates candidates_;
  SearchSpace space_;
  SlimpackRefiner refiner_;
  SimulationCounter counter_;
  std::int64_t most_, used_ = 0;  // candidates that fit
};

}  // namespace detail

SLIMPACK_PLANNERS_API PlanOutcome plan_slimpack(const PlanRequest& request, std::string_view name,
                                                const SlimpackOptions& options) {
  const double cpu_start = thread_seconds();
  check_request(request);
  const SlimpackProblem problem(request, name, options);
  const SlimpackSpace space = slimpack_space(problem);
  return detail::SlimpackSearch(problem, space, cpu_start).run();
}

}  // namespace slimpack::planners
