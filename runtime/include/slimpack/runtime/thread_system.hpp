// SPDX-License-Identifier: Apache-2.0
// What the operating system says of threads: the cores they may run on, and how long they computed.
#pragma once

#include <chrono>
#include <cstddef>
#include <ctime>
#include <optional>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace slimpack::runtime {

/// The cores that this thread may run on, ascending; empty where the system does not say.
[[nodiscard]] inline std::vector<std::size_t> allowed_cores() {
  std::vector<std::size_t> cores;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
#endif
  return cores;
}

/// Keeps the calling thread on one core. False, and nothing changes, where that cannot be done.
inline bool stay_on_core(std::size_t core) noexcept {
#if defined(__linux__)
  if (core >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
#else
  static_cast<void>(core);
  return false;
#endif
}

/// Tells from any thread how long one thread has computed. The thread must not have been joined.
class ComputeClock {
 public:
  /// Of the calling thread.
  [[nodiscard]] static ComputeClock mine() noexcept {
    ComputeClock clock;
#if defined(__linux__)
    clock.known_ = pthread_getcpuclockid(pthread_self(), &clock.id_) == 0;
#endif
    return clock;
  }

  /// Time of a core that the thread has used since it began; sleeping and waiting use none. Nothing
  /// where the system does not tell.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> read() const noexcept {
#if defined(__linux__)
    timespec time{};
    if (known_ && clock_gettime(id_, &time) == 0) {
      return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    }
#endif
    return std::nullopt;
  }

 private:
#if defined(__linux__)
  clockid_t id_{};
  bool known_ = false;
#endif
};

}  // namespace slimpack::runtime
