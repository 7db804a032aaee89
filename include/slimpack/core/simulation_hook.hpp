// SPDX-License-Identifier: Apache-2.0
// A place where a test hears of every simulation, whoever starts it.
#pragma once

#ifdef SLIMPACK_CHECKED
#include <atomic>
#include <cstdint>

namespace slimpack::detail {
/// What has been simulated since the program began, in builds that are tested: plans priced, and
/// devices that got their orders or their times by simulation.
struct SimulationsHeard {
  std::atomic<std::int64_t> prices{0}, orders{0}, figures{0};
};
inline SimulationsHeard simulations_heard;
}  // namespace slimpack::detail

#define SLIMPACK_ON_SIMULATION(kind, amount)                                              \
  ::slimpack::detail::simulations_heard.kind.fetch_add(static_cast<std::int64_t>(amount), \
                                                       std::memory_order_relaxed)
#else
/// Called where a plan is priced (`prices`, 1), where devices get their orders by simulation
/// (`orders`, how many devices) and where a plan is simulated (`figures`, how many devices).
#define SLIMPACK_ON_SIMULATION(kind, amount) static_cast<void>(0)
#endif
