// SPDX-License-Identifier: Apache-2.0
// Planners side by side as one HTML page that needs nothing else: tables, timelines, charts.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// How much of the timelines a page carries.
struct HtmlOptions {
  /// Units and gaps of all plans together, at about five bytes each; ranks beyond are left out.
  std::size_t most_entries = 2'000'000;
  /// Points of all memory curves together, at about five bytes each.
  std::size_t most_points = 1'000'000;
};

/// Writes a page that opens from a file, without network, for light and dark screens: the planners'
/// figures in tables that sort (all of `compare --json`), the timelines of `timelines` on one time
/// axis to zoom into, with each unit's samples and each gap's cause, memory of every device against
/// the limit, times of MicroPacks, work of ranks, critical paths. Everything but tables needs the
/// script inside. Where plans are very large, of each plan only some data-parallel ranks are in the
/// page, at least one, and it says so. The timelines are of the step that the first of them has.
/// The same comparison gives the same bytes. Throws InvalidInput if they are of several steps or
/// the comparison has none, or its results stand in another order.
void write_comparison_html(std::ostream& out, const Comparison& comparison,
                           std::span<const ComparedTimeline> timelines,
                           const HtmlOptions& options = {});

/// The same page for one plan.
void write_html(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                const HtmlOptions& options = {});

}  // namespace slimpack::report
