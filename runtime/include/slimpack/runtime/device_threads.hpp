// SPDX-License-Identifier: Apache-2.0
// Threads that live over many steps, one a device.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/runtime/thread_system.hpp"

namespace slimpack::runtime {

/// Prints the sentence on standard error and ends the process with status 1.
[[noreturn]] inline void end_process(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

/// How long devices' threads are waited for. Time in which the whole process was stopped counts as
/// one `tick` at most.
struct HangTimeouts {
  /// A device that inside a step neither computes (its thread uses no time of a core) nor waits for
  /// others is given up after this. A unit that computes may take as long as it likes.
  std::chrono::milliseconds silence{6000};
  /// After a failure, until the other devices must have come back from what they compute.
  std::chrono::milliseconds grace{2000};
  std::chrono::milliseconds tick{250};  ///< how often devices are looked at
  /// Called when `grace` is over, or at once for a silent device: a thread cannot be ended from
  /// outside, a process can. Where it returns, the device is waited for without limit.
  std::function<void(const std::string& sentence)> give_up = end_process;
};

/// Where devices' threads run, and how long they are waited for.
struct DeviceThreadsOptions {
  std::vector<std::size_t> cores;  ///< one a device, to stay on; empty: wherever there is room
  std::optional<HangTimeouts> hang_timeouts;  ///< nothing: devices are waited for without limit
};

/// Threads that live over many steps, one a device.
///
///     DeviceThreads threads(devices, {.cores = allowed_cores(), .hang_timeouts = HangTimeouts{}});
///     for (;;) run_step(threads, plan, program, data, backends);
///
/// `run` is called by one thread at a time.
class DeviceThreads {
 public:
  /// Throws InvalidInput unless devices >= 1 and cores are none or one a device; what
  /// std::thread throws where a thread cannot be started.
  explicit DeviceThreads(std::size_t devices, DeviceThreadsOptions options = {})
      : options_(std::move(options)) {
    require(devices >= 1, "DeviceThreads: devices must be >= 1");
    require(options_.cores.empty() || options_.cores.size() == devices,
            "DeviceThreads: cores must be none or one a device",
            static_cast<std::int64_t>(options_.cores.size()));
    clocks_.resize(devices);
    thrown_.resize(devices);
    left_ = devices;
    threads_.reserve(devices);
    try {
      for (std::size_t device = 0; device < devices; ++device) {
        threads_.emplace_back([this, device] { live(device); });
      }
    } catch (...) {
      end();
      throw;
    }
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return left_ == 0; });
  }
  ~DeviceThreads() { end(); }
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

  /// Number of devices.
  [[nodiscard]] std::size_t size() const noexcept { return threads_.size(); }
  /// As given to the constructor.
  [[nodiscard]] const DeviceThreadsOptions& options() const noexcept { return options_; }
  /// How long a device's thread has computed in its life.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> computed(std::size_t device) const {
    return clocks_.at(device).read();
  }

  /// Calls work(device) on every device's thread and returns when all have returned. Throws what
  /// the first device that threw has thrown, in the order of devices.
  template <std::invocable<std::size_t> Work>
  void run(const Work& work) {
    run(work, std::chrono::milliseconds(1000), [](std::chrono::milliseconds) {});
  }

  /// The same, and meanwhile calls watch(time passed) every `tick` on the calling thread.
  template <std::invocable<std::size_t> Work, std::invocable<std::chrono::milliseconds> Watch>
  void run(const Work& work, std::chrono::milliseconds tick, Watch watch) {
    std::unique_lock lock(mutex_);
    work_ = [&work](std::size_t device) { work(device); };
    left_ = threads_.size();
    ++round_;
    begun_.notify_all();
    auto before = std::chrono::steady_clock::now();
    while (!ended_.wait_for(lock, tick, [&] { return left_ == 0; })) {
      const auto now = std::chrono::steady_clock::now();
      lock.unlock();
      watch(std::min(std::chrono::duration_cast<std::chrono::milliseconds>(now - before), tick));
      lock.lock();
      before = now;
    }
    work_ = nullptr;
    std::exception_ptr first;
    for (std::exception_ptr& thrown : thrown_) {
      if (!first) first = thrown;
      thrown = nullptr;
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  void live(std::size_t device) {
    if (!options_.cores.empty()) stay_on_core(options_.cores[device]);
    std::unique_lock lock(mutex_);
    clocks_[device] = ComputeClock::mine();
    std::uint64_t round = 0;
    for (;;) {
      if (--left_ == 0) ended_.notify_all();
      begun_.wait(lock, [&] { return stop_ || round_ > round; });
      if (stop_) return;
      round = round_;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        work_(device);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      thrown_[device] = thrown;
    }
  }

  void end() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  DeviceThreadsOptions options_;
  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  std::function<void(std::size_t)> work_;
  std::uint64_t round_ = 0;
  std::size_t left_ = 0;  ///< threads that have not yet ended this round
  bool stop_ = false;
  std::vector<ComputeClock> clocks_;
  std::vector<std::exception_ptr> thrown_;
  std::vector<std::thread> threads_;
};

}  // namespace slimpack::runtime
