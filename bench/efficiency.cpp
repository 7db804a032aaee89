// SPDX-License-Identifier: Apache-2.0
// Efficiency, distance to the bound of its own degrees, max_cp, chunks and head, where the time of
// steps goes, and planning time of a planner on folders of length files.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/time_split.hpp"

using namespace slimpack;

namespace {

struct Options {
  std::string folder;
  std::vector<std::string> sets{"github", "wikipedia_ko", "longsft_mix", "prolong_like_mix",
                                "pretrain_hist_magi"};
  std::vector<std::int64_t> contexts{32768, 131072, 262144};
  std::string planner = "slimpack", model = "llama-7b", cluster = "h100", effort = "normal";
  std::int32_t dp = 4, pp = 8, tp = 1, threads = 1;
  std::int64_t tokens = 4'000'000, samples = 0, steps = 3;
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
  program.add_option("--samples", options.samples, "of a step, in place of tokens; 0: by tokens")
      ->check(CLI::NonNegativeNumber);
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

/// One step, or sums over several.
struct Row {
  std::int64_t steps = 0;
  double efficiency = 0, over_bound = 0, seconds = 0;
  std::array<double, report::kTimeCauses> split{};  ///< of the step's bound, by cause

  Row& operator+=(const Row& other) {
    steps += other.steps;
    efficiency += other.efficiency;
    over_bound += other.over_bound;
    seconds += other.seconds;
    for (std::size_t i = 0; i < split.size(); ++i) split[i] += other.split[i];
    return *this;
  }
  /// A sum over these steps as their mean.
  [[nodiscard]] double mean(double sum) const {
    return sum / static_cast<double>(std::max<std::int64_t>(1, steps));
  }
};

/// The row of one step; `steps` is 0 if there is no plan for it.
Row measure(const planners::PlanRequest& request, const Options& options) {
  const planners::PlannerInfo& planner = planners::find_planner(options.planner);
  const report::ComparedOutcome outcome = report::compare_step(planner, request);
  Row row;
  row.seconds = outcome.entry.plan_seconds;
  if (outcome.timeline) {
    const report::Metrics& metrics = *outcome.entry.metrics;
    const double bound = seconds(metrics.lower_bound);
    row.steps = 1;
    row.efficiency = metrics.efficiency;
    row.over_bound = seconds(metrics.iteration) / bound;
    const report::TimeSplit split = report::time_split(*outcome.timeline, metrics);
    for (std::size_t i = 0; i < split.time.size(); ++i) {
      row.split[i] = seconds(split.time[i]) / bound;
    }
  } else {
    std::printf("    infeasible: %s\n", outcome.entry.why.c_str());
  }
  if (options.settings) {
    std::printf("    %.4f %lld:", row.efficiency,
                static_cast<long long>(outcome.entry.evaluations));
    for (const auto& [name, value] : outcome.entry.settings) {
      std::printf(" %s=%s", name.c_str(), value.c_str());
    }
    std::printf("\n");
  }
  return row;
}

/// In hundredths of the bound: 100 of it is ideal work, less where no plan can do it alone.
void print_split(const Row& sum) {
  std::printf("\nmean time in hundredths of the bound, by cause:");
  for (std::size_t i = 0; i < sum.split.size(); ++i) {
    const std::string name(report::time_cause(i));
    std::printf(" %s %.2f", name.c_str(), 100 * sum.mean(sum.split[i]));
  }
  std::printf("\n");
}

void run(const Options& options) {
  std::printf("%-20s %8s  %10s %10s  %10s  %9s\n", "set", "context", "efficiency", "least",
              "time/bound", "plan s");
  Row all;
  double least = 1;
  std::int64_t missing = 0;
  for (const std::string& name : options.sets) {
    const LengthSet set = read_set(options.folder + "/" + name + ".lengths");
    for (const std::int64_t context : options.contexts) {
      BatchOptions batches;
      batches.context = {context};
      batches.overlong = Overlong::split;
      if (options.samples > 0) {
        batches.batch_samples = options.samples;
      } else {
        batches.batch_tokens = Tokens{options.tokens};
      }
      BatchStream stream(std::span(&set, 1), batches);
      planners::PlanRequest request = make_request(options, set, context);
      Row sum;
      double worst = 1;
      for (std::int64_t step = 0; step < options.steps; ++step) {
        request.batch = stream.next();
        const Row row = measure(request, options);
        sum += row;
        missing += 1 - row.steps;
        if (row.steps > 0) worst = std::min(worst, row.efficiency);
      }
      std::printf("%-20s %8lld  %10.4f %10.4f  %10.4f  %9.4f\n", name.c_str(),
                  static_cast<long long>(context), sum.mean(sum.efficiency), worst,
                  sum.mean(sum.over_bound), sum.seconds / static_cast<double>(options.steps));
      std::fflush(stdout);
      all += sum;
      least = std::min(least, worst);
    }
  }
  std::printf("%-20s %8s  %10.4f %10.4f  %10.4f   infeasible %lld\n", "all", "",
              all.mean(all.efficiency), least, all.mean(all.over_bound),
              static_cast<long long>(missing));
  print_split(all);
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
