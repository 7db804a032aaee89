// SPDX-License-Identifier: Apache-2.0
// Pictures: of a simulated plan, and of several steps below each other on one time axis.
#pragma once

#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// Draws a simulated plan as one SVG file of its own, without script or outside font, for light and
/// dark pages: a lane a device with its units, gaps by cause, reductions, and the memory it holds
/// against the limit. What is thinner than a pixel is gathered into columns whose heights are
/// shares of time, and the columns widen until the file is below about 2 MB; beyond 256 devices the
/// rest are left out and a line says so. O((nodes + events) log nodes).
void write_svg(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation);

/// A step under its heading, such as "megatron, measured".
struct TitledTrace {
  std::string title;  ///< one line above the step
  StepTrace trace;    ///< what is drawn
};

/// Draws steps below each other with the parts of `write_svg`, without memory: each under its title
/// and time, a lane a device with units, idle time up to the step's own end and reductions, on one
/// axis as long as the longest. Beyond 96 devices together, each step has only its first ones, at
/// least one, and a line says so. Measured units come in by `measured_trace`, simulated ones by
/// `simulated_trace`, files by `read_trace_file`. Throws InvalidInput if there is no step, one has
/// no unit, or a unit does not lie within its step. O(units log units + devices^2).
void write_timelines_svg(std::ostream& out, std::string_view title,
                         std::span<const TitledTrace> steps);

}  // namespace slimpack::report
