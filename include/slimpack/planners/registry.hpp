// SPDX-License-Identifier: Apache-2.0
// All planners by name: a further planner is one include and one line here.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/planners/bfd.hpp"
#include "slimpack/planners/chunkflow.hpp"
#include "slimpack/planners/dynapipe.hpp"
#include "slimpack/planners/flexsp.hpp"
#include "slimpack/planners/hybrid_cp.hpp"
#include "slimpack/planners/infinipipe.hpp"
#include "slimpack/planners/kk.hpp"
#include "slimpack/planners/megatron.hpp"
#include "slimpack/planners/megatron_cp.hpp"
#include "slimpack/planners/megatron_interleaved.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/slimpack.hpp"
#include "slimpack/planners/slimpipe.hpp"
#include "slimpack/planners/slimpipe_order.hpp"
#include "slimpack/planners/wlb_llm.hpp"
#include "slimpack/planners/zeppelin.hpp"

namespace slimpack {

inline constexpr std::array kPlanners{
    planner_info<Slimpack>(),
    planner_info<SlimpackSymmetric>(),
    planner_info<SlimpackSamples>(),
    planner_info<SlimpackUnmerged>(),
    planner_info<SlimpackLasthead>(),
    planner_info<Megatron>(),
    planner_info<MegatronInterleaved>(),
    planner_info<MegatronCp>(),
    planner_info<SlimpipeOrder>(),
    planner_info<Slimpipe>(),
    planner_info<WlbLlm>(),
    planner_info<Zeppelin>(),
    planner_info<Chunkflow>(),
    planner_info<Dynapipe>(),
    planner_info<Infinipipe>(),
    planner_info<Bfd>(),
    planner_info<FlexSp>(),
    planner_info<HybridCp>(),
    planner_info<Kk>(),
};

/// Every planner, in the order in which lists print them.
[[nodiscard]] constexpr std::span<const PlannerInfo> planners() noexcept {
  return kPlanners;
}

/// The planner of that name. Throws InvalidInput that lists the names there are.
[[nodiscard]] inline const PlannerInfo& find_planner(std::string_view name) {
  const auto found = std::ranges::find(kPlanners, name, &PlannerInfo::name);
  if (found != kPlanners.end()) return *found;
  std::string known;
  for (const PlannerInfo& planner : kPlanners) {
    if (!known.empty()) known += ", ";
    known += planner.name;
  }
  throw InvalidInput("planner must be one of " + known + ", got '" + std::string(name) + "'");
}

}  // namespace slimpack
