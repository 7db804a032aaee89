// SPDX-License-Identifier: Apache-2.0
// Processor time of the calling thread.
#pragma once

#include <ctime>

namespace slimpack {

/// Seconds of processor time that the calling thread has used so far; of the whole process where
/// the system does not tell threads apart. Differences of one thread's values have a meaning.
[[nodiscard]] inline double thread_seconds() noexcept {
#ifdef CLOCK_THREAD_CPUTIME_ID
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
#endif
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace slimpack
