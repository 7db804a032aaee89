// SPDX-License-Identifier: Apache-2.0
// --check: one planned step beside the unsliced, unpacked reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
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
  using Stored = typename Ranks::Device::Stored;
  double worst = 0;
  ranks.each([&](const auto& device) {
    for (const exec::HeldTensor& tensor : device.tensors()) {
      const cpu::Matrix& expected = reference.gradients.at(tensor.shape.name);
      const auto& gradients = device.gradients(tensor);
      const double difference = cpu::detail::relative(
          cpu::detail::largest_difference<Stored>(gradients, expected, tensor.first_row),
          cpu::detail::largest_value(expected));
      if (!(difference <= worst)) {
        worst = difference;
        worst_tensor = tensor.shape.name;
      }
    }
  });
  return worst;
}

}  // namespace slimpack::trainer
