// SPDX-License-Identifier: Apache-2.0
// Efficiency, distance to the bound of its own degrees, max_cp, chunks and head, and planning time
// of a planner on folders of length files.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/planners/registry.hpp"

using namespace slimpack;

namespace {

struct Options {
  std::string folder;
  std::vector<std::string> sets{"github", "wikipedia_ko", "longsft_mix", "prolong_like_mix",
                                "pretrain_hist_magi"};
  std::vector<std::int64_t> contexts{32768, 131072, 262144};
  std::string planner = "slimpack", model = "llama-7b", cluster = "h100", effort = "normal";
  std::int32_t dp = 4, pp = 8, tp = 1, threads = 1;
  std::int64_t tokens = 4'000'000, steps = 3;
  double kernels = 1;     ///< factor on the cost of a kernel and a segment
  bool no_links = false;  ///< transfers take no time
  bool settings = false;  ///< print what was chosen
};

void add_options(CLI::App& program, Options& options) {
  program.option_defaults()->always_capture_default();
  program
      .add_option("folder", options.folder, "FOLDER/SET.lengths holds a document's tokens a line")
      ->required();
  program.add_option("--sets", options.sets)->delimiter(',');
  program.add_option("--contexts", options.contexts)->delimiter(',')->check(CLI::PositiveNumber);
  program.add_option("--planner", options.planner);
  program.add_option("--model", options.model);
  program.add_option("--cluster", options.cluster);
  program.add_option("--effort", options.effort)
      ->check(CLI::IsMember({"fast", "normal", "thorough"}));
  program.add_option("--dp", options.dp)->check(CLI::PositiveNumber);
  program.add_option("--pp", options.pp)->check(CLI::PositiveNumber);
  program.add_option("--tp", options.tp)->check(CLI::PositiveNumber);
  program.add_option("--threads", options.threads)->check(CLI::PositiveNumber);
  program.add_option("--tokens", options.tokens, "of a step")->check(CLI::PositiveNumber);
  program.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  program.add_option("--kernels", options.kernels, "factor on the cost of a kernel and a segment")
      ->check(CLI::NonNegativeNumber);
  program.add_flag("--no-links", options.no_links, "transfers take no time");
  program.add_flag("--settings", options.settings, "print what was chosen");
}

LengthSet read_set(const std::string& path) {
  std::ifstream file(path);
  require(static_cast<bool>(file), "cannot read", path);
  LengthSet set;
  set.name = path;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    set.documents.push_back({std::stoll(line)});
  }
  return set;
}

planners::PlanRequest make_request(const Options& options, const LengthSet& set,
                                   std::int64_t context) {
  planners::PlanRequest request;
  request.sources = {{set.name, static_cast<std::int64_t>(set.documents.size()), ""}};
  request.model = model_preset(options.model).value();
  request.cluster = cluster_preset(options.cluster).value();
  request.cluster.kernel_s *= options.kernels;
  request.cluster.segment_s *= options.kernels;
  if (options.no_links) {
    const Link free{1e30, 0};
    request.cluster.inside = request.cluster.between = free;
  }
  request.dp = options.dp;
  request.pp = options.pp;
  request.tp = options.tp;
  request.context = {context};
  request.threads = options.threads;
  request.effort = options.effort == "fast"     ? planners::Effort::fast
                   : options.effort == "normal" ? planners::Effort::normal
                                                : planners::Effort::thorough;
  return request;
}

struct Row {
  double efficiency = 0, over_bound = 0, seconds = 0;
  bool feasible = false;
};

Row measure(const planners::PlanRequest& request, const Options& options) {
  const planners::PlannerInfo& planner = planners::find_planner(options.planner);
  const auto before = std::chrono::steady_clock::now();
  const planners::PlanOutcome outcome = planner.plan(request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  Row row;
  row.seconds = took.count();
  if (const auto* plan = std::get_if<Plan>(&outcome.result)) {
    const Prediction& made = plan->prediction;
    row.feasible = true;
    row.efficiency = seconds(made.ideal) / seconds(made.iteration);
    row.over_bound = seconds(made.iteration) / seconds(made.lower_bound);
  } else {
    const auto& why = std::get<Infeasible>(outcome.result);
    std::printf("    infeasible: %s, needed %lld, available %lld\n", why.constraint.c_str(),
                static_cast<long long>(why.needed), static_cast<long long>(why.available));
  }
  if (options.settings) {
    std::printf("    %.4f %lld:", row.efficiency, static_cast<long long>(outcome.evaluations));
    for (const auto& [name, value] : outcome.settings) {
      std::printf(" %s=%s", name.c_str(), value.c_str());
    }
    std::printf("\n");
  }
  return row;
}

void run(const Options& options) {
  std::printf("%-20s %8s  %10s %10s  %10s  %9s\n", "set", "context", "efficiency", "least",
              "time/bound", "plan s");
  double sum = 0, least = 1, bound = 0;
  std::int64_t rows = 0, missing = 0;
  for (const std::string& name : options.sets) {
    const LengthSet set = read_set(options.folder + "/" + name + ".lengths");
    for (const std::int64_t context : options.contexts) {
      BatchOptions batches;
      batches.context = {context};
      batches.overlong = Overlong::split;
      batches.batch_tokens = Tokens{options.tokens};
      BatchStream stream(std::span(&set, 1), batches);
      planners::PlanRequest request = make_request(options, set, context);
      Row mean;
      double worst = 1;
      std::int64_t feasible = 0;
      for (std::int64_t step = 0; step < options.steps; ++step) {
        request.batch = stream.next();
        const Row row = measure(request, options);
        mean.seconds += row.seconds / static_cast<double>(options.steps);
        if (!row.feasible) {
          ++missing;
          continue;
        }
        ++feasible;
        ++rows;
        mean.efficiency += row.efficiency;
        mean.over_bound += row.over_bound;
        worst = std::min(worst, row.efficiency);
        sum += row.efficiency;
        bound += row.over_bound;
        least = std::min(least, row.efficiency);
      }
      const auto count = static_cast<double>(std::max<std::int64_t>(1, feasible));
      std::printf("%-20s %8lld  %10.4f %10.4f  %10.4f  %9.4f\n", name.c_str(),
                  static_cast<long long>(context), mean.efficiency / count, worst,
                  mean.over_bound / count, mean.seconds);
      std::fflush(stdout);
    }
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(1, rows));
  std::printf("%-20s %8s  %10.4f %10.4f  %10.4f   infeasible %lld\n", "all", "", sum / count, least,
              bound / count, static_cast<long long>(missing));
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App program{"Efficiency, distance to the bound and planning time on files of lengths"};
  add_options(program, options);
  CLI11_PARSE(program, count, arguments);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_efficiency: %s\n", error.what());
    return 2;
  }
  return 0;
}
