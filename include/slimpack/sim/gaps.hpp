// SPDX-License-Identifier: Apache-2.0
// Why each device's compute was idle, nanosecond by nanosecond.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/gap_finder.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// The idle intervals of all devices between 0 and the makespan, each with its cause.
struct Gaps {
  std::vector<Gap> gaps;                              ///< by device, then time
  std::vector<std::array<Nanos, kGapCauses>> device;  ///< sums, one entry a device
  std::array<Nanos, kGapCauses> sum{};                ///< over all devices
};

/// Partitions the idle time of every device by cause. `limit` is what a device may hold, capacity
/// less what is reserved. F, B and H count as work. Before a device's first work it is `fill`;
/// after its last, `drain` while its own data-parallel rank works, then `imbalance` while another
/// does, then `reduce`. In between the device waits for its next unit: from the instant at which
/// another of its units could have gone first, `order`, or `memory` where starting that unit would
/// have exceeded `limit`; before that `collective` once everything of its own is there, else
/// `window` or `peer` by what came last, `peer` on a tie. Units that could have gone first are, per
/// channel and kind of unit, the next in the schedule, where they meet no other device. O(nodes +
/// events log events + gaps x channels of the device).
[[nodiscard]] inline Gaps find_gaps(const Dag& dag, const Timeline& timeline, Bytes limit) {
  Gaps found;
  found.gaps = detail::GapFinder(dag, timeline, limit).find();
  found.device.resize(dag.devices.size());
  for (const Gap& gap : found.gaps) {
    const auto cause = static_cast<std::size_t>(gap.cause);
    found.device[index(gap.device)][cause] += gap.end - gap.begin;
    found.sum[cause] += gap.end - gap.begin;
  }
  return found;
}

}  // namespace slimpack::sim
