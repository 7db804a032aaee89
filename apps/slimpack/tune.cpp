// SPDX-License-Identifier: Apache-2.0
// slimpack tune: the best degrees, recomputation and batch for a number of devices.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "common.hpp"
#include "notes.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/planners/search/degrees.hpp"
#include "slimpack/report/tune.hpp"
#include "slimpack/report/tune_report.hpp"

namespace slimpack::app {
namespace {

struct TuneCommand {
  CommonOptions common;
  std::vector<std::string> planners{"slimpack"};
  std::string gpus, steps = "1", finalists = "3";
  std::string json;
};

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

int run(const TuneCommand& command) {
  const bool to_standard = check_outputs({{"--json", command.json}});
  const std::vector<planners::PlannerInfo> chosen = chosen_planners(command.planners);
  CommonOptions common = command.common;
  report::TuneOptions options;
  options.devices = parse_count("--gpus", command.gpus);
  options.bounds.dp = take_degree("--dp", common.dp);
  options.bounds.pp = take_degree("--pp", common.pp);
  options.bounds.tp = take_degree("--tp", common.tp);
  options.finalists = command.finalists == "all" ? std::numeric_limits<std::int32_t>::max()
                                                 : parse_count("--finalists", command.finalists);
  check_divides(options);
  const std::int64_t steps = parse_count("--steps", command.steps);

  report::TuneReport report;
  report.devices = options.devices;
  RequestMaker maker;
  std::vector<std::vector<planners::PlanRequest>> requests;
  for (const std::string& tokens : parts_of(common.batch_tokens)) {
    CommonOptions one = common;
    one.batch_tokens = tokens;
    require(!tokens.empty() || common.batch_tokens.empty(),
            "--batch-tokens: there is nothing between two commas", common.batch_tokens);
    requests.push_back(maker.make(one, steps));
    if (requests.size() == 1) report.task = task_of(one, requests.back().front());
    report.batches.push_back({batch_options(one).batch_tokens, compared_steps(requests.back())});
  }
  const planners::PlanRequest& first = requests.front().front();
  options.threads = first.threads;
  check_choices(first, options);
  tell_shape(first, options.devices);
  {
    Progress progress("tuning");
    const auto parts = static_cast<std::int64_t>(chosen.size() * requests.size());
    std::int64_t before = 0;
    for (std::size_t batch = 0; batch < requests.size(); ++batch) {
      for (const planners::PlannerInfo& planner : chosen) {
        // Every part fills an equal piece of the bar.
        options.progress = [&](std::int64_t done, std::int64_t most) {
          progress(before * 1000 + (most > 0 ? done * 1000 / most : 0), parts * 1000);
        };
        report.results.push_back({batch, report::tune(planner, requests[batch], options)});
        ++before;
      }
    }
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
  options->common.dp = options->common.pp = options->common.tp = "auto";
  add_common_options(command, options->common);
  command.add_option("--gpus", options->gpus, "devices: dp x pp x tp")->required();
  add_with_alias(command, "--planners", "--planner", options->planners,
                 "names with commas between, see slimpack --list-planners")
      ->capture_default_str();
  command.add_option("--steps", options->steps, "consecutive steps, from --step on")
      ->capture_default_str();
  command
      .add_option("--finalists", options->finalists,
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
