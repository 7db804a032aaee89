// SPDX-License-Identifier: Apache-2.0
// All that is said about one simulated plan, for the JSON and the table.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/report/path_summary.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/jitter.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// How a plan stood one kind of jitter.
struct JitterReport {
  sim::JitterOptions options;
  sim::Jitter result;
};

struct SimulationSummary {
  Metrics metrics;
  sim::Gaps gaps;
  PathSummary path;
  std::vector<JitterReport> jitter;  ///< empty where none was drawn
};

/// Sums up a simulation, with what jitter was drawn. Throws as `metrics_of` does. O(nodes + edges +
/// events log events).
[[nodiscard]] inline SimulationSummary summarize(const Plan& plan,
                                                 const sim::PlanSimulation& simulation,
                                                 std::vector<JitterReport> jitter = {}) {
  SimulationSummary summary;
  summary.gaps = sim::find_gaps(simulation.dag, simulation.timeline, memory_limit(plan));
  summary.metrics = metrics_of(plan, simulation, summary.gaps);
  summary.path =
      summary_of(simulation.dag, sim::critical_path(simulation.dag, simulation.timeline));
  summary.jitter = std::move(jitter);
  return summary;
}

}  // namespace slimpack::report
