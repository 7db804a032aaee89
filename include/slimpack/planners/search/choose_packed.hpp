// SPDX-License-Identifier: Apache-2.0
// Searches the settings of a planner of packed sequences and answers with the best plan.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/evaluate.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/planners/search/setting_search.hpp"

namespace slimpack::planners {

namespace detail {

/// The settings of a space, as text by name; `plan` is the one that they made.
[[nodiscard]] inline std::map<std::string, std::string> packed_settings(
    const PackedSpace& space, const PackedSettings& settings, const Plan& plan) {
  const bool sliced = space.slices.size() > 1 || space.slices.front() > 1;
  auto lines = describe(settings, sliced);
  if (space.ranks.size() > 1 || space.ranks.front() > 1) {
    lines["context_parallel"] = std::to_string(settings.ranks);
    if (settings.ranks > 1) {
      lines["share_tokens"] = std::to_string(plan.memory.cp_block_tokens.value);
    }
  }
  return lines;
}

/// Builds and simulates the candidates of a space.
template <SequenceOrder Order>
class PackedCandidates {
 public:
  PackedCandidates(const PlanRequest& request, std::string_view planner, const PackedSpace& space,
                   const Order& order)
      : request_(request), planner_(planner), space_(space), order_(order) {}

  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const PackedSettings settings = space_.at(point);
    return space_.first_of_its_kind(point) &&
           leaves_layers(request_, settings.chunks, settings.head);
  }

  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    Plan plan = build_packed(request_, planner_, space_.at(point), order_);
    const auto why = predict(plan, request_);
    return {why ? why->needed - why->available : 0, plan.prediction.iteration};
  }

 private:
  const PlanRequest& request_;
  std::string_view planner_;
  const PackedSpace& space_;
  const Order& order_;
};

}  // namespace detail

/// Simulates candidates of `space` within the effort's budget and returns the fastest that fits, or
/// what the candidate nearest to fitting lacks.
template <SequenceOrder Order>
[[nodiscard]] PlanOutcome choose_packed(const PlanRequest& request, std::string_view planner,
                                        const PackedSpace& space, const Order& order) {
  const auto sizes = space.sizes();
  const SearchResult found =
      search_settings(sizes, {evaluations(request), request.threads, request.progress},
                      detail::PackedCandidates<Order>(request, planner, space, order));
  const PackedSettings best = space.at(found.best);
  Plan plan = build_packed(request, planner, best, order);
  const auto why = predict(plan, request);
  PlanOutcome outcome{Infeasible{}, detail::packed_settings(space, best, plan), found.evaluations};
  if (why) {
    outcome.result = *why;
  } else {
    plan.prediction.lower_bound = iteration_bound(plan).value;
    outcome.result = std::move(plan);
  }
  return outcome;
}

}  // namespace slimpack::planners
