// SPDX-License-Identifier: Apache-2.0
// Searches the settings of a planner that builds whole plans and answers with the best of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/evaluate.hpp"
#include "slimpack/planners/search/setting_search.hpp"

namespace slimpack::planners {

/// The candidates of a planner: one for each point of a space of settings that exists.
/// Laws: pure, and may be called by several threads at a time; the first point exists; the plan of
/// a candidate is complete but for its prediction; only points that exist are built or described.
template <class Type>
concept PlanCandidates =
    requires(const Type& candidates, const SettingPoint& point, const Plan& plan) {
      { candidates.sizes() } -> std::same_as<std::vector<std::size_t>>;
      { candidates.exists(point) } -> std::same_as<bool>;
      { candidates.build(point) } -> std::same_as<Plan>;
      /// Settings as text, by name.
      { candidates.describe(point, plan) } -> std::same_as<std::map<std::string, std::string>>;
    };

namespace detail {

/// Builds and simulates candidates.
template <PlanCandidates Candidates>
class SampledCandidates {
 public:
  SampledCandidates(const PlanRequest& request, const Candidates& candidates)
      : request_(request), candidates_(candidates) {}

  [[nodiscard]] bool exists(const SettingPoint& point) const { return candidates_.exists(point); }
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    Plan plan = candidates_.build(point);
    const auto why = predict(plan, request_);
    return {why ? why->needed - why->available : 0, plan.prediction.iteration};
  }

 private:
  const PlanRequest& request_;
  const Candidates& candidates_;
};

}  // namespace detail

/// Simulates candidates within the effort's budget and returns the fastest that fits, or what the
/// candidate nearest to fitting lacks. Equal ones go to the lowest point.
template <PlanCandidates Candidates>
[[nodiscard]] PlanOutcome choose_plan(const PlanRequest& request, const Candidates& candidates) {
  const std::vector<std::size_t> sizes = candidates.sizes();
  const SearchResult found =
      search_settings(sizes, {evaluations(request), request.threads, request.progress},
                      detail::SampledCandidates<Candidates>(request, candidates));
  Plan plan = candidates.build(found.best);
  const auto why = predict(plan, request);
  PlanOutcome outcome{Infeasible{}, candidates.describe(found.best, plan), found.evaluations};
  if (why) {
    outcome.result = *why;
  } else {
    plan.prediction.lower_bound = iteration_bound(plan).value;
    outcome.result = std::move(plan);
  }
  return outcome;
}

}  // namespace slimpack::planners
