// SPDX-License-Identifier: Apache-2.0
// A comparison of planners as JSON, CSV, a table to read, and a picture (docs/reports.md).
#pragma once

#include <ostream>
#include <span>

#include "slimpack/report/compare.hpp"

namespace slimpack::report {

/// Writes the comparison as `"format": "slimpack-comparison"`, version 1. Throws InvalidInput as
/// `summarize_comparison` does, before anything is written. O(results^2).
void write_comparison_json(std::ostream& out, const Comparison& comparison);

/// Writes a header and the rows, keys as in JSON: `settings` as `name=text` with semicolons,
/// `gaps` one column a cause, `gap_CAUSE_s`; figures of infeasible entries are empty. O(results^2).
void write_comparison_csv(std::ostream& out, const Comparison& comparison);

/// Writes a row a planner: iteration time (mean, with several steps least and most), efficiency,
/// speed-up of summed time over the baseline, MFU, idle share, peak memory, planning time; planners
/// without a plan for some step say why. Below, what each planner chose in the first step that it
/// has a plan for. Throws InvalidInput as `summarize_comparison` does.
void write_comparison_text(std::ostream& out, const Comparison& comparison);

/// Draws the plans of one step of a comparison, each under a heading with its figures, with the
/// parts of `write_svg`: one time axis as long as the slowest, one scale of memory. Where they are
/// many, of each plan only some data-parallel ranks are drawn, at least one, and a line says so.
/// Infeasible planners are named in the head. The timelines are of the step that the first of them
/// has; without any, of the comparison's first. Throws InvalidInput if they are of several steps or
/// the comparison has none.
void write_comparison_svg(std::ostream& out, const Comparison& comparison,
                          std::span<const ComparedTimeline> timelines);

}  // namespace slimpack::report
