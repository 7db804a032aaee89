// SPDX-License-Identifier: Apache-2.0
// Planning and simulating at thousands of devices: time and memory of each planner, one process
// each, how they grow, and what a planner service does with a plan.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <map>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "slimpack/core/union_find.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

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
  bool service = false;
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
  program.add_flag("--service", options.service,
                   "also what a planner service does with a plan: validate, hash, write, read");
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
  Spent validate, hash, serialize, write, read, parse, check;  ///< with --service
  std::int64_t json_bytes = 0, components = 0, largest_component = 0;
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

/// Ranks that context-parallel groups join: components are planned apart.
void count_components(Figures& figures, const Plan& plan) {
  UnionFind joined(static_cast<std::size_t>(plan.parallel.dp));
  for (const MicroPack& pack : plan.micropacks) {
    const std::vector<std::int32_t>& ranks = plan.groups[index(pack.group)];
    for (const std::int32_t rank : ranks) {
      joined.join(static_cast<std::size_t>(ranks.front()), static_cast<std::size_t>(rank));
    }
  }
  std::map<std::size_t, std::int64_t> ranks_of;
  for (const std::size_t component : joined.numbered()) {
    figures.largest_component = std::max(figures.largest_component, ++ranks_of[component]);
  }
  figures.components = static_cast<std::int64_t>(ranks_of.size());
}

/// One rank validates the plan and sends it with its hash; the others read it and compare.
void serve(Figures& figures, const Plan& plan) {
  count_components(figures, plan);
  figures.validate = measure([&] {
    if (!validate(plan).valid()) explain(figures, "the plan is not valid");
  });
  PlanHash hash;
  figures.hash = measure([&] { hash = plan_hash(plan); });
  std::string text;
  figures.serialize = measure([&] { text = plan_to_json(plan); });
  figures.json_bytes = static_cast<std::int64_t>(text.size());
  const std::string path = "/tmp/bench_scale." + std::to_string(getpid()) + ".json";
  figures.write = measure([&] { write_file(path, text); });
  text = {};
  figures.read = measure([&] { text = read_file(path); });
  std::remove(path.c_str());
  Plan received;
  figures.parse = measure([&] { received = plan_from_json(text, path); });
  figures.check = measure([&] {
    if (plan_hash(received) != hash) explain(figures, "the plan that was read has another hash");
  });
}

Figures figures_of(const Options& options, const planners::PlannerInfo& planner,
                   const planners::PlanRequest& request) {
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
  if (options.service) serve(figures, plan);
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
      figures = figures_of(options, planner, request);
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

/// What a planner needed for one number of devices.
struct Row {
  std::int64_t devices = 0;
  Figures figures;
};

/// The exponent e of `devices^e` that fits best, over rows in which the amount is above 0.
template <class Amount>
double exponent(const std::vector<Row>& rows, const Amount& amount) {
  double count = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Row& row : rows) {
    const double value = static_cast<double>(amount(row.figures));
    if (value <= 0) continue;
    const double a = std::log(static_cast<double>(row.devices)), b = std::log(value);
    count += 1, x += a, y += b, xx += a * a, xy += a * b;
  }
  const double spread = count * xx - x * x;
  return spread > 0 ? (count * xy - x * y) / spread : 0;
}

void print_exponents(const std::string& set, std::string_view planner,
                     const std::vector<Row>& rows) {
  std::printf("| %s | `%s` | exponent | | | %.2f | %.2f | %.2f | | %.2f | %.2f | |\n", set.c_str(),
              std::string(planner).c_str(),
              exponent(rows, [](const Figures& f) { return f.plan.cpu_s; }),
              exponent(rows, [](const Figures& f) { return f.plan.peak_mb; }),
              exponent(rows, [](const Figures& f) { return f.units; }),
              exponent(rows, [](const Figures& f) { return f.simulate.cpu_s; }),
              exponent(rows, [](const Figures& f) { return f.simulate.peak_mb; }));
}

void print_service(const std::string& set, std::string_view planner, const std::vector<Row>& rows) {
  std::printf(
      "\nProcessor seconds of what a service does with the plans of `%s` on %s:\n\n"
      "| devices | step | components | ranks of the largest | plan | validate | hash | serialize | "
      "MB | "
      "write | read | parse | hash again | peak MB |\n"
      "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
      std::string(planner).c_str(), set.c_str());
  const auto print = [](const Figures& f) {
    std::printf(" %.2f | %.3f | %.4f | %.3f | %.1f | %.3f | %.3f | %.3f | %.4f | %.0f |\n",
                f.plan.cpu_s, f.validate.cpu_s, f.hash.cpu_s, f.serialize.cpu_s,
                static_cast<double>(f.json_bytes) * 1e-6, f.write.cpu_s, f.read.cpu_s,
                f.parse.cpu_s, f.check.cpu_s, f.parse.peak_mb);
  };
  for (const Row& row : rows) {
    std::printf("| %lld | %.2f | %lld | %lld |", static_cast<long long>(row.devices),
                row.figures.iteration_s, static_cast<long long>(row.figures.components),
                static_cast<long long>(row.figures.largest_component));
    print(row.figures);
  }
  const auto grows = [&](Spent Figures::* part) {
    return exponent(rows, [&](const Figures& f) { return (f.*part).cpu_s; });
  };
  std::printf(
      "| exponent | | | | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
      grows(&Figures::plan), grows(&Figures::validate), grows(&Figures::hash),
      grows(&Figures::serialize), exponent(rows, [](const Figures& f) { return f.json_bytes; }),
      grows(&Figures::write), grows(&Figures::read), grows(&Figures::parse), grows(&Figures::check),
      exponent(rows, [](const Figures& f) { return f.parse.peak_mb; }));
}

void run(const Options& options) {
  std::printf(
      "| lengths | planner | devices | samples | plan s | CPU s | peak MB | units | simulate s | "
      "CPU s | peak MB | efficiency "
      "|\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  std::vector<std::tuple<std::string, std::string, std::vector<Row>>> served;
  for (const std::string& file : options.files) {
    const std::string set = name_of_file(file);
    for (const std::string& name : options.planners) {
      const planners::PlannerInfo& planner = planners::find_planner(name);
      std::vector<Row> rows;
      for (const std::int64_t devices : options.devices) {
        const planners::PlanRequest request = request_of(options, file, devices);
        const Figures figures = in_a_process(options, planner, request);
        print_row(set, planner, devices, request, figures);
        if (figures.feasible) rows.push_back({devices, figures});
      }
      if (rows.size() > 1) print_exponents(set, planner.name, rows);
      served.emplace_back(set, name, std::move(rows));
    }
  }
  if (!options.service) return;
  for (const auto& [set, planner, rows] : served) print_service(set, planner, rows);
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
