// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/summary.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

PathSummary summary_of(const sim::Dag& dag, std::span<const sim::PathStep> path, std::size_t most) {
  PathSummary summary;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::size_t node = index(path[i].node);
    if (dag.duration[node] == Nanos{}) continue;
    summary.time[static_cast<std::size_t>(path_work(dag.label[node].kind))] += dag.duration[node];
    places.push_back(i);
  }
  summary.steps = places.size();
  if (places.size() > most) {
    std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
      return dag.duration[index(path[a].node)] > dag.duration[index(path[b].node)];
    });
    places.resize(most);
    std::sort(places.begin(), places.end());
  }
  for (const std::size_t i : places) summary.shown.push_back(path[i]);
  return summary;
}

SimulationSummary summarize(const Plan& plan, const sim::PlanSimulation& simulation,
                            std::vector<JitterReport> jitter) {
  SimulationSummary summary;
  summary.gaps = sim::find_gaps(simulation.dag, simulation.timeline, memory_limit(plan));
  summary.metrics = metrics_of(plan, simulation, summary.gaps);
  summary.path =
      summary_of(simulation.dag, sim::critical_path(simulation.dag, simulation.timeline));
  summary.jitter = std::move(jitter);
  return summary;
}

}  // namespace slimpack::report
