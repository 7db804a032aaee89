// SPDX-License-Identifier: Apache-2.0
// What a training run prints and logs.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace slimpack::trainer {

/// One step as it went.
struct StepReport {
  std::int64_t step = 0, steps = 0;  ///< from 1
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0, targets = 0, samples = 0, micropacks = 0;
  double measured = 0, predicted = 0;  ///< seconds
  double mfu = 0;                      ///< 0 to 1
  double planning = 0;  ///< seconds that preparing the step took, beside the last one
  double waited = 0;    ///< seconds that the step was waited for
  std::int64_t peak = 0, predicted_peak = 0;  ///< bytes of the fullest device

  [[nodiscard]] double tokens_per_s() const noexcept {
    return measured > 0 ? static_cast<double>(tokens) / measured : 0;
  }
};

/// Lines on standard output, the same as JSON lines in a file, and on terminals a progress bar.
/// Prints nothing where it is not on.
class Reporter {
 public:
  /// Appends to the log where `resumed`. Throws InvalidInput if the log cannot be written.
  Reporter(bool on, const std::string& log, bool resumed);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  ~Reporter();

  /// A sentence, as it is.
  void say(const std::string& line);
  /// A sentence that a user should know of, on standard error.
  void warn(const std::string& sentence);
  /// One line, with the progress bar behind it.
  void step(const StepReport& report);
  /// The loss on data that are never trained on.
  void held_out(std::int64_t step, double loss, std::int64_t tokens, double seconds);
  /// That a checkpoint is whole.
  void saved(std::int64_t step, const std::string& folder);

 private:
  using Clock = std::chrono::steady_clock;
  void log(const std::string& line);
  void bar(const StepReport& report);
  void clear_bar();

  bool on_, terminal_, shown_ = false;
  std::FILE* log_ = nullptr;
  std::string log_name_;
  Clock::time_point begun_ = Clock::now();
  std::int64_t first_step_ = 0;
};

}  // namespace slimpack::trainer
