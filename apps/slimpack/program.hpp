// SPDX-License-Identifier: Apache-2.0
// The slimpack command line: parses, runs one subcommand, turns errors into exit statuses.
#pragma once

namespace slimpack::app {

/// Runs the command line `argv[0 .. argc-1]`, of which the first is the program's name, and gives
/// its exit status: 0 done, 1 no feasible plan or a failed check, 2 bad input or usage.
[[nodiscard]] int run_program(int argc, const char* const* argv);

}  // namespace slimpack::app
