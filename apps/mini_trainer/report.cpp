// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "slimpack/core/error.hpp"
#include "slimpack/io/json_writer.hpp"

namespace slimpack::trainer {

Reporter::Reporter(bool on, const std::string& log, bool resumed)
    : on_(on), terminal_(on && ::isatty(STDERR_FILENO) != 0), log_name_(log) {
  if (!on || log.empty()) return;
  log_ = std::fopen(log.c_str(), resumed ? "a" : "w");
  if (log_ == nullptr) {
    throw InvalidInput("--log: cannot write '" + log +
                       "': " + std::generic_category().message(errno));
  }
}

Reporter::~Reporter() {
  clear_bar();
  if (log_ != nullptr) std::fclose(log_);
}

void Reporter::say(const std::string& line) {
  if (!on_) return;
  clear_bar();
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void Reporter::warn(const std::string& sentence) {
  if (!on_) return;
  clear_bar();
  fmt::print(stderr, "mini_trainer: {}\n", sentence);
}

void Reporter::step(const StepReport& report) {
  if (!on_) return;
  if (first_step_ == 0) first_step_ = report.step;
  say(fmt::format(
      "step {:>5}  loss {:.4f}  norm {:.3f}  {:>7.0f} tokens/s  MFU {:4.1f} %  step {:.3f} s, "
      "predicted {:.3f} s",
      report.step, report.loss, report.gradient_norm, report.tokens_per_s(), 100 * report.mfu,
      report.measured, report.predicted));
  log(fmt::format(
      "{{\"step\": {}, \"loss\": {}, \"gradient_norm\": {}, \"learning_rate\": {}, \"tokens\": {}, "
      "\"targets\": {}, \"samples\": {}, \"micropacks\": {}, \"tokens_per_s\": {:.1f}, \"mfu\": "
      "{:.6f}, \"measured_s\": {:.6f}, \"predicted_s\": {:.6f}, \"planning_s\": {:.6f}, "
      "\"waited_for_plan_s\": {:.6f}, \"peak_bytes\": {}, \"predicted_peak_bytes\": {}}}",
      report.step, report.loss, report.gradient_norm, report.learning_rate, report.tokens,
      report.targets, report.samples, report.micropacks, report.tokens_per_s(), report.mfu,
      report.measured, report.predicted, report.planning, report.waited, report.peak,
      report.predicted_peak));
  bar(report);
}

void Reporter::held_out(std::int64_t step, double loss, std::int64_t tokens, double seconds) {
  if (!on_) return;
  say(fmt::format("held out, after step {}: loss {:.4f} over {} tokens, {:.1f} s", step, loss,
                  tokens, seconds));
  log(fmt::format("{{\"held_out_step\": {}, \"loss\": {}, \"tokens\": {}, \"seconds\": {:.3f}}}",
                  step, loss, tokens, seconds));
}

void Reporter::saved(std::int64_t step, const std::string& folder) {
  if (!on_) return;
  say(fmt::format("saved step {} in {}", step, folder));
  log(fmt::format("{{\"saved_step\": {}, \"folder\": \"{}\"}}", step, json_escaped(folder)));
}

void Reporter::log(const std::string& line) {
  if (log_ == nullptr) return;
  const bool written = std::fprintf(log_, "%s\n", line.c_str()) > 0 && std::fflush(log_) == 0;
  if (!written) {
    throw InvalidInput("--log: cannot write '" + log_name_ +
                       "': " + std::generic_category().message(errno));
  }
}

void Reporter::bar(const StepReport& report) {
  if (!terminal_ || report.step >= report.steps) return;
  constexpr std::int64_t kWidth = 30;
  const auto filled = static_cast<std::size_t>(report.step * kWidth / report.steps);
  const double passed = std::chrono::duration<double>(Clock::now() - begun_).count();
  const auto done = static_cast<double>(report.step - first_step_ + 1);
  const auto left =
      static_cast<std::int64_t>(passed / done * static_cast<double>(report.steps - report.step));
  fmt::print(stderr, "\r\033[K[{}{}] {}/{}  {:.0f} tokens/s  MFU {:.1f} %  {}:{:02} left",
             std::string(filled, '#'), std::string(kWidth - filled, '.'), report.step, report.steps,
             report.tokens_per_s(), 100 * report.mfu, left / 60, left % 60);
  std::fflush(stderr);
  shown_ = true;
}

void Reporter::clear_bar() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  shown_ = false;
}

}  // namespace slimpack::trainer
