// SPDX-License-Identifier: Apache-2.0
// The bytes that the CPU devices hold against those that the simulator predicts.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <span>

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
