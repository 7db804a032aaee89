// SPDX-License-Identifier: Apache-2.0
// The slimpack planner: two phases, packs of their own for each pass, searched by simulation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/detail/slimpack_build.hpp"
#include "slimpack/planners/detail/slimpack_candidates.hpp"
#include "slimpack/planners/detail/slimpack_search.hpp"
#include "slimpack/planners/detail/slimpack_settings.hpp"
#include "slimpack/planners/detail/slimpack_space.hpp"
#include "slimpack/planners/evaluate.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/solve/bound.hpp"

namespace slimpack {

/// Plans a step with those ideas of slimpack that `options` switches on. Samples are dealt to
/// data-parallel ranks by time, long ones to groups of ranks (pack/assign.hpp); the forward and the
/// backward line of each group are cut into packs of equal time (pack/cut.hpp); the order of each
/// device is found by simulation under the memory limit (schedule/list_schedule.hpp).
/// Recomputation, place of the head, packs a line, ramps, merging, order of samples, chunks and
/// order of devices are searched within the effort's budget. Candidates are timed on the ranks that
/// hold the longest samples; the best is then planned for all ranks and simulated, and where it
/// does not fit there the next best. Throws InvalidInput as `check_request` does.
[[nodiscard]] inline PlanOutcome plan_slimpack(const PlanRequest& request, std::string_view name,
                                               const SlimpackOptions& options = {}) {
  check_request(request);
  const detail::SlimpackProblem problem(request, name, options);
  const detail::SlimpackSpace space = detail::SlimpackSpaceMaker(problem).make();
  const detail::SlimpackCandidates candidates(problem, space);
  const auto sizes = space.sizes();
  ClimbSpace climb;
  climb.sizes.assign(sizes.begin(), sizes.end());
  climb.ladder.assign(detail::SlimpackSpace::kLadder.begin(), detail::SlimpackSpace::kLadder.end());
  climb.starts = space.starts;
  const ClimbResult found = climb_settings(
      climb, {evaluations(request.effort), request.threads, request.progress}, candidates);
  PlanOutcome outcome{Infeasible{}, {}, found.evaluations};
  constexpr std::size_t kMostTries = 8;
  for (std::size_t at = 0; at < std::min(kMostTries, found.ranked.size()); ++at) {
    const auto& [score, point] = found.ranked[at];
    if (at > 0 && score.excess > 0) break;
    auto planned = candidates.plan(point);
    std::optional<Infeasible> why;
    if (auto* lacks = std::get_if<Infeasible>(&planned)) {
      why = std::move(*lacks);
    } else {
      Plan& plan = std::get<Plan>(planned);
      why = predict(plan, request);
      if (!why) {
        plan.prediction.lower_bound = iteration_bound(plan).value;
        outcome.result = std::move(plan);
        outcome.settings = detail::describe(space.at(point), options);
        return outcome;
      }
    }
    if (at == 0) {
      outcome.result = *std::move(why);
      outcome.settings = detail::describe(space.at(point), options);
    }
  }
  return outcome;
}

/// Every idea at once.
struct Slimpack {
  static constexpr std::string_view name = "slimpack";
  static constexpr std::string_view description =
      "slimpack: balanced slices, packs of their own for each pass, long samples merged";
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return plan_slimpack(request, name);
  }
};
static_assert(Planner<Slimpack>);

}  // namespace slimpack
