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
  std::string planner;                          ///< its name in the registry
  std::int64_t step = 0;                        ///< number of the step, as in ComparedStep
  std::optional<Metrics> metrics;               ///< absent where there is no feasible plan
  std::string why;                              ///< what it lacks then, else empty
  std::map<std::string, std::string> settings;  ///< what the planner's search chose
  std::int64_t evaluations = 0;                 ///< candidates and whole plans simulated
  std::int64_t simulated_devices = 0;           ///< devices that these simulated, summed
  double cpu_seconds = 0;                       ///< processor time of all threads of the planner
  double plan_seconds = 0;                      ///< of the planner's whole search
  double simulate_seconds = 0;                  ///< of one simulation of the plan
  bool simulated_only = false;                  ///< the answer is no plan (`SimulationOnlyPlan`)
  std::string against;  ///< where the planner deviates against the system that it models
};

/// What was asked for, as far as reports repeat it; what is absent was left to the planners.
struct ComparedTask {
  std::vector<Source> sources;         ///< files of lengths or of text
  Tokens context;                      ///< longest sample
  std::string overlong;                ///< what happened to longer documents: split, drop or error
  std::optional<Tokens> batch_tokens;  ///< most tokens of a step
  std::optional<std::int64_t> batch_samples;  ///< most samples of a step
  std::uint64_t seed = 0;                     ///< of the order of documents
  bool shuffle = true;                        ///< documents come in random order, by `seed`
  std::string model;                          ///< its name
  std::string cluster;                        ///< its name
  std::int32_t dp = 1;                        ///< data-parallel ranks
  std::int32_t pp = 1;                        ///< stages
  std::int32_t tp = 1;                        ///< tensor-parallel devices of a place (dp, pp)
  std::optional<std::int32_t> chunks;         ///< of a device
  std::optional<LmHead> head;                 ///< on the last stage, or a shard on each
  std::optional<Recompute> recompute;         ///< of all backward packs
  Tokens granularity;                         ///< of inner slice boundaries
  std::optional<std::int32_t> max_cp;         ///< most ranks of a context-parallel group
  std::int64_t evaluations = 0;  ///< how often a planner may simulate all devices of a step
};

/// A step that planners were given.
struct ComparedStep {
  std::int64_t step = 0;     ///< its number in the run
  std::int64_t samples = 0;  ///< samples of its batch
  Tokens tokens;             ///< tokens of its batch
};

/// `results` by planner, then step, every planner having one entry for each of `steps`.
struct Comparison {
  ComparedTask task;                       ///< what was asked of all planners
  std::vector<ComparedStep> steps;         ///< what was planned, in the order of the steps
  std::vector<ComparedPlan> results;       ///< planners x steps entries
  std::string baseline{kDefaultBaseline};  ///< the planner that speed-ups are over
};

/// A figure over a planner's steps; all zero where no step has it.
struct FigureRange {
  double mean = 0;   ///< every step counts the same
  double least = 0;  ///< of the steps
  double most = 0;   ///< of the steps
};

/// A planner over all steps. Ratios are of summed time: efficiency is ideal over iteration time,
/// `speedup` the baseline's iteration time over the planner's, both over steps where both are
/// feasible (absent where there is none), for as many tokens where those of the two differ; so are
/// `mfu` and `bubble`, weighted by time.
struct PlannerSummary {
  std::string planner;        ///< its name in the registry
  std::int64_t steps = 0;     ///< steps that it was asked for
  std::int64_t feasible = 0;  ///< those of them that it has a plan for
  std::string why;            ///< what the first infeasible step lacks; empty where there is none
  FigureRange iteration_s;    ///< iteration time in seconds, over feasible steps
  FigureRange efficiency;     ///< ideal over iteration time, over feasible steps
  FigureRange plan_seconds;   ///< the planner's search, over all steps
  FigureRange cpu_seconds;    ///< its processor time, over all steps
  FigureRange simulate_seconds;   ///< one simulation of the plan, over feasible steps
  double summed_efficiency = 0;   ///< summed ideal over summed iteration time
  double tokens_per_s = 0;        ///< summed tokens over summed iteration time
  double mfu = 0;                 ///< model FLOP utilisation, weighted by time
  double bubble = 0;              ///< idle share of the devices' time, weighted by time
  std::optional<double> speedup;  ///< over the baseline, 1 for the baseline itself
  Bytes peak;                     ///< the most of all steps
  Tokens tokens;                  ///< of its feasible steps
  bool moves = false;  ///< a step of its own has other documents than the step that was given
};

/// A plan and its simulation, to be drawn.
struct ComparedTimeline {
  Plan plan;                       ///< of a simulated-only answer, the plan as far as one goes
  sim::PlanSimulation simulation;  ///< of that plan, at the answer's own times where it has them
};

/// An entry of a comparison, with the plan and the simulation that its figures are from.
struct ComparedOutcome {
  ComparedPlan entry;                        ///< the figures
  std::optional<ComparedTimeline> timeline;  ///< absent where there is no feasible plan
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
/// at its own times. Throws as `simulate_plan` does.
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
