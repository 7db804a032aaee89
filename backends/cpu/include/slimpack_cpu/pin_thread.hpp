// SPDX-License-Identifier: Apache-2.0
// Threads pinned to cores, where the system lets us.
#pragma once

#include <cstddef>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace slimpack::cpu {

/// Pins the calling thread to one of the cores that it may run on: the `place`-th, counted round
/// and round. Best effort: false, and nothing has changed, where that is not possible.
inline bool pin_thread([[maybe_unused]] std::size_t place) noexcept {
#ifdef __linux__
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed) != 0) return false;
  const auto count = static_cast<std::size_t>(CPU_COUNT(&allowed));
  if (count == 0) return false;
  std::size_t left = place % count;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return pthread_setaffinity_np(pthread_self(), sizeof(one), &one) == 0;
  }
#endif
  return false;
}

}  // namespace slimpack::cpu
