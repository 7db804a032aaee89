// SPDX-License-Identifier: Apache-2.0
// The bytes that the executor really holds against those that the simulator predicts.
#include <doctest/doctest.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <tuple>
#include <vector>

#include "slimpack/dag/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// When bytes change, told alike on both sides: at step start, at a unit's start or end, at the end
/// of a transfer (named by the unit that sends).
enum class When : std::uint8_t { step, start, end, transfer };

struct Place {
  std::size_t device = 0, unit = 0;
  When when = When::step;
  exec::MemoryKind kind{};
  friend auto operator<=>(const Place&, const Place&) = default;
};
/// Sums, because a receive buffer that goes and the next one that comes at the end of one unit are
/// one event in the DAG; sums of zero are left out.
using Changes = std::map<Place, std::int64_t>;

exec::MemoryKind kind_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kept:
      return exec::MemoryKind::activations;
    case MemoryKind::keys_values:
      return exec::MemoryKind::keys_values;
    case MemoryKind::kv_gradients:
      return exec::MemoryKind::key_value_gradients;
    case MemoryKind::last_output:
      return exec::MemoryKind::last_output;
    case MemoryKind::hidden_gradients:
      return exec::MemoryKind::hidden_gradients;
    case MemoryKind::receive:
      return exec::MemoryKind::receive_buffer;
    case MemoryKind::send:
      return exec::MemoryKind::send_buffer;
    case MemoryKind::workspace:
      return exec::MemoryKind::workspace;
    case MemoryKind::weights:
      return exec::MemoryKind::weights;
    case MemoryKind::gradients:
      return exec::MemoryKind::weight_gradients;
    case MemoryKind::optimizer:
      return exec::MemoryKind::optimizer_state;
  }
  return exec::MemoryKind::workspace;
}

When when_of(exec::Moment moment) {
  switch (moment) {
    case exec::Moment::step_start:
      return When::step;
    case exec::Moment::unit_start:
      return When::start;
    case exec::Moment::unit_end:
      return When::end;
    case exec::Moment::transfer_end:
      return When::transfer;
  }
  return When::step;
}

bool is_static(exec::MemoryKind kind) {
  return kind <= exec::MemoryKind::optimizer_state;
}

Changes without_zeros(Changes changes) {
  std::erase_if(changes, [](const auto& change) { return change.second == 0; });
  return changes;
}

Changes predicted(const Plan& plan, const Dag& dag) {
  Changes changes;
  const auto add = [&](const MemoryEvent& event, std::size_t unit, When when) {
    changes[{index(event.device), unit, when, kind_of(event.kind)}] += event.bytes.value;
  };
  for (const MemoryEvent& event : dag.initial_memory) add(event, 0, When::step);
  for (std::size_t at = 0; at < dag.size(); ++at) {
    const NodeId node{static_cast<std::uint32_t>(at)};
    const NodeLabel& label = dag.label[at];
    const std::size_t owner = device_index(plan, label.dp, label.pp);
    for (const Moment moment : {Moment::start, Moment::end}) {
      for (const MemoryEvent& event : dag.memory_at(node, moment)) {
        CHECK(index(event.device) == owner);
        if (label.kind == NodeKind::transfer) CHECK(moment == Moment::end);
        const When unit_when = moment == Moment::start ? When::start : When::end;
        add(event, label.unit, label.kind == NodeKind::transfer ? When::transfer : unit_when);
      }
    }
  }
  return without_zeros(std::move(changes));
}

struct Executed {
  std::vector<std::vector<exec::MemoryEvent>> events;  ///< by device
  Changes changes;
  std::vector<std::int64_t> always;
};

Executed execute(const Plan& plan, std::uint64_t seed) {
  Executed executed;
  executed.events.resize(plan.schedule.size());
  executed.always.resize(plan.schedule.size());
  auto devices = cpu::make_devices(plan, seed);
  const auto observe = [&](const exec::MemoryEvent& event) {
    executed.events[event.device].push_back(event);
  };
  (void)exec::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                       std::span(devices), observe);
  for (const auto& events : executed.events) {
    for (const exec::MemoryEvent& event : events) {
      if (is_static(event.kind)) {
        executed.always[event.device] += event.change.value;
      } else {
        executed.changes[{event.device, event.unit, when_of(event.moment), event.kind}] +=
            event.change.value;
      }
    }
  }
  executed.changes = without_zeros(std::move(executed.changes));
  return executed;
}

/// The peak of a device's executed changes at the simulator's times; at one instant everything
/// that changes does so together, as the simulator has it.
std::int64_t peak_of(const Plan& plan, const PlanSimulation& simulation, const Executed& executed,
                     std::size_t device, std::int64_t always) {
  std::map<std::tuple<std::size_t, std::size_t, bool>, std::size_t> node_of;  // transfers apart
  for (std::size_t at = 0; at < simulation.dag.size(); ++at) {
    const NodeLabel& label = simulation.dag.label[at];
    if (!is_compute(label.kind) && label.kind != NodeKind::transfer) continue;
    node_of[{device_index(plan, label.dp, label.pp), label.unit,
             label.kind == NodeKind::transfer}] = at;
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

}  // namespace

TEST_CASE("memory: the executor's bytes are the simulator's, event by event and at the peak") {
  std::int64_t plans = 0, events = 0, devices = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(200U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const PlanSimulation simulation = simulate_plan(plan);
    const Executed executed = execute(plan, seed);
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
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      CAPTURE(device);
      // In program order: step start, then start and end of each unit; transfers end in between.
      std::tuple<std::size_t, When> last{0, When::step};
      for (const exec::MemoryEvent& event : executed.events[device]) {
        if (event.moment == exec::Moment::transfer_end) {
          CHECK(event.unit <= std::get<0>(last));
          continue;
        }
        const std::tuple now{event.unit, when_of(event.moment)};
        CHECK(last <= now);
        last = now;
      }
      // State shared by ranks is whole elements on each of them, and a byte count over dp else.
      const std::int64_t always = total(simulation.dag.devices[device].always).value;
      const std::int64_t difference = executed.always[device] - always;
      CHECK(difference >= 0);
      CHECK(difference < 16);
      CHECK(peak_of(plan, simulation, executed, device, always) ==
            simulation.timeline.peak[device].bytes.value);
      events += static_cast<std::int64_t>(executed.events[device].size());
      ++devices;
    }
    ++plans;
  }
  std::printf("  %lld plans, %lld devices, %lld events: equal\n", static_cast<long long>(plans),
              static_cast<long long>(devices), static_cast<long long>(events));
}
