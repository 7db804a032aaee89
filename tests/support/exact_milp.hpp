// SPDX-License-Identifier: Apache-2.0
// The problem of exact_problem.hpp as a mixed integer program, solved by a program of the system.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "support/exact_problem.hpp"

namespace slimpack::test {

namespace detail {

/// When each op begins at the earliest, and at the latest if the step ends by `limit`.
struct ExactWindows {
  std::vector<std::int64_t> earliest, latest;
  std::vector<std::vector<bool>> before;  ///< which op precedes which, directly or by others
};

[[nodiscard]] inline ExactWindows exact_windows(const ExactProblem& problem, std::int64_t limit) {
  const std::size_t count = problem.ops.size();
  ExactWindows windows;
  windows.earliest.assign(count, 0);
  windows.before.assign(count, std::vector<bool>(count));
  for (std::size_t op = 0; op < count; ++op) {
    windows.latest.push_back(limit - problem.ops[op].tail - problem.ops[op].duration);
  }
  // Paths have at most `count` arcs.
  for (std::size_t round = 0; round < count; ++round) {
    for (std::size_t op = 0; op < count; ++op) {
      for (const ExactOp::After& after : problem.ops[op].after) {
        const std::int64_t least = problem.ops[after.op].duration + after.lag;
        windows.earliest[op] = std::max(windows.earliest[op], windows.earliest[after.op] + least);
        windows.latest[after.op] = std::min(windows.latest[after.op], windows.latest[op] - least);
        windows.before[after.op][op] = true;
        for (std::size_t first = 0; first < count; ++first) {
          if (windows.before[first][after.op]) windows.before[first][op] = true;
        }
      }
    }
  }
  return windows;
}

[[nodiscard]] inline bool meet(const ExactOp& a, const ExactOp& b) {
  return std::any_of(a.devices.begin(), a.devices.end(), [&](std::size_t device) {
    return std::find(b.devices.begin(), b.devices.end(), device) != b.devices.end();
  });
}

}  // namespace detail

/// The program in CPLEX's LP format: a start of each op, the makespan, and a binary for each pair
/// of ops that share a device and may come in either order; one for two packs of a channel at all
/// places of the line. Memory is left out. `limit` is the makespan of some schedule.
[[nodiscard]] inline std::string exact_milp(const ExactProblem& problem, std::int64_t limit) {
  const auto windows = detail::exact_windows(problem, limit);
  const auto& [earliest, latest, before] = windows;
  const auto& ops = problem.ops;
  std::ostringstream text;
  std::set<std::string> binaries;
  int row = 0;
  text << "Minimize\n obj: makespan\nSubject To\n";
  for (std::size_t op = 0; op < ops.size(); ++op) {
    text << " c" << row++ << ": makespan - s" << op << " >= " << ops[op].duration + ops[op].tail
         << "\n";
    for (const ExactOp::After& after : ops[op].after) {
      text << " c" << row++ << ": s" << op << " - s" << after.op
           << " >= " << ops[after.op].duration + after.lag << "\n";
    }
  }
  for (std::size_t a = 0; a < ops.size(); ++a) {
    for (std::size_t b = a + 1; b < ops.size(); ++b) {
      if (before[a][b] || before[b][a] || !detail::meet(ops[a], ops[b])) continue;
      const bool one_channel = ops[a].channel && ops[a].channel == ops[b].channel;
      // 1 where a comes first. Ops of a channel are numbered by pack, so a < b at all places.
      std::ostringstream name;
      if (one_channel) {
        name << "p" << ops[a].pack << "_" << ops[b].pack;
      } else {
        name << "y" << a << "_" << b;
      }
      binaries.insert(name.str());
      // b begins behind a unless the binary is 0; no more is given up than the intervals ask for.
      const std::int64_t give_a =
          std::max<std::int64_t>(0, latest[a] + ops[a].duration - earliest[b]);
      const std::int64_t give_b =
          std::max<std::int64_t>(0, latest[b] + ops[b].duration - earliest[a]);
      text << " c" << row++ << ": s" << b << " - s" << a << " - " << give_a << " " << name.str()
           << " >= " << ops[a].duration - give_a << "\n";
      text << " c" << row++ << ": s" << a << " - s" << b << " + " << give_b << " " << name.str()
           << " >= " << ops[b].duration << "\n";
    }
  }
  // A device does all its work between its first unit and the end of the step.
  std::int64_t least = problem.least;
  for (std::size_t device = 0; device < problem.devices; ++device) {
    std::int64_t first = limit, last = limit, load = 0;
    for (std::size_t op = 0; op < ops.size(); ++op) {
      const auto& on = ops[op].devices;
      if (std::find(on.begin(), on.end(), device) == on.end()) continue;
      first = std::min(first, earliest[op]);
      last = std::min(last, limit - latest[op] - ops[op].duration);
      load += ops[op].duration;
    }
    if (load > 0) least = std::max(least, first + load + last);
  }
  text << " c" << row++ << ": makespan >= " << least << "\nBounds\n makespan <= " << limit << "\n";
  for (std::size_t op = 0; op < ops.size(); ++op) {
    text << " " << earliest[op] << " <= s" << op << " <= " << latest[op] << "\n";
  }
  if (!binaries.empty()) {
    text << "Binary\n";
    for (const std::string& name : binaries) text << " " << name << "\n";
  }
  text << "End\n";
  return text.str();
}

/// Whether the solver `glpsol` is there.
[[nodiscard]] inline bool has_milp_solver() {
  return std::system("command -v glpsol >/dev/null 2>&1") == 0;
}

/// The least makespan by `glpsol`, from files in `folder`; nothing if it found no proven optimum
/// within `seconds`.
[[nodiscard]] inline std::optional<std::int64_t> solve_milp(const ExactProblem& problem,
                                                            std::int64_t limit,
                                                            const std::filesystem::path& folder,
                                                            int seconds) {
  const std::filesystem::path program = folder / "exact.lp", answer = folder / "exact.out";
  std::ofstream(program) << exact_milp(problem, limit);
  std::filesystem::remove(answer);
  const std::string command = "glpsol --lp '" + program.string() + "' --cuts --tmlim " +
                              std::to_string(seconds) + " -o '" + answer.string() +
                              "' >/dev/null 2>&1";
  require(std::system(command.c_str()) == 0, "glpsol failed");
  std::ifstream file(answer);
  bool optimal = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Status:")) optimal = line.ends_with(" OPTIMAL");
    if (optimal && line.starts_with("Objective:")) {
      return std::llround(std::stod(line.substr(line.find('=') + 1)));
    }
  }
  return std::nullopt;
}

}  // namespace slimpack::test
