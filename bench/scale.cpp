// SPDX-License-Identifier: Apache-2.0
// Planning and simulating at thousands of devices: time and memory of each planner, one process
// each.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/sim/simulate_plan.hpp"

using namespace slimpack;

namespace {

struct Options {
  std::vector<std::string> files;
  std::vector<std::string> planners;
  std::vector<std::int64_t> devices{1024, 4096, 16384};
  std::string model = "llama3-70b", cluster = "h100", effort = "fast";
  std::int32_t pp = 16, tp = 8, threads = 1;
  std::int64_t context = 131'072, tokens = 64'000'000;  ///< of a step on the most devices
  unsigned limit_s = 300;
  std::uint64_t memory_gb = 12;
};

void add_options(CLI::App& program, Options& options) {
  const CLI::Range count(1, std::numeric_limits<std::int32_t>::max());
  for (const planners::PlannerInfo& planner : planners::registry()) {
    options.planners.emplace_back(planner.name);
  }
  program.option_defaults()->always_capture_default();
  program.add_option("lengths", options.files, "files of lengths")->required();
  program.add_option("--planners", options.planners)->delimiter(',');
  program.add_option("--devices", options.devices)->delimiter(',')->check(count);
  program.add_option("--model", options.model);
  program.add_option("--cluster", options.cluster);
  program.add_option("--effort", options.effort)
      ->check(CLI::IsMember({"fast", "normal", "thorough"}));
  program.add_option("--pp", options.pp)->check(count);
  program.add_option("--tp", options.tp)->check(count);
  program.add_option("--threads", options.threads)->check(count);
  program.add_option("--context", options.context)->check(count);
  program
      .add_option("--tokens", options.tokens,
                  "of a step on the most devices; in proportion fewer on fewer")
      ->check(count);
  program.add_option("--limit", options.limit_s, "seconds for a planner's step")->check(count);
  program.add_option("--memory", options.memory_gb, "GiB for a planner's step")->check(count);
}

/// The request of one step on so many devices.
planners::PlanRequest request_of(const Options& options, const std::string& file,
                                 std::int64_t devices) {
  planners::PlanRequest request;
  const auto model = model_preset(options.model);
  const auto cluster = cluster_preset(options.cluster);
  require(model.has_value(), "--model is not a preset", options.model);
  require(cluster.has_value(), "--cluster is not a preset", options.cluster);
  request.model = *model;
  request.cluster = *cluster;
  const std::int64_t each = std::int64_t{options.pp} * options.tp;
  require(devices >= each && devices % each == 0, "--devices must be multiples of pp x tp",
          devices);
  request.dp = static_cast<std::int32_t>(devices / each);
  request.pp = options.pp;
  request.tp = options.tp;
  request.context = {options.context};
  request.threads = options.threads;
  request.effort = options.effort == "thorough" ? planners::Effort::thorough
                   : options.effort == "normal" ? planners::Effort::normal
                                                : planners::Effort::fast;
  const LengthSet lengths = read_text_lengths(file);
  BatchOptions batch;
  batch.context = {options.context};
  batch.overlong = Overlong::split;
  const std::int64_t most = *std::max_element(options.devices.begin(), options.devices.end());
  batch.batch_tokens = Tokens{options.tokens / most * devices};
  BatchStream batches(std::span(&lengths, 1), batch);
  request.batch = batches.next();
  request.sources = {{file, static_cast<std::int64_t>(lengths.documents.size()), {}}};
  return request;
}

/// Time, and the most memory that was resident, of one part of the work.
struct Spent {
  double wall_s = 0, cpu_s = 0, peak_mb = 0;
};

/// What a child process says of a planner. Written through a pipe as its bytes.
struct Figures {
  bool feasible = false;
  Spent plan, simulate;
  double iteration_s = 0, efficiency = 0;
  std::int64_t units = 0, nodes = 0, evaluations = 0;
  char why[160] = {};
};
static_assert(std::is_trivially_copyable_v<Figures>);

double status_mb(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stod(line.substr(key.size() + 1)) * 1024e-6;
  }
  return 0;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto both = [](const timeval& a, const timeval& b) {
    return static_cast<double>(a.tv_sec + b.tv_sec) +
           static_cast<double>(a.tv_usec + b.tv_usec) * 1e-6;
  };
  return both(usage.ru_utime, usage.ru_stime);
}

/// Peaks count what the process holds already: request, and for the simulation the plan.
template <class Action>
Spent measure(const Action& action) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  const double cpu = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  action();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count(), cpu_seconds() - cpu, status_mb("VmHWM:")};
}

void explain(Figures& figures, const std::string& why) {
  std::snprintf(figures.why, sizeof figures.why, "%s", why.c_str());
}

Figures figures_of(const planners::PlannerInfo& planner, const planners::PlanRequest& request) {
  Figures figures;
  planners::PlanOutcome outcome;
  figures.plan = measure([&] { outcome = planner.plan(request); });
  figures.evaluations = outcome.evaluations;
  if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
    explain(figures, none->constraint + ": needed " + std::to_string(none->needed) +
                         ", available " + std::to_string(none->available));
    return figures;
  }
  figures.feasible = true;
  const Plan& plan = *planners::plan_in(outcome.result);
  for (const DeviceSchedule& device : plan.schedule) {
    figures.units += static_cast<std::int64_t>(device.order.size());
  }
  figures.iteration_s = seconds(plan.prediction.iteration);
  figures.efficiency = seconds(plan.prediction.ideal) / seconds(plan.prediction.iteration);
  figures.simulate = measure([&] {
    const auto* step = std::get_if<planners::SimulationOnlyPlan>(&outcome.result);
    const sim::PlanSimulation simulation =
        step != nullptr ? sim::simulate_plan(plan, step->times) : sim::simulate_plan(plan);
    figures.nodes = static_cast<std::int64_t>(simulation.dag.size());
    if (simulation.timeline.makespan != plan.prediction.iteration) {
      explain(figures, "the simulation differs from the prediction");
    }
  });
  return figures;
}

/// The same in a process of its own, with a limit on its time and memory.
Figures in_a_process(const Options& options, const planners::PlannerInfo& planner,
                     const planners::PlanRequest& request) {
  int ends[2];
  require(pipe(ends) == 0, "a pipe cannot be made");
  std::fflush(stdout);
  const pid_t child = fork();
  require(child >= 0, "a process cannot be started");
  if (child == 0) {
    close(ends[0]);
    const rlim_t bytes = static_cast<rlim_t>(options.memory_gb) << 30U;
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
    alarm(options.limit_s);
    Figures figures;
    try {
      figures = figures_of(planner, request);
    } catch (const std::bad_alloc&) {
      explain(figures, "more than " + std::to_string(options.memory_gb) + " GiB of memory");
    } catch (const std::exception& error) {
      explain(figures, error.what());
    }
    const bool told = write(ends[1], &figures, sizeof figures) == sizeof figures;
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  Figures figures;
  const bool told = read(ends[0], &figures, sizeof figures) == sizeof figures;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!told) {
    figures = {};
    const bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    explain(figures, late ? "more than " + std::to_string(options.limit_s) + " s"
                          : "ended by signal " + std::to_string(WTERMSIG(status)));
  }
  return figures;
}

std::string name_of_file(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.find('.'));
}

void print_row(const std::string& set, const planners::PlannerInfo& planner, std::int64_t devices,
               const planners::PlanRequest& request, const Figures& figures) {
  const std::string planner_name(planner.name);
  std::printf("| %s | `%s` | %lld | %zu | ", set.c_str(), planner_name.c_str(),
              static_cast<long long>(devices), request.batch.samples.size());
  if (figures.plan.wall_s == 0) {
    std::printf("%s | | | | | | | |\n", figures.why);
  } else if (!figures.feasible) {
    std::printf("%.2f | %.2f | %.0f | %s | | | | |\n", figures.plan.wall_s, figures.plan.cpu_s,
                figures.plan.peak_mb, figures.why);
  } else {
    std::printf("%.2f | %.2f | %.0f | %lld | %.2f | %.2f | %.0f | %.1f %%%s%s |\n",
                figures.plan.wall_s, figures.plan.cpu_s, figures.plan.peak_mb,
                static_cast<long long>(figures.units), figures.simulate.wall_s,
                figures.simulate.cpu_s, figures.simulate.peak_mb, 100 * figures.efficiency,
                figures.why[0] == 0 ? "" : " ", figures.why);
  }
  std::fflush(stdout);
}

void run(const Options& options) {
  std::printf(
      "| lengths | planner | devices | samples | plan s | CPU s | peak MB | units | simulate s | "
      "CPU s | peak MB | efficiency "
      "|\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const std::string& file : options.files) {
    for (const std::string& name : options.planners) {
      const planners::PlannerInfo& planner = planners::find_planner(name);
      for (const std::int64_t devices : options.devices) {
        const planners::PlanRequest request = request_of(options, file, devices);
        print_row(name_of_file(file), planner, devices, request,
                  in_a_process(options, planner, request));
      }
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App program{"Time and memory of planning and simulating at thousands of devices"};
  add_options(program, options);
  CLI11_PARSE(program, count, arguments);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_scale: %s\n", error.what());
    return 2;
  }
  return 0;
}
