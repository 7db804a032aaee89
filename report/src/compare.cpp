// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "figures.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

class RangeOfFigures {
 public:
  void add(double value) noexcept {
    range_.least = count_ == 0 ? value : std::min(range_.least, value);
    range_.most = count_ == 0 ? value : std::max(range_.most, value);
    sum_ += value;
    ++count_;
  }
  [[nodiscard]] FigureRange range() const noexcept {
    FigureRange range = range_;
    if (count_ > 0) range.mean = sum_ / static_cast<double>(count_);
    return range;
  }

 private:
  FigureRange range_;
  double sum_ = 0;
  std::int64_t count_ = 0;
};

/// How many times as long the baseline takes, for as many tokens.
[[nodiscard]] double time_ratio(Nanos baseline, Tokens baseline_tokens, Nanos time, Tokens tokens) {
  const double times = static_cast<double>(baseline.value) / static_cast<double>(time.value);
  if (baseline_tokens == tokens || baseline_tokens <= Tokens{}) return times;
  return times * static_cast<double>(tokens.value) / static_cast<double>(baseline_tokens.value);
}

[[nodiscard]] PlannerSummary summarize_planner(const Comparison& comparison,
                                               std::span<const ComparedPlan> entries) {
  PlannerSummary summary;
  summary.planner = entries.front().planner;
  RangeOfFigures iteration, efficiency, plan, cpu, simulate;
  Nanos time, ideal, shared, baseline;
  Tokens shared_tokens, baseline_tokens;
  double flops = 0, idle = 0, tokens = 0;
  for (const ComparedPlan& entry : entries) {
    ++summary.steps;
    plan.add(entry.plan_seconds);
    cpu.add(entry.cpu_seconds);
    if (!entry.metrics) {
      if (summary.why.empty()) summary.why = entry.why;
      continue;
    }
    const Metrics& metrics = *entry.metrics;
    const double whole = seconds(metrics.iteration);
    ++summary.feasible;
    iteration.add(whole);
    efficiency.add(metrics.efficiency);
    simulate.add(entry.simulate_seconds);
    time += metrics.iteration;
    ideal += metrics.ideal;
    flops += metrics.mfu * whole;
    idle += metrics.bubble * whole;
    tokens += static_cast<double>(metrics.tokens.value);
    summary.tokens += metrics.tokens;
    summary.moves = summary.moves || moves_documents(comparison, entry);
    summary.peak = std::max(summary.peak, metrics.peak);
    if (const auto* other = feasible_entry(comparison, comparison.baseline, entry.step)) {
      shared += metrics.iteration;
      shared_tokens += metrics.tokens;
      baseline += other->metrics->iteration;
      baseline_tokens += other->metrics->tokens;
    }
  }
  summary.iteration_s = iteration.range();
  summary.efficiency = efficiency.range();
  summary.plan_seconds = plan.range();
  summary.cpu_seconds = cpu.range();
  summary.simulate_seconds = simulate.range();
  summary.summed_efficiency =
      ratio(static_cast<double>(ideal.value), static_cast<double>(time.value));
  summary.tokens_per_s = ratio(tokens, seconds(time));
  summary.mfu = ratio(flops, seconds(time));
  summary.bubble = ratio(idle, seconds(time));
  if (shared > Nanos{}) {
    summary.speedup = time_ratio(baseline, baseline_tokens, shared, shared_tokens);
  }
  return summary;
}

}  // namespace

bool moves_documents(const Comparison& comparison, const ComparedPlan& entry) {
  const ComparedStep* const step = compared_step(comparison, entry.step);
  return step != nullptr && entry.metrics &&
         (entry.metrics->tokens != step->tokens || entry.metrics->samples != step->samples);
}

std::optional<double> speedup_of(const Comparison& comparison, const ComparedPlan& entry) {
  const auto* baseline = feasible_entry(comparison, comparison.baseline, entry.step);
  if (baseline == nullptr || !entry.metrics || entry.metrics->iteration <= Nanos{}) {
    return std::nullopt;
  }
  return time_ratio(baseline->metrics->iteration, baseline->metrics->tokens,
                    entry.metrics->iteration, entry.metrics->tokens);
}

std::vector<PlannerSummary> summarize_comparison(const Comparison& comparison) {
  const std::size_t steps = comparison.steps.size();
  require(steps > 0 && comparison.results.size() % steps == 0,
          "comparison: there must be one result for each planner and step",
          static_cast<std::int64_t>(comparison.results.size()));
  std::vector<PlannerSummary> summaries;
  const std::span<const ComparedPlan> results = comparison.results;
  for (std::size_t first = 0; first < results.size(); first += steps) {
    for (std::size_t i = 0; i < steps; ++i) {
      const ComparedPlan& entry = results[first + i];
      require(entry.planner == results[first].planner && entry.step == comparison.steps[i].step,
              "comparison: results must stand by planner, then step", entry.step);
    }
    summaries.push_back(summarize_planner(comparison, results.subspan(first, steps)));
  }
  return summaries;
}

std::string why_infeasible(const Infeasible& none) {
  return none.constraint + ": needed " + std::to_string(none.needed) + ", available " +
         std::to_string(none.available);
}

ComparedOutcome compare_outcome(const planners::PlannerInfo& planner, std::int64_t step,
                                planners::PlanOutcome&& outcome, double plan_seconds) {
  ComparedOutcome compared;
  ComparedPlan& entry = compared.entry;
  entry.planner = planner.name;
  entry.against = planner.against;
  entry.step = step;
  entry.plan_seconds = plan_seconds;
  entry.settings = std::move(outcome.settings);
  entry.evaluations = outcome.evaluations;
  entry.simulated_devices = outcome.simulated_devices;
  entry.cpu_seconds = outcome.cpu_seconds;
  if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
    entry.why = why_infeasible(*none);
    return compared;
  }
  const auto start = std::chrono::steady_clock::now();
  if (auto* modelled = std::get_if<planners::SimulationOnlyPlan>(&outcome.result)) {
    sim::PlanSimulation simulation = sim::simulate_plan(modelled->plan, modelled->times);
    entry.simulate_seconds = seconds_since(start);
    entry.simulated_only = true;
    entry.metrics = metrics_of(*modelled, simulation);
    compared.timeline = {std::move(modelled->plan), std::move(simulation)};
  } else {
    Plan& plan = std::get<Plan>(outcome.result);
    sim::PlanSimulation simulation = sim::simulate_plan(plan);
    entry.simulate_seconds = seconds_since(start);
    entry.metrics = metrics_of(plan, simulation);
    compared.timeline = {std::move(plan), std::move(simulation)};
  }
  return compared;
}

ComparedOutcome compare_step(const planners::PlannerInfo& planner,
                             const planners::PlanRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  planners::PlanOutcome outcome = planner.plan(request);
  const double plan_seconds = seconds_since(start);
  return compare_outcome(planner, request.batch.step, std::move(outcome), plan_seconds);
}

std::vector<planners::PlanRequest> steps_of(const planners::PlannerInfo& planner,
                                            std::vector<planners::PlanRequest> steps) {
  return planner.rebatch == nullptr ? std::move(steps) : planner.rebatch(std::move(steps));
}

Metrics summed_metrics(std::span<const ComparedPlan> steps) {
  require(!steps.empty(), "summed_metrics: there must be a step");
  Metrics sum;
  double flops = 0, idle = 0, imbalance = 0, forward = 0, backward = 0, over_least = 0;
  bool bounded = true;
  for (const ComparedPlan& step : steps) {
    require(step.metrics.has_value(), "summed_metrics: every step must be feasible", step.step);
    const Metrics& one = *step.metrics;
    const double time = seconds(one.iteration);
    sum.iteration += one.iteration;
    sum.ideal += one.ideal;
    sum.lower_bound += one.lower_bound;
    bounded = bounded && one.lower_bound > Nanos{};
    flops += one.mfu * time;
    idle += one.bubble * time;
    imbalance += one.dp_imbalance * time;
    over_least += one.dp_over_least * time;
    forward += one.forward_cv * time;
    backward += one.backward_cv * time;
    for (std::size_t cause = 0; cause < sum.gaps.size(); ++cause)
      sum.gaps[cause] += one.gaps[cause];
    if (one.peak > sum.peak) {
      sum.peak = one.peak;
      sum.peak_device = one.peak_device;
      sum.at_peak = one.at_peak;
    }
    sum.communication.transfers += one.communication.transfers;
    sum.communication.exchange += one.communication.exchange;
    sum.communication.head += one.communication.head;
    sum.communication.reduction += one.communication.reduction;
    sum.communication.gathering += one.communication.gathering;
    sum.communication.tensor_parallel += one.communication.tensor_parallel;
    sum.samples += one.samples;
    sum.tokens += one.tokens;
    sum.merged_tokens += one.merged_tokens;
    sum.forward_packs += one.forward_packs;
    sum.backward_packs += one.backward_packs;
  }
  if (!bounded) sum.lower_bound = {};
  const double whole = seconds(sum.iteration);
  sum.efficiency = ratio(seconds(sum.ideal), whole);
  sum.tokens_per_s = ratio(static_cast<double>(sum.tokens.value), whole);
  sum.mfu = ratio(flops, whole);
  sum.bubble = ratio(idle, whole);
  sum.dp_imbalance = ratio(imbalance, whole);
  sum.dp_over_least = ratio(over_least, whole);
  sum.forward_cv = ratio(forward, whole);
  sum.backward_cv = ratio(backward, whole);
  return sum;
}

}  // namespace slimpack::report
