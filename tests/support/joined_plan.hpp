// SPDX-License-Identifier: Apache-2.0
// The same step with no gradients of weights apart, or with all of them.
#pragma once

#include <algorithm>
#include <cstddef>
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

/// The plan, which has no W, with weights apart in all of B: one W for all samples of a group, in
/// front of R.
[[nodiscard]] inline Plan split(Plan plan) {
  plan.version = 2;
  std::vector<MicroPack> weights;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    MicroPack pack{Pass::weight, static_cast<GroupId>(group), {}, {}, Recompute::none};
    for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
      if (plan.sample_group[sample] != pack.group) continue;
      pack.slices.push_back({static_cast<SampleId>(sample), Tokens{0}, plan.samples[sample]});
    }
    if (!pack.slices.empty()) weights.push_back(pack);
  }
  for (MicroPack& pack : plan.micropacks) {
    if (pack.pass == Pass::backward) pack.weights = WeightGradients::apart;
  }
  const std::size_t before = plan.micropacks.size();
  plan.micropacks.insert(plan.micropacks.end(), weights.begin(), weights.end());
  for (DeviceSchedule& device : plan.schedule) {
    std::vector<Unit> order;
    for (const Unit& unit : device.order) {
      for (std::size_t i = 0; unit.kind == UnitKind::reduce && i < weights.size(); ++i) {
        const auto& ranks = plan.groups[index(weights[i].group)];
        if (std::find(ranks.begin(), ranks.end(), device.dp) == ranks.end()) continue;
        order.push_back({UnitKind::weight, static_cast<PackId>(before + i), unit.chunk});
      }
      order.push_back(unit);
    }
    device.order = std::move(order);
  }
  return plan;
}

}  // namespace slimpack::test
