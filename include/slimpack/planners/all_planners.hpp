// SPDX-License-Identifier: Apache-2.0
// The list behind planners/registry.hpp: a further planner is one include and one line here.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/bfd.hpp"
#include "slimpack/planners/published/chunkflow.hpp"
#include "slimpack/planners/published/dynapipe.hpp"
#include "slimpack/planners/published/flexsp.hpp"
#include "slimpack/planners/published/hybrid_cp.hpp"
#include "slimpack/planners/published/infinipipe.hpp"
#include "slimpack/planners/published/kk.hpp"
#include "slimpack/planners/published/megatron.hpp"
#include "slimpack/planners/published/slimpipe.hpp"
#include "slimpack/planners/published/wlb_llm.hpp"
#include "slimpack/planners/published/zeppelin.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"

namespace slimpack::planners {

/// What `registry` gives; the position of an entry is its place in lists.
inline constexpr std::array kPlanners{
    slimpack_info<0>(),
    slimpack_info<1>(),
    slimpack_info<2>(),
    slimpack_info<3>(),
    slimpack_info<4>(),
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

SLIMPACK_PLANNERS_API std::span<const PlannerInfo> registry() noexcept {
  return kPlanners;
}

SLIMPACK_PLANNERS_API const PlannerInfo& find_planner(std::string_view name) {
  const auto found = std::ranges::find(kPlanners, name, &PlannerInfo::name);
  if (found != kPlanners.end()) return *found;
  std::string known;
  for (const PlannerInfo& planner : kPlanners) {
    if (!known.empty()) known += ", ";
    known += planner.name;
  }
  throw InvalidInput("planner must be one of " + known + ", got '" + std::string(name) + "'");
}

}  // namespace slimpack::planners
