// SPDX-License-Identifier: Apache-2.0
// Builds, orders and times the candidates of the slimpack planner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/evaluate.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"
#include "slimpack/planners/slimpack/assignment.hpp"
#include "slimpack/planners/slimpack/orders.hpp"
#include "slimpack/planners/slimpack/packs.hpp"
#include "slimpack/planners/slimpack/space.hpp"
#include "slimpack/schedule/order_times.hpp"
#include "slimpack/sim/fast_simulator.hpp"

namespace slimpack::planners {

/// Schedules rank components, and remembers how long each takes. Thread-safe.
class SlimpackScores {
 public:
  /// Of a problem, which must outlive it.
  explicit SlimpackScores(const SlimpackProblem& problem)
      : problem_(problem), assignments_(problem), orders_(problem.request().runtime) {}

  /// What is planned.
  [[nodiscard]] const SlimpackProblem& problem() const noexcept { return problem_; }
  /// Phase 1 of a candidate: which ranks compute which samples; `besides` as in `AssignRules`.
  [[nodiscard]] std::shared_ptr<const RankAssignment> assign(
      const SlimpackSettings& settings, const std::vector<std::int64_t>& besides = {}) const {
    return assignments_(settings, besides);
  }
  /// The score of one component, by the samples that stand for it. `assigned` is one of `assign`.
  [[nodiscard]] CandidateScore score(const RankAssignment& assigned,
                                     const SlimpackSettings& settings,
                                     std::size_t component) const {
    const auto same = [&](const Scored& scored) {
      return scored.component == component && scored.settings == settings;
    };
    const auto find = [&](const std::vector<Scored>& known) {
      const auto found = std::find_if(known.begin(), known.end(), same);
      if (found == known.end()) return std::optional<CandidateScore>{};
      ++repeated_.simulations;
      repeated_.devices += devices(assigned, component);
      return std::optional(found->score);
    };
    {
      const Lock lock(mutex_);
      if (const auto score = find(scored_[&assigned])) return *score;
    }
    const CandidateScore score = new_score(assigned, settings, component);
    const Lock lock(mutex_);
    std::vector<Scored>& known = scored_[&assigned];
    // Another thread may have scored it meanwhile: then it counts as one thread would have it.
    if (!find(known)) known.push_back({component, settings, score});
    return score;
  }
  /// The devices of a component.
  [[nodiscard]] std::int64_t devices(const RankAssignment& assigned, std::size_t component) const {
    const PlanRequest& request = problem_.request();
    return static_cast<std::int64_t>(assigned.components[component].size()) * request.pp *
           request.tp;
  }
  /// Scores that have been asked for again since the last call, and their devices: nothing was
  /// simulated for them.
  [[nodiscard]] Simulations take_repeated() const {
    const Lock lock(mutex_);
    return std::exchange(repeated_, {});
  }

  /// The whole plan with its prediction, and what it lacks, if anything; `settings` for all
  /// components or for each.
  [[nodiscard]] std::pair<Plan, std::optional<Infeasible>> plan(
      const RankAssignment& assigned, std::span<const SlimpackSettings> settings) const {
    Plan plan = build_packs(problem_, assigned, settings, std::nullopt);
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    schedule::OrderTimes order;
    std::optional<Infeasible> lacks =
        orders_.add(plan, assigned, settings, times, memory, false, &order).infeasible;
    if (!lacks && order.exact) {
      // List scheduling keeps to the memory of devices whatever the times are.
      write_prediction(plan, sim::plan_figures(plan, order, times));
      lacks = exceeds_units(plan, problem_.request());
    } else if (!lacks) {
      lacks = predict(plan, problem_.request(), times, memory);
    }
    return {std::move(plan), std::move(lacks)};
  }

 private:
  struct Scored {
    std::size_t component;
    SlimpackSettings settings;
    CandidateScore score;
  };

  [[nodiscard]] CandidateScore new_score(const RankAssignment& assigned,
                                         const SlimpackSettings& settings,
                                         std::size_t component) const {
    Plan plan = build_packs(problem_, assigned, {&settings, 1}, component);
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    const OrderOutcome outcome = orders_.add(plan, assigned, {&settings, 1}, times, memory, true);
    CandidateScore score;
    if (outcome.infeasible) {
      score.excess = outcome.infeasible->needed - outcome.infeasible->available;
    }
    // The samples that are left out lengthen the time between fill and drain in proportion.
    const Nanos fill = std::min(fill_and_drain(plan, times), outcome.end);
    score.time = outcome.step_end + assigned.sampled[component].left_out(outcome.end - fill);
    return score;
  }

  /// The first forward pack on its way to the last stage and the last backward pack on its way
  /// back, as if nothing kept them waiting.
  [[nodiscard]] static Nanos fill_and_drain(const Plan& plan, const PricedPlan& times) {
    Nanos sum;
    std::optional<PackId> first, last;
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const auto pack = static_cast<PackId>(i);
      if (plan.micropacks[i].pass == Pass::backward) last = pack;
      if (plan.micropacks[i].pass == Pass::forward && !first) first = pack;
    }
    for (std::int32_t pp = 0; pp + 1 < plan.parallel.pp; ++pp) {
      if (first) sum += times.compute(*first, pp);
      if (last) sum += times.compute(*last, pp + 1);
    }
    return sum;
  }

  const SlimpackProblem& problem_;
  AssignmentCache assignments_;
  /// Searches, their stages, starts and components ask for some candidates again. Never iterated
  /// over.
  mutable std::map<const RankAssignment*, std::vector<Scored>> scored_;
  mutable Simulations repeated_;
  mutable Mutex mutex_;
  DeviceOrders orders_;
};

/// Scores points of a space by scheduling the rank component that is likely to take longest.
class SlimpackCandidates {
 public:
  /// Candidates of a space; scores and space must outlive them.
  SlimpackCandidates(const SlimpackScores& scores, const SlimpackSpace& space)
      : scores_(scores), problem_(scores.problem()), space_(space) {}

  /// The settings of a point.
  [[nodiscard]] SlimpackSettings at(const SettingPoint& point) const { return space_.at(point); }
  /// Phase 1 of a candidate: which ranks compute which samples; `besides` as in `AssignRules`.
  [[nodiscard]] std::shared_ptr<const RankAssignment> assign(
      const SlimpackSettings& settings, const std::vector<std::int64_t>& besides = {}) const {
    return scores_.assign(settings, besides);
  }

  /// Whether a point makes a candidate: where more ranks may share long samples than share all
  /// others, some have to, and another limit of groups than the usual one has to change that.
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    if (!space_.exists(point)) return false;
    SlimpackSettings settings = at(point);
    if (settings.cp_threshold_permille == 0 && settings.groups == schedule::GroupRule::threshold)
      return true;
    if (assign(settings)->widest == settings.narrowest_group) return false;
    const std::int32_t allowed = settings.widest_group;
    const std::int32_t usual = usual_widest_group(problem_.request());
    if (allowed == usual) return true;
    settings.widest_group = usual;
    // Where all groups are narrower than the limit, no other limit from there on changes anything.
    const std::int32_t widest = assign(settings)->widest;
    return allowed < widest || (allowed > usual && widest == usual);
  }
  /// The devices of the rank component that stands for the step.
  [[nodiscard]] std::int64_t devices(const SettingPoint& point) const {
    const auto assigned = assign(at(point));
    return devices(*assigned, assigned->hardest);
  }
  /// The devices of a component.
  [[nodiscard]] std::int64_t devices(const RankAssignment& assigned, std::size_t component) const {
    return scores_.devices(assigned, component);
  }
  /// The score of the rank component that is likely to take longest.
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    const SlimpackSettings settings = at(point);
    const auto assigned = assign(settings);
    return score(*assigned, settings, assigned->hardest);
  }

  /// The devices of each component that may lack memory or end late although the first one does
  /// not; none where there is only one.
  [[nodiscard]] std::vector<std::int64_t> witness_devices(const SettingPoint& point) const {
    const SlimpackSettings settings = at(point);
    const auto assigned = assign(settings);
    std::vector<std::int64_t> all;
    for (const std::size_t witness : witnesses_of(problem_, *assigned, settings)) {
      all.push_back(devices(*assigned, witness));
    }
    return all;
  }
  /// The score of one of those components.
  [[nodiscard]] CandidateScore witness(const SettingPoint& point, std::size_t number) const {
    const SlimpackSettings settings = at(point);
    const auto assigned = assign(settings);
    return score(*assigned, settings, witnesses_of(problem_, *assigned, settings)[number]);
  }

  /// The score of one component, by the samples that stand for it. `assigned` is one of `assign`.
  [[nodiscard]] CandidateScore score(const RankAssignment& assigned,
                                     const SlimpackSettings& settings,
                                     std::size_t component) const {
    return scores_.score(assigned, settings, component);
  }
  /// The whole plan with its prediction, and what it lacks, if anything; `settings` for all
  /// components or for each.
  [[nodiscard]] std::pair<Plan, std::optional<Infeasible>> plan(
      const RankAssignment& assigned, std::span<const SlimpackSettings> settings) const {
    return scores_.plan(assigned, settings);
  }

 private:
  const SlimpackScores& scores_;
  const SlimpackProblem& problem_;
  const SlimpackSpace& space_;
};

}  // namespace slimpack::planners
