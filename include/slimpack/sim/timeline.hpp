// SPDX-License-Identifier: Apache-2.0
// What a simulation answers: when each node ran, and what each device did, held and waited for.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
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

/// `fill` before the first unit, `drain`, `imbalance` and `reduce` after the last; in between, what
/// was waited for: a `peer`'s message, the others of a `collective`, a send slot of the `window`,
/// `memory`, or nothing but the schedule's own `order`.
enum class GapCause : std::uint8_t {
  fill,
  drain,
  imbalance,
  reduce,
  peer,
  collective,
  max_in_flight,
  memory,
  order
};

}  // namespace slimpack::sim

namespace slimpack {
/// The words of `sim::GapCause`.
template <>
inline constexpr std::array<std::string_view, 9> kWords<sim::GapCause>{
    "fill", "drain", "imbalance", "reduce", "peer", "meeting", "window", "memory", "order"};
}  // namespace slimpack

namespace slimpack::sim {

/// The number of values of `GapCause`.
inline constexpr int kGapCauses = static_cast<int>(kWords<GapCause>.size());

/// The device's compute is idle in [begin, end).
struct Gap {
  DeviceId device{};
  Nanos begin, end;
  GapCause cause{};
  std::optional<NodeId> instead{};  ///< `memory`, `order`: the first unit that could have gone
  friend bool operator==(const Gap&, const Gap&) = default;
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

/// What each device held, by kind, at the first instant of its peak: sums to `peak[device].bytes`.
/// O(nodes + events).
[[nodiscard]] inline std::vector<MemoryByKind> memory_at_peaks(const Dag& dag,
                                                               const Timeline& timeline) {
  std::vector<MemoryByKind> held;
  held.reserve(dag.devices.size());
  for (const DagDevice& device : dag.devices) held.push_back(device.always);
  const auto add = [&](const MemoryEvent& event) {
    held[index(event.device)][static_cast<std::size_t>(event.kind)] += event.bytes;
  };
  for (const MemoryEvent& event : dag.initial_memory) add(event);
  for (std::size_t i = 0; i < dag.size(); ++i) {
    const NodeId node{static_cast<std::uint32_t>(i)};
    for (const MemoryEvent& event : dag.memory_at(node, Moment::start)) {
      if (timeline.start[i] <= timeline.peak[index(event.device)].time) add(event);
    }
    for (const MemoryEvent& event : dag.memory_at(node, Moment::end)) {
      if (timeline.end[i] <= timeline.peak[index(event.device)].time) add(event);
    }
  }
  return held;
}

/// A change of one device's memory, with the kind for those who ask.
struct TimedChange {
  Nanos time;
  MemoryKind kind{};
  Bytes bytes;
};

/// The changes of every device, each row by rising time.
[[nodiscard]] inline std::vector<std::vector<TimedChange>> timed_changes(
    const Dag& dag, std::span<const Nanos> start, std::span<const Nanos> end) {
  require(start.size() == dag.size() && end.size() == dag.size(),
          "memory: there must be a start and an end a node",
          static_cast<std::int64_t>(start.size()));
  std::vector<std::vector<TimedChange>> changes(dag.devices.size());
  for (const MemoryEvent& event : dag.initial_memory) {
    changes[index(event.device)].push_back({Nanos{}, event.kind, event.bytes});
  }
  for (std::size_t i = 0; i < dag.size(); ++i) {
    const NodeId node{static_cast<std::uint32_t>(i)};
    for (const Moment moment : {Moment::start, Moment::end}) {
      const Nanos when = moment == Moment::start ? start[i] : end[i];
      for (const MemoryEvent& event : dag.memory_at(node, moment)) {
        changes[index(event.device)].push_back({when, event.kind, event.bytes});
      }
    }
  }
  for (std::vector<TimedChange>& row : changes) {
    std::sort(row.begin(), row.end(),
              [](const TimedChange& a, const TimedChange& b) { return a.time < b.time; });
  }
  return changes;
}

/// The peaks of any run of the DAG's nodes, such as one in frozen order; equal to the simulator's
/// for its own timeline. O(nodes + events log events).
[[nodiscard]] inline std::vector<MemoryPeak> memory_peaks(const Dag& dag,
                                                          std::span<const Nanos> start,
                                                          std::span<const Nanos> end) {
  std::vector<MemoryPeak> peaks;
  const auto changes = timed_changes(dag, start, end);
  for (std::size_t device = 0; device < changes.size(); ++device) {
    MemoryPeak peak;
    Bytes level = total(dag.devices[device].always);
    Nanos now;
    for (const TimedChange& change : changes[device]) {
      if (change.time != now) {
        if (level > peak.bytes) peak = {level, now};
        now = change.time;
      }
      level += change.bytes;
    }
    if (level > peak.bytes) peak = {level, now};
    peaks.push_back(peak);
  }
  return peaks;
}

/// What a device holds from an instant on, up to the next point.
struct KindPoint {
  Nanos time;
  MemoryByKind bytes{};
  friend bool operator==(const KindPoint&, const KindPoint&) = default;
};

/// The memory curve of every device by kind, from 0 on, one point an instant at which something
/// changes. O(nodes + events log events); its size is that of the events, so ask for it to draw.
[[nodiscard]] inline std::vector<std::vector<KindPoint>> memory_curves(const Dag& dag,
                                                                       const Timeline& timeline) {
  std::vector<std::vector<KindPoint>> curves;
  for (const auto& row : timed_changes(dag, timeline.start, timeline.end)) {
    std::vector<KindPoint> curve{{Nanos{}, dag.devices[curves.size()].always}};
    for (const TimedChange& change : row) {
      if (change.time != curve.back().time) curve.push_back({change.time, curve.back().bytes});
      curve.back().bytes[static_cast<std::size_t>(change.kind)] += change.bytes;
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

}  // namespace slimpack::sim
