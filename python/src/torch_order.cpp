// SPDX-License-Identifier: Apache-2.0
#include "torch_order.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "slimpack/cost/price.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::python {

bool weight_packs_are_unions(const Plan& plan) {
  std::map<Slice, std::size_t> backward;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.weights != WeightGradients::apart) continue;
    for (const Slice& slice : pack.slices) backward.emplace(slice, i);
  }
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass != Pass::weight) continue;
    std::map<std::size_t, std::size_t> found;
    for (const Slice& slice : pack.slices) {
      const auto place = backward.find(slice);
      if (place == backward.end()) return false;
      ++found[place->second];
    }
    for (const auto& [i, slices] : found) {
      if (slices != plan.micropacks[i].slices.size()) return false;
    }
  }
  return true;
}

std::optional<Infeasible> order_for_torch(Plan& plan) {
  SLIMPACK_ASSERT(plan.parallel.head == LmHead::last);
  for (DeviceSchedule& device : plan.schedule) {
    if (device.pp != plan.parallel.pp - 1) continue;
    std::vector<Unit> order;
    for (const Unit& unit : device.order) {
      if (unit.kind == UnitKind::head) continue;
      order.push_back(unit);
      if (unit.kind == UnitKind::forward && unit.chunk == plan.parallel.chunks - 1) {
        order.push_back({UnitKind::head, unit.pack, 0});
      }
    }
    device.order = std::move(order);
  }
  const Validation validation = validate(plan);
  if (!validation.valid()) {
    // Gradients of hidden states live longer; no other rule minds an earlier H.
    SLIMPACK_ASSERT(validation.violations.front().rule == 7);
    const Bytes most = *std::ranges::max_element(validation.worst_case_peak);
    return Infeasible{"bytes of memory on a device, with H right after F", most.value,
                      (plan.memory.capacity - plan.memory.reserved).value};
  }
  sim::fill_prediction(plan.prediction, sim::simulate_plan(plan, PricedPlan(plan)));
  return std::nullopt;
}

}  // namespace slimpack::python
