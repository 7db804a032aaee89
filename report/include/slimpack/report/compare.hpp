// SPDX-License-Identifier: Apache-2.0
// Planners side by side: what each made of the same steps, and the figures over all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"

namespace slimpack::report {

/// The planner that speed-ups are over.
inline constexpr std::string_view kReferencePlanner = "megatron";

/// What one planner made of one step.
struct ComparedPlan {
  std::string planner;
  std::int64_t step = 0;
  std::optional<Metrics> metrics;               ///< absent where there is no feasible plan
  std::string why;                              ///< what it lacks then, else empty
  std::map<std::string, std::string> settings;  ///< what the planner's search chose
  std::int64_t evaluations = 0;                 ///< candidates simulated
  double plan_seconds = 0;                      ///< of the planner's whole search
  double simulate_seconds = 0;                  ///< of one simulation of the plan
};

/// What was asked for, as far as reports repeat it; what is absent was left to the planners.
struct ComparedTask {
  std::vector<Source> sources;
  Tokens context;
  std::string overlong;  ///< what happened to longer documents: split, drop or error
  std::optional<Tokens> batch_tokens;
  std::optional<std::int64_t> batch_samples;
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::string model, cluster;
  std::int32_t dp = 1, pp = 1, tp = 1;
  std::optional<std::int32_t> chunks;
  std::optional<LmHead> head;
  std::optional<Recompute> recompute;
  Tokens granularity;
  std::optional<std::int32_t> max_cp;
  std::int64_t evaluations = 0;  ///< candidates that every planner may simulate a step
};

/// A step that was planned.
struct ComparedStep {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  Tokens tokens;
};

/// `results` by planner, then step, every planner having one entry for each of `steps`.
struct Comparison {
  ComparedTask task;
  std::vector<ComparedStep> steps;
  std::vector<ComparedPlan> results;
};

/// Mean, least and most of a figure over a planner's feasible steps.
struct FigureRange {
  double mean = 0, least = 0, most = 0;
};

/// A planner over all steps. Ratios are of summed time: efficiency is ideal over iteration time,
/// `speedup` the reference's iteration time over the planner's, both over steps where both are
/// feasible (absent where there is none); so are `mfu` and `bubble`, weighted by time.
struct PlannerSummary {
  std::string planner;
  std::int64_t steps = 0, feasible = 0;
  std::string why;  ///< of the first infeasible step
  FigureRange iteration_s, efficiency, plan_seconds, simulate_seconds;
  double summed_efficiency = 0;
  double tokens_per_s = 0, mfu = 0, bubble = 0;
  std::optional<double> speedup;
  Bytes peak;  ///< the most of all steps
};

namespace detail {

/// The entry of a planner for a step; absent where there is none or it is infeasible.
[[nodiscard]] inline const ComparedPlan* feasible_entry(const Comparison& comparison,
                                                        std::string_view planner,
                                                        std::int64_t step) {
  const auto found = std::find_if(
      comparison.results.begin(), comparison.results.end(), [&](const ComparedPlan& entry) {
        return entry.planner == planner && entry.step == step && entry.metrics.has_value();
      });
  return found == comparison.results.end() ? nullptr : &*found;
}

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

[[nodiscard]] inline PlannerSummary summarize_planner(const Comparison& comparison,
                                                      std::span<const ComparedPlan> entries) {
  PlannerSummary summary;
  summary.planner = entries.front().planner;
  RangeOfFigures iteration, efficiency, plan, simulate;
  Nanos time, ideal, shared, reference;
  double flops = 0, idle = 0, tokens = 0;
  for (const ComparedPlan& entry : entries) {
    ++summary.steps;
    plan.add(entry.plan_seconds);
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
    summary.peak = std::max(summary.peak, metrics.peak);
    if (const auto* other = feasible_entry(comparison, kReferencePlanner, entry.step)) {
      shared += metrics.iteration;
      reference += other->metrics->iteration;
    }
  }
  summary.iteration_s = iteration.range();
  summary.efficiency = efficiency.range();
  summary.plan_seconds = plan.range();
  summary.simulate_seconds = simulate.range();
  summary.summed_efficiency =
      ratio(static_cast<double>(ideal.value), static_cast<double>(time.value));
  summary.tokens_per_s = ratio(tokens, seconds(time));
  summary.mfu = ratio(flops, seconds(time));
  summary.bubble = ratio(idle, seconds(time));
  if (shared > Nanos{}) {
    summary.speedup = static_cast<double>(reference.value) / static_cast<double>(shared.value);
  }
  return summary;
}

}  // namespace detail

/// The reference planner's iteration time over this entry's in the same step; absent where either
/// has no feasible plan. O(results).
[[nodiscard]] inline std::optional<double> speedup_of(const Comparison& comparison,
                                                      const ComparedPlan& entry) {
  const auto* reference = detail::feasible_entry(comparison, kReferencePlanner, entry.step);
  if (reference == nullptr || !entry.metrics || entry.metrics->iteration <= Nanos{}) {
    return std::nullopt;
  }
  return static_cast<double>(reference->metrics->iteration.value) /
         static_cast<double>(entry.metrics->iteration.value);
}

/// One summary a planner, in the order of the results. Throws InvalidInput if a planner's entries
/// do not stand together, one for each step. O(results^2).
[[nodiscard]] inline std::vector<PlannerSummary> summarize_comparison(
    const Comparison& comparison) {
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
    summaries.push_back(detail::summarize_planner(comparison, results.subspan(first, steps)));
  }
  return summaries;
}

/// "bytes of memory on device dp 0, pp 0: needed 9, available 8".
[[nodiscard]] inline std::string why_infeasible(const Infeasible& none) {
  return none.constraint + ": needed " + std::to_string(none.needed) + ", available " +
         std::to_string(none.available);
}

}  // namespace slimpack::report
