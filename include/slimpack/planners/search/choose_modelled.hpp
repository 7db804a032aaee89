// SPDX-License-Identifier: Apache-2.0
// Searches the settings of a planner whose steps have times of their own.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_time_overrides.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/evaluate.hpp"
#include "slimpack/planners/search/setting_search.hpp"

namespace slimpack::planners {

/// Laws: all are pure and may be called by several threads at a time; `build` gives the step of a
/// point that exists, without a prediction; a step with an empty `beyond` is a plan at the prices
/// of its own cost.
template <class Candidates>
concept ModelledCandidates =
    requires(const Candidates& candidates, const SettingPoint& point, const Plan& plan) {
      { candidates.exists(point) } -> std::same_as<bool>;
      { candidates.build(point) } -> std::same_as<SimulationOnlyPlan>;
      { candidates.settings(point, plan) } -> std::same_as<std::map<std::string, std::string>>;
    };

/// The times of a plan at the prices of its own cost.
[[nodiscard]] inline UnitTimeOverrides own_times(const Plan& plan, PricedPlan&& prices) {
  std::vector<Nanos> times;
  for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
    for (std::int32_t line = 0; line < virtual_stages_of(plan).size(); ++line) {
      times.push_back(prices.compute(static_cast<PackId>(pack), line));
    }
  }
  return UnitTimeOverrides(plan, std::move(prices), std::move(times));
}

namespace detail {

/// Times a step and says what it lacks.
[[nodiscard]] inline std::optional<Infeasible> predict_step(SimulationOnlyPlan& step,
                                                            const PlanRequest& request) {
  const MemoryModel memory(step.plan);
  return predict(step.plan, request, step.times, memory);
}

template <ModelledCandidates Candidates>
struct ModelledEvaluator {
  const PlanRequest& request;
  const Candidates& candidates;

  [[nodiscard]] bool exists(const SettingPoint& point) const { return candidates.exists(point); }
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    SimulationOnlyPlan step = candidates.build(point);
    const auto why = predict_step(step, request);
    return {why ? why->needed - why->available : 0, step.plan.prediction.iteration};
  }
};

}  // namespace detail

/// Simulates candidates of a space with `sizes` values a setting within the effort's budget and
/// returns the fastest that fits, as a plan where that says it all, or what the candidate nearest
/// to fitting lacks. Throws as `search_settings` does.
template <ModelledCandidates Candidates>
[[nodiscard]] PlanOutcome choose_modelled(const PlanRequest& request,
                                          std::span<const std::size_t> sizes,
                                          const Candidates& candidates) {
  const SearchResult found =
      search_settings(sizes, {evaluations(request), request.threads, request.progress},
                      detail::ModelledEvaluator<Candidates>{request, candidates});
  SimulationOnlyPlan step = candidates.build(found.best);
  const auto why = detail::predict_step(step, request);
  PlanOutcome outcome{Infeasible{}, candidates.settings(found.best, step.plan), found.evaluations};
  if (why) {
    outcome.result = *why;
  } else if (step.unsupported_feature.empty()) {
    step.plan.prediction.lower_bound = iteration_bound(step.plan).value;
    outcome.result = std::move(step.plan);
  } else {
    step.plan.prediction.lower_bound = step.plan.prediction.ideal;
    outcome.result = std::move(step);
  }
  return outcome;
}

}  // namespace slimpack::planners
