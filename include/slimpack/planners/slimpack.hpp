// SPDX-License-Identifier: Apache-2.0
// The slimpack planner: two phases, packs of their own for each pass, searched by simulation.
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
#include "slimpack/planners/detail/slimpack_build.hpp"
#include "slimpack/planners/detail/slimpack_candidates.hpp"
#include "slimpack/planners/detail/slimpack_refine.hpp"
#include "slimpack/planners/detail/slimpack_search.hpp"
#include "slimpack/planners/detail/slimpack_settings.hpp"
#include "slimpack/planners/detail/slimpack_space.hpp"
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
/// does not fit there the next best. Islands of ranks, which share no pack, have packs and orders
/// of their own: those that turn out slowest are searched again. Throws InvalidInput as
/// `check_request` does.
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
  const detail::SlimpackRefiner refiner(problem, space, climb, candidates);
  SearchLimits limits{evaluations(request), request.threads, request.progress};
  const std::int64_t all = limits.budget;
  // Half of the budget is for the islands that turn out slower than the one searched on.
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
  std::vector<detail::SlimpackChoice> choices =
      refiner.choices(found, std::min(all / 8, all - outcome.evaluations), request.threads);
  for (const detail::SlimpackChoice& choice : choices) outcome.evaluations += choice.evaluations;
  if (!choices.front().scores.empty()) {
    limits.budget = all - outcome.evaluations;
    outcome.evaluations += refiner.improve(choices.front(), limits);
  }
  std::optional<Plan> best;
  // A second whole plan takes as long as all of a fast search.
  int tries = request.effort == Effort::fast ? 1 : 3;
  for (std::size_t at = 0; at < choices.size() && tries > 0; ++at) {
    const detail::SlimpackChoice& choice = choices[at];
    std::vector<detail::SlimpackSettings> settings;
    for (const SettingPoint& chosen : choice.points) settings.push_back(space.at(chosen));
    auto [plan, why] = candidates.plan(*choice.dealt, settings);
    if (why && at > 0) continue;
    if (!best) outcome.settings = detail::describe(settings[choice.dealt->hardest], options);
    if (why) {
      outcome.result = *std::move(why);
      continue;
    }
    const Nanos time = plan.prediction.iteration;
    if (!best || time < best->prediction.iteration) {
      outcome.settings = detail::describe(settings[choice.dealt->hardest], options);
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

/// One set of packs for both passes.
struct SlimpackSymmetric {
  static constexpr std::string_view name = "slimpack-symmetric";
  static constexpr std::string_view description =
      "slimpack with the same packs forward and backward";
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    SlimpackOptions options;
    options.asymmetric = false;
    return plan_slimpack(request, name, options);
  }
};
static_assert(Planner<SlimpackSymmetric>);

/// No sample is cut.
struct SlimpackSamples {
  static constexpr std::string_view name = "slimpack-samples";
  static constexpr std::string_view description = "slimpack on whole samples";
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    SlimpackOptions options;
    options.slicing = false;
    return plan_slimpack(request, name, options);
  }
};
static_assert(Planner<SlimpackSamples>);

/// No sample is merged.
struct SlimpackUnmerged {
  static constexpr std::string_view name = "slimpack-unmerged";
  static constexpr std::string_view description = "slimpack with every sample on one rank";
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    SlimpackOptions options;
    options.merging = false;
    return plan_slimpack(request, name, options);
  }
};
static_assert(Planner<SlimpackUnmerged>);

/// The head is on the last stage.
struct SlimpackLasthead {
  static constexpr std::string_view name = "slimpack-lasthead";
  static constexpr std::string_view description = "slimpack with the head on the last stage";
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    SlimpackOptions options;
    options.shard_head = false;
    return plan_slimpack(request, name, options);
  }
};
static_assert(Planner<SlimpackLasthead>);

}  // namespace slimpack
