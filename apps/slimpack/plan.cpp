// SPDX-License-Identifier: Apache-2.0
// slimpack plan: lengths to plan.json.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <utility>
#include <variant>

#include "command.hpp"
#include "common.hpp"
#include "progress.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/planners/registry.hpp"

namespace slimpack::app {
namespace {

struct PlanOptions {
  CommonOptions common;
  std::string planner = "slimpack";
  std::string output;
};

int run(const PlanOptions& options) {
  const planners::PlannerInfo& planner = planners::find_planner(options.planner);
  planners::PlanRequest request = make_request(options.common);
  planners::PlanOutcome outcome;
  {
    Progress progress("planning");
    request.progress = std::ref(progress);
    outcome = planner.plan(request);
  }
  if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
    std::cerr << fmt::format("slimpack: no feasible plan: {}: needed {}, available {}\n",
                             none->constraint, none->needed, none->available);
    return 1;
  }
  const Plan plan = *planners::take_plan(std::move(outcome.result));
  write_file(options.output, plan_to_json(plan));
  const auto& predicted = plan.prediction;
  std::cout << fmt::format(
      "{}: {} samples in {} MicroPacks; {:.6f} s a step, efficiency {:.1f} %, proven lower bound "
      "{:.6f} s\n",
      options.output, plan.samples.size(), plan.micropacks.size(), seconds(predicted.iteration),
      100 * seconds(predicted.ideal) / seconds(predicted.iteration),
      seconds(predicted.lower_bound));
  std::cout << fmt::format("  hash: {}\n", to_string(plan_hash(plan)));
  for (const auto& [name, text] : outcome.settings) {
    std::cout << fmt::format("  {}: {}\n", name, text);
  }
  return 0;
}

}  // namespace

Run add_plan(CLI::App& command) {
  auto options = std::make_shared<PlanOptions>();
  add_common_options(command, options->common);
  command.add_option("--planner", options->planner, "see slimpack --list-planners")
      ->capture_default_str();
  command.add_option("-o,--output", options->output, "the plan to write")->required();
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
