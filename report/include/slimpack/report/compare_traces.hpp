// SPDX-License-Identifier: Apache-2.0
// How far predicted times are from measured ones: by kind of unit, by device, for the step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"

namespace slimpack::report {

/// A time as predicted and as measured.
struct ComparedTime {
  Nanos predicted;  ///< by a simulation
  Nanos measured;   ///< by an execution
  /// Predicted over measured; none where nothing was measured.
  [[nodiscard]] std::optional<double> ratio() const noexcept {
    if (measured == Nanos{}) return std::nullopt;
    return static_cast<double>(predicted.value) / static_cast<double>(measured.value);
  }
  /// |predicted - measured| over measured, which counts as one nanosecond where it is less.
  [[nodiscard]] double error() const noexcept {
    const std::int64_t difference = (predicted - measured).value;
    return static_cast<double>(difference < 0 ? -difference : difference) /
           static_cast<double>(std::max<std::int64_t>(1, measured.value));
  }
  friend bool operator==(const ComparedTime&, const ComparedTime&) = default;
};

/// The units of one kind, or all of them.
struct ComparedUnits {
  std::int64_t count = 0;   ///< units, a reduction with all its buckets being one
  ComparedTime sum;         ///< of all their times
  double median_error = 0;  ///< the least that half of the units' errors do not exceed
  double p95_error = 0;     ///< the least that 95 of 100 do not exceed
  friend bool operator==(const ComparedUnits&, const ComparedUnits&) = default;
};

/// F, B, H and O of a device: their time, the step's rest, and the instant at which the last ends.
struct ComparedDevice {
  std::int32_t dp = 0;  ///< data-parallel rank
  std::int32_t pp = 0;  ///< stage
  ComparedTime busy;    ///< summed time of F, B, H and O
  ComparedTime idle;    ///< the step's time less `busy`
  ComparedTime end;     ///< from the step's begin to the end of the last of them
  friend bool operator==(const ComparedDevice&, const ComparedDevice&) = default;
};

/// A unit of a device, twice timed.
struct ComparedUnit {
  std::int32_t dp = 0;  ///< data-parallel rank
  std::int32_t pp = 0;  ///< stage
  Unit unit;            ///< as in the schedule of that device
  ComparedTime time;    ///< of a reduction, the sum of its buckets
  friend bool operator==(const ComparedUnit&, const ComparedUnit&) = default;
};

/// The buckets of a reduction count together as one unit.
struct TraceComparison {
  std::string planner;     ///< empty where neither trace names it
  std::int64_t step = 0;   ///< the same in both traces
  ComparedTime iteration;  ///< from the step's begin to its end
  /// By UnitKind, those that are there.
  std::array<std::optional<ComparedUnits>, kWords<UnitKind>.size()> kinds;
  ComparedUnits all;                    ///< units of every kind together
  std::vector<ComparedDevice> devices;  ///< by dp, then pp
  std::vector<ComparedUnit> worst;      ///< the most different times first, equal ones by device
  friend bool operator==(const TraceComparison&, const TraceComparison&) = default;
};

/// Two traces that are not of one step.
struct TraceMismatch {
  std::string what;  ///< a sentence on the first difference
  friend bool operator==(const TraceMismatch&, const TraceMismatch&) = default;
};

/// The names that comparisons use for kinds of units.
[[nodiscard]] constexpr std::string_view kind_name(UnitKind kind) noexcept {
  return to_string(kind);
}

/// Matches the units of two traces of one step by device, kind, MicroPack and chunk, and compares
/// their times; of the units that differ most `worst` are kept. A reduction that only one of them
/// has took no time in the other. Planners that both name, steps, any other unit that only one has,
/// and tokens that both tell must be the same, else it says which is not; an empty trace compares
/// as nothing. Percentiles are by nearest rank. O(units log units).
[[nodiscard]] std::variant<TraceComparison, TraceMismatch> compare_traces(
    const StepTrace& predicted, const StepTrace& measured, std::size_t worst = 10);

/// Writes all figures of a comparison (docs/schemas.md). Ratios are predicted over measured.
void write_trace_comparison_json(std::ostream& out, const TraceComparison& comparison);

/// Writes the step's times, then a table by kind of unit, one by device (the first 64), and one of
/// the units that differ most, if any does. Ratios are predicted over measured.
void write_trace_comparison_text(std::ostream& out, const TraceComparison& comparison);

}  // namespace slimpack::report
