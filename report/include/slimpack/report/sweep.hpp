// SPDX-License-Identifier: Apache-2.0
// Comparisons of planners at every point of a grid of options, as JSON, CSV and a table to read.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "slimpack/report/compare.hpp"

namespace slimpack::report {

/// An option and the values it takes, as they were written.
struct SweepAxis {
  std::string key;                  ///< name of the option, without dashes
  std::vector<std::string> values;  ///< at least one, in the order in which points take them
};

/// What all planners made of one point. Where no plan can be asked for there, as with more stages
/// than layers, every result says so.
struct SweepPoint {
  std::vector<std::string> values;  ///< one of each axis
  Comparison comparison;            ///< of all planners with these options
};

/// The points of all axes, the last axis running fastest.
struct Sweep {
  std::vector<SweepAxis> axes;     ///< may be none: then there is one point
  std::vector<SweepPoint> points;  ///< in the order of `sweep_points`
};

/// Most points of a sweep.
inline constexpr std::int64_t kMostSweepPoints = 100'000;

/// Every combination of values, the last axis running fastest. One point without a value where
/// there is no axis. Throws InvalidInput if an axis has no value or there are more than
/// `kMostSweepPoints` points.
[[nodiscard]] std::vector<std::vector<std::string>> sweep_points(
    const std::vector<SweepAxis>& axes);

/// Writes the sweep as `"format": "slimpack-sweep"`, version 1. Throws InvalidInput as
/// `summarize_comparison` does, before anything is written.
void write_sweep_json(std::ostream& out, const Sweep& sweep);

/// Writes a row for each point and planner: iteration time (mean of the steps), efficiency,
/// speed-up over the baseline where it takes part, tokens a second, MFU, idle share, peak memory.
/// Rows without a plan for some step say why. Throws InvalidInput as `summarize_comparison` does.
void write_sweep_text(std::ostream& out, const Sweep& sweep);

/// Writes a header and a row for each point and planner: the axes, then figures over the point's
/// steps under the keys of `slimpack compare --json`'s summaries; `iteration_s` and `plan_seconds`
/// are means. What does not exist is an empty field. Throws InvalidInput as `summarize_comparison`
/// does.
void write_sweep_csv(std::ostream& out, const Sweep& sweep);

}  // namespace slimpack::report
