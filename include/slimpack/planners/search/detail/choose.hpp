// SPDX-License-Identifier: Apache-2.0
// Searches the settings of a planner by simulation and answers with the best candidate.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/thread_seconds.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/detail/evaluate.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"

namespace slimpack::planners {

/// What a candidate builds, complete but for its prediction.
using BuiltStep = std::variant<Plan, SimulationOnlyPlan>;

/// A planner's candidates: the space of its settings, and the step that each of them makes.
/// `describe` adds to the texts of settings what only the built plan shows.
/// `cpu_start` is what `thread_seconds` was before any work.
/// Laws: all are pure, and may be called by several threads at a time; a start of the space exists;
/// only points that exist are built or described.
template <class Type>
concept PlanCandidates = requires(const Type& candidates, const typename Type::Settings& settings,
                                  const Plan& plan, SettingTexts& texts) {
  { candidates.space() } -> std::same_as<const SettingSpace<typename Type::Settings>&>;
  { candidates.build(settings) } -> std::convertible_to<BuiltStep>;
  candidates.describe(settings, plan, texts);
  { candidates.cpu_start() } -> std::same_as<double>;
};

/// What the candidates of most planners have in common. Derived classes fill `space_` and add
/// `build`; they must not outlive the request and the name.
template <class Type>
class CandidateBase {
 public:
  /// The values of one candidate.
  using Settings = Type;
  /// Candidates for a request, of the planner of that name; the space is empty.
  CandidateBase(const PlanRequest& request, std::string_view planner)
      : request_(request), planner_(planner) {}

  /// The settings that are searched, with their values.
  [[nodiscard]] const SettingSpace<Settings>& space() const noexcept { return space_; }
  /// Adds nothing to the texts of the settings themselves.
  static void describe(const Settings&, const Plan&, SettingTexts&) {}
  /// What `thread_seconds` was before the space was made.
  [[nodiscard]] double cpu_start() const noexcept { return cpu_start_; }

 protected:
  const PlanRequest& request_;    ///< what is planned
  std::string_view planner_;      ///< becomes `Plan::planner`
  SettingSpace<Settings> space_;  ///< what `space` gives

 private:
  double cpu_start_ = thread_seconds();
};

/// Simulates a step, fills in its prediction and says what it lacks, if anything.
[[nodiscard]] inline std::optional<Infeasible> predict(BuiltStep& step,
                                                       const PlanRequest& request) {
  if (auto* plan = std::get_if<Plan>(&step)) return predict(*plan, request);
  auto& modelled = std::get<SimulationOnlyPlan>(step);
  return predict(modelled.plan, request, modelled.times, MemoryModel(modelled.plan));
}
/// The same, but a step that takes longer than `limit` lacks time and has no prediction.
[[nodiscard]] inline std::optional<Infeasible> predict_within(BuiltStep& step,
                                                              const PlanRequest& request,
                                                              Nanos limit) {
  if (auto* plan = std::get_if<Plan>(&step)) return predict_within(*plan, request, limit);
  auto& modelled = std::get<SimulationOnlyPlan>(step);
  return predict_within(modelled.plan, request, limit, modelled.times);
}
/// The plan of a step.
[[nodiscard]] inline Plan& plan_in(BuiltStep& step) {
  auto* plan = std::get_if<Plan>(&step);
  return plan != nullptr ? *plan : std::get<SimulationOnlyPlan>(step).plan;
}

namespace detail {

/// Scores the points of a planner's space, each by the whole step, and keeps the best step.
template <PlanCandidates Candidates>
class StepEvaluator {
 public:
  StepEvaluator(const PlanRequest& request, const Candidates& candidates)
      : request_(request), candidates_(candidates) {}

  [[nodiscard]] bool exists(const SettingPoint& point) const {
    return candidates_.space().exists(point);
  }
  [[nodiscard]] std::int64_t devices(const SettingPoint&) const { return all_devices(request_); }
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point,
                                          std::optional<Nanos> limit) const {
    BuiltStep step = candidates_.build(candidates_.space().at(point));
    auto lacks = limit ? predict_within(step, request_, *limit) : predict(step, request_);
    const CandidateScore score{lacks ? lacks->needed - lacks->available : 0,
                               plan_in(step).prediction.iteration};
    const Lock lock(mutex_);
    if (!best_ || std::tie(score, point) < std::tie(best_->score, best_->point)) {
      best_ = {score, point, std::move(step), std::move(lacks)};
    }
    return score;
  }
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    return (*this)(point, std::nullopt);
  }

  /// A step that was scored.
  struct Scored {
    CandidateScore score;
    SettingPoint point;
    BuiltStep step;
    std::optional<Infeasible> lacks;
  };
  /// The best of all; absent where none was scored.
  [[nodiscard]] std::optional<Scored>& best() noexcept { return best_; }

 private:
  const PlanRequest& request_;
  const Candidates& candidates_;
  mutable Mutex mutex_;
  mutable std::optional<Scored> best_;
};

/// The answer of a planner: the step with its lower bound, or what it lacks.
[[nodiscard]] inline PlanResult as_result(BuiltStep&& step, std::optional<Infeasible>&& lacks) {
  if (lacks) return *std::move(lacks);
  if (auto* plan = std::get_if<Plan>(&step)) {
    plan->prediction.lower_bound = iteration_bound(*plan).value;
    return std::move(*plan);
  }
  auto& modelled = std::get<SimulationOnlyPlan>(step);
  modelled.plan.prediction.lower_bound = modelled.plan.prediction.ideal;
  return std::move(modelled);
}

}  // namespace detail

/// Simulates candidates within what the counter has left but for `keep` devices and returns the
/// fastest that fits, or what the candidate nearest to fitting lacks; nothing at all, without
/// settings, where it pays for none. Equal ones go to the lowest point. Throws as `search_settings`
/// does.
template <PlanCandidates Candidates>
[[nodiscard]] PlanOutcome choose(const PlanRequest& request, const Candidates& candidates,
                                 SimulationCounter& counter, std::int64_t keep = 0) {
  detail::StepEvaluator<Candidates> evaluate(request, candidates);
  SearchLimits limits{&counter, keep};
  limits.patience = counter.step_devices() *
                    search_evaluations(std::max(request.effort, Effort::normal),
                                       static_cast<std::int64_t>(request.batch.samples.size()));
  static_cast<void>(search_settings(search_space(candidates.space()), limits, evaluate));
  if (!evaluate.best()) return {};
  auto& best = *evaluate.best();
  const auto settings = candidates.space().at(best.point);
  PlanOutcome outcome{Infeasible{}, candidates.space().describe(settings)};
  candidates.describe(settings, plan_in(best.step), outcome.settings);
  outcome.result = detail::as_result(std::move(best.step), std::move(best.lacks));
  return outcome;
}
/// The same within the request's budget, which pays for one step at least.
template <PlanCandidates Candidates>
[[nodiscard]] PlanOutcome choose(const PlanRequest& request, const Candidates& candidates) {
  SimulationCounter counter(request, candidates.cpu_start());
  PlanOutcome outcome = choose(request, candidates, counter);
  counter.report(outcome);
  return outcome;
}

/// What a planner's order is for; more chunks, or more stages as published, are infeasible.
struct OrderLimits {
  bool one_chunk = true;             ///< one chunk a stage
  bool published_one_stage = false;  ///< as published one stage
  bool published_last_head = true;   ///< as published the head on the last stage
};

/// What a planner's order lacks for a request, if anything.
[[nodiscard]] inline std::optional<Infeasible> lacks_order(const PlanRequest& request,
                                                           std::string_view planner,
                                                           const OrderLimits& limits) {
  const std::string order = "one in " + std::string(planner) + "'s order";
  if (limits.one_chunk && request.chunks.value_or(1) != 1) {
    return Infeasible{"chunks of a stage, " + order, *request.chunks, 1};
  }
  if (!request.as_published) return std::nullopt;
  if (limits.published_one_stage && request.pp > 1) {
    return Infeasible{"stages, " + order + " as published", request.pp, 1};
  }
  if (limits.published_last_head && request.head == LmHead::shard) {
    return Infeasible{"stages with a part of the head, " + order + " as published", request.pp, 1};
  }
  return std::nullopt;
}

/// The answer of a planner: as `choose` on Candidates(request, planner, rest...), or what its order
/// lacks. Throws InvalidInput as `check_request`.
template <class Candidates, class... Rest>
[[nodiscard]] PlanOutcome choose_within(const OrderLimits& limits, const PlanRequest& request,
                                        std::string_view planner, Rest&&... rest) {
  check_request(request);
  if (auto lacks = lacks_order(request, planner, limits)) return {*std::move(lacks)};
  return choose(request, Candidates(request, planner, std::forward<Rest>(rest)...));
}

}  // namespace slimpack::planners
