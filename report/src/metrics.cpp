// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "figures.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/slimpack/rank_balance.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// Standard deviation over mean of whole numbers, from exact sums.
[[nodiscard]] double variation(const std::vector<Nanos>& times) {
  Int128 sum = 0, squares = 0;
  for (const Nanos time : times) {
    sum += time.value;
    squares += Int128{time.value} * time.value;
  }
  const Int128 spread = static_cast<Int128>(times.size()) * squares - sum * sum;
  return ratio(std::sqrt(static_cast<double>(spread)), static_cast<double>(sum));
}

}  // namespace

double model_flops(const Plan& plan) {
  const ModelShape& model = plan.model;
  const Int128 weights =
      Int128{model.layers} * model.layer_matrix_weights() + Int128{model.vocab} * model.hidden;
  const Int128 each_square = Int128{2} * model.layers * model.query_width();
  Int128 forward = 0;
  for (const Tokens length : plan.samples) {
    forward += 2 * weights * length.value + each_square * length.value * length.value;
  }
  return static_cast<double>(3 * forward);
}

Metrics metrics_of(const Plan& plan, const sim::PlanSimulation& simulation, const sim::Gaps& gaps) {
  const sim::Timeline& timeline = simulation.timeline;
  require(timeline.peak.size() == plan.schedule.size() && !timeline.peak.empty(),
          "metrics_of: the simulation must have the plan's devices, one or more",
          static_cast<std::int64_t>(timeline.peak.size()));
  Metrics metrics;
  metrics.iteration = timeline.makespan;
  metrics.ideal = ideal_time(plan);
  metrics.lower_bound = plan.prediction.lower_bound;
  const double whole = static_cast<double>(timeline.makespan.value);
  metrics.efficiency = ratio(static_cast<double>(metrics.ideal.value), whole);
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    metrics.tokens += plan.samples[i];
    const GroupId group = plan.sample_group[i];
    if (plan.groups[index(group)].size() > 1) metrics.merged_tokens += plan.samples[i];
  }
  metrics.samples = static_cast<std::int64_t>(plan.samples.size());
  const double in_seconds = seconds(timeline.makespan);
  metrics.tokens_per_s = ratio(static_cast<double>(metrics.tokens.value), in_seconds);
  const auto tensor_devices = static_cast<double>(timeline.peak.size()) * plan.parallel.tp;
  metrics.mfu = ratio(model_flops(plan), plan.cluster.peak_flops * tensor_devices * in_seconds);
  metrics.gaps = gaps.sum;
  Nanos idle;
  for (const Nanos gap : gaps.sum) idle += gap;
  metrics.bubble =
      ratio(static_cast<double>(idle.value), whole * static_cast<double>(timeline.peak.size()));

  const ComputeTimes times = compute_times(plan, simulation.dag);
  Nanos most, sum;
  for (const Nanos rank : times.rank) {
    most = std::max(most, rank);
    sum += rank;
  }
  metrics.dp_imbalance =
      ratio(static_cast<double>((most * plan.parallel.dp).value), static_cast<double>(sum.value));
  const planners::RankBalance balance = planners::rank_balance(plan);
  metrics.dp_over_least = ratio(balance.fullest, balance.least);
  metrics.forward_cv = variation(times.forward);
  metrics.backward_cv = variation(times.backward);
  metrics.forward_packs = static_cast<std::int64_t>(times.forward.size());
  metrics.backward_packs = static_cast<std::int64_t>(times.backward.size());

  std::size_t fullest = 0;
  for (std::size_t i = 1; i < timeline.peak.size(); ++i) {
    if (timeline.peak[i].bytes > timeline.peak[fullest].bytes) fullest = i;
  }
  metrics.peak = timeline.peak[fullest].bytes;
  metrics.peak_device = sim::DeviceId{static_cast<std::uint32_t>(fullest)};
  metrics.at_peak = simulation.at_peak[fullest];
  metrics.communication = communication_of(plan);
  return metrics;
}

Metrics metrics_of(const Plan& plan, const sim::PlanSimulation& simulation) {
  return metrics_of(plan, simulation,
                    sim::find_gaps(simulation.dag, simulation.timeline, memory_limit(plan)));
}

Metrics metrics_of(const planners::SimulationOnlyPlan& step,
                   const sim::PlanSimulation& simulation) {
  Metrics metrics = metrics_of(step.plan, simulation);
  if (step.exchange) metrics.communication.exchange = *step.exchange;
  return metrics;
}

}  // namespace slimpack::report
