// SPDX-License-Identifier: Apache-2.0
// What a device held of each kind while time passed, one instant after the other.
#pragma once

#include <cstddef>
#include <span>

#include "slimpack/core/units.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::report::detail {

/// Calls visit(at, bytes by kind) at time 0 and at each later instant at which a kind changes, with
/// what is held from then on. `changes` are those of one device, by rising time. Nothing is stored,
/// because a large plan has millions of instants.
template <class Visit>
void for_each_level(const sim::MemoryByKind& always, std::span<const sim::TimedChange> changes,
                    Visit&& visit) {
  sim::MemoryByKind level = always;
  sim::MemoryByKind seen = level;
  std::size_t next = 0;
  for (bool first = true; first || next < changes.size(); first = false) {
    const Nanos now = first ? Nanos{} : changes[next].time;
    for (; next < changes.size() && changes[next].time == now; ++next) {
      level[static_cast<std::size_t>(changes[next].kind)] += changes[next].bytes;
    }
    if (first || level != seen) visit(now, level);
    seen = level;
  }
}

}  // namespace slimpack::report::detail
