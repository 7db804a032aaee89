// SPDX-License-Identifier: Apache-2.0
// --turns: another process has the cores until a line on standard input gives them to this one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

#include "options.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::trainer {

/// Returns at the next line on standard input. Throws InvalidInput, naming what it was waited for,
/// where there is none.
inline void await_line(const std::string& before) {
  std::string line;
  require(static_cast<bool>(std::getline(std::cin, line)),
          "--turns: standard input ended before " + before);
}

/// What a profile calls before each of its plans: with --turns says so and waits for its turn.
[[nodiscard]] inline std::function<void(std::int64_t, std::size_t)> profile_turns(
    const Options& options) {
  if (!options.turns) return [](std::int64_t, std::size_t) {};
  return [](std::int64_t round, std::size_t plan) {
    const std::string what = fmt::format("round {} of plan {}", round, plan);
    fmt::print("ready for {}\n", what);
    std::fflush(stdout);
    await_line(what);
  };
}

}  // namespace slimpack::trainer
