// SPDX-License-Identifier: Apache-2.0
// Ends a process that does not get on.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace slimpack::processes {

/// Ends the process with a sentence unless it is destroyed in time.
class Alarm {
 public:
  Alarm(std::chrono::milliseconds limit, std::string sentence)
      : thread_([this, limit, sentence = std::move(sentence)] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, limit, [&] { return off_; })) return;
          std::fprintf(stderr, "%s\n", sentence.c_str());
          std::fflush(stderr);
          ::_exit(1);
        }) {}
  ~Alarm() {
    {
      const std::lock_guard lock(mutex_);
      off_ = true;
    }
    over_.notify_all();
    thread_.join();
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool off_ = false;
  std::thread thread_;
};

}  // namespace slimpack::processes
