// SPDX-License-Identifier: Apache-2.0
// --check: one planned step beside the unsliced, unpacked reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_cpu/reference.hpp"

namespace slimpack::trainer {

/// The largest difference between a gradient of the ranks' devices and the reference's, over its
/// tensor's largest value. `worst_tensor` becomes that tensor's name.
template <class Ranks>
[[nodiscard]] double gradient_difference(Ranks& ranks, const cpu::ReferenceResult& reference,
                                         std::string& worst_tensor) {
  double worst = 0;
  std::map<std::string, double> scales;
  for (const auto& [name, expected] : reference.gradients) {
    scales.emplace(name, cpu::detail::largest_value(expected));
  }
  ranks.each([&](const auto& device) {
    device.visit_gradients([&](const std::string& name, std::size_t first, auto values) {
      const cpu::Matrix& expected = reference.gradients.at(name);
      double largest = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double off = static_cast<double>(values[i]) - expected.values[first + i];
        largest = cpu::detail::worse(largest, std::abs(off));
      }
      const double difference = cpu::detail::relative(largest, scales.at(name));
      if (!(difference <= worst)) {
        worst = difference;
        worst_tensor = name;
      }
    });
  });
  return worst;
}

}  // namespace slimpack::trainer
