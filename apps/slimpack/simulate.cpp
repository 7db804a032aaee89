// SPDX-License-Identifier: Apache-2.0
// slimpack simulate: a plan's predicted time and memory, as text, JSON, trace, graph, picture, page
// and Chakra traces.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "command.hpp"
#include "common.hpp"
#include "folder.hpp"
#include "sizes.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/structure.hpp"
#include "slimpack/report/chakra.hpp"
#include "slimpack/report/dag_text.hpp"
#include "slimpack/report/page.hpp"
#include "slimpack/report/summary.hpp"
#include "slimpack/report/svg.hpp"
#include "slimpack/report/trace.hpp"
#include "slimpack/sim/jitter.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::app {
namespace {

struct SimulateOptions {
  std::string plan, trace, dag, html, svg, chakra;
  std::string jitter, draws = "100";
  std::uint64_t seed = 0;
  bool json = false;
};

/// "5%" to parts per million.
[[nodiscard]] std::int64_t parse_percent(const std::string& text) {
  double percent = -1;
  const char* const last = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), last, percent);
  const bool sign = rest != last && *rest == '%' && rest + 1 == last;
  require(error == std::errc{} && (sign || rest == last) && percent >= 0 && percent <= 100,
          "--jitter: must be a percentage from 0% to 100%", text);
  return std::llround(percent * 10'000);
}

int run(const SimulateOptions& options) {
  const bool to_standard = check_outputs({{"--trace", options.trace},
                                          {"--dag", options.dag},
                                          {"--svg", options.svg},
                                          {"--html", options.html}});
  require(!to_standard || !options.json,
          "--json, --trace, --dag, --svg, --html: only one of them can go to standard output");
  if (!options.chakra.empty()) check_folder("--chakra", options.chakra);
  std::vector<sim::JitterOptions> draws;
  if (!options.jitter.empty()) {
    for (const sim::JitterKind kind : {sim::JitterKind::noise, sim::JitterKind::slow_device}) {
      draws.push_back({kind, parse_percent(options.jitter), parse_size("--draws", options.draws),
                       options.seed});
    }
  }
  const Plan plan = read_plan_file(options.plan);
  // Only what fits too much into memory can still be simulated in a way that means something.
  for (const Violation& violation : validate(plan).violations) {
    std::cerr << fmt::format(
        "slimpack: {}: rule {}: {}{}\n", options.plan, violation.rule, violation.message,
        violation.rule == 7 ? "" : "; see slimpack validate for every violation");
    if (violation.rule != 7) return 1;
    break;
  }
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, PricedPlan(plan));

  std::vector<report::JitterReport> jitter;
  jitter.reserve(draws.size());
  for (const sim::JitterOptions& draw : draws) {
    jitter.push_back({draw, sim::draw_jitter(simulation.dag, simulation.timeline, draw)});
  }
  const report::SimulationSummary summary = report::summarize(plan, simulation, std::move(jitter));

  write_report(options.trace, [&](auto& out) { report::write_trace(out, plan, simulation); });
  write_report(options.dag,
               [&](auto& out) { report::write_dag(out, simulation.dag, simulation.timeline); });
  write_report(options.svg, [&](auto& out) { report::write_svg(out, plan, simulation); });
  write_report(options.html, [&](auto& out) { report::write_html(out, plan, simulation); });
  if (!options.chakra.empty()) {
    write_folder("--chakra", options.chakra, [&](const std::string& folder) {
      report::write_chakra(plan, simulation,
                           [&](const std::string& name, const std::string& bytes) {
                             write_file(folder + "/" + name, bytes);
                           });
    });
  }
  if (options.json) {
    report::write_summary_json(std::cout, plan, simulation, summary);
  } else if (!to_standard) {
    report::write_summary_text(std::cout, plan, simulation, summary);
  }
  return 0;
}

}  // namespace

Run add_simulate(CLI::App& command) {
  auto options = std::make_shared<SimulateOptions>();
  command.add_option("PLAN", options->plan, "plan.json, or - for standard input")->required();
  command.add_option("--trace", options->trace, "write Chrome trace events (opens in Perfetto)");
  command.add_option("--dag", options->dag, "write the simulated graph, dag.txt");
  command.add_option("--svg", options->svg, "write the timeline as a picture");
  command.add_option("--html", options->html,
                     "write a page with the timeline to zoom into, memory and critical path");
  command.add_option("--chakra", options->chakra,
                     "write Chakra execution traces into this folder, new or empty, one a device "
                     "(docs/chakra.md)");
  command.add_option("--jitter", options->jitter,
                     "also predict the step with every unit up to this much faster or slower, "
                     "say 5%, and with one device this much slower");
  command.add_option("--draws", options->draws, "draws of the jitter")->capture_default_str();
  command.add_option("--seed", options->seed, "of the jitter")->capture_default_str();
  command.add_flag("--json", options->json, "print JSON (docs/reports.md)");
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
