// SPDX-License-Identifier: Apache-2.0
// How slimpack plans a step: a search, its best candidates planned whole, and the bound beside the
// answer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/climb.hpp"
#include "slimpack/planners/slimpack/build.hpp"
#include "slimpack/planners/slimpack/candidates.hpp"
#include "slimpack/planners/slimpack/refine.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/planners/slimpack/space.hpp"

namespace slimpack::planners {

SLIMPACK_PLANNERS_API PlanOutcome plan_slimpack(const PlanRequest& request, std::string_view name,
                                                const SlimpackOptions& options) {
  check_request(request);
  const SlimpackProblem problem(request, name, options);
  const SlimpackSpace space = SlimpackSpaceMaker(problem).make();
  const SlimpackCandidates candidates(problem, space);
  const auto sizes = space.sizes();
  ClimbSpace climb;
  climb.sizes.assign(sizes.begin(), sizes.end());
  climb.ladder.assign(SlimpackSpace::kLadder.begin(), SlimpackSpace::kLadder.end());
  climb.starts = space.starts;
  const SlimpackRefiner refiner(problem, space, climb, candidates);
  SearchLimits limits{evaluations(request), request.threads, request.progress};
  const std::int64_t all = limits.budget;
  // Half of the budget is for the components that turn out slower than the one searched on.
  if (all >= 64 && request.dp > 1) limits.budget = all / 2;
  ClimbResult found = climb_settings(climb, limits, candidates);
  PlanOutcome outcome{Infeasible{}, {}, found.evaluations};
  if (outcome.evaluations < all && refiner.same(found.ranked.front().second).points.size() == 1) {
    climb.starts = {found.ranked.front().second};
    climb.known = std::move(found.ranked);
    limits.budget = all - outcome.evaluations;
    found = climb_settings(climb, limits, candidates);
    outcome.evaluations += found.evaluations;
  }
  std::vector<SlimpackChoice> choices =
      refiner.choices(found, std::min(all / 8, all - outcome.evaluations), request.threads);
  for (const SlimpackChoice& choice : choices) outcome.evaluations += choice.evaluations;
  if (!choices.front().scores.empty()) {
    limits.budget = all - outcome.evaluations;
    outcome.evaluations += refiner.improve(choices.front(), limits);
  }
  std::optional<Plan> best;
  // A second whole plan takes as long as all of a fast search.
  int tries = request.effort == Effort::fast ? 1 : 3;
  for (std::size_t i = 0; i < choices.size() && tries > 0; ++i) {
    const SlimpackChoice& choice = choices[i];
    std::vector<SlimpackSettings> settings;
    for (const SettingPoint& chosen : choice.points) settings.push_back(space.at(chosen));
    auto [plan, why] = candidates.plan(*choice.assigned, settings);
    if (why && i > 0) continue;
    if (!best) outcome.settings = describe(settings[choice.assigned->hardest], options);
    if (why) {
      outcome.result = *std::move(why);
      continue;
    }
    const Nanos time = plan.prediction.iteration;
    if (!best || time < best->prediction.iteration) {
      outcome.settings = describe(settings[choice.assigned->hardest], options);
      best = std::move(plan);
    }
    // Ranks that no candidate was timed on may be far slower: then another choice may be better.
    if (time.value <= choice.expected().value / 100 * 103) break;
    --tries;
  }
  if (best) {
    best->prediction.lower_bound = iteration_bound(*best).value;
    outcome.result = *std::move(best);
  }
  return outcome;
}

}  // namespace slimpack::planners
