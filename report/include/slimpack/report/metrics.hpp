// SPDX-License-Identifier: Apache-2.0
// The figures by which simulated plans are compared.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// Figures of one simulated step (docs/reports.md). A ratio whose denominator is zero is zero.
struct Metrics {
  Nanos iteration;
  Nanos ideal, lower_bound;  ///< as the plan's prediction has them
  double efficiency = 0;     ///< ideal over iteration
  double tokens_per_s = 0;   ///< tokens of all samples
  double mfu = 0;            ///< `model_flops` over what all devices could do at peak
  double bubble = 0;         ///< share of the devices' time in which their compute is idle
  double dp_imbalance = 0;   ///< most over mean compute of a data-parallel rank
  double forward_cv = 0;     ///< standard deviation over mean of compute time of a MicroPack
  double backward_cv = 0;
  std::array<Nanos, sim::kGapCauses> gaps{};  ///< sums over devices
  Bytes peak;                                 ///< most of any device
  sim::DeviceId peak_device{};                ///< the first that holds it
  sim::MemoryByKind at_peak{};                ///< what it holds then
  CommunicationBytes communication;
  std::int64_t samples = 0;
  Tokens tokens;
  Tokens merged_tokens;  ///< of samples whose group has several ranks
  std::int64_t forward_packs = 0, backward_packs = 0;
};

/// FLOPs of the model itself: 2 for each weight of a matrix product and token, vocabulary
/// projection included; attention over causal pairs, a sample of n tokens having n^2 / 2; backward
/// twice the forward; nothing recomputed.
[[nodiscard]] inline double model_flops(const Plan& plan) {
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

namespace detail {

[[nodiscard]] inline double ratio(double numerator, double denominator) noexcept {
  return denominator > 0 ? numerator / denominator : 0;
}

/// Standard deviation over mean of whole numbers, from exact sums.
[[nodiscard]] inline double variation(const std::vector<Nanos>& times) {
  Int128 sum = 0, squares = 0;
  for (const Nanos time : times) {
    sum += time.value;
    squares += Int128{time.value} * time.value;
  }
  const Int128 spread = static_cast<Int128>(times.size()) * squares - sum * sum;
  return ratio(std::sqrt(static_cast<double>(spread)), static_cast<double>(sum));
}

struct ComputeTimes {
  std::vector<Nanos> forward, backward;  ///< one a pack of the pass, over the whole line
  std::vector<Nanos> rank;               ///< F, B and H of a data-parallel rank, all its stages
};
/// In a merged group a pack counts as its first rank runs it; all run it equally long.
[[nodiscard]] inline ComputeTimes compute_times(const Plan& plan, const sim::Dag& dag) {
  std::vector<Nanos> pack(plan.micropacks.size());
  ComputeTimes times;
  times.rank.resize(static_cast<std::size_t>(plan.parallel.dp));
  for (std::size_t i = 0; i < dag.size(); ++i) {
    const sim::NodeLabel& label = dag.label[i];
    if (!sim::is_compute(label.kind) || label.kind == sim::NodeKind::optimizer) continue;
    times.rank[static_cast<std::size_t>(label.dp)] += dag.duration[i];
    if (label.kind == sim::NodeKind::head) continue;
    const GroupId group = plan.micropacks[index(label.pack)].group;
    if (plan.groups[index(group)].front() == label.dp) pack[index(label.pack)] += dag.duration[i];
  }
  for (std::size_t i = 0; i < pack.size(); ++i) {
    const bool forward = plan.micropacks[i].pass == Pass::forward;
    (forward ? times.forward : times.backward).push_back(pack[i]);
  }
  return times;
}

}  // namespace detail

/// What a device may hold.
[[nodiscard]] constexpr Bytes memory_limit(const Plan& plan) noexcept {
  return plan.memory.capacity - plan.memory.reserved;
}

/// The figures of a simulated plan. `gaps` are those of the same simulation. Throws InvalidInput if
/// the simulation is of another number of devices, or the cost model has no rates. O(nodes + slices
/// x ranks).
[[nodiscard]] inline Metrics metrics_of(const Plan& plan, const sim::PlanSimulation& simulation,
                                        const sim::Gaps& gaps) {
  const sim::Timeline& timeline = simulation.timeline;
  require(timeline.peak.size() == plan.schedule.size() && !timeline.peak.empty(),
          "metrics_of: the simulation must have the plan's devices, one or more",
          static_cast<std::int64_t>(timeline.peak.size()));
  Metrics metrics;
  metrics.iteration = timeline.makespan;
  metrics.ideal = ideal_time(plan);
  metrics.lower_bound = plan.prediction.lower_bound;
  const double whole = static_cast<double>(timeline.makespan.value);
  metrics.efficiency = detail::ratio(static_cast<double>(metrics.ideal.value), whole);
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    metrics.tokens += plan.samples[i];
    const GroupId group = plan.sample_group[i];
    if (plan.groups[index(group)].size() > 1) metrics.merged_tokens += plan.samples[i];
  }
  metrics.samples = static_cast<std::int64_t>(plan.samples.size());
  const double in_seconds = seconds(timeline.makespan);
  metrics.tokens_per_s = detail::ratio(static_cast<double>(metrics.tokens.value), in_seconds);
  const auto tensor_devices = static_cast<double>(timeline.peak.size()) * plan.parallel.tp;
  metrics.mfu =
      detail::ratio(model_flops(plan), plan.cluster.peak_flops * tensor_devices * in_seconds);
  metrics.gaps = gaps.sum;
  Nanos idle;
  for (const Nanos gap : gaps.sum) idle += gap;
  metrics.bubble = detail::ratio(static_cast<double>(idle.value),
                                 whole * static_cast<double>(timeline.peak.size()));

  const detail::ComputeTimes times = detail::compute_times(plan, simulation.dag);
  Nanos most, sum;
  for (const Nanos rank : times.rank) {
    most = std::max(most, rank);
    sum += rank;
  }
  metrics.dp_imbalance = detail::ratio(static_cast<double>((most * plan.parallel.dp).value),
                                       static_cast<double>(sum.value));
  metrics.forward_cv = detail::variation(times.forward);
  metrics.backward_cv = detail::variation(times.backward);
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

/// The same, finding the gaps first: further O(events log events).
[[nodiscard]] inline Metrics metrics_of(const Plan& plan, const sim::PlanSimulation& simulation) {
  return metrics_of(plan, simulation,
                    sim::find_gaps(simulation.dag, simulation.timeline, memory_limit(plan)));
}
/// The same for a modelled step.
[[nodiscard]] inline Metrics metrics_of(const planners::SimulationOnlyPlan& step,
                                        const sim::PlanSimulation& simulation) {
  Metrics metrics = metrics_of(step.plan, simulation);
  if (step.exchange) metrics.communication.exchange = *step.exchange;
  return metrics;
}

}  // namespace slimpack::report
