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

/// The most bytes that a device held, and the first instant at which it did.
struct MemoryPeak {
  Bytes bytes;  ///< weights, gradients and optimizer state included
  Nanos time;   ///< from the start of the step
  friend bool operator==(const MemoryPeak&, const MemoryPeak&) = default;
};

/// A simulated Dag. Times count from the start of the step, in nanoseconds.
///
///     const Timeline timeline = simulate(dag);
///     const Nanos first = timeline.start[index(node)];
///     const Bytes most = timeline.peak[index(device)].bytes;
struct Timeline {
  std::vector<Nanos> start;      ///< one a node
  std::vector<Nanos> end;        ///< one a node
  Nanos makespan;                ///< when the last node ends
  std::vector<Nanos> busy;       ///< one a device: the durations of its compute nodes
  std::vector<MemoryPeak> peak;  ///< one a device
  /// One row a resource: its nodes in the order in which they were served, where that is first
  /// come, first served; else empty.
  NodeLists turns;
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// Why a device's compute is idle (`find_gaps`).
enum class GapCause : std::uint8_t {
  fill,           ///< before the device's first F, B or H
  drain,          ///< after its last, while another stage of its data-parallel rank works
  imbalance,      ///< after its last, while another data-parallel rank works
  reduce,         ///< after all F, B and H: gradients are reduced
  peer,           ///< a neighbour's message has not arrived
  collective,     ///< other devices have not reached the collective
  max_in_flight,  ///< as many messages as allowed are in flight, so the unit cannot send
  memory,         ///< another unit is ready, but there is no room for it
  order           ///< another unit is ready and fits, but the schedule has it later
};

}  // namespace slimpack::sim

namespace slimpack {
// The words of `sim::GapCause`.
template <>
inline constexpr std::array<std::string_view, 9> kWords<sim::GapCause>{
    "fill", "drain", "imbalance", "reduce", "peer", "meeting", "window", "memory", "order"};
}  // namespace slimpack

namespace slimpack::sim {

/// The number of values of `GapCause`.
inline constexpr int kGapCauses = static_cast<int>(kWords<GapCause>.size());

/// An idle interval [begin, end) of a device's compute.
struct Gap {
  DeviceId device{};                ///< whose compute is idle
  Nanos begin;                      ///< when it becomes idle
  Nanos end;                        ///< when its next unit starts
  GapCause cause{};                 ///< why it is idle
  std::optional<NodeId> instead{};  ///< `memory`, `order`: the first unit that could have gone
  friend bool operator==(const Gap&, const Gap&) = default;
};

/// The figures of a simulated plan that a prediction carries.
struct PlanFigures {
  Nanos iteration;          ///< the simulated iteration time
  std::vector<Nanos> busy;  ///< one a device
  std::vector<Bytes> peak;  ///< one a device
  friend bool operator==(const PlanFigures&, const PlanFigures&) = default;
};

/// What observes memory during a simulation.
/// Laws: `memory(device, time, level)` is called once for each instant at which a device's bytes
/// change. `level` is what it holds from then on: all that ends at the instant is freed, all that
/// starts is allocated. The times of each device rise.
template <class Observer>
concept MemoryObserver = requires(Observer& observer, DeviceId device, Nanos time, Bytes level) {
  observer.memory(device, time, level);
};

/// Observes nothing.
struct IgnoreMemory {
  /// Does nothing.
  static void memory(DeviceId, Nanos, Bytes) noexcept {}
};
static_assert(MemoryObserver<IgnoreMemory> && !MemoryObserver<int>);

/// What a device holds from `time` on.
struct MemoryPoint {
  Nanos time;   ///< from when on
  Bytes bytes;  ///< that the device holds
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

/// An observer that keeps the whole curve of every device: a step function, each point valid up to
/// the next.
///
///     MemoryCurves curves;
///     const Timeline timeline = simulate(dag, curves);
struct MemoryCurves {
  std::vector<std::vector<MemoryPoint>> device;  ///< by DeviceId
  /// Appends a point to a device's curve.
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

/// A change of one device's memory.
struct TimedChange {
  Nanos time;         ///< when
  MemoryKind kind{};  ///< what the bytes hold
  Bytes bytes;        ///< allocated (positive) or freed (negative)
};

/// The changes of every device, each row by rising time. Throws InvalidInput if `start` or `end`
/// has not one entry a node. O(nodes + events log events).
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

/// The peaks of any run of the DAG's nodes, such as one of a TopologicalDag; equal to the
/// simulator's for its own timeline. O(nodes + events log events).
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
  Nanos time;            ///< from when on
  MemoryByKind bytes{};  ///< by kind
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
