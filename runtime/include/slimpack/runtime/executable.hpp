// SPDX-License-Identifier: Apache-2.0
// Which plans can be executed at all.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/structure.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::runtime {

/// Throws InvalidInput if a plan cannot be executed at all: tensor parallelism that does not divide
/// the model or is of version 1, whose memory has no room for whole rows, or tables of stages,
/// devices, groups and samples that do not fit together.
inline void check_executable(const Plan& plan) {
  require_layout(plan, "execution");
  require_divisible(plan, "execution");
  require(plan.parallel.tp == 1 || plan.version >= 2,
          "execution: tensor parallelism needs a plan of version 2", plan.version);
  require(plan.memory.head_tile >= Tokens{1}, "execution: memory.head_tile must be >= 1",
          plan.memory.head_tile.value);
  std::int64_t layer = 0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const std::string place = "execution: stages[" + std::to_string(i) + "]";
    require(stage.first_layer == layer, place + ".layers must continue at " + std::to_string(layer),
            stage.first_layer);
    require(stage.embedding == (i == 0), place + ".embedding must be true of the first stage only");
    layer = stage.end_layer;
  }
  require(layer == plan.model.layers, "execution: stages must end at model.layers", layer);
}

namespace detail {

/// Throws unless all of `devices` list the units that take part in the same order.
template <std::predicate<const Unit&> TakesPart>
void check_same_order(const Plan& plan, const std::vector<std::size_t>& devices,
                      const std::string& what, TakesPart takes_part) {
  std::vector<Unit> first;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    std::vector<Unit> units;
    for (const Unit& unit : plan.schedule[devices[i]].order) {
      if (takes_part(unit)) units.push_back(unit);
    }
    if (i == 0) first = units;
    require(units == first,
            "execution: " + what + " must run their collectives in one order, not so device",
            static_cast<std::int64_t>(devices[i]));
  }
}

inline void check_process_groups(const Plan& plan) {
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.groups[group].size() == 1) continue;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      std::vector<std::size_t> devices;
      for (const std::int32_t dp : plan.groups[group]) {
        devices.push_back(device_index(plan, dp, pp));
      }
      check_same_order(
          plan, devices, "the ranks of group " + std::to_string(group), [&](const Unit& unit) {
            return (unit.kind == UnitKind::forward || unit.kind == UnitKind::backward) &&
                   index(plan.micropacks[index(unit.pack)].group) == group;
          });
    }
  }
  if (plan.parallel.head == LmHead::last) return;
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    std::vector<std::size_t> devices;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      devices.push_back(device_index(plan, dp, pp));
    }
    check_same_order(plan, devices, "the stages of rank " + std::to_string(dp),
                     [](const Unit& unit) { return unit.kind == UnitKind::head; });
  }
}

}  // namespace detail

}  // namespace slimpack::runtime
