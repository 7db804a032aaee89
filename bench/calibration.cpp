// SPDX-License-Identifier: Apache-2.0
// Whether steps take the time and memory that a fitted cost predicts: profiles this machine, fits,
// then plans and runs steps on lengths that the profile has not seen. Short profiles between the
// steps tell a host that changes its speed from a prediction that is wrong.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "slimpack/cost/fit.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_cpu/profile_cluster.hpp"

using namespace slimpack;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string lengths, profile, read, only;
  std::string model = "tiny";
  std::int64_t tokens = 65536, context = 8192, steps = 7, divide = 0, repeat = 3;
  std::size_t ranks = 2;
  bool quick = false, units = false;
};

void add_options(CLI::App& program, Options& options) {
  program.option_defaults()->always_capture_default();
  program.add_option("lengths", options.lengths, "a document's tokens a line")->required();
  program.add_option("--model", options.model);
  program.add_option("--ranks", options.ranks)->check(CLI::PositiveNumber);
  program.add_option("--tokens", options.tokens, "of a step")->check(CLI::PositiveNumber);
  program.add_option("--context", options.context)->check(CLI::PositiveNumber);
  program.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  program.add_option("--repeat", options.repeat, "runs of each step; the median counts")
      ->check(CLI::PositiveNumber);
  program
      .add_option("--divide", options.divide,
                  "divides lengths; 0: so that the longest document fits the context")
      ->check(CLI::NonNegativeNumber);
  program.add_option("--only", options.only)->check(CLI::IsMember({"pp", "dp"}));
  program.add_option("--profile", options.profile, "file to write the first profile to");
  program.add_option("--read", options.read, "profile to use in place of measuring one");
  program.add_flag("--quick", options.quick, "a short profile");
  program.add_flag("--units", options.units, "print every unit");
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  require(static_cast<bool>(file), "cannot read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

LengthSet read_lengths(const Options& options) {
  std::ifstream file(options.lengths);
  require(static_cast<bool>(file), "cannot read", options.lengths);
  std::vector<std::int64_t> documents;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.front() != '#') documents.push_back(std::stoll(line));
  }
  require(!documents.empty(), "no document in", options.lengths);
  const double longest = static_cast<double>(*std::ranges::max_element(documents));
  const double by = options.divide > 0 ? static_cast<double>(options.divide)
                                       : longest / static_cast<double>(options.context);
  LengthSet set;
  set.name = options.lengths;
  for (const std::int64_t document : documents) {
    set.documents.push_back(
        {std::max<std::int64_t>(2, std::llround(static_cast<double>(document) / by))});
  }
  return set;
}

std::vector<ProfileRow> first_profile(const Options& options, const ModelShape& model) {
  if (!options.read.empty()) return parse_profile(read_text(options.read), options.read).rows;
  const Tokens context{options.context};
  const auto begin = Clock::now();
  const auto [rows, core_share] = cpu::measure_profile<cpu::FastMath>(
      model, options.quick ? cpu::quick_profile_options(options.ranks, context)
                           : cpu::profile_options(options.ranks, context));
  std::printf("profile: %zu rows in %.1f s, on %.0f %% of its cores\n", rows.size(),
              std::chrono::duration<double>(Clock::now() - begin).count(), 100 * core_share);
  if (!options.profile.empty()) {
    std::ofstream file(options.profile);
    write_profile(file, {{measured_shape(model), cpu::measured_device(options.ranks)}, rows});
    require(static_cast<bool>(file.flush()), "cannot write", options.profile);
  }
  return rows;
}

FittedCost fitted(std::span<const ProfileRow> rows) {
  const FitResult fit = fit_cost(rows);
  for (const KindFit& kind : fit.kinds) {
    std::printf("  %-10s %-8s %3zu rows, mean error %.2f %% fitted, %.2f %% held out\n",
                std::string(kProfileKinds[static_cast<std::size_t>(kind.kind)]).c_str(),
                !kind.pass                    ? "-"
                : *kind.pass == Pass::forward ? "forward"
                                              : "backward",
                kind.rows, 100 * kind.fitted_mean_error, 100 * kind.mean_error.value_or(NAN));
  }
  std::fflush(stdout);
  return fit.cost;
}

/// Short profiles between steps, each row the mean of all: the speed of the host while they ran.
class ProfilesBetween {
 public:
  ProfilesBetween(const Options& options, const ModelShape& model)
      : options_(cpu::profile_options(options.ranks, {options.context})), model_(model) {
    options_.rounds = 2;  // one to touch memory for the first time, one that counts
    options_.budget = std::chrono::milliseconds(0);
  }
  void measure() {
    const auto rows = cpu::measure_profile<cpu::FastMath>(model_, options_).rows;
    if (sums_.empty()) {
      sums_ = rows;
    } else {
      for (std::size_t i = 0; i < rows.size(); ++i) sums_[i].seconds += rows[i].seconds;
    }
    ++count_;
  }
  [[nodiscard]] FittedCost cost() const {
    std::vector<ProfileRow> means = sums_;
    for (ProfileRow& row : means) row.seconds /= static_cast<double>(count_);
    return fit_cost(means).cost;
  }

 private:
  cpu::ProfileOptions options_;
  ModelShape model_;
  std::vector<ProfileRow> sums_;
  std::int64_t count_ = 0;
};

[[nodiscard]] runtime::Program program_of(const Plan& plan) {
  runtime::Program program = runtime::make_program(plan);
  runtime::keep_sends(program, sim::send_ends(plan, sim::simulate_plan(plan)));
  return program;
}

/// Adds the time until its end to a sum.
class Timed {
 public:
  explicit Timed(Clock::duration& sum) : sum_(sum), begin_(Clock::now()) {}
  ~Timed() { sum_ += Clock::now() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Clock::duration& sum_;
  Clock::time_point begin_;
};

/// Keeps how long its thread had computed when each unit began, and how long it waited for messages
/// between units.
class UnitClock : public runtime::ThreadTransport {
 public:
  using runtime::ThreadTransport::ThreadTransport;
  void announce(const std::string& place) {
    runtime::ThreadTransport::announce(place);
    stamps.push_back(cpu::detail::computed());
  }
  void await_receive(const runtime::Channel& channel, std::size_t message) {
    const Timed timed(waiting);
    runtime::ThreadTransport::await_receive(channel, message);
  }
  void await_send(const runtime::Channel& channel, std::size_t message) {
    const Timed timed(waiting);
    runtime::ThreadTransport::await_send(channel, message);
  }
  std::vector<std::chrono::nanoseconds> stamps;
  Clock::duration waiting{};
};

/// A device that keeps how long it was in units, process groups with other devices included.
class TimedDevice {
 public:
  using Buffer = cpu::FastDevice::Buffer;
  explicit TimedDevice(cpu::FastDevice& device) : device_(device) {}
  [[nodiscard]] ElementBytes element_bytes() const { return device_.element_bytes(); }
  [[nodiscard]] StaticBytes static_bytes() const { return device_.static_bytes(); }
  [[nodiscard]] Buffer allocate(Bytes bytes) { return device_.allocate(bytes); }
  [[nodiscard]] std::span<std::byte> bytes(Buffer& buffer) const { return device_.bytes(buffer); }
  void clear(Buffer& buffer) { device_.clear(buffer); }
  void begin_step(const Plan& plan, const runtime::StepData& data) {
    device_.begin_step(plan, data);
  }
  void forward(const runtime::PackCall& call, UnitClock& link) {
    const Timed timed(in_units);
    device_.forward(call, link);
  }
  void backward(const runtime::PackCall& call, UnitClock& link) {
    const Timed timed(in_units);
    device_.backward(call, link);
  }
  void head(const runtime::HeadCall& call, UnitClock& link) {
    const Timed timed(in_units);
    device_.head(call, link);
  }
  void reduce(std::int32_t chunk, UnitClock& link) {
    const Timed timed(in_units);
    device_.reduce(chunk, link);
  }
  void optimize(UnitClock& link) {
    const Timed timed(in_units);
    device_.optimize(link);
  }
  Clock::duration in_units{};

 private:
  cpu::FastDevice& device_;
};

/// A plan's prices, but of F, B and H what they were measured to take.
class MeasuredTimes {
 public:
  explicit MeasuredTimes(const Plan& plan) : priced_(plan), plan_(&plan) {}
  void add(const DeviceSchedule& device, const Unit& unit, double seconds) {
    const std::int32_t line = unit.chunk * plan_->parallel.pp + device.pp;
    Nanos& slot = unit.kind == UnitKind::head ? heads_[{unit.pack, 0}] : packs_[{unit.pack, line}];
    slot = std::max(slot, Nanos{std::llround(seconds * 1e9)});
  }
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return packs_.at({pack, line});
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t, std::int32_t) const {
    return heads_.at({pack, 0});
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return priced_.transfer(pack, line, rank);
  }
  [[nodiscard]] Nanos reduce(std::int32_t pp, std::int32_t chunk) const {
    return priced_.reduce(pp, chunk);
  }
  [[nodiscard]] Nanos optimizer(std::int32_t dp, std::int32_t pp) const {
    return priced_.optimizer(dp, pp);
  }

 private:
  PricedPlan priced_;
  const Plan* plan_;
  std::map<std::pair<PackId, std::int32_t>, Nanos> packs_, heads_;
};

/// Runs the step once more and prints predicted and computed seconds of units by kind and device,
/// and how long the step would take if units took what they computed: other programs hardly touch
/// it. And what the executor takes for itself: the step's time in which a device's thread neither
/// is in a unit nor waits for a message, copies of messages and buffers that are cleared included.
void print_units(runtime::DeviceThreads& device_threads, const Plan& plan,
                 const runtime::StepData& data, std::span<cpu::FastDevice> devices) {
  const runtime::Program program = program_of(plan);
  runtime::Rendezvous rendezvous(devices.size(), plan.max_in_flight);
  std::vector<std::vector<double>> seconds(devices.size());
  std::vector<std::array<Clock::duration, 3>> spent(devices.size());  // all, in units, waiting
  const runtime::MemoryObserver observer;
  device_threads.run([&](std::size_t device) {
    UnitClock link(rendezvous, device);
    TimedDevice timed(devices[device]);
    runtime::DeviceRun<TimedDevice, UnitClock> run(plan, program, data, device, timed, link,
                                                   observer);
    const auto begin = Clock::now();
    (void)run.run();
    spent[device] = {Clock::now() - begin, timed.in_units, link.waiting};
    rendezvous.leave(device);
    for (std::size_t unit = 0; unit + 1 < link.stamps.size(); ++unit) {
      const std::chrono::duration<double> unit_time = link.stamps[unit + 1] - link.stamps[unit];
      seconds[device].push_back(unit_time.count());
    }
  });
  const sim::PlanSimulation simulation = sim::simulate_plan(plan);
  std::vector<std::vector<double>> predicted(devices.size());
  for (std::size_t device = 0; device < devices.size(); ++device) {
    predicted[device].resize(plan.schedule[device].order.size());
  }
  for (std::size_t node = 0; node < simulation.dag.size(); ++node) {
    const sim::NodeLabel& label = simulation.dag.label[node];
    if (!sim::is_compute(label.kind)) continue;
    predicted[device_index(plan, label.dp, label.pp)][label.unit] +=
        slimpack::seconds(simulation.timeline.end[node] - simulation.timeline.start[node]);
  }
  MeasuredTimes times(plan);
  constexpr std::array<const char*, 5> kNames{"F", "B", "H", "R", "O"};
  for (std::size_t device = 0; device < devices.size(); ++device) {
    std::array<double, 5> measured{}, priced{};
    const auto& order = plan.schedule[device].order;
    for (std::size_t unit = 0; unit < order.size(); ++unit) {
      if (order[unit].kind <= UnitKind::head) {
        times.add(plan.schedule[device], order[unit], seconds[device][unit]);
      }
    }
    for (std::size_t unit = 0; unit < order.size(); ++unit) {
      const auto kind = static_cast<std::size_t>(order[unit].kind);
      measured.at(kind) += seconds[device][unit];
      priced.at(kind) += predicted[device][unit];
    }
    std::printf("    device %zu:", device);
    for (std::size_t kind = 0; kind < kNames.size(); ++kind) {
      std::printf(" %s %.3f/%.3f", kNames.at(kind), priced.at(kind), measured.at(kind));
    }
    const auto& [all, in_units, waiting] = spent[device];
    const std::chrono::duration<double> own = all - in_units - waiting;
    std::printf(" (predicted/computed s), neither in units nor waiting %.1f ms, %.2f %%\n",
                1e3 * own.count(), 100 * own / std::chrono::duration<double>(all));
  }
  const double alone = slimpack::seconds(sim::simulate_plan(plan, times).timeline.makespan);
  std::printf("    simulated with the computed times: %.3f s, predicted over it %.3f\n", alone,
              slimpack::seconds(plan.prediction.iteration) / alone);
}

struct Setting {
  std::int32_t dp = 1, pp = 1;
};

void sample_workload(const Options& options, const LengthSet& lengths,
                     const planners::PlanRequest& base, const planners::PlannerInfo& planner) {
  BatchOptions batches;
  batches.context = {options.context};
  batches.overlong = Overlong::split;
  batches.batch_tokens = Tokens{options.tokens};
  batches.seed = 3;
  BatchStream stream(std::span(&lengths, 1), batches);
  planners::PlanRequest request = base;
  runtime::DeviceThreads device_threads(
      options.ranks, {cpu::profile_options(options.ranks, {options.context}).cores, std::nullopt});
  std::vector<cpu::FastDevice> devices;
  std::vector<Bytes> reserved;
  Plan before;
  std::vector<double> ratios, times;
  std::vector<Plan> plans;
  ProfilesBetween between(options, base.model);
  double worst_peak = 0;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    request.batch = stream.next();
    planners::PlanOutcome outcome = planner.plan(request);
    if (const auto* why = std::get_if<Infeasible>(&outcome.result)) {
      std::printf("  infeasible: %s\n", why->constraint.c_str());
      return;
    }
    const Plan plan = std::get<Plan>(std::move(outcome.result));
    const runtime::Program program = program_of(plan);
    const runtime::StepData data = cpu::step_data(plan, cpu::random_tokens(plan, 7));
    bool fresh = devices.empty() || plan.stages != before.stages ||
                 plan.parallel.head != before.parallel.head;
    if (fresh) {
      devices = cpu::make_devices<cpu::FastDevice>(plan, 1);
      reserved.assign(devices.size(), Bytes{});
    }
    for (std::size_t device = 0; device < devices.size(); ++device) {
      const Bytes need = runtime::arena_bytes(
          plan, program, device, devices[device].element_bytes(), cpu::kBufferAlignment);
      if (need <= reserved[device]) continue;
      devices[device].reserve(need);
      reserved[device] = need;
      fresh = true;
    }
    before = plan;
    // Memory that is touched for the first time is no part of a step.
    if (fresh) (void)runtime::run_step(device_threads, plan, program, data, std::span(devices));
    std::vector<double> runs;
    runtime::StepResult result;
    for (std::int64_t run = 0; run < options.repeat; ++run) {
      const auto begin = Clock::now();
      result = runtime::run_step(device_threads, plan, program, data, std::span(devices));
      runs.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    const double measured = cpu::detail::median(runs);
    const auto [shortest, longest] = std::ranges::minmax(runs);
    const double predicted = seconds(plan.prediction.iteration);
    std::int64_t counted_peak = 0, predicted_peak = 0;
    for (std::size_t device = 0; device < devices.size(); ++device) {
      const std::int64_t counted = result.peak[device].value;
      const std::int64_t expected = plan.prediction.devices[device].peak.value;
      worst_peak = std::max(worst_peak, std::abs(static_cast<double>(expected - counted)) /
                                            static_cast<double>(counted));
      counted_peak = std::max(counted_peak, counted);
      predicted_peak = std::max(predicted_peak, expected);
    }
    ratios.push_back(predicted / measured);
    times.push_back(measured);
    std::printf(
        "  step %lld: %zu packs, measured %.3f s (%.3f to %.3f), predicted %.3f s, ratio %.3f, "
        "peak "
        "bytes predicted %lld, counted %lld\n",
        static_cast<long long>(step), plan.micropacks.size(), measured, shortest, longest,
        predicted, predicted / measured, static_cast<long long>(predicted_peak),
        static_cast<long long>(counted_peak));
    if (options.units) print_units(device_threads, plan, data, std::span(devices));
    std::fflush(stdout);
    plans.push_back(plan);
    between.measure();
  }
  const CostSpec cost = between.cost();
  std::vector<double> ratios_between;
  for (std::size_t step = 0; step < plans.size(); ++step) {
    plans[step].cost = cost;
    ratios_between.push_back(seconds(sim::simulate_plan(plans[step]).timeline.makespan) /
                             times[step]);
  }
  std::printf(
      "dp %d pp %d %s: median step %.3f s, median predicted / measured %.3f as planned, %.3f by "
      "profiles between the steps, peak bytes off by at most %.3f %%\n",
      base.dp, base.pp, std::string(planner.name).c_str(), cpu::detail::median(times),
      cpu::detail::median(ratios), cpu::detail::median(ratios_between), 100 * worst_peak);
}

void run(const Options& options) {
  const LengthSet lengths = read_lengths(options);
  const auto preset = model_preset(options.model);
  require(preset.has_value(), "unknown model", options.model);
  planners::PlanRequest request;
  request.model = *preset;
  request.model.bytes_per_element = 4;
  request.cluster =
      cpu::cpu_cluster(static_cast<std::int64_t>(options.ranks), Bytes{8'000'000'000});
  request.context = {options.context};
  request.sources = {{lengths.name, static_cast<std::int64_t>(lengths.documents.size()), ""}};
  const auto ranks = static_cast<std::int32_t>(options.ranks);
  for (const Setting setting : {Setting{1, ranks}, Setting{ranks, 1}}) {
    if (options.only == (setting.pp > 1 ? "dp" : "pp")) continue;
    request.dp = setting.dp;
    request.pp = setting.pp;
    // Shared hosts change their speed from hour to hour: steps are measured right after the profile
    // that their prediction is from.
    request.cost = fitted(first_profile(options, request.model));
    for (const char* planner : {"megatron", "slimpack"}) {
      sample_workload(options, lengths, request, planners::find_planner(planner));
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App program{"Whether steps take the time and memory that a fitted cost predicts"};
  add_options(program, options);
  CLI11_PARSE(program, count, arguments);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_calibration: %s\n", error.what());
    return 2;
  }
  return 0;
}
