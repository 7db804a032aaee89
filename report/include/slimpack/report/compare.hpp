// SPDX-License-Identifier: Apache-2.0
// Planners side by side: what each made of the same steps, and the figures over all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// The baseline of speed-ups where no other is asked for.
inline constexpr std::string_view kDefaultBaseline = "megatron";

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
  std::string baseline{kDefaultBaseline};  ///< the planner that speed-ups are over
};

/// Mean, least and most of a figure over a planner's feasible steps; zero where there is none.
struct FigureRange {
  double mean = 0, least = 0, most = 0;
};

/// A planner over all steps. Ratios are of summed time: efficiency is ideal over iteration time,
/// `speedup` the baseline's iteration time over the planner's, both over steps where both are
/// feasible (absent where there is none), for as many tokens where those of the two differ; so are
/// `mfu` and `bubble`, weighted by time.
struct PlannerSummary {
  std::string planner;
  std::int64_t steps = 0, feasible = 0;
  std::string why;  ///< of the first infeasible step
  FigureRange iteration_s, efficiency, plan_seconds, simulate_seconds;
  double summed_efficiency = 0;
  double tokens_per_s = 0, mfu = 0, bubble = 0;
  std::optional<double> speedup;
  Bytes peak;          ///< the most of all steps
  Tokens tokens;       ///< of its feasible steps
  bool moves = false;  ///< a step of its own has other documents than the step that was given
};

/// A plan and its simulation, to be drawn.
struct ComparedTimeline {
  Plan plan;
  sim::PlanSimulation simulation;
};

/// An entry of a comparison, and what it is made of where there is a feasible plan.
struct ComparedOutcome {
  ComparedPlan entry;
  std::optional<ComparedTimeline> timeline;
};

/// Whether a feasible entry has other documents than the step that was given, by samples or tokens:
/// systems that move documents between steps plan batches of their own. O(steps).
[[nodiscard]] bool moves_documents(const Comparison& comparison, const ComparedPlan& entry);

/// The baseline's iteration time over this entry's in the same step, for as many tokens where those
/// of the two differ; absent where either has no feasible plan. O(results).
[[nodiscard]] std::optional<double> speedup_of(const Comparison& comparison,
                                               const ComparedPlan& entry);

/// One summary a planner, in the order of the results. Throws InvalidInput if a planner's entries
/// do not stand together, one for each step. O(results^2).
[[nodiscard]] std::vector<PlannerSummary> summarize_comparison(const Comparison& comparison);

/// "bytes of memory on device dp 0, pp 0: needed 9, available 8".
[[nodiscard]] std::string why_infeasible(const Infeasible& none);

/// The entry of an answer that took `plan_seconds`. A plan that can only be simulated is simulated
/// at its own times.
/// Throws as `simulate_plan` does.
[[nodiscard]] ComparedOutcome compare_outcome(const planners::PlannerInfo& planner,
                                              std::int64_t step, planners::PlanOutcome&& outcome,
                                              double plan_seconds);

/// Plans and simulates one step, and takes the wall time of both. Throws as the planner does.
[[nodiscard]] ComparedOutcome compare_step(const planners::PlannerInfo& planner,
                                           const planners::PlanRequest& request);

/// Consecutive steps as a planner takes them: the same ones, or those of its `rebatch`.
[[nodiscard]] std::vector<planners::PlanRequest> steps_of(const planners::PlannerInfo& planner,
                                                          std::vector<planners::PlanRequest> steps);

/// Times, gaps, bytes sent, samples, tokens and packs are sums; the peak is the most, with the
/// device and the step that has it; efficiency and tokens/s are of the sums; mfu, bubble, imbalance
/// and variation are means weighted by the steps' time; the lower bound is a sum where every step
/// has one, else absent (0). Throws InvalidInput if there is no step or one is infeasible.
/// O(steps).
[[nodiscard]] Metrics summed_metrics(std::span<const ComparedPlan> steps);

}  // namespace slimpack::report
