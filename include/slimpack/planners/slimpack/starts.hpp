// SPDX-License-Identifier: Apache-2.0
// Where searches of slimpack's own settings begin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
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
      disjoint, order, chunks, blocks, sample_blocks, even_blocks, backward_first, devices, rule,
      weights;
  std::size_t usual_chunks = 0;          ///< the value of `chunks` at which interleaved starts are
  std::size_t widest_most = 0;           ///< the value of `widest` that is greatest
  std::size_t pair = 0;                  ///< the value of `widest` that is two ranks, if any
  bool many_packs = false;               ///< fill and drain do not count
  std::optional<std::size_t> last_head;  ///< the usual value of a head on the last stage, if any
};

/// Adds starts to a space.
class SlimpackStarts {
 public:
  /// All must outlive it; `overhead` is what a unit costs by itself.
  SlimpackStarts(const SlimpackProblem& problem, Effort effort, const SpaceLayout& layout,
                 Nanos overhead, SlimpackSpace& space)
      : problem_(problem),
        effort_(effort),
        layout_(layout),
        tokens_(total_tokens(problem.request().batch.samples)),
        ranks_(problem.request().dp),
        pipeline_(problem.request().pp),
        overhead_(overhead),
        space_(space) {}

  /// Good plans of several kinds: interleaved and in lockstep, with long samples on several ranks
  /// that lie next to each other or not, keeping much or little.
  void add_all() {
    using enum Recompute;
    const std::size_t leanest = layout_.modes.size() - 1;
    add_estimated();
    // With one stage the estimate knows little of what matters.
    const bool few_candidates = effort_ == Effort::fast ||
                                (effort_ == Effort::normal && has_many_samples(problem_.request()));
    if (few_candidates && pipeline_ > 1) space_.fall_back();
    add_start(mode_at(none, Kind::uniform), {.interleaved = true}, 0);
    if (layout_.weights.size > 1) {
      add_start(mode_at(none, Kind::uniform),
                {.interleaved = true, .same_packs = true, .apart = true}, 0);
      add_start(mode_at(light, Kind::uniform), {.interleaved = true, .apart = true}, 0);
    }
    add_start(mode_at(none, Kind::uniform), {}, 1);
    add_start(mode_at(light, Kind::uniform), {.shares = true}, 2);
    add_start(mode_at(light, Kind::uniform), {.interleaved = true, .same_packs = true}, 1);
    // Where many packs wait for shared ones, smaller packs let more of them be in flight.
    if (layout_.many_packs) {
      add_start(mode_at(light, Kind::fullest), {.shares = true, .interleaved = true}, 5);
    }
    if (layout_.whole.size > 1) {
      add_start(mode_at(light, Kind::uniform), {.interleaved = true, .whole = true}, 1);
      add_start(mode_at(light, Kind::uniform),
                {.shares = true, .interleaved = true, .few = true, .whole = true}, 1);
    }
    add_start(mode_at(light, Kind::uniform), {.shares = true, .interleaved = true, .few = true}, 1);
    add_start(mode_at(light, Kind::uniform),
              {.shares = true, .interleaved = true, .few = true, .same_packs = true}, 1);
    add_start(mode_at(light, Kind::uniform), {.shares = true, .interleaved = true}, 2);
    if (layout_.widest.size > 1) {
      add_start(mode_at(light, Kind::uniform),
                {.shares = true, .wide = true, .two_chunks = true, .same_packs = true}, 1);
      add_start(
          mode_at(light, Kind::uniform),
          {.shares = true, .wide = true, .two_chunks = true, .same_packs = true, .whole = true}, 1);
    }
    // As other systems have them: few packs in short blocks, of whole samples, of equal tokens, or
    // all on several ranks.
    if (layout_.blocks.size > 1) {
      add_start(mode_at(none, Kind::uniform), {.same_packs = true, .few_packs = true}, 0);
      add_start(mode_at(none, Kind::uniform),
                {.same_packs = true, .whole = true, .few_packs = true, .backward_first = true}, 0);
      add_start(mode_at(light, Kind::uniform),
                {.same_packs = true, .few_packs = true, .tokens = true}, 0);
    }
    if (layout_.sample_blocks.size > 1) {
      for (const Recompute mode : {none, light}) {
        add_start(mode_at(mode, Kind::uniform),
                  {.same_packs = true, .few_packs = true, .samples = true}, 1);
        add_start(mode_at(mode, Kind::uniform),
                  {.interleaved = true, .same_packs = true, .samples = true}, 0);
      }
    }
    for (std::size_t narrowest = 1; narrowest < layout_.narrowest.size; ++narrowest) {
      add_start(mode_at(none, Kind::uniform),
                {.same_packs = true, .few_packs = true, .narrowest = narrowest}, 0);
    }
    for (const bool wide : {false, true}) {
      add_start(mode_at(none, Kind::uniform),
                {.wide = wide, .same_packs = true, .few_packs = true, .disjoint = true}, 0);
    }
    add_start(mode_at(light, Kind::uniform), {.interleaved = true}, 1);
    add_start(mode_at(light, Kind::uniform), {.same_packs = true}, 2);
    add_start(mode_at(light, Kind::uniform), {.two_chunks = true, .same_packs = true}, 2);
    if (layout_.last_head && *layout_.last_head != layout_.start[layout_.head.position]) {
      add_start(mode_at(light, Kind::uniform),
                {.interleaved = true, .same_packs = true, .last_head = true}, 1);
    }
    // Long samples that fit only where their first tokens keep nothing: half of them, or most.
    for (std::size_t mode = 0; mode < layout_.modes.size(); ++mode) {
      const ModeChoice& choice = layout_.modes[mode];
      if (choice.early.value == 0 || choice.most == choice.lean) continue;
      if (choice.lean_permille < 400 || choice.lean_permille > 900) continue;
      add_start(mode, {.shares = true, .interleaved = true}, 2);
      add_start(mode, {.shares = true, .interleaved = true, .few = true, .same_packs = true}, 1);
    }
    add_start(mode_at(light, Kind::fullest), {.interleaved = true, .short_first = true}, 3);
    add_start(mode_at(light, Kind::leanest), {.interleaved = true}, 2);
    for (const std::size_t finer : {std::size_t{4}, layout_.units.size}) {
      add_start(leanest, {.shares = true}, finer);
      add_start(leanest, {}, finer);
    }
    if (layout_.last_head) {
      SettingPoint point = layout_.start;
      point[layout_.head.position] = *layout_.last_head;
      point[layout_.units.position] = layout_.units.size / 4;
      space_.start_at(std::move(point));
    }
  }

 private:
  /// Which of several modes with one `most`: the same for all samples, or the one whose long
  /// samples are leaner from the greatest length (`fullest`) or from the least (`leanest`).
  enum class Kind : std::uint8_t { uniform, fullest, leanest };
  /// The index of a mode; if there is none of this kind, of one with the same `most`, or the first.
  [[nodiscard]] std::size_t mode_at(Recompute most, Kind kind) const {
    std::size_t found = layout_.start[layout_.mode.position];
    bool mixed = false;
    for (std::size_t i = 0; i < layout_.modes.size(); ++i) {
      const ModeChoice& mode = layout_.modes[i];
      if (mode.most != most || mode.lean_permille > 0) continue;
      if (mode.lean == most) {
        found = i;
      } else if (kind == Kind::leanest || (kind == Kind::fullest && !mixed)) {
        found = i;
        mixed = true;
      }
    }
    return found;
  }
  /// The first number of packs, by index, not below `from`, of which as many as there are stages
  /// fit into memory where samples keep what `mode` says; the last where none does.
  [[nodiscard]] std::size_t fitting_units(const ModeChoice& mode, std::size_t from) const {
    const Plan& frame = problem_.frame();
    const LayerBytes layer =
        layer_bytes(frame.model, frame.memory.gradient_bytes, frame.parallel.tp);
    const std::int64_t layers = most_layers(frame.stages, pipeline_);
    SlimpackSettings settings;
    const auto most = static_cast<std::size_t>(mode.most);
    for (std::size_t i = from; i + 1 < layout_.unit_values.size(); ++i) {
      settings.units = layout_.unit_values[i];
      settings.mode = mode;
      // What waits in a pipeline, or what a sample keeps until its last token has been forward.
      const std::int64_t pack = tokens_.value / (ranks_ * settings.units) + 1;
      const std::int64_t kept = mode.mean(
          Tokens{}, [&](Recompute of) { return layer.kept[static_cast<std::size_t>(of)]; });
      const std::int64_t each = layers * (kept + layer.kv) + 2 * layer.boundary;
      const std::int64_t bytes =
          pack * (pipeline_ * each + layer.backward_workspace[most] + 4 * layer.boundary);
      if (bytes <= SlimpackProblem::free_bytes(frame).value) return i;
    }
    return layout_.unit_values.size() - 1;
  }

  using Choice = SettingEstimate::Choice;
  using Sharing = SettingEstimate::Sharing;

  /// What should be fastest by estimate. A sample that alone takes longer than a rank's mean has to
  /// be shared.
  void add_estimated() {
    const SettingEstimate estimate(problem_, overhead_);
    if (layout_.threshold.size > 1 && estimate.outsized()) {
      add_outsized(estimate);
    } else {
      add_unshared(estimate);
    }
  }
  /// The best of an estimate with the value `chunks` of chunks.
  [[nodiscard]] std::optional<Choice> estimated(const SettingEstimate& estimate, std::size_t chunks,
                                                const Sharing& sharing) const {
    return estimate.best(layout_.modes, layout_.unit_values, layout_.chunk_values[chunks], sharing);
  }

  /// With the usual most chunks, gradients of weights in B and apart, and with fewest. Then what is
  /// for where these lack memory: more packs around a long sample, the same packs in both passes,
  /// and long samples, which take room from all others, on two ranks.
  void add_unshared(const SettingEstimate& estimate) {
    bool settled = false;  // fast, and so many packs that the estimate leaves little open
    std::vector<SettingPoint> others, of_pairs;
    const std::size_t most = layout_.usual_chunks;
    std::vector<std::size_t> tried{most};
    if (most > 0) tried.push_back(0);
    for (const std::size_t chunks : tried) {
      const auto best = estimated(estimate, chunks, {});
      const auto pairs =
          layout_.threshold.size > 1 ? estimated(estimate, chunks, {.ranks = 2}) : std::nullopt;
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
      // Where memory asks for so many packs, chunks gain little and take several times as long.
      settled = settled || (effort_ == Effort::fast &&
                            layout_.unit_values[best->units] >= 2 * kManyFulls * pipeline_);
      if (settled) {
        if (chunks == 0) add_settled(estimated_point(*best, chunks));
        continue;
      }
      SettingPoint point = estimated_point(*best, chunks);
      space_.start_at(point);
      // With many packs there are few waits for W to fill.
      if (chunks == most && apart(point)) space_.start_at(point);
      if (chunks == 0) continue;
      add_other(others, point, estimated(estimate, chunks, {.loose = true}));
      others.push_back(same_packs(std::move(point)));
    }
    for (SettingPoint& point : others) space_.start_at(std::move(point));
    for (SettingPoint& point : of_pairs) space_.start_at(std::move(point));
  }

  /// Long samples on as many ranks as their time and bytes ask for by themselves, and on so many as
  /// leave room for others, gradients of weights apart; the latter with fewest chunks; then what is
  /// for where these lack memory.
  void add_outsized(const SettingEstimate& estimate) {
    const Sharing wide{.ranks = usual_widest_group(problem_.request())};
    const Sharing needed{.ranks = wide.ranks, .as_needed = true};
    const Sharing loose{.ranks = wide.ranks, .as_needed = true, .loose = true};
    const std::size_t most = layout_.usual_chunks;
    const auto start = [&](std::size_t chunks, const Sharing& sharing) {
      const auto best = estimated(estimate, chunks, sharing);
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
    if (const auto best = estimated(estimate, most, needed); best && most > 0) {
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
  /// Lets ranks share what takes longer than a rank on average, or far shorter samples where
  /// otherwise one rank has much more than others.
  void share_evenly(SettingPoint& point) const {
    const auto most = [&](std::size_t threshold) {
      share(point, threshold);
      const RankAssignment assigned = assign_ranks(problem_, space_.at(point));
      const std::vector<std::int64_t>& load = assigned.assignment.load;
      return *std::max_element(load.begin(), load.end());
    };
    const std::size_t lower = layout_.threshold.size / 2 + 1;
    const std::int64_t even = most(lower), usual = most(1);
    if (even < usual / 100 * 95) share(point, lower);
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
  void add_settled(SettingPoint point) {
    space_.start_at(point);
    if (layout_.threshold.size > 1 && layout_.disjoint.size > 1) {
      // What leaves hardly any room on one rank goes to ranks that share nothing else.
      SettingPoint apart = point;
      apart[layout_.disjoint.position] = 1;
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

  struct StartKind {
    bool shares = false;       ///< ranks share long samples
    bool wide = false;         ///< of those that share, up to all ranks
    bool interleaved = false;  ///< the usual most chunks, else lockstep
    bool two_chunks = false;   ///< two of them, or as many as there may be if fewer
    bool short_first = false;
    bool few = false;             ///< of those that share, only the longest, two ranks each
    bool same_packs = false;      ///< in both passes
    bool whole = false;           ///< samples are not cut
    bool last_head = false;       ///< the head on the last stage, where it may be elsewhere
    bool apart = false;           ///< gradients of weights in packs of their own, where they may be
    bool few_packs = false;       ///< less than half as many as usual, most chunks in short blocks,
                                  ///< and the head on the last stage
    bool tokens = false;          ///< packs of equal tokens
    bool samples = false;         ///< blocks end with samples
    bool backward_first = false;  ///< on the last stage
    std::size_t narrowest = 0;    ///< the value of the ranks that share every sample
    bool disjoint = false;        ///< groups of any size
  };
  /// Adds a start whose number of packs is `finer` values above the usual one.
  void add_start(std::size_t mode, StartKind kind, std::size_t finer) {
    SettingPoint point = layout_.start;
    std::size_t& units = point[layout_.units.position];
    point[layout_.mode.position] = mode;
    if (kind.short_first) {
      point[layout_.order.position] = static_cast<std::size_t>(QueueOrder::short_first);
    }
    // So many packs fill and drain in no time: there is no other reason for smaller ones.
    if (layout_.many_packs && !kind.shares && mode + 1 < layout_.modes.size()) finer = 0;
    if (kind.apart) point[layout_.weights.position] = layout_.weights.size - 1;
    if (kind.last_head) point[layout_.head.position] = *layout_.last_head;
    if (kind.few_packs) {
      point[layout_.chunks.position] = layout_.chunks.size - 1;
      point[layout_.blocks.position] = layout_.blocks.size - 1;
      if (layout_.last_head) point[layout_.head.position] = *layout_.last_head;
      point[layout_.even_blocks.position] = layout_.even_blocks.size - 1;
      units -= std::min<std::size_t>(units, 3);
    } else if (kind.interleaved) {
      point[layout_.chunks.position] = layout_.usual_chunks;
      // Chunks shorten fill and drain, so larger packs will do; they are planned sooner.
      if (effort_ == Effort::fast) units -= std::min(units, layout_.usual_chunks);
    } else if (kind.two_chunks) {
      point[layout_.chunks.position] = std::min<std::size_t>(1, layout_.usual_chunks);
    } else {
      point[layout_.rule.position] = layout_.rule.size - 1;
    }
    if (kind.samples) point[layout_.sample_blocks.position] = layout_.sample_blocks.size - 1;
    if (kind.backward_first) {
      point[layout_.backward_first.position] = layout_.backward_first.size - 1;
    }
    if (kind.tokens) point[layout_.balance.position] = layout_.balance.size - 1;
    point[layout_.narrowest.position] = kind.narrowest;
    if (kind.narrowest > 0) point[layout_.devices.position] = layout_.devices.size - 1;
    if (kind.disjoint) {
      if (layout_.disjoint.size == 1) return;
      point[layout_.disjoint.position] = 1;
      point[layout_.devices.position] = layout_.devices.size - 1;
      if (kind.wide) point[layout_.widest.position] = layout_.widest_most;
    }
    if (kind.same_packs) point[layout_.packs.position] = layout_.packs.size - 1;
    if (kind.whole) point[layout_.whole.position] = layout_.whole.size - 1;
    if (kind.shares) {
      if (layout_.threshold.size == 1) return;
      point[layout_.threshold.position] = layout_.threshold.size / 2 + 1;
      point[layout_.devices.position] = layout_.devices.size - 1;
      if (kind.wide) point[layout_.widest.position] = layout_.widest_most;
      if (kind.few) {
        point[layout_.threshold.position] = 1;
        if (layout_.widest.size > 1) point[layout_.widest.position] = 1;
      }
    }
    units = std::min(units + finer, layout_.units.size - 1);
    units = fitting_units(layout_.modes[mode], units);
    space_.start_at(std::move(point));
  }

  const SlimpackProblem& problem_;
  Effort effort_;
  const SpaceLayout& layout_;
  Tokens tokens_;
  std::int64_t ranks_;
  std::int32_t pipeline_;
  Nanos overhead_;
  SlimpackSpace& space_;
};

}  // namespace detail
}  // namespace slimpack::planners
