// SPDX-License-Identifier: Apache-2.0
// Which spaces slimpack searches for a request, one after the other, and what each search may take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/simulation_counter.hpp"
#include "slimpack/planners/slimpack/options.hpp"
#include "slimpack/planners/slimpack/problem.hpp"

namespace slimpack::planners::detail {

/// What one stage of a search may spend: a search of some effort begins with that of each lower
/// one, so that it never ends with a slower plan.
struct SlimpackStage {
  Effort effort = Effort::fast;  ///< whose starts and whose number of whole plans it has
  std::int64_t most = 1;         ///< candidates that fit
  std::int64_t end = 0;          ///< devices of the budget that it leaves to others
};

/// The ideas of each search of a request, all of `options` first. A climb over all settings may end
/// where one without some of them does not pass by. So a thorough effort, and a normal one without
/// many samples, searches each space without consolidation and one idea too: each is a planner by
/// itself, and none of them ends ahead. What these leave of the budget is for all other ideas
/// without consolidation.
[[nodiscard]] inline std::vector<SlimpackOptions> slimpack_parts(const PlanRequest& request,
                                                                 const SlimpackOptions& options) {
  std::vector<SlimpackOptions> parts{options};
  const bool many = has_many_samples(request);
  if (request.budget || options != SlimpackOptions{} || request.effort == Effort::fast ||
      (request.effort == Effort::normal && many)) {
    return parts;
  }
  SlimpackOptions plain = options;
  plain.consolidation = false;
  using Idea = bool SlimpackOptions::*;
  for (const Idea idea :
       {&SlimpackOptions::asymmetric, &SlimpackOptions::slicing, &SlimpackOptions::merging,
        &SlimpackOptions::shard_head, &SlimpackOptions::weights}) {
    // Weights that have to be apart leave no space without them.
    if (idea == &SlimpackOptions::weights && request.weights == WeightGradients::apart) continue;
    parts.push_back(plain);
    parts.back().*idea = false;
  }
  parts.push_back(plain);
  return parts;
}

/// Of these searches those to repeat where a request has one stage and may recompute what it likes,
/// with packs that keep what fits: the first with samples spread over their groups, where the
/// runtime can do that; the first; and the last where there are several.
[[nodiscard]] inline std::vector<SlimpackOptions> fitting_parts(
    const PlanRequest& request, const std::vector<SlimpackOptions>& parts) {
  if (request.pp > 1 || request.recompute || parts.size() == 1) return {};
  std::vector<SlimpackOptions> fitting{parts.front(), parts.front(), parts.back()};
  for (SlimpackOptions& part : fitting) part.fit_modes = true;
  // Torch's runtime hands the keys of all samples round, also of those that one rank owns.
  if (request.runtime == Runtime::torch) {
    fitting.erase(fitting.begin());
  } else {
    fitting.front().spread = true;
  }
  return fitting;
}

/// Whether ranks may share weights in plans of a request, first the likelier: not where they do not
/// have to and the planner lacks an idea.
[[nodiscard]] inline std::vector<WeightState> weight_states(const PlanRequest& request,
                                                            bool all_ideas) {
  using enum WeightState;
  if (request.weight_state) return {*request.weight_state};
  if (!all_ideas || !can_shard_weights(request)) return {replicated};
  const MemorySpec memory = memory_of(request);
  const bool fit =
      static_bytes(plan_frame(request, {}), 0).total() < memory.capacity - memory.reserved;
  return fit ? std::vector{sharded, replicated} : std::vector{sharded};
}

/// The spaces of each stage of a search of a request, which differ in where they begin and share
/// what the stage may spend: without consolidation the usual number of chunks, and then, above fast
/// effort, chunks of equal layers. A budget of the request's own, or many samples, leave the first.
[[nodiscard]] inline std::vector<SlimpackOptions> slimpack_begins(const PlanRequest& request,
                                                                  const SlimpackOptions& part) {
  if (part.consolidation) return {part};
  SlimpackOptions usual = part;
  usual.equal_chunks = false;
  if (request.budget || has_many_samples(request)) return {usual};
  return {usual, part};
}

/// Whether some B of a plan makes attention again.
[[nodiscard]] inline bool recomputes_attention(const Plan& plan) noexcept {
  return std::ranges::any_of(plan.micropacks, [](const MicroPack& pack) {
    return pack.pass == Pass::backward && pack.recompute == Recompute::full;
  });
}

/// Whether a budget has half of what one search may spend.
[[nodiscard]] inline bool pays_for_more(const PlanRequest& request,
                                        const SimulationCounter& counter) noexcept {
  const auto samples = static_cast<std::int64_t>(request.batch.samples.size());
  return 2 * counter.left() >= search_evaluations(request.effort, samples) * counter.step_devices();
}

/// The stages of one search of a request. Every simulation passes the counter, whose budget is
/// hard. Besides, a search ends after three candidates that fit for every four steps of the budget,
/// to save time; a normal one after twice as many where samples are few, and so candidates soon
/// timed, and half as many where they are not. Where they are many it begins with the best of the
/// fast one and ends after three tenths as many, with four stages after as many, with two after
/// four times as many. Of a budget that the request gives, where that is little, it ends after up
/// to four candidates for each step: those of one component of many cost little of it. What the
/// counter has beside this search is left to others.
[[nodiscard]] inline std::vector<SlimpackStage> slimpack_stages(const PlanRequest& request,
                                                                const SimulationCounter& counter) {
  if (request.budget) {
    constexpr std::int64_t kMany = 64;
    const std::int64_t steps = evaluations(request);
    return {{request.effort, std::max(steps, std::min(4 * steps, kMany)), 0}};
  }
  const auto samples = static_cast<std::int64_t>(request.batch.samples.size());
  const bool few = request.batch.samples.size() <= kFewSamples;
  const bool many = has_many_samples(request);
  // Fewer stages have fewer packs as well, and so are planned sooner.
  const std::int64_t stages_of_eight = std::max<std::int64_t>(1, 8 / request.pp);
  const std::int64_t tenths = std::max<std::int64_t>(3, stages_of_eight * stages_of_eight * 5 / 2);
  std::vector<SlimpackStage> stages;
  std::int64_t before = 0;
  for (const Effort effort : {Effort::fast, Effort::normal, Effort::thorough}) {
    const std::int64_t all = search_evaluations(effort, samples);
    std::int64_t most = all / 4 * 3;
    if (effort == Effort::normal) most = few ? 2 * most : many ? most * tenths / 10 : most / 2;
    stages.push_back({effort, most - before,
                      std::max<std::int64_t>(0, counter.left() - all * counter.step_devices())});
    before = most;
    if (effort == request.effort) break;
  }
  return stages;
}

/// Searches with four times the candidates, for what the others leave of the budget: where ranks
/// are many, each candidate is one component and costs little of it, and the starts alone may take
/// most of the candidates of a search. What has been scored is not scored again.
[[nodiscard]] inline std::vector<SlimpackStage> longer_stages(const PlanRequest& request,
                                                              const SimulationCounter& counter) {
  constexpr std::int64_t kTimes = 4;
  std::vector<SlimpackStage> stages;
  for (SlimpackStage stage : slimpack_stages(request, counter)) {
    if (stage.effort == Effort::fast) continue;
    stage.most *= kTimes;
    stages.push_back(stage);
  }
  return stages;
}

/// Kicks after such searches, with twice their budget; of a thorough one that leaves most of its
/// budget, with four times the candidates again.
[[nodiscard]] inline std::vector<SlimpackStage> kick_stages(const PlanRequest& request,
                                                            const SimulationCounter& counter) {
  std::vector<SlimpackStage> stages = longer_stages(request, counter);
  for (SlimpackStage& stage : stages) {
    stage.end = std::max<std::int64_t>(0, 2 * stage.end - counter.left());
    if (stage.effort == Effort::thorough) stage.most *= 4;
  }
  return stages;
}

}  // namespace slimpack::planners::detail
