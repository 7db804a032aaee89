// SPDX-License-Identifier: Apache-2.0
// When units ran.
#pragma once

#include "slimpack/core/units.hpp"

namespace slimpack::trainer {

/// When a unit of the device's order ran, since the step began on the device.
struct UnitTime {
  Nanos begin, end;
};

}  // namespace slimpack::trainer
