// SPDX-License-Identifier: Apache-2.0
// Builds, schedules and times the candidates of the slimpack planner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/search/evaluate.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/slimpack/build.hpp"
#include "slimpack/planners/slimpack/lockstep.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/schedule/list_schedule.hpp"

namespace slimpack::planners {

[[nodiscard]] inline schedule::ListOptions list_options(const SlimpackSettings& settings) {
  schedule::ListOptions options;
  options.head_batch = settings.head.batch;
  options.forward_queue = settings.queue;
  return options;
}

/// Workspaces that candidates use one after the other, as many as there are threads.
class WorkspacePool {
 public:
  [[nodiscard]] std::unique_ptr<schedule::ListWorkspace> take() {
    const Lock lock(mutex_);
    if (free_.empty()) return std::make_unique<schedule::ListWorkspace>();
    std::unique_ptr<schedule::ListWorkspace> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  void give(std::unique_ptr<schedule::ListWorkspace> back) {
    const Lock lock(mutex_);
    free_.push_back(std::move(back));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<schedule::ListWorkspace>> free_;
};

/// Scores points of a space by scheduling the ranks that are likely to take longest.
class SlimpackCandidates {
 public:
  SlimpackCandidates(const SlimpackProblem& problem, const SlimpackSpace& space)
      : problem_(problem), space_(space) {}

  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const SlimpackSettings settings = space_.at(point);
    if (settings.lockstep && settings.chunks > 1) return false;
    if (!leaves_layers(problem_.request(), settings.chunks, settings.head.place)) return false;
    return settings.cp_threshold_permille == 0 || problem_.assign(settings)->widest > 1;
  }

  /// The score of the component that is likely to take longest.
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
    const SlimpackSettings settings = space_.at(point);
    const auto assigned = problem_.assign(settings);
    return score(*assigned, settings, assigned->hardest);
  }

  /// The score of one component, by what it is judged on.
  [[nodiscard]] CandidateScore score(const RankAssignment& assigned,
                                     const SlimpackSettings& settings,
                                     std::size_t component) const {
    Plan plan = problem_.build(assigned, {&settings, 1}, component);
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    const ScheduleOutcome outcome = schedule(plan, assigned, {&settings, 1}, times, memory, true);
    CandidateScore score;
    if (outcome.infeasible) {
      score.excess = outcome.infeasible->needed - outcome.infeasible->available;
    }
    // Between fill and drain the step goes on like that with the samples that are left out.
    const Nanos fill = std::min(fill_and_drain(plan, times), outcome.end);
    score.time = outcome.end + assigned.sampled[component].left_out(outcome.end - fill) +
                 end_of_step(plan, times);
    return score;
  }

  /// The whole plan with its prediction, and what it lacks, if anything; `settings` for all
  /// components or for each.
  [[nodiscard]] std::pair<Plan, std::optional<Infeasible>> plan(
      const RankAssignment& assigned, std::span<const SlimpackSettings> settings) const {
    Plan plan = problem_.build(assigned, settings, std::nullopt);
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    std::optional<Infeasible> lacks =
        schedule(plan, assigned, settings, times, memory, false).infeasible;
    if (!lacks) lacks = predict(plan, problem_.request(), times, memory);
    return {std::move(plan), std::move(lacks)};
  }

 private:
  struct ScheduleOutcome {
    Nanos end;
    std::optional<Infeasible> infeasible;
  };

  /// Orders all devices; `timed` asks for the end of the last B.
  [[nodiscard]] ScheduleOutcome schedule(Plan& plan, const RankAssignment& assigned,
                                         std::span<const SlimpackSettings> by_component,
                                         const PricedPlan& times, const MemoryModel& memory,
                                         bool timed) const {
    const schedule::ScheduleParts parts(plan);
    plan.schedule = schedule::empty_schedule(plan);
    const Bytes available = plan.memory.capacity - plan.memory.reserved;
    ScheduleOutcome all;
    std::unique_ptr<schedule::ListWorkspace> workspace = workspaces_.take();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      ScheduleOutcome one;
      const auto rank = static_cast<std::size_t>(parts.ranks(part).front());
      const SlimpackSettings& settings =
          by_component[by_component.size() == 1 ? 0 : assigned.component_of[rank]];
      if (settings.lockstep) {
        const std::int32_t batch =
            settings.head.place.head == LmHead::shard ? settings.head.batch : 1;
        Lockstep lockstep(plan, parts, part, memory, batch);
        if (lockstep.lacks() > 0) {
          one.infeasible = Infeasible{
              "bytes of memory on data-parallel rank " + std::to_string(lockstep.lacking_rank()),
              available.value + lockstep.lacks(), available.value};
        } else if (!lockstep.run()) {
          one.infeasible = Infeasible{"slots of merged packs that fit together", 1, 0};
        } else {
          lockstep.write(plan.schedule);
          if (timed) one.end = lockstep.clock(times);
        }
      } else {
        schedule::ListOutcome outcome = schedule::list_schedule_part(
            plan, parts, part, times, memory, list_options(settings), *workspace, plan.schedule);
        one = {outcome.end, std::move(outcome.infeasible)};
      }
      all.end = std::max(all.end, one.end);
      if (one.infeasible && (!all.infeasible || all.infeasible->needed < one.infeasible->needed)) {
        all.infeasible = std::move(one.infeasible);
      }
    }
    workspaces_.give(std::move(workspace));
    return all;
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
    for (std::int32_t place = 0; place + 1 < plan.parallel.pp; ++place) {
      if (first) sum += times.compute(*first, place);
      if (last) sum += times.compute(*last, place + 1);
    }
    return sum;
  }

  /// What follows the last B on the slowest stage.
  [[nodiscard]] static Nanos end_of_step(const Plan& plan, const PricedPlan& times) {
    Nanos longest;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      longest = std::max(longest, times.reduce(pp, 0) + times.optimizer(0, pp));
    }
    return longest;
  }

  const SlimpackProblem& problem_;
  const SlimpackSpace& space_;
  mutable WorkspacePool workspaces_;
};

}  // namespace slimpack::planners
