// SPDX-License-Identifier: Apache-2.0
// slimpack tune: the best degrees, recomputation and batch for a number of devices.
#include "tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "notes.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/planners/search/degrees.hpp"

namespace slimpack::app {
namespace {

/// "1M,2M" as its parts; one empty part where nothing is asked for.
[[nodiscard]] std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char character : text) {
    if (character == ',') {
      parts.emplace_back();
    } else {
      parts.back() += character;
    }
  }
  return parts;
}

/// A degree that is fixed; absent where it is searched. The option is then any legal one.
[[nodiscard]] std::optional<std::int32_t> take_degree(const char* option, std::string& text) {
  std::optional<std::int32_t> degree;
  if (text != "auto") degree = parse_count(option, text);
  text = "1";
  return degree;
}

/// Refuses fixed degrees that the devices cannot be divided by, one by one and together.
void check_divides(const report::TuneOptions& options) {
  std::int64_t together = 1;
  std::string names;
  for (const auto& [name, degree] : {std::pair{"--dp", options.bounds.dp},
                                     {"--pp", options.bounds.pp},
                                     {"--tp", options.bounds.tp}}) {
    if (!degree) continue;
    const std::string rest =
        fmt::format("does not divide the {} devices of --gpus", options.devices);
    require(options.devices % *degree == 0, fmt::format("{}: {} {}", name, *degree, rest));
    together *= *degree;
    names += (names.empty() ? "" : " x ") + std::string(name);
    require(together <= options.devices && options.devices % together == 0,
            fmt::format("{}: {} {}", names, together, rest));
  }
}

/// Refuses a number of devices that no degrees make.
void check_choices(const planners::PlanRequest& request, const report::TuneOptions& options) {
  planners::DegreeBounds bounds = options.bounds;
  bounds.chunks = request.chunks.value_or(1);
  const ModelShape& model = request.model;
  if (!planners::degree_choices(model, request.cluster, options.devices, bounds).empty()) return;
  throw InvalidInput(fmt::format(
      "--gpus: no dp x pp x tp makes {} devices: pp x chunks can be at most the model's {} layers, "
      "and tp a power of two that divides its {} heads, {} key and value heads and ffn of {}, at "
      "most the {} devices of a node",
      options.devices, model.layers, model.heads, model.kv_heads, model.ffn,
      request.cluster.devices_per_node));
}

/// Says so where the plans at these degrees nearly fill a device.
void print_headroom(const report::TunedDegrees& tuned, const planners::PlanRequest& request) {
  Bytes peak;
  for (const report::ComparedPlan& step : tuned.steps) {
    if (step.metrics) peak = std::max(peak, step.metrics->peak);
  }
  const std::string hint = headroom_hint(peak, memory_limit(request));
  if (!hint.empty()) std::cout << fmt::format("memory: {}\n", hint);
}

}  // namespace

CheckedTuning check_tuning(const TuneTask& task, RequestMaker& maker) {
  CheckedTuning checked;
  checked.planners = chosen_planners(task.planners);
  CommonOptions common = task.common;
  report::TuneOptions& options = checked.options;
  options.devices = parse_count("--gpus", task.gpus);
  options.bounds.dp = take_degree("--dp", common.dp);
  options.bounds.pp = take_degree("--pp", common.pp);
  if (common.runtime == "torch" && common.tp == "auto") common.tp = "1";
  options.bounds.tp = take_degree("--tp", common.tp);
  options.finalists = task.finalists == "all" ? std::numeric_limits<std::int32_t>::max()
                                              : parse_count("--finalists", task.finalists);
  check_divides(options);
  const std::int64_t steps = parse_count("--steps", task.steps);
  checked.report.devices = options.devices;
  for (const std::string& tokens : parts_of(common.batch_tokens)) {
    CommonOptions one = common;
    one.batch_tokens = tokens;
    require(!tokens.empty() || common.batch_tokens.empty(),
            "--batch-tokens: there is nothing between two commas", common.batch_tokens);
    checked.requests.push_back(maker.make(one, steps));
    const std::vector<planners::PlanRequest>& made = checked.requests.back();
    if (checked.requests.size() == 1) checked.report.task = task_of(one, made.front());
    checked.report.batches.push_back({batch_options(one).batch_tokens, compared_steps(made)});
  }
  const planners::PlanRequest& first = checked.requests.front().front();
  options.threads = first.threads;
  check_choices(first, options);
  return checked;
}

report::TuneReport tune_planners(
    CheckedTuning checked,
    const std::function<void(std::int64_t done, std::int64_t most)>& progress) {
  const auto parts = static_cast<std::int64_t>(checked.planners.size() * checked.requests.size());
  std::int64_t before = 0;
  for (std::size_t batch = 0; batch < checked.requests.size(); ++batch) {
    for (const planners::PlannerInfo& planner : checked.planners) {
      // Every part fills an equal piece of the bar.
      checked.options.progress = [&](std::int64_t done, std::int64_t most) {
        progress(before * 1000 + (most > 0 ? done * 1000 / most : 0), parts * 1000);
      };
      checked.report.results.push_back(
          {batch, report::tune(planner, checked.requests[batch], checked.options)});
      ++before;
    }
  }
  return std::move(checked.report);
}

namespace {

struct TuneCommand {
  TuneTask task;
  std::string json;
};

int run(const TuneCommand& command) {
  const bool to_standard = check_outputs({{"--json", command.json}});
  RequestMaker maker;
  CheckedTuning checked = check_tuning(command.task, maker);
  const planners::PlanRequest first = checked.requests.front().front();
  tell_shape(first, checked.options.devices);
  report::TuneReport report;
  {
    Progress progress("tuning");
    report = tune_planners(std::move(checked), std::ref(progress));
  }
  write_report(command.json, [&](auto& out) { report::write_tuning_json(out, report); });
  const std::vector<report::TunedPlace> ranking = report::tuned_ranking(report);
  if (!to_standard) {
    report::write_tuning_text(std::cout, report);
    if (!ranking.empty()) print_headroom(report::tuned_at(report, ranking.front()), first);
  }
  if (!ranking.empty()) return 0;
  const report::TunedDegrees& nearest = report.results.front().tuning.tried.front();
  std::cerr << fmt::format("slimpack: no degrees have a feasible plan: {}: {}: {}\n",
                           report.results.front().tuning.planner,
                           planners::to_string(nearest.degrees), nearest.why);
  return 1;
}

}  // namespace

Run add_tune(CLI::App& command) {
  auto options = std::make_shared<TuneCommand>();
  add_common_options(command, options->task.common);
  command.add_option("--gpus", options->task.gpus, "devices: dp x pp x tp")->required();
  add_with_alias(command, "--planners", "--planner", options->task.planners,
                 "names with commas between, see slimpack --list-planners")
      ->capture_default_str();
  command.add_option("--steps", options->task.steps, "consecutive steps, from --step on")
      ->capture_default_str();
  command
      .add_option("--finalists", options->task.finalists,
                  "degrees that are planned with the whole budget of --effort; all: every one")
      ->capture_default_str();
  command.add_option("--json", options->json, "write all figures as JSON (docs/reports.md)");
  command.get_option("--dp")->description("data-parallel ranks, or auto: searched");
  command.get_option("--pp")->description("pipeline stages, or auto: searched");
  command.get_option("--tp")->description("tensor-parallel devices, or auto: searched");
  command.get_option("--batch-tokens")
      ->description("tokens a step holds at most; several with commas between are compared [all]");
  command.footer(
      "Plans the same steps at every dp x pp x tp of that many devices: all with a small budget, "
      "then the better half with twice as much, and so on to the whole budget of --effort. Prints "
      "what each round gained, the degrees best first, and why the runner-up lost.");
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
