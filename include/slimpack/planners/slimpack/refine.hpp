// SPDX-License-Identifier: Apache-2.0
// Settings of its own for every component of ranks: the slowest of them decides when a step ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"
#include "slimpack/planners/slimpack/candidates.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

/// Settings of each rank component of one assignment of samples.
struct SlimpackChoice {
  std::shared_ptr<const RankAssignment> assigned;  ///< that all components' settings have
  std::vector<SettingPoint> points;                ///< by component
  std::vector<CandidateScore> scores;              ///< none where components have not been scored
  std::optional<CandidateScore> known;             ///< of the hardest component

  /// When the step should end, and what memory it should lack.
  [[nodiscard]] CandidateScore expected() const noexcept {
    return scores.empty() ? known.value_or(CandidateScore{}) : scores[slowest()];
  }
  /// The component with the worst score, the first of equal ones.
  [[nodiscard]] std::size_t slowest() const noexcept {
    return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) -
                                    scores.begin());
  }
};

/// Scores components, and searches settings for the slowest.
class SlimpackRefiner {
 public:
  /// `space` has all settings; those that components share, `shared`, stay fixed here.
  SlimpackRefiner(const SlimpackCandidates& candidates, SearchSpace space, std::vector<bool> shared)
      : candidates_(candidates), space_(std::move(space)) {
    space_.fixed = std::move(shared);
  }

  /// The best points that were found, a few of each kind, on all components alike. One after the
  /// other, as many as `most` and the budget allow, they are scored on every component, until the
  /// next cannot be better; these are sorted by the slowest, the others follow as they were found.
  [[nodiscard]] std::vector<SlimpackChoice> choices(const SearchResult& found, std::int64_t most,
                                                    const SearchLimits& limits) const {
    std::vector<SlimpackChoice> choices;
    std::map<SettingPoint, int> kinds;
    std::optional<CandidateScore> best;  // of all components
    for (const auto& [score, point] : found.ranked) {
      if (choices.size() == kMostChoices || (score.excess > 0 && !choices.empty())) break;
      // Plans that have much in common may all have the same slow component.
      if (++kinds[kind_of(point)] > kMostOfKind) continue;
      SlimpackChoice choice = same(point);
      choice.known = score;
      const bool may_be_better = !best || score < *best;
      if (choice.points.size() > 1 && may_be_better && most > 0 &&
          score_components(choice, limits)) {
        --most;
        if (!best || choice.expected() < *best) best = choice.expected();
      }
      choices.push_back(std::move(choice));
    }
    // At last the best of those that need least memory, for ranks that nobody has been timed on.
    const auto lean = std::find_if(found.ranked.begin(), found.ranked.end(), [&](const auto& each) {
      return each.first.excess <= 0 &&
             each.second[*space_.memory] + 1 == space_.sizes[*space_.memory];
    });
    if (lean != found.ranked.end()) {
      choices.push_back(same(lean->second));
      choices.back().known = lean->first;
    }
    const auto scored = std::find_if(choices.begin(), choices.end(),
                                     [](const auto& choice) { return choice.scores.empty(); });
    std::stable_sort(choices.begin(), scored,
                     [](const auto& a, const auto& b) { return a.expected() < b.expected(); });
    return choices;
  }

  /// The same settings on all components, not scored.
  [[nodiscard]] SlimpackChoice same(const SettingPoint& point) const {
    SlimpackChoice choice;
    choice.assigned = candidates_.assign(candidates_.at(point));
    choice.points.assign(choice.assigned->components.size(), point);
    return choice;
  }

  /// Climbs on the slowest component, then on the one that is slowest after that, until it is one
  /// that has been climbed on, or `limits` end it. Returns how many candidates have fitted.
  std::int64_t improve(SlimpackChoice& choice, const SearchLimits& limits) const {
    std::vector<bool> done(choice.points.size());
    const std::int64_t all = limits.fitting.value_or(0);
    std::int64_t left = all;
    for (std::size_t component = choice.slowest(); !done[component] && left > 0;
         component = choice.slowest()) {
      done[component] = true;
      SearchSpace space = space_;
      space.starts = {choice.points[component]};
      SearchLimits rest = limits;
      rest.fitting = std::min(left, kClimb);
      const SearchResult found =
          search_settings(space, rest, OneComponent{candidates_, choice, component});
      if (found.ranked.empty()) break;
      left -= found.fitting;
      const auto& [score, point] = found.ranked.front();
      if (score < choice.scores[component]) {
        choice.scores[component] = score;
        choice.points[component] = point;
      }
    }
    return all - left;
  }

  /// Moves samples from components that end late to others, for waits, which no load has, make some
  /// later than others: assigns anew as if each rank had besides, in load, by how much its
  /// component ends after the mean rank, or a part or more of that. Keeps what makes the slowest
  /// end sooner and goes on from there, until nothing does, all end about together or the budget
  /// ends. False where nothing has changed.
  bool even_out(SlimpackChoice& choice, const SearchLimits& limits) const {
    bool changed = false;
    std::vector<std::int64_t> besides(choice.assigned->component_of.size());
    for (std::size_t tried = 0; tried < kShares.size();) {
      const std::optional<std::vector<std::int64_t>> more =
          with_lateness(choice, besides, kShares[tried]);
      if (!more) break;
      SlimpackChoice next;
      next.assigned = candidates_.assign(candidates_.at(choice.points.front()), *more);
      for (const auto& component : next.assigned->components) {
        const auto rank = static_cast<std::size_t>(component.front());
        next.points.push_back(choice.points[choice.assigned->component_of[rank]]);
      }
      if (!score_components(next, limits)) break;
      if (next.expected() < choice.expected()) {
        choice = std::move(next);
        besides = *more;
        changed = true;
        tried = 0;
      } else {
        ++tried;
      }
    }
    return changed;
  }

  /// Whether two choices differ in settings that components share.
  [[nodiscard]] bool differ(const SlimpackChoice& one, const SlimpackChoice& other) const {
    return kind_of(one.points.front()) != kind_of(other.points.front());
  }

  /// Gives a choice that lacks memory when it is planned whole the next finer packs on all
  /// components, which are not scored; false, and nothing changes, where there are none.
  [[nodiscard]] bool refine_packs(SlimpackChoice& choice) const {
    const std::size_t values = space_.sizes[*space_.finer];
    for (const SettingPoint& point : choice.points) {
      if (point[*space_.finer] + 1 >= values) return false;
    }
    for (SettingPoint& point : choice.points) ++point[*space_.finer];
    choice.scores.clear();
    return true;
  }

 private:
  /// The settings that components share, the others at their first values.
  [[nodiscard]] SettingPoint kind_of(SettingPoint point) const {
    for (std::size_t i = 0; i < point.size(); ++i) {
      if (!space_.fixed[i]) point[i] = 0;
    }
    return point;
  }
  /// What ranks are to have besides, >= 0, where each component's have so many thousandths of its
  /// lateness more; nothing where components end about together, or lack memory.
  [[nodiscard]] static std::optional<std::vector<std::int64_t>> with_lateness(
      const SlimpackChoice& choice, std::vector<std::int64_t> besides, std::int64_t permille) {
    const RankAssignment& assigned = *choice.assigned;
    Int128 times = 0, loads = 0;
    for (std::size_t rank = 0; rank < besides.size(); ++rank) {
      times += choice.scores[assigned.component_of[rank]].time.value;
      loads += assigned.assignment.load[rank];
    }
    const auto ranks = static_cast<std::int64_t>(besides.size());
    const auto mean = static_cast<std::int64_t>(times / ranks);
    if (choice.expected().excess > 0 || choice.expected().time.value <= mean + mean / kTogether) {
      return std::nullopt;
    }
    for (std::size_t rank = 0; rank < besides.size(); ++rank) {
      const Int128 late = choice.scores[assigned.component_of[rank]].time.value - mean;
      besides[rank] += static_cast<std::int64_t>(late * loads / ranks / mean * permille / 1000);
    }
    const std::int64_t least = *std::min_element(besides.begin(), besides.end());
    for (std::int64_t& time : besides) time -= least;
    return besides;
  }

  /// Scores all components but the hardest where its score is known. False, and nothing is scored,
  /// where the budget does not pay for all of them.
  [[nodiscard]] bool score_components(SlimpackChoice& choice, const SearchLimits& limits) const {
    std::vector<std::size_t> unknown;
    std::vector<std::int64_t> costs;
    for (std::size_t component = 0; component < choice.points.size(); ++component) {
      if (choice.known && component == choice.assigned->hardest) continue;
      unknown.push_back(component);
      costs.push_back(candidates_.devices(*choice.assigned, component));
    }
    const std::int64_t all = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
    if (limits.counter->left() - all < limits.keep) return false;
    choice.scores.assign(choice.points.size(), choice.known.value_or(CandidateScore{}));
    limits.counter->run(costs, limits.keep, [&](std::size_t i) {
      choice.scores[unknown[i]] = candidates_.score(
          *choice.assigned, candidates_.at(choice.points[unknown[i]]), unknown[i]);
    });
    return true;
  }

  /// Candidates of one component, the others staying as they are.
  struct OneComponent {
    const SlimpackCandidates& candidates;
    const SlimpackChoice& choice;
    std::size_t component;

    [[nodiscard]] bool exists(const SettingPoint& point) const {
      const SlimpackSettings settings = candidates.at(point);
      const SlimpackSettings shared = candidates.at(choice.points[component]);
      return settings.head == shared.head &&
             (settings.rule == OrderRule::list || settings.chunks == 1);
    }
    [[nodiscard]] std::int64_t devices(const SettingPoint&) const {
      return candidates.devices(*choice.assigned, component);
    }
    [[nodiscard]] CandidateScore operator()(const SettingPoint& point) const {
      return candidates.score(*choice.assigned, candidates.at(point), component);
    }
  };

  static constexpr std::int64_t kClimb = 24;
  static constexpr std::size_t kMostChoices = 8;
  static constexpr int kMostOfKind = 2;
  static constexpr std::array<std::int64_t, 4> kShares{1000, 500, 1500, 250};  // thousandths
  static constexpr std::int64_t kTogether = 2000;  // of the mean: less than this part late is not

  const SlimpackCandidates& candidates_;
  SearchSpace space_;
};

}  // namespace slimpack::planners
