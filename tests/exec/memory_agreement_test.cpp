// SPDX-License-Identifier: Apache-2.0
// The bytes that the CPU devices hold against those that the simulator predicts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "slimpack/exec/program.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/executed_memory.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

TEST_CASE("memory: the executor's bytes are the simulator's, event by event and at the peak") {
  std::int64_t plans = 0, events = 0, devices = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(200U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    test::Executed executed(plan);
    auto ranks = cpu::make_devices(plan, seed);
    (void)exec::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                         std::span(ranks), executed.observer());
    executed.finish();
    test::check_memory(plan, executed, 16);
    for (const auto& of_device : executed.events) {
      events += static_cast<std::int64_t>(of_device.size());
      ++devices;
    }
    ++plans;
  }
  std::printf("  %lld plans, %lld devices, %lld events: equal\n", static_cast<long long>(plans),
              static_cast<long long>(devices), static_cast<long long>(events));
}

TEST_CASE("memory: a unit that waits for nothing starts beside the message of the unit before") {
  std::int64_t beside = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(60U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const exec::Program program = exec::make_program(plan);
    test::Executed executed(plan);
    auto ranks = cpu::make_devices(plan, seed);
    (void)exec::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                         std::span(ranks), executed.observer());
    for (std::size_t device = 0; device < executed.events.size(); ++device) {
      const auto& units = program.devices[device].units;
      const auto& events = executed.events[device];
      std::size_t running = 0;
      for (const exec::MemoryEvent& event : events) {
        if (event.moment != exec::Moment::transfer_end) {
          running = std::max(running, event.unit);
          continue;
        }
        if (event.unit + 1 == units.size()) continue;
        const exec::UnitWork& next = units[event.unit + 1];
        const bool awaited =
            next.send && next.send->channel == event.message->channel &&
            next.send->index == event.message->index + static_cast<std::size_t>(plan.window);
        const bool holds = std::ranges::any_of(events, [&](const exec::MemoryEvent& other) {
          return other.unit == event.unit + 1 && other.moment == exec::Moment::unit_start;
        });
        if (next.receive || awaited || !holds) continue;
        CHECK(running > event.unit);
        ++beside;
      }
    }
  }
  CHECK(beside > slimpack::test::draws(100));
}
