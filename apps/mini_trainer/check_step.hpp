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

/// The whole model's weights as these devices have them: each rank computes the reference from its
/// own start, so `weights` come from the seed or a folder.
template <class Device>
[[nodiscard]] double gradient_difference(std::span<Device> devices,
                                         const cpu::ReferenceResult& reference,
                                         std::string& worst_tensor) {
  double worst = 0;
  for (const Device& device : devices) {
    for (const exec::HeldTensor& tensor : device.tensors()) {
      const cpu::Matrix& expected = reference.gradients.at(tensor.shape.name);
      const double difference =
          cpu::detail::relative(cpu::detail::largest_difference<typename Device::Number>(
                                    device.gradients(tensor), expected, tensor.first_row),
                                cpu::detail::largest_value(expected));
      if (!(difference <= worst)) {
        worst = difference;
        worst_tensor = tensor.shape.name;
      }
    }
  }
  return worst;
}

}  // namespace slimpack::trainer
