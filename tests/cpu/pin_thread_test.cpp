// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/pin_thread.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <thread>

#ifdef __linux__
TEST_CASE("pin_thread: a thread ends on one of the cores it was allowed, counted round and round") {
  cpu_set_t before;
  REQUIRE(pthread_getaffinity_np(pthread_self(), sizeof(before), &before) == 0);
  const auto count = static_cast<std::size_t>(CPU_COUNT(&before));
  for (const std::size_t place : {std::size_t{0}, count - 1, count, 3 * count + 1}) {
    CAPTURE(place);
    bool pinned = false;
    cpu_set_t after;
    CPU_ZERO(&after);
    std::thread([&] {
      pinned = slimpack::cpu::pin_thread(place);
      (void)pthread_getaffinity_np(pthread_self(), sizeof(after), &after);
    }).join();
    if (!pinned) continue;  // best effort: a sandbox may forbid it
    CHECK(CPU_COUNT(&after) == 1);
    std::size_t before_it = 0;
    for (std::size_t core = 0; core < CPU_SETSIZE && !CPU_ISSET(core, &after); ++core) {
      if (CPU_ISSET(core, &before)) ++before_it;
    }
    CHECK(before_it == place % count);
  }
}
#endif
