// SPDX-License-Identifier: Apache-2.0
// How slimpack plans a step: settings, problem, assignment (phase 1), packs (phase 2), orders,
// candidates (a score), estimate, space, stages (what a search may take), refine, rounds, this.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/thread_seconds.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"
#include "slimpack/planners/slimpack/candidates.hpp"
#include "slimpack/planners/slimpack/exchange.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/rank_balance.hpp"
#include "slimpack/planners/slimpack/refine.hpp"
#include "slimpack/planners/slimpack/rounds.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/planners/slimpack/space.hpp"
#include "slimpack/planners/slimpack/stages.hpp"

namespace slimpack::planners {

namespace detail {

/// When the plan of an outcome ends, after all others where there is none.
[[nodiscard]] inline Nanos time_of(const PlanOutcome& outcome) noexcept {
  const Plan* plan = plan_in(outcome.result);
  return plan == nullptr ? Nanos::max() : plan->prediction.iteration;
}

/// One stage of the search of a request.
class SlimpackSearch {
 public:
  SlimpackSearch(const SlimpackProblem& problem, const SlimpackSpace& settings,
                 const SlimpackCandidates& candidates, const SlimpackStage& stage,
                 SimulationCounter& counter)
      : problem_(problem),
        settings_(settings),
        candidates_(candidates),
        space_(climb_space(settings)),
        refiner_(candidates_, space_, shared_or_late(settings)),
        counter_(counter),
        stage_(stage),
        most_(stage.most),
        spare_(spare()) {}

  [[nodiscard]] PlanOutcome run() {
    std::optional<PlanOutcome> first = likely();
    if (first && time_of(*first) <= settings_.enough().time) return *std::move(first);
    found_ = climb();
    PlanOutcome found = best_of(choices(found_));
    return first && time_of(*first) < time_of(found) ? *std::move(first) : std::move(found);
  }

  /// Goes on from what a search of the same space has found, by kicks, where ranks share packs: a
  /// climb then ends far from the best more often. No plan where that brings nothing.
  [[nodiscard]] PlanOutcome kick(SearchResult found) {
    if (found.ranked.empty()) return {};
    const ScoredPoint before = found.ranked.front();
    const auto assigned = refiner_.same(before.second).assigned;
    const bool shares = assigned->components[assigned->hardest].size() > 1;
    if (before.first.excess > 0 || !shares) return {};
    SearchSpace kicks = space_;
    kicks.starts = {before.second};
    kicks.known = std::move(found.ranked);
    kicks.kicks = true;
    found = search_settings(kicks, limits(most_ / 4 * 3), candidates_);
    used_ = found.fitting;
    if (!(found.ranked.front() < before)) return {};
    return best_of(choices(found));
  }

  /// Begins at this point, then at those that the space has.
  void begin_at(const SettingPoint& point) {
    space_.starts.insert(space_.starts.begin(), point);
    ++space_.first;
  }
  /// The best point that `run` has found; nothing where none fits into memory.
  [[nodiscard]] const std::optional<SettingPoint>& best() const noexcept { return best_; }
  /// All that `run` has found, the best first.
  [[nodiscard]] const SearchResult& found() const noexcept { return found_; }

 private:
  [[nodiscard]] static SearchSpace climb_space(const SlimpackSpace& settings) {
    SearchSpace space = search_space(settings);
    space.everywhere = false;
    space.finer = kUnitsSetting;
    space.fixed = settings.flags(&SettingTraits<SlimpackSettings>::late);
    space.canonical = [&settings](SettingPoint point) {
      return settings.canonical(std::move(point));
    };
    for (SettingPoint& start : space.starts) start = settings.canonical(std::move(start));
    return space;
  }
  [[nodiscard]] static std::vector<bool> shared_or_late(const SlimpackSpace& settings) {
    std::vector<bool> either = settings.flags(&SettingTraits<SlimpackSettings>::shared);
    const std::vector<bool> late = settings.flags(&SettingTraits<SlimpackSettings>::late);
    for (std::size_t i = 0; i < late.size(); ++i) either[i] = either[i] || late[i];
    return either;
  }
  [[nodiscard]] std::int64_t left() const noexcept { return most_ - used_; }
  /// Whole plans that are built in the end. A second one takes as long as all of a fast search.
  [[nodiscard]] int tries() const noexcept {
    return stage_.effort == Effort::fast || most_ < kMany ? 1 : 3;
  }
  /// Whole plans kept for what turns out to lack memory on ranks that no candidate is timed on: one
  /// in a fast search whose candidates take little of its budget.
  [[nodiscard]] int spare() const {
    const SettingPoint& first = space_.starts.front();
    return stage_.effort == Effort::fast && candidates_.exists(first) &&
                   candidates_.devices(first) * kSmallParts <= counter_.step_devices()
               ? 1
               : 0;
  }
  /// So many candidates that fit at most, and a budget that leaves whole plans and `keep` devices.
  [[nodiscard]] SearchLimits limits(std::int64_t fitting, std::int64_t keep = 0) {
    const std::int64_t plans = (tries() + spare_) * counter_.step_devices();
    return {&counter_, stage_.end + std::max(keep, plans), fitting};
  }

  /// The first of the starts that may be enough which seems to be on the component that is likely
  /// to take longest, planned whole if no rank lacks memory. To score others beside it takes longer
  /// than to plan it.
  [[nodiscard]] std::optional<PlanOutcome> likely() {
    const auto [starts, time] = settings_.enough();
    for (std::size_t i = 0; i < starts; ++i) {
      const SettingPoint& point = space_.starts[i];
      if (!candidates_.exists(point)) continue;
      const std::int64_t devices = candidates_.devices(point), step = counter_.step_devices();
      CandidateScore score;
      const auto scored = counter_.run({&devices, 1}, stage_.end + step,
                                       [&](std::size_t) { score = candidates_(point); });
      if (scored.empty()) break;
      if (score.excess > 0 || score.time > time) continue;
      PlanOutcome outcome = best_of({refiner_.same(point)});
      if (plan_in(outcome.result) == nullptr) break;
      best_ = point;
      return outcome;
    }
    return std::nullopt;
  }

  /// What is worth planning whole, the best first; at least one.
  [[nodiscard]] std::vector<SlimpackChoice> choices(const SearchResult& found) {
    if (found.ranked.empty()) {
      return {refiner_.same(
          *std::find_if(space_.starts.begin(), space_.starts.end(),
                        [&](const SettingPoint& start) { return candidates_.exists(start); }))};
    }
    const auto& [score, point] = found.ranked.front();
    if (score.excess <= 0) best_ = point;
    std::vector<SlimpackChoice> choices =
        refiner_.choices(found, std::min(most_ / 8, left()), limits(left()));
    used_ += std::count_if(choices.begin(), choices.end(),
                           [](const SlimpackChoice& choice) { return !choice.scores.empty(); });
    // What most components end sooner with may be better once the slow ones have settings of their
    // own.
    const auto scored = std::find_if(choices.begin(), choices.end(),
                                     [](const auto& choice) { return choice.scores.empty(); });
    for (auto choice = choices.begin(); choice != scored; ++choice) {
      used_ += refiner_.improve(*choice, limits(left()));
    }
    const auto sooner = [](const auto& a, const auto& b) { return a.expected() < b.expected(); };
    std::stable_sort(choices.begin(), scored, sooner);
    if (stage_.effort == Effort::fast) return choices;
    const auto some = std::min<std::ptrdiff_t>(scored - choices.begin(), kEvened);
    for (auto choice = choices.begin(); choice != choices.begin() + some; ++choice) {
      if (refiner_.even_out(*choice, limits(left()))) {
        used_ += refiner_.improve(*choice, limits(left()));
      }
    }
    std::stable_sort(choices.begin(), scored, sooner);
    return choices;
  }

  /// Searches on the rank component that is likely to take longest. Half of the budget, unless it
  /// is small, is kept for components that turn out slower; where there is only one component, it
  /// has the whole budget.
  [[nodiscard]] SearchResult climb() {
    const bool halved = most_ >= kMany && problem_.request().dp > 1;
    SearchResult found = search_settings(
        space_, halved ? limits(most_ / 2, (counter_.left() - stage_.end) / 2) : limits(most_),
        candidates_);
    used_ = found.fitting;
    if (found.ranked.empty()) return found;
    if (refiner_.same(found.ranked.front().second).points.size() == 1) {
      found = again(std::move(found), space_.fixed, left());
    }
    if (stage_.effort == Effort::fast) return found;
    // What fits into memory, or costs as few launches as may be, may lie between two values.
    std::vector<bool> fixed = space_.fixed;
    fixed.flip();
    fixed[*space_.memory] = fixed[*space_.finer] = false;
    return again(std::move(found), std::move(fixed), std::min(left(), kPolish));
  }
  /// Goes on from the best point, some settings fixed.
  [[nodiscard]] SearchResult again(SearchResult found, std::vector<bool> fixed,
                                   std::int64_t fitting) {
    if (fitting <= 0) return found;
    SearchSpace again = space_;
    again.starts = {found.ranked.front().second};
    again.known = std::move(found.ranked);
    again.fixed = std::move(fixed);
    found = search_settings(again, limits(fitting), candidates_);
    used_ += found.fitting;
    return found;
  }

  /// Plans choices whole and returns the fastest plan, or what the first one lacks.
  /// Stops where the next choice is not expected to be faster: ranks that no candidate was timed on
  /// may be far slower, and then another choice may be better. Stops, too, where the budget ends.
  /// After one that lacks memory come those with other samples on ranks, for they may not lack it;
  /// where there are none it is tried with finer packs, once.
  [[nodiscard]] PlanOutcome best_of(std::vector<SlimpackChoice> choices) {
    PlanOutcome outcome;
    std::optional<Plan> best;
    int left = tries();
    bool refined = false;
    for (std::size_t next = 0; next < choices.size() && left > 0;) {
      SlimpackChoice& choice = choices[next];
      std::vector<SlimpackSettings> settings;
      for (const SettingPoint& point : choice.points) settings.push_back(candidates_.at(point));
      Plan plan;
      std::optional<Infeasible> lacks;
      const std::int64_t cost = counter_.step_devices();
      if (counter_
              .run({&cost, 1}, stage_.end,
                   [&](std::size_t) {
                     std::tie(plan, lacks) = candidates_.plan(*choice.assigned, settings);
                   })
              .empty()) {
        break;
      }
      const Nanos time = plan.prediction.iteration;
      if (outcome.settings.empty() || (!lacks && (!best || time < best->prediction.iteration))) {
        outcome.settings = describe(settings[choice.assigned->hardest]);
        if (lacks) outcome.result = *lacks;
        if (!lacks) best = std::move(plan);
      }
      if (lacks && !best) {
        const auto rest = choices.begin() + static_cast<std::ptrdiff_t>(next) + 1;
        const auto others = std::stable_partition(rest, choices.end(), [&](const auto& each) {
          return refined ? refiner_.differ(each, choice) : each.assigned != choice.assigned;
        });
        if (others == rest && !refined && refiner_.refine_packs(choice)) {
          refined = true;
          continue;
        }
      }
      ++next;
      if (lacks) continue;
      if (next < choices.size() &&
          CandidateScore{0, best->prediction.iteration} < choices[next].expected()) {
        break;
      }
      --left;
    }
    if (best) outcome.result = *std::move(best);
    return outcome;
  }

  [[nodiscard]] SettingTexts describe(const SlimpackSettings& settings) const {
    SettingTexts texts = settings_.describe(settings);
    texts["units"] = std::to_string(settings.forward_units());
    if (!settings.same_packs) {
      texts["backward_units"] = std::to_string(settings.backward_units());
    }
    return texts;
  }

  static constexpr std::int64_t kPolish = 16;     // candidates between values
  static constexpr std::ptrdiff_t kEvened = 2;    // choices whose components are to end together
  static constexpr std::int64_t kSmallParts = 8;  // or more components: a candidate takes little
  static constexpr std::int64_t kMany = 64;       // enough to search components and to plan thrice

  const SlimpackProblem& problem_;
  const SlimpackSpace& settings_;
  const SlimpackCandidates& candidates_;
  SearchSpace space_;
  SlimpackRefiner refiner_;
  SimulationCounter& counter_;
  const SlimpackStage& stage_;
  std::optional<SettingPoint> best_;
  SearchResult found_;
  std::int64_t most_, used_ = 0;  // candidates that fit
  int spare_;
};

/// Replaces an outcome by a better one. One without settings is none: its budget did not pay for a
/// plan.
inline void keep_better(std::optional<PlanOutcome>& best, PlanOutcome outcome) {
  if (best && outcome.settings.empty()) return;
  if (!best || time_of(outcome) < time_of(*best) ||
      (time_of(*best) == Nanos::max() && time_of(outcome) == Nanos::max())) {
    best = std::move(outcome);
  }
}

/// The plan with samples exchanged by heads where that takes less time, if it fits and its step is
/// faster: nothing else changes. For one simulation of the step, if the budget has it left.
inline void try_heads(Plan& plan, const PlanRequest& request, SimulationCounter& counter) {
  Plan heads = plan;
  heads.version = kPlanVersion;
  exchange_by_heads(heads);
  if (heads.micropacks == plan.micropacks) return;
  const std::array<std::int64_t, 1> step{counter.step_devices()};
  counter.run(step, 0, [&](std::size_t) {
    if (predict(heads, request)) return;
    if (heads.prediction.iteration < plan.prediction.iteration) plan = std::move(heads);
  });
}

/// The searches of a request in the spaces of one problem.
class SlimpackSearches {
 public:
  /// All must outlive it; the request must have passed `check_request`. `best` is the best that has
  /// been kept.
  SlimpackSearches(const PlanRequest& request, const SlimpackProblem& problem,
                   SimulationCounter& counter, std::optional<PlanOutcome>& best)
      : request_(request), problem_(problem), scores_(problem_), counter_(counter), best_(best) {}

  /// Searches a space. What is known already is given back at the end: what one stage may spend
  /// depends on no other. `shares`: only where ranks share samples.
  void search(const SlimpackOptions& part, const std::vector<SlimpackStage>& stages,
              bool shares = false) {
    const std::vector<SlimpackOptions> begins = slimpack_begins(request_, part);
    std::optional<SettingPoint> begin;
    found_.clear();
    for (const SlimpackStage& stage : stages) {
      std::vector<SettingPoint> starts;  // of the first of them
      for (const SlimpackOptions& options_of : begins) {
        const bool again = &options_of != &begins.front();
        if (again && stage.effort == Effort::fast) continue;
        SlimpackSpace values = slimpack_space(problem_, options_of, stage.effort);
        if (again && values.starts() == starts) continue;
        if (begins.size() > 1) starts = values.starts();
        if (shares) values.require_that(&SlimpackSettings::shares);
        const SlimpackCandidates candidates(scores_, values);
        SlimpackSearch one(problem_, values, candidates, stage, counter_);
        if (begin && stage.effort == Effort::normal && has_many_samples(request_)) {
          one.begin_at(*begin);
        }
        keep(one.run());
        begin = one.best();
        found_.push_back(one.found());
      }
    }
    counter_.give_back(scores_.take_repeated());
  }

  /// All searches of the request with the ideas of the problem.
  void run() {
    const std::vector<SlimpackOptions> parts = slimpack_parts(request_, problem_.options());
    // Most plans of one stage that are the fastest keep what fits and spread samples.
    const std::vector<SlimpackOptions> fitting = fitting_parts(request_, parts);
    if (!fitting.empty()) search(fitting.front(), slimpack_stages(request_, counter_));
    for (const SlimpackOptions& part : parts) {
      // Where no setting has more values with an idea, the space without it is that of the last
      // part, which may be that of the first and has what the others leave.
      const bool first = &part == &parts.front();
      const bool last = &part == &parts.back();
      if (!first && !last && sizes(part) == sizes(parts.back())) continue;
      if (!first && last && (sizes(part) == sizes(parts.front()) || !pays_for_more())) continue;
      search(part, slimpack_stages(request_, counter_));
    }
    if (parts.size() > 1) go_on(parts, fitting);
  }

 private:
  void go_on(const std::vector<SlimpackOptions>& parts,
             const std::vector<SlimpackOptions>& fitting) {
    // Where attention is made again because memory is so short, blocks that hold samples of groups
    // whole may keep it: the gradients of their keys exist on one chunk at a time.
    if (const Plan* best_plan = plan_in(best_->result); request_.pp > 1 && best_plan != nullptr &&
                                                        recomputes_attention(*best_plan) &&
                                                        pays_for_more()) {
      SlimpackOptions part = parts.front();
      part.group_blocks = true;
      search(part, slimpack_stages(request_, counter_));
    }
    std::vector<SearchResult> all;  // of a longer search with all ideas
    for (const SlimpackOptions* part : {&parts.front(), &parts.back()}) {
      if (part == &parts.back() && sizes(*part) == sizes(parts.front())) continue;
      if (!pays_for_more()) break;
      search(*part, longer_stages(request_, counter_));
      if (part == &parts.front()) all = std::exchange(found_, {});
    }
    // Settings with which ranks share are tried too seldom beside those that take so much less of a
    // budget: where one rank has more than its part, what is left is for them alone.
    const Plan* plan = plan_in(best_->result);
    if (parts.front().merging && request_.max_cp != 1 && plan != nullptr && is_uneven(*plan) &&
        pays_for_more()) {
      std::vector<SlimpackStage> stages = longer_stages(request_, counter_);
      for (SlimpackStage& stage : stages) stage.end = 0;
      search(parts.front(), stages, true);
    }
    if (fitting.size() > 1 && pays_for_more()) {
      search(fitting[1], slimpack_stages(request_, counter_));
    }
    const SlimpackSpace values = slimpack_space(problem_, parts.front(), request_.effort);
    const SlimpackCandidates candidates(scores_, values);
    const std::vector<SlimpackStage> kicks = kick_stages(request_, counter_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      SlimpackSearch one(problem_, values, candidates, kicks[i], counter_);
      keep(one.kick(std::move(all[i])));
    }
    counter_.give_back(scores_.take_repeated());
    for (std::size_t i = 2; i < fitting.size(); ++i) {
      search(fitting[i], slimpack_stages(request_, counter_));
    }
    counter_.give_back(scores_.take_repeated());
  }

  void keep(PlanOutcome outcome) {
    auto* plan = std::get_if<Plan>(&outcome.result);
    if (plan != nullptr && problem_.options().merging && request_.effort != Effort::fast &&
        request_.runtime == Runtime::any) {
      try_heads(*plan, request_, counter_);
    }
    keep_better(best_, std::move(outcome));
  }
  [[nodiscard]] std::vector<std::size_t> sizes(const SlimpackOptions& part) const {
    return slimpack_space(problem_, part, request_.effort).sizes();
  }
  [[nodiscard]] bool pays_for_more() const noexcept {
    return detail::pays_for_more(request_, counter_);
  }

  const PlanRequest& request_;
  const SlimpackProblem& problem_;
  SlimpackScores scores_;
  SimulationCounter& counter_;
  std::optional<PlanOutcome>& best_;
  std::vector<SearchResult> found_;  // by the stages of the last search
};

}  // namespace detail

SLIMPACK_PLANNERS_API PlanOutcome plan_slimpack(const PlanRequest& request, std::string_view name,
                                                const SlimpackOptions& options) {
  const double cpu_start = thread_seconds();
  const bool all_ideas = options == SlimpackOptions{};
  check_request(request, options.weights, all_ideas);
  SimulationCounter counter(request, cpu_start);
  std::optional<PlanOutcome> best;
  const SlimpackProblem problem(request, name, options);
  const auto search_rounds = [&](WeightState weights, std::int64_t keep) {
    detail::keep_better(
        best, choose(request, detail::RoundCandidates(problem, name, weights), counter, keep));
  };
  const std::vector<WeightState> weights = detail::weight_states(request, all_ideas);
  const bool whole = weights.back() == WeightState::replicated;
  // Rounds first, each state for a part of the budget, for the others may use up all of it. Many
  // samples are even without rounds.
  const bool first =
      !whole || (all_ideas && detail::can_shard_weights(request) &&
                 request.effort != Effort::fast && !request.budget && !has_many_samples(request));
  const std::int64_t part = counter.left() / kSearches;
  for (const WeightState state : first ? weights : std::vector<WeightState>{}) {
    search_rounds(state, whole ? counter.left() - part : 0);
  }
  if (whole) detail::SlimpackSearches(request, problem, counter, best).run();
  if (!first && weights.size() > 1 && plan_in(best->result) == nullptr) {
    search_rounds(WeightState::sharded, 0);
  }
  if (auto* plan = std::get_if<Plan>(&best->result)) {
    plan->prediction.lower_bound =
        std::visit(
            [&](const auto& model) { return iteration_bound(*plan, model, problem.lengths()); },
            make_model(*plan))
            .value;
  }
  counter.report(*best);
  return *std::move(best);
}

}  // namespace slimpack::planners
