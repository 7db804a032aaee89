// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error for work that takes longer than a second, on terminals only.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace slimpack::app {

/// Shows nothing in the first second and nothing where standard error is not a terminal; clears
/// its line when it ends. Not for use by several threads at once.
class Progress {
 public:
  explicit Progress(std::string label) : label_(std::move(label)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }

  /// Reports `done` of `total` steps (total 0: not known), with a note behind them.
  void operator()(std::int64_t done, std::int64_t total, const std::string& note = {}) {
    const auto now = Clock::now();
    if (!terminal_ || now - start_ < std::chrono::seconds(1)) return;
    if (now - last_ < std::chrono::milliseconds(100) && done < total) return;
    last_ = now;
    shown_ = true;
    constexpr int kWidth = 30;
    const int filled = total > 0 ? static_cast<int>(done * kWidth / total) : 0;
    const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                            std::string(static_cast<std::size_t>(kWidth - filled), '.');
    std::fprintf(stderr, "\r\033[K%s [%s] %lld/%lld%s%s", label_.c_str(), bar.c_str(),
                 static_cast<long long>(done), static_cast<long long>(total),
                 note.empty() ? "" : ", ", note.c_str());
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
};

}  // namespace slimpack::app
