// SPDX-License-Identifier: Apache-2.0
// Which plans can be executed at all.
#pragma once

#include <algorithm>
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
/// devices, groups and samples that do not fit together; weights that ranks share with more than
/// one stage or chunk, or without sharing the optimizer state.
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
  if (plan.memory.weights != WeightState::sharded) return;
  require(plan.parallel.pp == 1, "execution: sharded weights need parallel.pp 1", plan.parallel.pp);
  require(plan.parallel.chunks == 1, "execution: sharded weights need parallel.chunks 1",
          plan.parallel.chunks);
  require(plan.parallel.dp > 1, "execution: sharded weights need parallel.dp > 1",
          plan.parallel.dp);
  require(plan.memory.optimizer == OptimizerState::sharded,
          "execution: sharded weights need sharded optimizer state");
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

/// Ranks that share weights gather and sum them in every unit: throws unless all run units of one
/// kind at one time, those of a group the same MicroPack, and none leaves gradients to W, which
/// would find the weights of its layers gone.
inline void check_rounds(const Plan& plan) {
  if (plan.memory.weights != WeightState::sharded) return;
  const auto wrong = [](const DeviceSchedule& device, std::size_t place, const std::string& rule) {
    require(false,
            "execution: sharded weights need " + rule + ", not so rank " +
                std::to_string(device.dp) + " at unit",
            static_cast<std::int64_t>(place));
  };
  const std::vector<Unit>& first = plan.schedule.front().order;
  for (const DeviceSchedule& device : plan.schedule) {
    if (device.order.size() != first.size()) {
      wrong(device, std::min(device.order.size(), first.size()), "as many units on all ranks");
    }
    for (std::size_t place = 0; place < device.order.size(); ++place) {
      const Unit& unit = device.order[place];
      if (unit.kind != first[place].kind) wrong(device, place, "units of one kind on all ranks");
      if (!names_pack(unit.kind)) continue;
      const MicroPack& pack = plan.micropacks[index(unit.pack)];
      if (pack.pass == Pass::weight || pack.weights == WeightGradients::apart) {
        wrong(device, place, "the gradients of weights to be computed in B");
      }
      for (const std::int32_t rank : plan.groups[index(pack.group)]) {
        const std::vector<Unit>& other = plan.schedule[static_cast<std::size_t>(rank)].order;
        if (place >= other.size() || other[place] != unit) {
          wrong(device, place, "a MicroPack at one place of all its ranks' orders");
        }
      }
    }
  }
}

}  // namespace detail

}  // namespace slimpack::runtime
