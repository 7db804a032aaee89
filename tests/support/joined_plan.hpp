// SPDX-License-Identifier: Apache-2.0
// The same step with no gradients of weights apart.
#pragma once

#include <vector>

#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

/// The plan without W: every B computes the gradients of weights. Its weight packs, which must come
/// last, are left out, so that other packs keep their numbers.
[[nodiscard]] inline Plan joined(Plan plan) {
  std::erase_if(plan.micropacks, [](const MicroPack& pack) { return pack.pass == Pass::weight; });
  for (MicroPack& pack : plan.micropacks) pack.weights = WeightGradients::with;
  for (DeviceSchedule& device : plan.schedule) {
    std::erase_if(device.order, [](const Unit& unit) { return unit.kind == UnitKind::weight; });
  }
  return plan;
}

}  // namespace slimpack::test
