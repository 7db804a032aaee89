// SPDX-License-Identifier: Apache-2.0
// The subcommands: each adds its options to the parser and gives back what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace slimpack::app {

/// Runs a parsed subcommand and gives its exit status: 0 done, 1 no feasible plan or a failed
/// check. Bad input is thrown as InvalidInput and becomes status 2.
using Run = std::function<int()>;

[[nodiscard]] Run add_plan(CLI::App& command);
[[nodiscard]] Run add_simulate(CLI::App& command);
[[nodiscard]] Run add_validate(CLI::App& command);
[[nodiscard]] Run add_compare(CLI::App& command);
[[nodiscard]] Run add_evaluate(CLI::App& command);
[[nodiscard]] Run add_export(CLI::App& command);
[[nodiscard]] Run add_lengths(CLI::App& command);
[[nodiscard]] Run add_calibrate(CLI::App& command);
[[nodiscard]] Run add_compare_traces(CLI::App& command);
[[nodiscard]] Run add_tune(CLI::App& command);
[[nodiscard]] Run add_sweep(CLI::App& command);

/// Prints every planner with a line on what it does and where its steps are simulated only.
void list_planners(bool json);
/// Prints the models and clusters that are compiled in; as JSON, objects as files may hold them.
void list_presets(bool json);

}  // namespace slimpack::app
