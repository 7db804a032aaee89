// SPDX-License-Identifier: Apache-2.0
// A time before which no device of a plan can have done its part of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::sim {

/// For each device of a plan, in the order of its schedule, a time before which the step cannot end
/// because of that device: all its units, without a wait; what the last of them, where that is a B,
/// still has to run through on the stages before; and O. At any moment the time that the device has
/// waited so far comes on top. The plan must keep rules 1 to 5. O(units + devices x virtual
/// stages).
template <UnitTimes Times>
[[nodiscard]] std::vector<Nanos> least_ends(const Plan& plan, const Times& times) {
  const VirtualStages lines = virtual_stages_of(plan);
  std::vector<Nanos> ends;
  ends.reserve(plan.schedule.size());
  for (const DeviceSchedule& device : plan.schedule) {
    const auto rank = [&](PackId pack) {
      return place_in_group(plan, plan.micropacks[index(pack)].group, device.dp);
    };
    Nanos end;
    const Unit* last = nullptr;
    for (const Unit& unit : device.order) {
      if (!names_pack(unit.kind)) continue;
      last = &unit;
      if (unit.kind == UnitKind::head) {
        end += times.head(unit.pack, rank(unit.pack), device.pp);
      } else if (unit.kind == UnitKind::weight) {
        end += weight_time(times, unit.pack, lines.index(device.pp, unit.chunk), rank(unit.pack));
      } else {
        end += times.compute(unit.pack, lines.index(device.pp, unit.chunk));
      }
    }
    std::int32_t at = device.pp;
    if (last != nullptr && last->kind == UnitKind::backward) {
      for (std::int32_t line = lines.index(device.pp, last->chunk); line > 0; --line) {
        if (lines.pp > 1) end += times.transfer(last->pack, line, rank(last->pack));
        end += times.compute(last->pack, line - 1);
        at = (line - 1) % lines.pp;
      }
    }
    ends.push_back(end + times.optimizer(device.dp, at));
  }
  return ends;
}

}  // namespace slimpack::sim
