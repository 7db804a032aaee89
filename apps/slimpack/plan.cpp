// SPDX-License-Identifier: Apache-2.0
// slimpack plan: lengths to plan.json.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <variant>

#include "command.hpp"
#include "common.hpp"
#include "notes.hpp"
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

/// What the program says of a plan that it has written.
void print_summary(std::ostream& out, const PlanOptions& options, const Plan& plan,
                   const planners::PlanOutcome& outcome, const MemoryLimit& limit) {
  const auto& predicted = plan.prediction;
  out << fmt::format(
      "{}: {} samples in {} MicroPacks; {:.6f} s a step, efficiency {:.1f} %; no valid plan "
      "with its degrees, max_cp, chunks, head and weight state takes less than {:.6f} s\n",
      options.output, plan.samples.size(), plan.micropacks.size(), seconds(predicted.iteration),
      100 * seconds(predicted.ideal) / seconds(predicted.iteration),
      seconds(predicted.lower_bound));
  out << fmt::format("  hash: {}\n", to_string(plan_hash(plan)));
  for (const auto& [name, text] : outcome.settings) out << fmt::format("  {}: {}\n", name, text);
  Bytes peak;
  for (const DevicePrediction& device : predicted.devices) peak = std::max(peak, device.peak);
  const std::string hint = headroom_hint(peak, limit);
  if (!hint.empty()) out << fmt::format("  memory: {}\n", hint);
}

int run(const PlanOptions& options) {
  const bool to_standard = check_outputs({{"--output", options.output}});
  require(options.planner.find(',') == std::string::npos,
          "--planner: one planner makes the plan; slimpack compare takes several", options.planner);
  const planners::PlannerInfo& planner = planners::find_planner(options.planner);
  planners::PlanRequest request = make_request(options.common);
  check_request_for(planner, request);
  tell_shape(request, std::int64_t{request.dp} * request.pp * request.tp);
  planners::PlanOutcome outcome;
  {
    Progress progress("planning");
    request.progress = std::ref(progress);
    outcome = planners::plan_step(planner, request);
  }
  if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
    std::cerr << fmt::format("slimpack: no feasible plan: {}: needed {}, available {}\n",
                             none->constraint, none->needed, none->available);
    return 1;
  }
  const Plan plan = *planners::take_plan(std::move(outcome.result));
  write_file(options.output, plan_to_json(plan));
  print_summary(to_standard ? std::cerr : std::cout, options, plan, outcome, memory_limit(request));
  return 0;
}

}  // namespace

Run add_plan(CLI::App& command) {
  auto options = std::make_shared<PlanOptions>();
  add_common_options(command, options->common);
  add_with_alias(command, "--planner", "--planners", options->planner,
                 "see slimpack --list-planners")
      ->capture_default_str();
  command.add_option("-o,--output", options->output, "the plan to write, or - for standard output")
      ->required();
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
