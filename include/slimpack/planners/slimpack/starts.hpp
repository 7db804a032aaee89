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
#include "slimpack/planners/slimpack/estimated_starts.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

namespace detail {

/// Adds starts to a space.
class SlimpackStarts {
 public:
  /// All must outlive it.
  SlimpackStarts(const SlimpackProblem& problem, Effort effort, const SpaceLayout& layout,
                 const UnitCosts& unit_costs, SlimpackSpace& space)
      : problem_(problem),
        effort_(effort),
        layout_(layout),
        tokens_(total_tokens(problem.request().batch.samples)),
        ranks_(problem.request().dp),
        pipeline_(problem.request().pp),
        unit_costs_(unit_costs),
        space_(space) {}

  /// Good plans of several kinds: interleaved and in lockstep, with long samples on several ranks
  /// that lie next to each other or not, keeping much or little.
  void add_all() {
    using enum Recompute;
    const std::size_t leanest = layout_.modes.size() - 1;
    if (layout_.spread) add_spread();
    for (std::size_t narrowest = 1; layout_.group_blocks && narrowest < layout_.narrowest.size;
         ++narrowest) {
      add_start(mode_at(layer, Kind::uniform),
                {.same_packs = true, .few_packs = true, .samples = true, .narrowest = narrowest},
                0);
    }
    EstimatedStarts(problem_, effort_, layout_, unit_costs_, space_).add_all();
    // With one stage the estimate knows little of what matters.
    const bool few_candidates = effort_ == Effort::fast ||
                                (effort_ == Effort::normal && has_many_samples(problem_.request()));
    if (few_candidates && pipeline_ > 1) {
      // So many samples fill large packs evenly without being cut.
      if (effort_ == Effort::normal && layout_.blocks.size > 1) add_consolidated();
      space_.fall_back();
    }
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
      add_consolidated();
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
                {.wide = wide,
                 .same_packs = true,
                 .few_packs = true,
                 .groups = schedule::GroupRule::disjoint},
                0);
    }
    add_even();
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
  /// Few packs of whole samples in short blocks, as other systems have them.
  void add_consolidated() {
    add_start(mode_at(Recompute::none, Kind::uniform),
              {.same_packs = true, .whole = true, .few_packs = true, .backward_first = true}, 0);
  }
  /// Samples on groups of ranks that make ranks even: few packs of what at least one, two or more
  /// ranks share; on one stage whole samples, of which a device has one at a time, with several
  /// stages more packs as well.
  void add_even() {
    using enum Recompute;
    StartKind kind{.wide = true, .same_packs = true, .few_packs = true};
    kind.groups = schedule::GroupRule::even;
    StartKind whole = kind;
    whole.whole = true;
    for (std::size_t narrowest = 0; narrowest < layout_.narrowest.size; ++narrowest) {
      kind.narrowest = whole.narrowest = narrowest;
      add_start(mode_at(none, Kind::uniform), kind, 0);
      if (pipeline_ == 1) add_start(mode_at(light, Kind::uniform), whole, 0);
      // So many packs that most keep all.
      if (layout_.fit_modes) add_start(mode_at(none, Kind::uniform), whole, 0);
    }
    if (pipeline_ == 1) {
      // Of samples that are cut, half of the packs leaner than the others.
      for (std::size_t mode = 0; mode < layout_.modes.size(); ++mode) {
        kind.narrowest = 0;
        if (layout_.modes[mode].lean_permille == 500) add_start(mode, kind, 0);
      }
      return;
    }
    const StartKind interleaved{
        .wide = true, .interleaved = true, .apart = true, .groups = kind.groups};
    for (const Recompute mode : {none, light}) {
      add_start(mode_at(mode, Kind::uniform), interleaved, 1);
    }
  }
  /// Few packs of samples of which those of one block are on one rank, the others on all ranks of
  /// groups, on as many as make ranks even, or on all.
  void add_spread() {
    for (std::size_t block = 1; block < layout_.cp_block.size; ++block) {
      for (std::size_t narrowest = 0; narrowest < layout_.narrowest.size; ++narrowest) {
        StartKind kind{.wide = true, .same_packs = true, .few_packs = true};
        kind.narrowest = narrowest;
        kind.cp_block = block;
        if (narrowest == 0) kind.groups = schedule::GroupRule::even;
        add_start(mode_at(Recompute::none, Kind::uniform), kind, 0);
      }
    }
  }
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
    std::size_t cp_block = 0;     ///< the value of the blocks of samples that are shared
    schedule::GroupRule groups{};  ///< how it is chosen which ranks share samples
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
    if (kind.cp_block > 0) point[layout_.cp_block.position] = kind.cp_block;
    if (kind.narrowest > 0) point[layout_.devices.position] = layout_.devices.size - 1;
    if (kind.groups != schedule::GroupRule::threshold) {
      if (layout_.groups.size == 1) return;
      point[layout_.groups.position] = static_cast<std::size_t>(kind.groups);
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
  const UnitCosts& unit_costs_;
  SlimpackSpace& space_;
};

}  // namespace detail
}  // namespace slimpack::planners
