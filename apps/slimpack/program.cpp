// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "commit.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::app {
namespace {

int usage_error(const std::string& sentence) {
  std::cerr << "slimpack: " << sentence << '\n';
  return 2;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  CLI::App program{
      "Plans training steps on documents of very different lengths, and predicts their time and "
      "memory."};
  program.set_version_flag("--version", version_line("slimpack"));
  bool planners = false;
  bool presets = false;
  program.add_flag("--list-planners", planners, "print every planner with a line on what it does");
  program.add_flag("--list-presets", presets, "print the models and clusters that are compiled in");
  bool json = false;
  program.add_flag("--json", json,
                   "print a list as JSON; its clusters and models can be edited into files for "
                   "--cluster and --model");

  std::vector<std::pair<CLI::App*, Run>> commands;
  const auto add = [&](const char* name, const char* text, Run (*make)(CLI::App&)) {
    CLI::App* const command = program.add_subcommand(name, text);
    commands.emplace_back(command, make(*command));
  };
  add("plan", "plan one training step and write plan.json", add_plan);
  add("simulate", "predict a plan's time and memory", add_simulate);
  add("validate", "check a plan against every rule of its format", add_validate);
  add("export", "write what each MicroPack of a device reads, as .npy", add_export);
  add("compare", "plan the same steps with several planners, side by side", add_compare);
  add("evaluate", "plan whole matrices of settings with every planner at its best degrees",
      add_evaluate);
  add("tune", "find the best degrees, recomputation and batch for a number of devices", add_tune);
  add("sweep", "compare planners at every combination of options", add_sweep);
  add("lengths", "describe the lengths in a file", add_lengths);
  add("calibrate", "fit a cost model to a measured profile", add_calibrate);
  add("compare-traces", "compare a step's predicted times with measured ones", add_compare_traces);
  program.require_subcommand(0, 1);

  try {
    program.parse(argc, argv);
    if (json && planners == presets) {
      return usage_error(
          "--json: before a subcommand it belongs to one of --list-planners and "
          "--list-presets");
    }
    if (planners) list_planners(json);
    if (presets) list_presets(json);
    for (const auto& [command, run] : commands) {
      if (!command->parsed()) continue;
      const int status = run();
      std::cout.flush();
      return std::cout ? status : usage_error("standard output: cannot be written");
    }
    if (planners || presets) {
      std::cout.flush();
      return std::cout ? 0 : usage_error("standard output: cannot be written");
    }
    std::cerr << program.help();
    return 2;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    return usage_error(std::string(error.what()) + " (see slimpack --help)");
  } catch (const InvalidInput& error) {
    return usage_error(error.what());
  } catch (const Deadlock& error) {
    std::cerr << "slimpack: " << error.what() << '\n';
    return 1;
  } catch (const std::bad_alloc&) {
    std::cerr << "slimpack: out of memory\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "slimpack: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace slimpack::app
