// SPDX-License-Identifier: Apache-2.0
// slimpack calibrate: a measured profile to cost.json.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <ostream>

#include "command.hpp"
#include "common.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/cost/fit.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack/io/cost_file.hpp"
#include "slimpack/io/file.hpp"

namespace slimpack::app {
namespace {

[[nodiscard]] std::string percent(std::optional<double> share) {
  return share ? fmt::format("{:.2f} %", 100 * *share) : "-";
}

/// Throws InvalidInput that names the file where its rows fit no cost.
[[nodiscard]] FitResult fit_of(const Profile& read, const std::string& profile) {
  try {
    return fit_cost(read.rows);
  } catch (const InvalidInput& error) {
    throw InvalidInput(profile + ": " + error.what());
  }
}

/// Fits and writes the cost model, then prints its errors.
int run(const std::string& profile, const std::string& output) {
  std::ostream& out = check_outputs({{"--output", output}}) ? std::cerr : std::cout;
  const Profile read = parse_profile(read_file(profile), profile);
  const FitResult fit = fit_of(read, profile);
  const CostFile file{fit.cost, read.measured};
  write_file(output, cost_file_to_json(file));
  if (const std::string warning = unknown_origin(file, profile); !warning.empty()) {
    std::cerr << "slimpack: " << warning << '\n';
  }
  out << fmt::format("{}: fitted to {}; errors are |predicted - measured| / measured\n\n", output,
                     profile);
  out << fmt::format("{:<12}{:<10}{:>6}{:>10}{:>18}{:>18}{:>20}\n", "kind", "pass", "rows",
                     "held out", "mean on held out", "worst on held out", "mean on all, fitted");
  for (const KindFit& kind : fit.kinds) {
    const char* const pass = !kind.pass                    ? "-"
                             : *kind.pass == Pass::forward ? "forward"
                                                           : "backward";
    out << fmt::format("{:<12}{:<10}{:>6}{:>10}{:>18}{:>18}{:>20}\n",
                       kProfileKinds[static_cast<std::size_t>(kind.kind)], pass, kind.rows,
                       kind.held_out, percent(kind.mean_error), percent(kind.worst_error),
                       percent(kind.fitted_mean_error));
  }
  return 0;
}

}  // namespace

Run add_calibrate(CLI::App& command) {
  struct Options {
    std::string profile, output;
  };
  auto options = std::make_shared<Options>();
  command.add_option("PROFILE", options->profile, "profile.csv, or - for standard input")
      ->required();
  command.add_option("-o,--output", options->output, "the cost model to write")->required();
  return [options] { return run(options->profile, options->output); };
}

}  // namespace slimpack::app
