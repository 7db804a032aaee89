// SPDX-License-Identifier: Apache-2.0
// The list behind planners/registry.hpp: a further planner is one include and one name here.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/bfd.hpp"
#include "slimpack/planners/published/chunkflow.hpp"
#include "slimpack/planners/published/dynapipe.hpp"
#include "slimpack/planners/published/fcp.hpp"
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

namespace detail {

/// "NAME-published".
template <Planner System>
inline constexpr auto kPublishedName = [] {
  constexpr std::string_view kEnd = "-published";
  std::array<char, System::name.size() + kEnd.size()> text{};
  std::copy(System::name.begin(), System::name.end(), text.begin());
  std::copy(kEnd.begin(), kEnd.end(), text.begin() + System::name.size());
  return text;
}();

/// The entry of a published system that is held to its publication.
template <Planner System>
[[nodiscard]] constexpr PlannerInfo published_info() noexcept {
  PlannerInfo info = planner_info<System>();
  info.name = {kPublishedName<System>.data(), kPublishedName<System>.size()};
  info.plan = [](const PlanRequest& request) {
    PlanRequest held = request;
    held.as_published = true;
    PlanOutcome outcome = System{}.plan(held);
    const std::string name(kPublishedName<System>.data(), kPublishedName<System>.size());
    if (auto* plan = std::get_if<Plan>(&outcome.result)) plan->planner = name;
    if (auto* step = std::get_if<SimulationOnlyPlan>(&outcome.result)) step->plan.planner = name;
    return outcome;
  };
  if constexpr (MultiStepPlanner<System>) {
    info.rebatch = [](std::vector<PlanRequest> steps) {
      for (PlanRequest& step : steps) step.as_published = true;
      steps = System{}.rebatch(std::move(steps));
      for (PlanRequest& step : steps) step.as_published = false;
      return steps;
    };
  }
  return info;
}

/// The lists of all planners, made from those of published systems.
template <Planner... Systems>
struct PlannerLists {
  static constexpr std::array strengthened{
      slimpack_info<0>(), slimpack_info<1>(), slimpack_info<2>(),        slimpack_info<3>(),
      slimpack_info<4>(), slimpack_info<5>(), planner_info<Systems>()...};
  static constexpr std::array published{published_info<Systems>()...};
};

/// Published systems in the order in which lists print them.
using AllPlanners =
    PlannerLists<Megatron, MegatronInterleaved, MegatronCp, SlimpipeOrder, Slimpipe, WlbLlm,
                 Zeppelin, Chunkflow, Dynapipe, Infinipipe, Bfd, FlexSp, HybridCp, Kk, Fcp>;

}  // namespace detail

SLIMPACK_PLANNERS_API std::span<const PlannerInfo> registry() noexcept {
  return detail::AllPlanners::strengthened;
}
SLIMPACK_PLANNERS_API std::span<const PlannerInfo> published_forms() noexcept {
  return detail::AllPlanners::published;
}

SLIMPACK_PLANNERS_API const PlannerInfo& find_planner(std::string_view name) {
  std::string known;
  for (const std::span<const PlannerInfo> list : {registry(), published_forms()}) {
    const auto found = std::ranges::find(list, name, &PlannerInfo::name);
    if (found != list.end()) return *found;
    for (const PlannerInfo& planner : list) {
      if (!known.empty()) known += ", ";
      known += planner.name;
    }
  }
  throw InvalidInput("planner must be one of " + known + ", got '" + std::string(name) + "'");
}

}  // namespace slimpack::planners
