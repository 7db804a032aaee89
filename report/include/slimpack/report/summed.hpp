// SPDX-License-Identifier: Apache-2.0
// The figures of one planner over consecutive steps as those of one long step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"

namespace slimpack::report {

/// Times, gaps, bytes sent, samples, tokens and packs are sums; the peak is the most, with the
/// device and the step that has it; efficiency and tokens/s are of the sums; mfu, bubble, imbalance
/// and variation are means weighted by the steps' time; the lower bound is a sum where every step
/// has one, else absent (0). Throws InvalidInput if there is no step or one is infeasible.
/// O(steps).
[[nodiscard]] inline Metrics summed_metrics(std::span<const ComparedPlan> steps) {
  require(!steps.empty(), "summed_metrics: there must be a step");
  Metrics sum;
  double flops = 0, idle = 0, imbalance = 0, forward = 0, backward = 0;
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
  sum.efficiency = detail::ratio(seconds(sum.ideal), whole);
  sum.tokens_per_s = detail::ratio(static_cast<double>(sum.tokens.value), whole);
  sum.mfu = detail::ratio(flops, whole);
  sum.bubble = detail::ratio(idle, whole);
  sum.dp_imbalance = detail::ratio(imbalance, whole);
  sum.forward_cv = detail::ratio(forward, whole);
  sum.backward_cv = detail::ratio(backward, whole);
  return sum;
}

}  // namespace slimpack::report
