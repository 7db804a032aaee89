// SPDX-License-Identifier: Apache-2.0
// Long work without the interpreter lock, which Ctrl-C ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>

#include "binding.hpp"

namespace slimpack::python {

/// What a search calls after each simulation.
using ProgressCall = std::function<void(std::int64_t done, std::int64_t most)>;

/// Runs work(progress) on a thread of its own and returns its result. Meanwhile this thread holds
/// the interpreter lock only to look for signals and to call `report(done, most)`, if that is not
/// None, 20 times a second. Where a signal or `report` raises, the work ends at its next call of
/// `progress`, and what was raised is thrown. Throws what the work throws.
template <class Work>
[[nodiscard]] std::invoke_result_t<Work, const ProgressCall&> run_interruptibly(
    const nb::object& report, const Work& work) {
  struct Interrupted {};
  constexpr auto kBetween = std::chrono::milliseconds(50);
  std::optional<std::invoke_result_t<Work, const ProgressCall&>> result;
  std::exception_ptr failure;
  std::optional<nb::python_error> raised;
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> last_done{0}, last_most{0};
  const ProgressCall progress = [&](std::int64_t done, std::int64_t most) {
    if (stop) throw Interrupted{};
    last_done = done;
    last_most = most;
  };
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  {
    const nb::gil_scoped_release released;
    std::thread thread([&] {
      try {
        result.emplace(work(progress));
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      ended = true;
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kBetween, [&] { return ended; })) {
      if (stop) continue;
      lock.unlock();
      {
        const nb::gil_scoped_acquire held;
        try {
          if (PyErr_CheckSignals() != 0) nb::raise_python_error();
          if (!report.is_none()) report(last_done.load(), last_most.load());
        } catch (nb::python_error& error) {
          raised.emplace(std::move(error));
          stop = true;
        }
      }
      lock.lock();
    }
    lock.unlock();
    thread.join();
  }
  if (raised) throw nb::python_error(std::move(*raised));
  if (failure) std::rethrow_exception(failure);
  return *std::move(result);
}

}  // namespace slimpack::python
