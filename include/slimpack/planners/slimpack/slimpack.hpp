// SPDX-License-Identifier: Apache-2.0
// The slimpack planner: two phases, packs of their own for each pass, searched by simulation.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/slimpack/options.hpp"

namespace slimpack::planners {

/// Plans a step with those ideas of slimpack that `options` switches on:
///
///     PlanRequest request;      // batch, model, cluster, dp, pp, tp ...
///     PlanOutcome outcome = plan_slimpack(request);
///     if (std::optional<Plan> plan = take_plan(std::move(outcome.result))) run(*plan);
///
/// Phase 1 assigns samples to data-parallel ranks by time, long ones to groups of ranks
/// (assignment.hpp). Phase 2 cuts the queue of each group into packs of equal time, for each pass
/// by itself (packs.hpp). The order of each device is found by simulation under the memory limit
/// (orders.hpp). Recomputation, place of the head, number of packs, ramps, sharing of samples,
/// order of samples, chunks and order of devices are searched within the effort's budget.
///
/// Candidates are timed on the ranks that hold the longest samples; the best is then planned for
/// all ranks and simulated, and where it does not fit there the next best. Components of ranks,
/// which share no pack, have packs and orders of their own: those that turn out slowest are
/// searched again. Throws InvalidInput as `check_request` does.
[[nodiscard]] SLIMPACK_PLANNERS_API PlanOutcome plan_slimpack(const PlanRequest& request,
                                                              std::string_view name = "slimpack",
                                                              const SlimpackOptions& options = {});

/// The planner with all of its ideas, or without one of them.
struct SlimpackVariant {
  std::string_view name;         ///< in lists and as `Plan::planner`
  std::string_view description;  ///< one line
  SlimpackOptions options;       ///< the ideas that it uses
};

/// slimpack, and its ablations: each the same code with one idea switched off, and without
/// consolidation, which would make up for a part of it.
inline constexpr std::array<SlimpackVariant, 6> kSlimpackVariants{{
    {"slimpack",
     "slimpack: balanced slices, packs of their own for each pass, long samples in "
     "context-parallel groups",
     {}},
    {"slimpack-symmetric",
     "slimpack with the same packs forward and backward",
     {.asymmetric = false, .consolidation = false}},
    {"slimpack-samples", "slimpack on whole samples", {.slicing = false, .consolidation = false}},
    {"slimpack-unmerged",
     "slimpack with every sample on one rank",
     {.merging = false, .consolidation = false}},
    {"slimpack-lasthead",
     "slimpack with the head on the last stage",
     {.shard_head = false, .consolidation = false}},
    {"slimpack-fused",
     "slimpack with the gradients of weights in B",
     {.weights = false, .consolidation = false}},
}};

/// The entry of a variant in a list of planners.
template <std::size_t variant>
[[nodiscard]] constexpr PlannerInfo slimpack_info() noexcept {
  constexpr const SlimpackVariant& kVariant = kSlimpackVariants[variant];
  PlannerInfo info{kVariant.name, kVariant.description, [](const PlanRequest& request) {
                     return plan_slimpack(request, kVariant.name, kVariant.options);
                   }};
  if (kVariant.options == SlimpackOptions{}) info.sharding_stages = 1;
  return info;
}

}  // namespace slimpack::planners

#ifndef SLIMPACK_COMPILED_PLANNERS
#include "slimpack/planners/slimpack/plan_slimpack.hpp"
#endif
