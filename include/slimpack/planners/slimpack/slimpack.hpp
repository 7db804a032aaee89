// SPDX-License-Identifier: Apache-2.0
// The slimpack planner: two phases, packs of their own for each pass, searched by simulation.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/slimpack/options.hpp"

namespace slimpack::planners {

/// Plans a step with those ideas of slimpack that `options` switches on. Samples are dealt to
/// data-parallel ranks by time, long ones to groups of ranks (pack/assign.hpp); the forward and the
/// backward line of each group are cut into packs of equal time (pack/cut.hpp); the order of each
/// device is found by simulation under the memory limit (schedule/list_schedule.hpp).
/// Recomputation, place of the head, packs a line, ramps, merging, order of samples, chunks and
/// order of devices are searched within the effort's budget. Candidates are timed on the ranks that
/// hold the longest samples; the best is then planned for all ranks and simulated, and where it
/// does not fit there the next best. Islands of ranks, which share no pack, have packs and orders
/// of their own: those that turn out slowest are searched again. Throws InvalidInput as
/// `check_request` does.
[[nodiscard]] SLIMPACK_PLANNERS_API PlanOutcome plan_slimpack(const PlanRequest& request,
                                                              std::string_view name = "slimpack",
                                                              const SlimpackOptions& options = {});

/// The planner with all of its ideas, or without one of them.
struct SlimpackVariant {
  std::string_view name;
  std::string_view description;  ///< one line
  SlimpackOptions options;
};

/// slimpack, and its ablations: each the same code with one idea switched off.
inline constexpr std::array<SlimpackVariant, 5> kSlimpackVariants{{
    {"slimpack",
     "slimpack: balanced slices, packs of their own for each pass, long samples merged",
     {}},
    {"slimpack-symmetric",
     "slimpack with the same packs forward and backward",
     {.asymmetric = false}},
    {"slimpack-samples", "slimpack on whole samples", {.slicing = false}},
    {"slimpack-unmerged", "slimpack with every sample on one rank", {.merging = false}},
    {"slimpack-lasthead", "slimpack with the head on the last stage", {.shard_head = false}},
}};

/// The entry of a variant in a list of planners.
template <std::size_t variant>
[[nodiscard]] constexpr PlannerInfo slimpack_info() noexcept {
  constexpr const SlimpackVariant& kVariant = kSlimpackVariants[variant];
  return {kVariant.name, kVariant.description, [](const PlanRequest& request) {
            return plan_slimpack(request, kVariant.name, kVariant.options);
          }};
}

}  // namespace slimpack::planners

#ifndef SLIMPACK_COMPILED_PLANNERS
#include "slimpack/planners/slimpack/plan_slimpack.hpp"
#endif
