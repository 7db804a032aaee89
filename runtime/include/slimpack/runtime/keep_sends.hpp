// SPDX-License-Identifier: Apache-2.0
// How long the buffers of sent messages stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/runtime/program.hpp"

namespace slimpack::runtime {

/// Has the buffers of messages stay as long as a simulation says (`send_ends`), by device and unit,
/// so that what devices hold does not depend on which of them is a moment early. Without this a
/// buffer goes before the first unit that begins when its message has been sent. Throws
/// InvalidInput unless there is an entry a unit. O(messages).
inline void keep_sends(Program& program, std::span<const std::vector<std::size_t>> ends) {
  require(ends.size() == program.devices.size(), "execution: ends of sends must be given by device",
          static_cast<std::int64_t>(ends.size()));
  for (std::size_t device = 0; device < ends.size(); ++device) {
    const auto& units = program.devices[device].units;
    require(ends[device].size() == units.size(),
            "execution: ends of sends must be given for every unit of device",
            static_cast<std::int64_t>(device));
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (const auto& send = units[unit].send) {
        program.channels[send->channel].messages[send->index].kept_until = ends[device][unit];
      }
    }
  }
}

}  // namespace slimpack::runtime
