// SPDX-License-Identifier: Apache-2.0
// When the units of device orders run and what devices hold, as list scheduling finds them.
#pragma once

#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack::schedule {

/// What one device does by its order, O and what R takes left out.
struct DeviceTimes {
  /// R of a chunk, behind a unit that runs from `start` to `end`.
  struct Reduction {
    std::int32_t chunk = 0;          ///< of which gradients are reduced
    std::int64_t start = 0;          ///< of the unit before, in nanoseconds
    std::int64_t end = 0;            ///< of that unit
    bool last_of_its_chunk = false;  ///< that unit is the last B or W of the chunk
  };
  std::int64_t worked = 0;            ///< sum of the times of its F, B, H and W, in nanoseconds
  std::int64_t end = 0;               ///< of the last of them
  Bytes peak;                         ///< most bytes that it holds at one time
  std::vector<Reduction> reductions;  ///< in its order
};

/// The same of all devices of a plan, by their places in `Plan::schedule`.
struct OrderTimes {
  std::vector<DeviceTimes> devices;  ///< one a device
  /// Whether these are the times at which the orders run. False where messages may share a link in
  /// another turn; then the orders have to be simulated.
  bool exact = true;
};

}  // namespace slimpack::schedule
