// SPDX-License-Identifier: Apache-2.0
// The bytes that an executor really holds against those that the simulator predicts.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::test {

/// When bytes change, told alike on both sides: at step start, at a unit's start or end, at the end
/// of a transfer (named by the unit that sends).
enum class When : std::uint8_t { step, start, end, transfer };

struct Place {
  std::size_t device = 0, unit = 0;
  When when = When::step;
  runtime::MemoryKind kind{};
  friend auto operator<=>(const Place&, const Place&) = default;
};
/// Sums, because a receive buffer that goes and the next one that comes at the end of one unit are
/// one event in the DAG; sums of zero are left out.
using Changes = std::map<Place, std::int64_t>;

inline runtime::MemoryKind kind_of(sim::MemoryKind kind) {
  switch (kind) {
    case sim::MemoryKind::kept:
      return runtime::MemoryKind::activations;
    case sim::MemoryKind::keys_values:
      return runtime::MemoryKind::keys_values;
    case sim::MemoryKind::kv_gradients:
      return runtime::MemoryKind::key_value_gradients;
    case sim::MemoryKind::last_output:
      return runtime::MemoryKind::last_output;
    case sim::MemoryKind::hidden_gradients:
      return runtime::MemoryKind::hidden_gradients;
    case sim::MemoryKind::receive:
      return runtime::MemoryKind::receive_buffer;
    case sim::MemoryKind::send:
      return runtime::MemoryKind::send_buffer;
    case sim::MemoryKind::workspace:
      return runtime::MemoryKind::workspace;
    case sim::MemoryKind::weights:
      return runtime::MemoryKind::weights;
    case sim::MemoryKind::gradients:
      return runtime::MemoryKind::weight_gradients;
    case sim::MemoryKind::optimizer:
      return runtime::MemoryKind::optimizer_state;
  }
  return runtime::MemoryKind::workspace;
}

inline When when_of(runtime::Moment moment) {
  switch (moment) {
    case runtime::Moment::step_start:
      return When::step;
    case runtime::Moment::unit_start:
      return When::start;
    case runtime::Moment::unit_end:
      return When::end;
    case runtime::Moment::transfer_end:
      return When::transfer;
  }
  return When::step;
}

inline bool is_static(runtime::MemoryKind kind) {
  return kind <= runtime::MemoryKind::optimizer_state;
}

inline Changes without_zeros(Changes changes) {
  std::erase_if(changes, [](const auto& change) { return change.second == 0; });
  return changes;
}

/// Of all devices that execute: those of one stage and rank hold the same.
inline Changes predicted(const Plan& plan, const sim::Dag& dag) {
  Changes changes;
  const auto parts = static_cast<std::size_t>(plan.parallel.tp);
  const auto add = [&](const sim::MemoryEvent& event, std::size_t unit, When when) {
    for (std::size_t part = 0; part < parts; ++part) {
      changes[{index(event.device) * parts + part, unit, when, kind_of(event.kind)}] +=
          event.bytes.value;
    }
  };
  for (const sim::MemoryEvent& event : dag.initial_memory) add(event, 0, When::step);
  for (std::size_t i = 0; i < dag.size(); ++i) {
    const sim::NodeId node{static_cast<std::uint32_t>(i)};
    const sim::NodeLabel& label = dag.label[i];
    const std::size_t owner = device_index(plan, label.dp, label.pp);
    for (const sim::Moment moment : {sim::Moment::start, sim::Moment::end}) {
      for (const sim::MemoryEvent& event : dag.memory_at(node, moment)) {
        CHECK(index(event.device) == owner);
        if (label.kind == sim::NodeKind::transfer) CHECK(moment == sim::Moment::end);
        const When unit_when = moment == sim::Moment::start ? When::start : When::end;
        add(event, label.unit, label.kind == sim::NodeKind::transfer ? When::transfer : unit_when);
      }
    }
  }
  return without_zeros(std::move(changes));
}

/// What the devices of one step said of their memory.
class Executed {
 public:
  explicit Executed(const Plan& plan) : events(device_count(plan)), always(device_count(plan)) {}

  /// To be called with every event of the step.
  [[nodiscard]] runtime::MemoryObserver observer() {
    return [this](const runtime::MemoryEvent& event) { events[event.device].push_back(event); };
  }
  /// Sums up what was seen.
  void finish() {
    for (const auto& of_device : events) {
      for (const runtime::MemoryEvent& event : of_device) {
        if (is_static(event.kind)) {
          always[event.device] += event.change.value;
        } else {
          changes[{event.device, event.unit, when_of(event.moment), event.kind}] +=
              event.change.value;
        }
      }
    }
    changes = without_zeros(std::move(changes));
  }

  std::vector<std::vector<runtime::MemoryEvent>> events;  ///< by device
  Changes changes;
  std::vector<std::int64_t> always;
};

/// The peak of a device's executed changes at the simulator's times; at one instant everything
/// that changes does so together, as the simulator has it.
inline std::int64_t peak_of(const Plan& plan, const sim::PlanSimulation& simulation,
                            const Executed& executed, std::size_t device, std::int64_t always) {
  std::map<std::tuple<std::size_t, std::size_t, bool>, std::size_t> node_of;  // transfers apart
  for (std::size_t i = 0; i < simulation.dag.size(); ++i) {
    const sim::NodeLabel& label = simulation.dag.label[i];
    if (!sim::is_compute(label.kind) && label.kind != sim::NodeKind::transfer) continue;
    const std::size_t owner = device / static_cast<std::size_t>(plan.parallel.tp);
    if (device_index(plan, label.dp, label.pp) != owner) continue;
    node_of[{device, label.unit, label.kind == sim::NodeKind::transfer}] = i;
  }
  std::map<Nanos, std::int64_t> by_time;
  for (const auto& [place, bytes] : executed.changes) {
    if (place.device != device) continue;
    const auto node = [&, unit = place.unit](bool transfer) {
      return node_of.at({device, unit, transfer});
    };
    switch (place.when) {
      case When::step:
        by_time[Nanos{}] += bytes;
        break;
      case When::start:
        by_time[simulation.timeline.start[node(false)]] += bytes;
        break;
      case When::end:
        by_time[simulation.timeline.end[node(false)]] += bytes;
        break;
      case When::transfer:
        by_time[simulation.timeline.end[node(true)]] += bytes;
        break;
    }
  }
  std::int64_t now = always, peak = always;
  for (const auto& [time, bytes] : by_time) {
    now += bytes;
    peak = std::max(peak, now);
  }
  CHECK(now == always);
  return peak;
}

/// Checks event by event and at the peak. State that ranks share is whole elements, or vectors of
/// them, on each, and a byte count over dp else: `most_rounding` is more than that makes. What
/// tensor-parallel devices always hold is predicted of the one that holds most, embedding and a
/// sharded head each rounded up, which can be a row of the vocabulary more than any holds of both.
inline void check_memory(const Plan& plan, const Executed& executed, std::int64_t most_rounding) {
  const sim::PlanSimulation simulation = sim::simulate_plan(plan);
  const Changes expected = predicted(plan, simulation.dag);
  CHECK(executed.changes.size() == expected.size());
  for (const auto& change : expected) {
    const Place& place = change.first;
    CAPTURE(place.device);
    CAPTURE(place.unit);
    CAPTURE(static_cast<int>(place.when));
    CAPTURE(static_cast<int>(place.kind));
    const auto found = executed.changes.find(place);
    REQUIRE(found != executed.changes.end());
    CHECK(found->second == change.second);
  }
  const auto parts = static_cast<std::size_t>(plan.parallel.tp);
  for (std::size_t device = 0; device < executed.events.size(); ++device) {
    CAPTURE(device);
    // In program order: step start, then start and end of each unit; transfers end in between.
    std::tuple<std::size_t, When> last{0, When::step};
    for (const runtime::MemoryEvent& event : executed.events[device]) {
      if (event.moment == runtime::Moment::transfer_end) {
        CHECK(event.unit <= std::get<0>(last));
        continue;
      }
      const std::tuple now{event.unit, when_of(event.moment)};
      CHECK(last <= now);
      last = now;
    }
    const std::size_t owner = device / parts;
    const std::int64_t always = sim::total(simulation.dag.devices[owner].always).value;
    const auto held = executed.always.begin() + static_cast<std::ptrdiff_t>(owner * parts);
    const std::int64_t difference =
        *std::max_element(held, held + static_cast<std::ptrdiff_t>(parts)) - always;
    const bool two_shards = parts > 1 && plan.parallel.head == LmHead::shard;
    CHECK(difference >= (two_shards ? -plan.model.hidden * 4 * 8 : 0));
    CHECK(difference < most_rounding);
    CHECK(peak_of(plan, simulation, executed, device, always) ==
          simulation.timeline.peak[owner].bytes.value);
  }
}

}  // namespace slimpack::test
