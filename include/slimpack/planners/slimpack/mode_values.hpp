// SPDX-License-Identifier: Apache-2.0
// Which recomputation is worth trying for a request.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

namespace detail {

/// The choice in which of each sample that has its leanest mode as many first tokens keep nothing
/// as are these thousandths of the longest sample. O(samples).
[[nodiscard]] inline ModeChoice early_choice(const std::vector<Tokens>& samples, ModeChoice choice,
                                             std::int64_t permille) {
  choice.early = {std::max<std::int64_t>(1, longest_of(samples).value * permille / 1000)};
  choice.first = Recompute::full;
  Int128 first = 0, all = 1;
  for (const Tokens length : samples) {
    if (choice.of(length) != choice.lean) continue;
    first += std::min(length, choice.early).value;
    all += length.value;
  }
  choice.lean_permille = static_cast<std::int64_t>(first * 999 / all);
  return choice;
}

}  // namespace detail

/// One mode for all samples, or leaner ones for those that would fill a large part of a device's
/// room; from the fastest to the leanest. Room is that of a plan of `settings`.
[[nodiscard]] inline std::vector<ModeChoice> mode_values(const SlimpackProblem& problem,
                                                         const SlimpackOptions& options,
                                                         const SlimpackSettings& settings) {
  using enum Recompute;
  const PlanRequest& request = problem.request();
  if (request.recompute) return {ModeChoice(*request.recompute)};
  const std::vector<Tokens>& samples = request.batch.samples;
  const Tokens longest = longest_of(samples);
  std::vector<ModeChoice> modes;
  const Plan plan = problem.outline(settings);
  const StageRoom stage{problem.room(plan, settings),
                        layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp),
                        most_layers(plan.stages, plan.parallel.pp)};
  // `percent` of the room is for one sample; the rest is for those before and after it.
  const auto add = [&](Recompute most, Recompute lean, std::int64_t percent) {
    const ModeChoice choice = mode_by_length(most, lean, stage, percent);
    if (most != lean &&
        (!options.mixed_modes || longest <= choice.limit[static_cast<std::size_t>(most)]))
      return;
    modes.push_back(choice);
  };
  const auto add_packs = [&](Recompute most, Recompute lean, std::int64_t permille) {
    if (options.mixed_modes) modes.push_back(ModeChoice(most, lean, permille));
  };
  add(none, none, 0);
  for (const std::int64_t percent : {80, 60, 40}) add(none, layer, percent);
  add_packs(none, light, 500);
  add(light, light, 0);
  for (const std::int64_t percent : {80, 60, 40}) add(light, layer, percent);
  for (const std::int64_t permille : {250, 500, 750}) add_packs(light, layer, permille);
  // Where the longest do not fit so either, they alone keep nothing.
  const ModeChoice three = mode_by_length(light, full, stage, 60);
  if (longest > three.limit[static_cast<std::size_t>(layer)]) add(light, full, 60);
  add(layer, layer, 0);
  add(layer, full, 60);
  for (const std::int64_t permille : {333, 667}) add_packs(layer, full, permille);
  // Where long samples are most of a rank's tokens, the first tokens of all samples keep nothing;
  // where the longest do not fit otherwise, the first of theirs.
  if (options.mixed_modes && 2 * longest.value * request.dp >= total_tokens(samples).value) {
    for (const std::int64_t permille : {200, 400, 600, 800}) {
      modes.push_back(detail::early_choice(samples, layer, permille));
    }
  }
  const ModeChoice two = mode_by_length(light, layer, stage, 60);
  if (options.mixed_modes && longest > two.limit[static_cast<std::size_t>(light)]) {
    for (const std::int64_t permille : {300, 500, 700, 850}) {
      modes.push_back(detail::early_choice(samples, two, permille));
    }
  }
  add(full, full, 0);
  return modes;
}

}  // namespace slimpack::planners
