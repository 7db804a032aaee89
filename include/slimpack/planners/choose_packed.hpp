// SPDX-License-Identifier: Apache-2.0
// Searches the settings of a planner of packed sequences and answers with the best plan.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/evaluate.hpp"
#include "slimpack/planners/packed_sequences.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search.hpp"

namespace slimpack {

/// Simulates candidates of `space` within the effort's budget and returns the fastest that fits, or
/// what the candidate nearest to fitting lacks. An empty space is Infeasible: the planner has no
/// such place for the head.
template <SequenceOrder Order>
[[nodiscard]] PlanOutcome choose_packed(const PlanRequest& request, std::string_view planner,
                                        const PackedSpace& space, const Order& order) {
  const bool sliced = space.slices.size() > 1 || space.slices.front() > 1;
  const auto score = [&](const SettingPoint& point) {
    Plan plan = build_packed(request, planner, space.at(point), order);
    const auto why = predict(plan, request);
    return CandidateScore{why ? why->needed - why->available : 0, plan.prediction.iteration};
  };
  const auto sizes = space.sizes();
  const SearchResult found = search_settings(
      sizes, {evaluations(request.effort), request.threads, request.progress}, score);
  const PackedSettings best = space.at(found.best);
  Plan plan = build_packed(request, planner, best, order);
  const auto why = predict(plan, request);
  PlanOutcome outcome{Infeasible{}, describe(best, sliced), found.evaluations};
  if (why) {
    outcome.result = *why;
  } else {
    outcome.result = std::move(plan);
  }
  return outcome;
}

}  // namespace slimpack
