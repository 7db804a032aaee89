// SPDX-License-Identifier: Apache-2.0
// Predicted against measured times as tables to read.
#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare_text.hpp"
#include "slimpack/report/compare_traces.hpp"
#include "slimpack/report/detail/text.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

namespace detail {

[[nodiscard]] inline std::string ratio_text(const ComparedTime& time) {
  const std::optional<double> ratio = time.ratio();
  return ratio ? fixed(*ratio, 3) : "-";
}

inline void add_times(std::vector<std::string>& row, const ComparedTime& time) {
  row.push_back(time_text(time.predicted));
  row.push_back(time_text(time.measured));
  row.push_back(ratio_text(time));
}

inline void add_kind(TextTable& table, std::string_view name, const ComparedUnits& units) {
  std::vector<std::string> row{std::string(name), std::to_string(units.count)};
  add_times(row, units.sum);
  row.push_back(percent(units.median_error));
  row.push_back(percent(units.p95_error));
  table.add(row);
}

}  // namespace detail

/// Writes the step's times, then a table by kind of unit, one by device (the first 64), and one of
/// the units that differ most, if any does. Ratios are predicted over measured.
inline void write_trace_comparison_text(std::ostream& out, const TraceComparison& comparison) {
  using detail::TextTable;
  constexpr std::size_t kShownDevices = 64;
  detail::TextWriter text(out);
  text << detail::clipped(detail::one_line(comparison.planner), 40)
       << (comparison.planner.empty() ? "step " : ", step ") << comparison.step << ": predicted "
       << detail::time_text(comparison.iteration.predicted) << ", measured "
       << detail::time_text(comparison.iteration.measured) << ", predicted / measured "
       << detail::ratio_text(comparison.iteration) << "\n\n";

  detail::TextTable kinds(
      {"units", "count", "predicted", "measured", "ratio", "median error", "95 %"});
  for (std::size_t kind = 0; kind < comparison.kinds.size(); ++kind) {
    if (!comparison.kinds[kind]) continue;
    detail::add_kind(kinds, kind_name(static_cast<UnitKind>(kind)), *comparison.kinds[kind]);
  }
  detail::add_kind(kinds, "all", comparison.all);
  kinds.write(text);

  text << '\n';
  detail::TextTable devices({"device", "busy predicted", "measured", "ratio", "idle predicted",
                             "measured", "ratio", "end predicted", "measured", "ratio"});
  for (std::size_t i = 0; i < comparison.devices.size() && i < kShownDevices; ++i) {
    const ComparedDevice& device = comparison.devices[i];
    std::vector<std::string> row{sim::device_name(device.dp, device.pp)};
    for (const ComparedTime* time : {&device.busy, &device.idle, &device.end}) {
      detail::add_times(row, *time);
    }
    devices.add(row);
  }
  if (comparison.devices.size() > kShownDevices) {
    devices.remark({"and"}, std::to_string(comparison.devices.size() - kShownDevices) + " more");
  }
  devices.write(text);

  if (comparison.worst.empty()) return;
  text << '\n';
  detail::TextTable worst({"differing most", "predicted", "measured", "ratio"});
  for (const ComparedUnit& unit : comparison.worst) {
    std::vector<std::string> row{sim::device_name(unit.dp, unit.pp) + " " +
                                 sim::unit_name(unit.unit)};
    detail::add_times(row, unit.time);
    worst.add(row);
  }
  worst.write(text);
}

}  // namespace slimpack::report
