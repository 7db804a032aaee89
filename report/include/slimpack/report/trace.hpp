// SPDX-License-Identifier: Apache-2.0
// Traces of a plan, simulated or measured, as data and as Chrome trace events.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// What a trace holds beside units, transfers and reductions.
struct TraceOptions {
  bool gaps = true;    ///< a thread a stage with the causes of idle time
  bool memory = true;  ///< a counter a stage with bytes by kind
};

/// Writes a simulated plan as Chrome trace events: one process a data-parallel rank, a thread for
/// each stage's compute, gaps, reduction and each of its links. Times are exact to the nanosecond.
/// O(nodes + events log events) beside the text.
void write_trace(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                 const TraceOptions& options = {});

/// The units of the same trace as data: all of them, and a reduction's buckets once a rank.
[[nodiscard]] StepTrace simulated_trace(const Plan& plan, const sim::PlanSimulation& simulation);

/// When a device ran one entry of its schedule, from the step's begin on.
struct MeasuredUnit {
  std::size_t device = 0;  ///< position in `Plan::schedule`
  std::size_t unit = 0;    ///< position in that device's order
  Nanos begin;             ///< from the step's begin, >= 0
  Nanos end;               ///< from the step's begin, >= `begin`
  friend bool operator==(const MeasuredUnit&, const MeasuredUnit&) = default;
};

/// Measured units as data, by device and position in its order; the step ends with its last unit.
/// Throws InvalidInput if one is not in the plan's schedule, is there twice, ends before it begins,
/// begins before 0, or, reductions apart, before the one ahead of it on its device has ended.
/// O(units log units).
[[nodiscard]] StepTrace measured_trace(const Plan& plan, std::span<const MeasuredUnit> units);

/// Writes measured units as `write_trace` writes simulated ones: the same processes, threads, names
/// and arguments, and `times` = `measured` in `otherData`. A reduction is one event, not one a
/// bucket. Gaps are what lies between a device's units, up to the step's end, with the cause
/// `measured`; there are no transfers and no memory. Throws as `measured_trace`.
void write_measured_trace(std::ostream& out, const Plan& plan, std::span<const MeasuredUnit> units);

}  // namespace slimpack::report
