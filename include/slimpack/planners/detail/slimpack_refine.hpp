// SPDX-License-Identifier: Apache-2.0
// Settings of its own for every island of ranks: the slowest of them decides when a step ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "slimpack/planners/detail/slimpack_build.hpp"
#include "slimpack/planners/detail/slimpack_candidates.hpp"
#include "slimpack/planners/detail/slimpack_search.hpp"
#include "slimpack/planners/detail/slimpack_settings.hpp"
#include "slimpack/planners/search.hpp"

namespace slimpack::detail {

/// Settings of each island of one deal.
struct SlimpackChoice {
  std::shared_ptr<const Dealt> dealt;
  std::vector<SettingPoint> points;
  std::vector<CandidateScore> scores;  // none where islands have not been scored
  CandidateScore known;                // of the hardest island
  std::int64_t evaluations = 0;        // that this took

  /// When the step should end.
  [[nodiscard]] Nanos expected() const noexcept {
    return scores.empty() ? known.time : scores[slowest()].time;
  }
  [[nodiscard]] std::size_t slowest() const noexcept {
    std::size_t found = 0;
    for (std::size_t at = 1; at < scores.size(); ++at) {
      if (scores[found] < scores[at]) found = at;
    }
    return found;
  }
};

/// Scores islands, and searches settings for the slowest.
class SlimpackRefiner {
 public:
  SlimpackRefiner(const SlimpackProblem& problem, const SlimpackSpace& space, ClimbSpace climb,
                  const SlimpackCandidates& candidates)
      : problem_(problem), space_(space), climb_(std::move(climb)), candidates_(candidates) {
    climb_.fixed.assign(SlimpackSpace::kShared.begin(), SlimpackSpace::kShared.end());
  }

  /// The best points that were found, a few of each kind, on all islands alike. As many as `budget`
  /// allows are scored on every island and sorted by the slowest; the others follow as they were
  /// found.
  [[nodiscard]] std::vector<SlimpackChoice> choices(const ClimbResult& found, std::int64_t budget,
                                                    std::int32_t threads) const {
    std::vector<SlimpackChoice> choices;
    std::map<SettingPoint, int> kinds;
    for (const auto& [score, point] : found.ranked) {
      if (choices.size() == kMostChoices || (score.excess > 0 && !choices.empty())) break;
      // Plans that have much in common may all have the same slow island.
      SettingPoint kind = point;
      for (std::size_t at = 0; at < kind.size(); ++at) {
        if (!SlimpackSpace::kShared[at]) kind[at] = 0;
      }
      if (++kinds[kind] > kMostOfKind) continue;
      SlimpackChoice choice = same(point);
      const auto islands = static_cast<std::int64_t>(choice.points.size());
      if (islands > 1 && islands - 1 <= budget) {
        budget -= islands - 1;
        score_islands(choice, score, threads);
      }
      choice.known = score;
      choices.push_back(std::move(choice));
    }
    const auto scored = std::find_if(choices.begin(), choices.end(),
                                     [](const auto& choice) { return choice.scores.empty(); });
    std::stable_sort(choices.begin(), scored, [](const auto& a, const auto& b) {
      return a.scores[a.slowest()] < b.scores[b.slowest()];
    });
    return choices;
  }

  /// Islands of the same settings everywhere, not scored.
  [[nodiscard]] SlimpackChoice same(const SettingPoint& point) const {
    SlimpackChoice choice;
    choice.dealt = problem_.deal(space_.at(point));
    choice.points.assign(choice.dealt->islands.size(), point);
    return choice;
  }

  /// Climbs on the slowest island, then on what is the slowest then, until that has been climbed on
  /// before or the budget is used. Returns the evaluations made.
  std::int64_t improve(SlimpackChoice& choice, const SearchLimits& limits) const {
    std::vector<bool> done(choice.points.size());
    std::int64_t used = 0;
    for (std::size_t island = choice.slowest(); !done[island] && used < limits.budget;
         island = choice.slowest()) {
      done[island] = true;
      ClimbSpace space = climb_;
      space.starts = {choice.points[island]};
      SearchLimits rest = limits;
      rest.budget = std::min(limits.budget - used, kClimb);
      rest.progress = nullptr;
      const ClimbResult found = climb_settings(space, rest, Island{*this, choice, island});
      used += found.evaluations;
      const auto& [score, point] = found.ranked.front();
      if (score < choice.scores[island]) {
        choice.scores[island] = score;
        choice.points[island] = point;
      }
    }
    return used;
  }

 private:
  static constexpr std::int64_t kClimb = 24;
  static constexpr std::size_t kMostChoices = 8;
  static constexpr int kMostOfKind = 2;

  /// `known` is the score of the hardest island.
  void score_islands(SlimpackChoice& choice, const CandidateScore& known,
                     std::int32_t threads) const {
    choice.scores.assign(choice.points.size(), known);
    choice.evaluations = static_cast<std::int64_t>(choice.points.size()) - 1;
    for_each_index(choice.points.size(), threads, [&](std::size_t island) {
      if (island == choice.dealt->hardest) return;
      choice.scores[island] =
          candidates_.score(*choice.dealt, space_.at(choice.points[island]), island);
    });
  }

  struct Island {
    const SlimpackRefiner& refiner;
    const SlimpackChoice& choice;
    std::size_t island;

    [[nodiscard]] bool exists(const SettingPoint& point) const {
      const SlimpackSettings settings = refiner.space_.at(point);
      const SlimpackSettings shared = refiner.space_.at(choice.points[island]);
      return settings.head.place == shared.head.place &&
             !(settings.lockstep && settings.chunks > 1);
    }
    [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
      return refiner.candidates_.score(*choice.dealt, refiner.space_.at(point), island);
    }
  };

  const SlimpackProblem& problem_;
  const SlimpackSpace& space_;
  ClimbSpace climb_;
  const SlimpackCandidates& candidates_;
};

}  // namespace slimpack::detail
