// SPDX-License-Identifier: Apache-2.0
// slimpack sweep: planners compared at every combination of some options' values.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "common.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/sweep.hpp"

namespace slimpack::app {
namespace {

struct SweepCommand {
  CommonOptions common;
  std::vector<std::string> sweep;
  std::vector<std::string> planners{"slimpack"};
  std::string steps = "1";
  std::string json, csv;
};

/// "key=a,b" as an axis.
[[nodiscard]] report::SweepAxis axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  require(equals != std::string::npos && equals > 0,
          "--sweep: must be OPTION=VALUE,VALUE.., as in context=32K,64K", text);
  report::SweepAxis axis{text.substr(0, equals), {{}}};
  if (axis.key.starts_with("--")) axis.key.erase(0, 2);
  for (const char character : text.substr(equals + 1)) {
    if (character == ',') {
      axis.values.emplace_back();
    } else {
      axis.values.back() += character;
    }
  }
  for (const std::string& value : axis.values) {
    require(!value.empty(), "--sweep " + axis.key + ": a value is empty", text);
    require(std::count(axis.values.begin(), axis.values.end(), value) == 1,
            "--sweep " + axis.key + ": a value must be listed once", value);
  }
  return axis;
}

[[nodiscard]] std::vector<report::SweepAxis> axes_of(const std::vector<std::string>& texts) {
  std::vector<report::SweepAxis> axes;
  for (const std::string& text : texts) {
    axes.push_back(axis_of(text));
    const auto same = [&](const report::SweepAxis& axis) { return axis.key == axes.back().key; };
    require(std::count_if(axes.begin(), axes.end(), same) == 1,
            "--sweep: an option must be listed once", axes.back().key);
  }
  return axes;
}

/// The options with a value of each axis in place of their own, read as the command line is.
[[nodiscard]] CommonOptions options_at(const CommonOptions& common,
                                       const std::vector<report::SweepAxis>& axes,
                                       const std::vector<std::string>& values) {
  CommonOptions options = common;
  CLI::App reader;
  add_common_options(reader, options);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::string& key = axes[i].key;
    CLI::Option* option =
        key == "LENGTHS" ? reader.get_option_no_throw(key) : reader.get_option_no_throw("--" + key);
    if (option == nullptr || key == "help") {
      std::string known;
      for (const CLI::Option* one : reader.get_options()) {
        const std::string name = one->get_single_name();
        if (name != "help" && name != "threads") known += (known.empty() ? "" : ", ") + name;
      }
      throw InvalidInput("--sweep: '" + key + "' is not one of " + known);
    }
    try {
      option->add_result(values[i]);
      option->run_callback();
    } catch (const CLI::ParseError&) {
      throw InvalidInput("--sweep " + key + ": '" + values[i] + "' is not a value of it");
    }
  }
  return options;
}

/// What makes it senseless to ask for a plan at all; absent where planners may be asked.
[[nodiscard]] std::optional<std::string> refusal(
    const std::vector<planners::PlannerInfo>& chosen,
    const std::vector<planners::PlanRequest>& requests) {
  try {
    for (const planners::PlannerInfo& planner : chosen) {
      for (const planners::PlanRequest& request : requests) check_request_for(planner, request);
    }
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return std::nullopt;
}

[[nodiscard]] report::ComparedPlan refused(const planners::PlannerInfo& planner, std::int64_t step,
                                           const std::string& why) {
  report::ComparedPlan entry;
  entry.planner = planner.name;
  entry.step = step;
  entry.why = why;
  return entry;
}

int run(const SweepCommand& command) {
  const std::vector<planners::PlannerInfo> chosen = chosen_planners(command.planners);
  const std::int64_t steps = parse_count("--steps", command.steps);
  const bool to_standard = check_outputs({{"--json", command.json}, {"--csv", command.csv}});
  report::Sweep sweep;
  sweep.axes = axes_of(command.sweep);
  const auto points = report::sweep_points(sweep.axes);
  // All points are read before the first is planned: a mistake in the last costs no hours.
  for (const auto& values : points) {
    check_options(options_at(command.common, sweep.axes, values));
  }
  RequestMaker maker;
  std::int64_t candidates = 0;
  for (const auto& values : points) {
    const CommonOptions options = options_at(command.common, sweep.axes, values);
    const auto requests = maker.make(options, steps);
    candidates +=
        planners::evaluations(requests.front()) * steps * static_cast<std::int64_t>(chosen.size());
  }
  bool any = false;
  {
    Progress progress("sweeping");
    std::int64_t before = 0;
    for (const auto& values : points) {
      const CommonOptions options = options_at(command.common, sweep.axes, values);
      const auto requests = maker.make(options, steps);
      report::SweepPoint point{values, {}};
      point.comparison.task = task_of(options, requests.front());
      point.comparison.steps = compared_steps(requests);
      const std::int64_t each = point.comparison.task.evaluations;
      const auto why = refusal(chosen, requests);
      for (const planners::PlannerInfo& planner : chosen) {
        for (planners::PlanRequest& request :
             why ? std::vector(requests) : report::steps_of(planner, requests)) {
          request.progress = [&](std::int64_t done, std::int64_t) {
            progress(before + std::min(done, each), candidates);
          };
          point.comparison.results.push_back(why ? refused(planner, request.batch.step, *why)
                                                 : report::compare_step(planner, request).entry);
          any = any || point.comparison.results.back().metrics;
          before += each;
          progress(before, candidates);
        }
      }
      sweep.points.push_back(std::move(point));
    }
  }
  write_report(command.json, [&](auto& out) { report::write_sweep_json(out, sweep); });
  write_report(command.csv, [&](auto& out) { report::write_sweep_csv(out, sweep); });
  if (!to_standard) report::write_sweep_text(std::cout, sweep);
  if (any) return 0;
  const report::ComparedPlan& first = sweep.points.front().comparison.results.front();
  std::cerr << fmt::format("slimpack: no point has a feasible plan: {}: {}\n", first.planner,
                           first.why);
  return 1;
}

}  // namespace

Run add_sweep(CLI::App& command) {
  auto options = std::make_shared<SweepCommand>();
  add_common_options(command, options->common);
  command
      .add_option("--sweep", options->sweep,
                  "OPTION=VALUE,VALUE..: an option above, or LENGTHS, and the values it takes; may "
                  "be given several times")
      ->required()
      ->take_all()
      ->expected(1, 1'000'000)
      ->type_size(1);
  add_with_alias(command, "--planners", "--planner", options->planners,
                 "names with commas between, see slimpack --list-planners")
      ->capture_default_str();
  command.add_option("--steps", options->steps, "consecutive steps, from --step on")
      ->capture_default_str();
  command.add_option("--json", options->json, "write all figures as JSON (docs/reports.md)");
  command.add_option("--csv", options->csv, "write a row for each point and planner");
  command.footer(
      "Plans the steps at every combination of the values, the last --sweep running fastest. All "
      "points are checked before the first is planned; a combination that no plan can have, as "
      "more "
      "stages than layers, is a row that says so.");
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
