// SPDX-License-Identifier: Apache-2.0
// slimpack compare: the same steps by several planners, as a table, JSON, CSV, a picture and a
// page.
#include "compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "notes.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/compare_report.hpp"
#include "slimpack/report/page.hpp"

namespace slimpack::app {

CheckedComparison check_comparison(const CompareTask& task, RequestMaker& maker) {
  CheckedComparison checked{chosen_planners(task.planners), {}};
  const std::int64_t steps = parse_count("--steps", task.steps);
  require(task.baseline == report::kDefaultBaseline ||
              std::any_of(checked.planners.begin(), checked.planners.end(),
                          [&](const auto& planner) { return planner.name == task.baseline; }),
          "--baseline: must be one of the planners that are compared", task.baseline);
  checked.requests = maker.make(task.common, steps);
  for (const planners::PlannerInfo& planner : checked.planners) {
    check_request_for(planner, checked.requests.front());
  }
  return checked;
}

DrawnComparison compare_planners(
    const CompareTask& task, const CheckedComparison& checked, bool drawing,
    const std::function<void(std::int64_t done, std::int64_t most)>& progress) {
  DrawnComparison made;
  report::Comparison& comparison = made.comparison;
  comparison.task = task_of(task.common, checked.requests.front());
  comparison.steps = compared_steps(checked.requests);
  comparison.baseline = task.baseline;
  const std::int64_t each = comparison.task.evaluations;
  const std::int64_t all =
      each * static_cast<std::int64_t>(checked.requests.size() * checked.planners.size());
  std::int64_t before = 0;
  for (const planners::PlannerInfo& planner : checked.planners) {
    std::vector<planners::PlanRequest> taken = report::steps_of(planner, checked.requests);
    for (planners::PlanRequest& request : taken) {
      request.progress = [&](std::int64_t done, std::int64_t) {
        progress(before + std::min(done, each), all);
      };
      report::ComparedOutcome outcome = report::compare_step(planner, request);
      comparison.results.push_back(std::move(outcome.entry));
      if (drawing && &request == &taken.front() && outcome.timeline) {
        made.drawn.push_back(*std::move(outcome.timeline));
      }
      before += each;
    }
  }
  return made;
}

namespace {

struct CompareOptions {
  CompareTask task;
  std::string json, csv, html, svg;
};

int run(const CompareOptions& options) {
  const bool to_standard = check_outputs({{"--json", options.json},
                                          {"--csv", options.csv},
                                          {"--html", options.html},
                                          {"--svg", options.svg}});
  RequestMaker maker;
  const CheckedComparison checked = check_comparison(options.task, maker);
  const planners::PlanRequest& first_request = checked.requests.front();
  tell_shape(first_request, std::int64_t{first_request.dp} * first_request.pp * first_request.tp);
  const bool drawing = !options.svg.empty() || !options.html.empty();
  DrawnComparison made;
  {
    Progress progress("comparing");
    made = compare_planners(options.task, checked, drawing, std::ref(progress));
  }
  const report::Comparison& comparison = made.comparison;

  write_report(options.json, [&](auto& out) { report::write_comparison_json(out, comparison); });
  write_report(options.csv, [&](auto& out) { report::write_comparison_csv(out, comparison); });
  write_report(options.svg,
               [&](auto& out) { report::write_comparison_svg(out, comparison, made.drawn); });
  write_report(options.html,
               [&](auto& out) { report::write_comparison_html(out, comparison, made.drawn); });
  if (!to_standard) report::write_comparison_text(std::cout, comparison);
  const auto feasible = [](const report::ComparedPlan& entry) { return entry.metrics.has_value(); };
  if (std::any_of(comparison.results.begin(), comparison.results.end(), feasible)) return 0;
  const report::ComparedPlan& first = comparison.results.front();
  std::cerr << fmt::format("slimpack: no planner has a feasible plan: {}: {}\n", first.planner,
                           first.why);
  return 1;
}

}  // namespace

Run add_compare(CLI::App& command) {
  auto options = std::make_shared<CompareOptions>();
  add_common_options(command, options->task.common);
  add_with_alias(command, "--planners", "--planner", options->task.planners,
                 "names with commas between, see slimpack --list-planners [all]");
  command.add_option("--steps", options->task.steps, "consecutive steps, from --step on")
      ->capture_default_str();
  command.add_option("--baseline", options->task.baseline, "the planner that speed-ups are over")
      ->capture_default_str();
  command.add_option("--json", options->json, "write all figures as JSON (docs/reports.md)");
  command.add_option("--csv", options->csv, "write a row for each planner and step");
  command.add_option("--html", options->html,
                     "write a page with tables, timelines and charts (opens without a network)");
  command.add_option("--svg", options->svg, "draw the first step of every planner, one time axis");
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
