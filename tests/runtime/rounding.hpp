// SPDX-License-Identifier: Apache-2.0
// How far rounding of weights to fp32 moves a step's gradients.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slimpack/core/random.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cpu/check_plan.hpp"

namespace slimpack::test {

/// The largest change of the oracle's gradients, over each tensor's largest, if every weight moves
/// by up to an fp32 unit: no fp32 computation can be held to less.
[[nodiscard]] inline double change_by_rounding(const Plan& plan, const runtime::StepData& data,
                                               std::uint64_t seed) {
  cpu::Tensors weights = cpu::initial_weights(plan.model, seed);
  const auto before = cpu::reference_step(plan.model, weights, data);
  Random random(seed);
  for (auto& [name, weight] : weights) {
    for (double& value : weight.values) value *= 1.0 + (random.unit() - 0.5) * 0x1p-22;
  }
  const auto after = cpu::reference_step(plan.model, weights, data);
  double worst = 0;
  for (const auto& [name, gradient] : before.gradients) {
    const double largest = cpu::detail::largest_value(gradient);
    if (largest == 0) continue;
    const runtime::HeldTensor whole{
        {name, gradient.rows, gradient.cols}, 0, gradient.rows, 0, 0, gradient.cols};
    worst = std::max(worst, cpu::detail::largest_difference<double>(after.gradients.at(name).values,
                                                                    gradient, whole) /
                                largest);
  }
  return worst;
}

}  // namespace slimpack::test
