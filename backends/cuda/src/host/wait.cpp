// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <thread>

#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {

bool wait_until(const Event& event, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::microseconds;
  constexpr microseconds kLongest{200};
  microseconds pause{0};
  while (!event.reached()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return event.reached();
    // Short waits end soon after the event; long ones leave the core to other threads.
    if (pause.count() == 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_until(std::min(deadline, now + pause));
    }
    pause = std::min(kLongest, pause + microseconds{1});
  }
  return true;
}

}  // namespace slimpack::cuda
