// SPDX-License-Identifier: Apache-2.0
// What a simulation answers: when each node ran, and what each device did and held.
#pragma once

#include <concepts>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::sim {

/// The most bytes a device held, and the first instant at which it did.
struct MemoryPeak {
  Bytes bytes;
  Nanos time;
  friend bool operator==(const MemoryPeak&, const MemoryPeak&) = default;
};

struct Timeline {
  std::vector<Nanos> start, end;  ///< one a node
  Nanos makespan;
  std::vector<Nanos> busy;       ///< one a device: the durations of its compute nodes
  std::vector<MemoryPeak> peak;  ///< one a device
  NodeLists turns;  ///< one row a resource: its nodes as they went where that is first come, else
                    ///< empty
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// The figures of a simulated plan that a prediction carries.
struct PlanFigures {
  Nanos iteration;
  std::vector<Nanos> busy;  ///< one a device
  std::vector<Bytes> peak;  ///< one a device
  friend bool operator==(const PlanFigures&, const PlanFigures&) = default;
};

/// What watches memory during a simulation.
/// Laws: called once for each instant at which a device's bytes change, with what it holds from
/// then on, all that ends at the instant freed and all that starts allocated; each device's times
/// rise.
template <class Observer>
concept MemoryObserver = requires(Observer& observer, DeviceId device, Nanos time, Bytes level) {
  observer.memory(device, time, level);
};

struct IgnoreMemory {
  static void memory(DeviceId, Nanos, Bytes) noexcept {}
};
static_assert(MemoryObserver<IgnoreMemory> && !MemoryObserver<int>);

struct MemoryPoint {
  Nanos time;
  Bytes bytes;
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

/// Keeps the whole curve of every device: a step function, each point up to the next.
struct MemoryCurves {
  std::vector<std::vector<MemoryPoint>> device;
  void memory(DeviceId of, Nanos time, Bytes level) {
    if (device.size() <= index(of)) device.resize(index(of) + 1);
    device[index(of)].push_back({time, level});
  }
};

}  // namespace slimpack::sim
