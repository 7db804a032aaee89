// SPDX-License-Identifier: Apache-2.0
// All that is said about one simulated plan: as data, as JSON, and as a table to read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/jitter.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// What the time of a critical path was spent on.
enum class PathWork : std::uint8_t { forward, backward, head, optimizer, transfer, reduce, weight };

/// How many values PathWork has.
inline constexpr int kPathWorks = 7;

/// The name of a kind of work, as files have it.
[[nodiscard]] constexpr std::string_view to_string(PathWork work) noexcept {
  constexpr std::array<std::string_view, kPathWorks> kNames = {
      "forward", "backward", "head", "optimizer", "transfer", "reduce", "weight"};
  return kNames[static_cast<std::size_t>(work)];
}

/// What a node of the simulated graph counts as. Backward are a release too, the part of a B or W
/// after which a bucket of gradients may leave, and a join, which takes no time.
[[nodiscard]] constexpr PathWork path_work(sim::NodeKind kind) noexcept {
  if (kind == sim::NodeKind::weight) return PathWork::weight;
  if (kind >= sim::NodeKind::join) return PathWork::backward;
  return static_cast<PathWork>(kind);
}

/// A critical path in a few figures.
struct PathSummary {
  std::array<Nanos, kPathWorks> time{};  ///< by work; sums to the makespan
  std::size_t steps = 0;                 ///< of the path that take time
  std::vector<sim::PathStep> shown;      ///< of those, in the order of time
};

/// Sums up a critical path. At most `most` steps are kept, the longest, ties to the earlier.
[[nodiscard]] PathSummary summary_of(const sim::Dag& dag, std::span<const sim::PathStep> path,
                                     std::size_t most = 200);

/// What one kind of jitter does to a plan's time.
struct JitterReport {
  sim::JitterOptions options;  ///< what was drawn
  sim::Jitter result;          ///< iteration times of the draws
};

/// The figures of a simulated plan, its idle time by cause, its critical path, and its jitter.
struct SimulationSummary {
  Metrics metrics;                   ///< the figures
  sim::Gaps gaps;                    ///< idle time by device and cause
  PathSummary path;                  ///< of the critical path
  std::vector<JitterReport> jitter;  ///< empty where none was drawn
};

/// Sums up a simulation, with what jitter was drawn. Throws as `metrics_of` does. O(nodes + edges +
/// events log events).
[[nodiscard]] SimulationSummary summarize(const Plan& plan, const sim::PlanSimulation& simulation,
                                          std::vector<JitterReport> jitter = {});

/// Writes what `slimpack simulate --json` prints: the figures, every device, the critical path and
/// the jitter that was drawn. `summary` is of the same plan and simulation.
void write_summary_json(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                        const SimulationSummary& summary);

/// Writes what `slimpack simulate` prints: about ten lines of figures, then a line a device with
/// its time in percent of the iteration. Beyond 64 devices the ranks of a stage share a line.
/// `summary` is of the same plan and simulation.
void write_summary_text(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                        const SimulationSummary& summary);

}  // namespace slimpack::report
