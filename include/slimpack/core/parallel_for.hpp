// SPDX-License-Identifier: Apache-2.0
// A loop whose iterations run on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace slimpack {

/// Guards what several iterations write: hold a Lock on it meanwhile.
using Mutex = std::mutex;
/// Holds a Mutex as long as it lives.
using Lock = std::lock_guard<std::mutex>;

/// Calls work(i) once for each i in [0, count), on at most `threads` threads of which the caller is
/// one, in no promised order. Throws the exception of the lowest i after all calls have ended. The
/// only header of this folder tree that starts threads.
template <std::invocable<std::size_t> Action>
void parallel_for(std::size_t count, std::int32_t threads, const Action& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t wanted = std::min(count, static_cast<std::size_t>(threads));
  for (std::size_t helper = 1; helper < wanted; ++helper) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace slimpack
