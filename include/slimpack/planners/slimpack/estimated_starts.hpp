// SPDX-License-Identifier: Apache-2.0
// Where searches of slimpack's own settings begin by estimate: what costs and memory say in closed
// form.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/slimpack/assignment.hpp"
#include "slimpack/planners/slimpack/estimate.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

/// The settings with the values that are tried, and where searches begin.
using SlimpackSpace = SettingSpace<SlimpackSettings>;

/// The most ranks of a group that is tried first: those of a node, beyond which the exchange is no
/// longer cheap, as far as the request allows them.
[[nodiscard]] inline std::int32_t usual_widest_group(const PlanRequest& request) {
  const std::int32_t most = std::min(request.dp, request.max_cp.value_or(request.dp));
  const std::int64_t near =
      std::max<std::int64_t>(2, request.cluster.devices_per_node / request.tp);
  return static_cast<std::int32_t>(std::min<std::int64_t>(near, most));
}

namespace detail {

/// What starts have to know about a space.
struct SpaceLayout {
  /// The position of a setting in a point, and how many values it has.
  struct Setting {
    std::size_t position = 0, size = 1;
  };

  SettingPoint start;  ///< the usual value of each setting
  std::vector<ModeChoice> modes;
  std::vector<std::int64_t> unit_values;
  std::vector<std::int32_t> chunk_values;
  Setting mode, head, head_batch, units, whole, packs, balance, threshold, widest, narrowest,
      groups, order, chunks, blocks, sample_blocks, even_blocks, backward_first, devices, rule,
      weights, cp_block;
  std::size_t usual_chunks = 0;          ///< the value of `chunks` at which interleaved starts are
  std::size_t widest_most = 0;           ///< the value of `widest` that is greatest
  std::size_t pair = 0;                  ///< the value of `widest` that is two ranks, if any
  bool many_packs = false;               ///< fill and drain do not count
  bool fit_modes = false;                ///< packs keep what fits
  bool spread = false;                   ///< shared samples begin on the rank that has least
  bool group_blocks = false;             ///< samples of groups are packed into blocks, too
  std::optional<std::size_t> last_head;  ///< the usual value of a head on the last stage, if any
};

/// Adds starts by estimate to a space.
class EstimatedStarts {
 public:
  /// All must outlive it.
  EstimatedStarts(const SlimpackProblem& problem, Effort effort, const SpaceLayout& layout,
                  const UnitCosts& unit_costs, SlimpackSpace& space)
      : problem_(problem),
        estimate_(problem, unit_costs),
        effort_(effort),
        layout_(layout),
        ranks_(problem.request().dp),
        pipeline_(problem.request().pp),
        space_(space) {}

  /// What should be fastest by estimate. A sample that alone takes longer than a rank's mean has to
  /// be shared.
  void add_all() {
    if (layout_.threshold.size > 1 && estimate_.outsized()) {
      add_outsized();
    } else {
      add_unshared();
    }
  }

 private:
  using Choice = SettingEstimate::Choice;
  using Sharing = SettingEstimate::Sharing;
  static constexpr std::int64_t kManyRanks = 4;

  /// The best of an estimate with the value `chunks` of chunks.
  [[nodiscard]] std::optional<Choice> estimated(std::size_t chunks, const Sharing& sharing) const {
    return estimate_.best(layout_.modes, layout_.unit_values, layout_.chunk_values[chunks],
                          sharing);
  }

  /// First what a fast search may end with. Then the usual most chunks, gradients of weights in B
  /// and apart, and fewest. Then what is for where these lack memory: more packs around a long
  /// sample, the same packs in both passes, and long samples, which take room from all others, on
  /// two ranks.
  void add_unshared() {
    std::vector<SettingPoint> others, of_pairs;
    const std::size_t most = layout_.usual_chunks;
    const std::optional<Choice> of_most = estimated(most, {});
    const std::optional<Choice> of_fewest = most > 0 ? estimated(0, {}) : of_most;
    const bool settled = settles(of_most) || settles(of_fewest);
    // Of few ranks a start takes too much of the budget to be tried beside the others.
    const bool likely =
        effort_ == Effort::fast && !settled && pipeline_ > 1 && ranks_ >= kManyRanks;
    std::vector<std::size_t> tried{most};
    if (most > 0) tried.push_back(0);
    // Chunks shorten fill and drain, which is nothing where packs are many, and then take several
    // times as long to plan.
    if (likely && of_most && of_fewest && 200 * of_fewest->time < 201 * of_most->time) {
      std::swap(tried.front(), tried.back());
    }
    for (const std::size_t chunks : tried) {
      const std::optional<Choice>& best = chunks == most ? of_most : of_fewest;
      const auto pairs =
          layout_.threshold.size > 1 ? estimated(chunks, {.ranks = 2}) : std::nullopt;
      if (pairs && (!best || 100 * pairs->time < 98 * best->time)) {
        // More packs than that: what fits only by estimate is no help to the others.
        SettingPoint point = estimated_point(*pairs, chunks);
        std::size_t& units = point[layout_.units.position];
        units = std::min(units + 3, layout_.units.size - 1);
        share(point, layout_.threshold.size / 2 + 1);
        point[layout_.widest.position] = layout_.pair;
        of_pairs.push_back(std::move(point));
      }
      if (!best) continue;
      if (settled) {
        if (chunks == 0) add_settled(estimated_point(*best, chunks), *best);
        continue;
      }
      SettingPoint point = estimated_point(*best, chunks);
      const bool first = likely && chunks == tried.front();
      const bool pays = first && chunks > 0 &&
                        estimate_.apart_pays(*best, layout_.modes, layout_.unit_values,
                                             layout_.chunk_values[chunks]);
      if (first) add_likely(point, *best, pays);
      if (!first || pays) space_.start_at(point);
      // With many packs there are few waits for W to fill.
      if (chunks == most && apart(point) && !pays) space_.start_at(point);
      if (chunks == 0) continue;
      add_other(others, point, estimated(chunks, {.loose = true}));
      others.push_back(same_packs(std::move(point)));
    }
    for (SettingPoint& point : others) space_.start_at(std::move(point));
    for (SettingPoint& point : of_pairs) space_.start_at(std::move(point));
  }

  /// Whether a fast search has so many packs that the estimate leaves little open: where memory
  /// asks for them, chunks gain little and take several times as long.
  [[nodiscard]] bool settles(const std::optional<Choice>& best) const {
    return effort_ == Effort::fast && best &&
           layout_.unit_values[best->units] >= 2 * kManyFulls * pipeline_;
  }

  /// Adds what is most likely best of all points like this one, weights apart or not: with chunks
  /// equal packs in both passes where they are few, for these wait least for each other, otherwise
  /// packs as large as memory allows. Then the same with smaller packs, for where it lacks memory.
  /// Either is enough where it takes about as long as estimated.
  void add_likely(SettingPoint point, const Choice& best, bool weights_apart) {
    constexpr std::int64_t kFewFulls = 8;
    const auto larger = [&](const SpaceLayout::Setting& setting) {
      std::size_t& value = point[setting.position];
      value = std::min(value + 1, setting.size - 1);
    };
    SettingPoint first = point;
    if (point[layout_.chunks.position] > 0) {
      if (weights_apart) static_cast<void>(apart(point));
      larger(layout_.head_batch);
      point[layout_.even_blocks.position] = layout_.even_blocks.size - 1;
      const bool few = layout_.unit_values[best.units] < kFewFulls * pipeline_;
      if (few) larger(layout_.units);
      first = few ? same_packs(point) : point;
    }
    space_.start_at(std::move(first));
    larger(layout_.units);
    space_.start_at(std::move(point));
    enough(best, 104);
  }
  /// The starts so far are enough where they take at most so many hundredths of what is estimated.
  void enough(const Choice& best, std::int64_t percent) {
    space_.enough({static_cast<std::int64_t>(best.time / kCostScale / 100 * percent)});
  }

  /// Long samples on as many ranks as their time and bytes ask for by themselves, and on so many as
  /// leave room for others, gradients of weights apart; the latter with fewest chunks; then what is
  /// for where these lack memory.
  void add_outsized() {
    const Sharing wide{.ranks = usual_widest_group(problem_.request())};
    const Sharing needed{.ranks = wide.ranks, .as_needed = true};
    const Sharing loose{.ranks = wide.ranks, .as_needed = true, .loose = true};
    const std::size_t most = layout_.usual_chunks;
    const auto start = [&](std::size_t chunks, const Sharing& sharing) {
      const auto best = estimated(chunks, sharing);
      if (!best) return;
      SettingPoint point = estimated_point(*best, chunks);
      share_evenly(point);
      if (chunks == most) static_cast<void>(apart(point));
      space_.start_at(std::move(point));
    };
    start(most, needed);
    start(most, wide);
    if (most > 0) start(0, wide);
    start(most, loose);
    if (const auto best = estimated(most, needed); best && most > 0) {
      SettingPoint point = estimated_point(*best, most);
      share_evenly(point);
      space_.start_at(point);
      static_cast<void>(apart(point));
      space_.start_at(same_packs(std::move(point)));
    }
  }

  /// Lets ranks share samples beyond a value of the threshold.
  void share(SettingPoint& point, std::size_t threshold) const {
    point[layout_.threshold.position] = threshold;
    point[layout_.devices.position] = layout_.devices.size - 1;
  }
  /// Lets ranks share what takes longer than a rank on average; or where otherwise one rank has
  /// much more than others, far shorter samples, or what makes ranks even.
  void share_evenly(SettingPoint& point) const {
    const auto fullest = [&](const SettingPoint& shared) {
      const RankAssignment assigned = assign_ranks(problem_, space_.at(shared));
      const std::vector<std::int64_t>& load = assigned.assignment.load;
      return *std::max_element(load.begin(), load.end());
    };
    SettingPoint lower = point;
    share(point, 1);
    share(lower, layout_.threshold.size / 2 + 1);
    std::int64_t most = fullest(point);
    if (const std::int64_t less = fullest(lower); less < most / 100 * 95) {
      point = std::move(lower);
      most = less;
    }
    if (layout_.groups.size == 1) return;
    SettingPoint even = point;
    share(even, 0);
    even[layout_.groups.position] = static_cast<std::size_t>(schedule::GroupRule::even);
    even[layout_.widest.position] = layout_.widest_most;
    if (fullest(even) < most / 100 * 98) point = std::move(even);
  }
  /// Gradients of weights in packs of their own, if that may gain something.
  [[nodiscard]] bool apart(SettingPoint& point) const {
    if (layout_.weights.size == 1 || layout_.many_packs) return false;
    point[layout_.weights.position] = layout_.weights.size - 1;
    return true;
  }
  [[nodiscard]] SettingPoint same_packs(SettingPoint point) const {
    point[layout_.packs.position] = layout_.packs.size - 1;
    return point;
  }
  /// The same point with what another estimate chose, if that differs.
  void add_other(std::vector<SettingPoint>& points, SettingPoint point,
                 const std::optional<Choice>& other) const {
    if (!other) return;
    SettingPoint same = point;
    point[layout_.mode.position] = other->mode;
    point[layout_.units.position] = other->units;
    if (point != same) points.push_back(std::move(point));
  }

  /// A point of so many packs that little else matters, and others near it. Whatever differs by
  /// more only seems faster on samples that stand for many.
  void add_settled(SettingPoint point, const Choice& best) {
    space_.start_at(point);
    enough(best, 110);
    if (layout_.threshold.size > 1 && layout_.groups.size > 1) {
      // What leaves hardly any room on one rank goes to ranks that share nothing else.
      SettingPoint apart = point;
      apart[layout_.groups.position] = static_cast<std::size_t>(schedule::GroupRule::disjoint);
      apart[layout_.devices.position] = layout_.devices.size - 1;
      space_.start_at(std::move(apart));
    }
    // Smaller batches of H keep less in flight.
    std::size_t& batch = point[layout_.head_batch.position];
    for (int less = 0; less < 2 && batch > 0; ++less) {
      --batch;
      space_.start_at(point);
    }
  }

  /// The usual settings with what an estimate chose for the value `chunks` of chunks.
  [[nodiscard]] SettingPoint estimated_point(const SettingEstimate::Choice& best,
                                             std::size_t chunks) const {
    SettingPoint point = layout_.start;
    point[layout_.mode.position] = best.mode;
    point[layout_.units.position] = best.units;
    point[layout_.chunks.position] = chunks;
    if (chunks == 0) {
      point[layout_.packs.position] = layout_.packs.size - 1;
      // Without chunks the collectives of H are all that stages of equal packs wait for.
      std::size_t& batch = point[layout_.head_batch.position];
      batch = std::min(batch + 1, layout_.head_batch.size - 1);
    }
    return point;
  }

  const SlimpackProblem& problem_;
  SettingEstimate estimate_;
  Effort effort_;
  const SpaceLayout& layout_;
  std::int64_t ranks_;
  std::int32_t pipeline_;
  SlimpackSpace& space_;
};

}  // namespace detail
}  // namespace slimpack::planners
