// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_traces.hpp"

#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/tables.hpp"
#include "slimpack/sim/dag.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

[[nodiscard]] std::string ratio_text(const ComparedTime& time) {
  const std::optional<double> ratio = time.ratio();
  return ratio ? fixed(*ratio, 3) : "-";
}

void add_times(std::vector<std::string>& row, const ComparedTime& time) {
  row.push_back(time_text(time.predicted));
  row.push_back(time_text(time.measured));
  row.push_back(ratio_text(time));
}

void add_kind(TextTable& table, std::string_view name, const ComparedUnits& units) {
  std::vector<std::string> row{std::string(name), std::to_string(units.count)};
  add_times(row, units.sum);
  row.push_back(percent(units.median_error));
  row.push_back(percent(units.p95_error));
  table.add(row);
}

}  // namespace

void write_trace_comparison_text(std::ostream& out, const TraceComparison& comparison) {
  constexpr std::size_t kShownDevices = 64;
  TextWriter text(out);
  text << clipped(one_line(comparison.planner), 40)
       << (comparison.planner.empty() ? "step " : ", step ") << comparison.step << ": predicted "
       << time_text(comparison.iteration.predicted) << ", measured "
       << time_text(comparison.iteration.measured) << ", predicted / measured "
       << ratio_text(comparison.iteration) << "\n\n";

  TextTable kinds({"units", "count", "predicted", "measured", "ratio", "median error", "95 %"});
  for (std::size_t kind = 0; kind < comparison.kinds.size(); ++kind) {
    if (!comparison.kinds[kind]) continue;
    add_kind(kinds, kind_name(static_cast<UnitKind>(kind)), *comparison.kinds[kind]);
  }
  add_kind(kinds, "all", comparison.all);
  text << kinds.text();

  text << '\n';
  TextTable devices({"device", "busy predicted", "measured", "ratio", "idle predicted", "measured",
                     "ratio", "end predicted", "measured", "ratio"});
  for (std::size_t i = 0; i < comparison.devices.size() && i < kShownDevices; ++i) {
    const ComparedDevice& device = comparison.devices[i];
    std::vector<std::string> row{sim::device_name(device.dp, device.pp)};
    for (const ComparedTime* time : {&device.busy, &device.idle, &device.end}) {
      add_times(row, *time);
    }
    devices.add(row);
  }
  if (comparison.devices.size() > kShownDevices) {
    devices.remark({"and"}, std::to_string(comparison.devices.size() - kShownDevices) + " more");
  }
  text << devices.text();

  if (comparison.worst.empty()) return;
  text << '\n';
  TextTable worst({"differing most", "predicted", "measured", "ratio"});
  for (const ComparedUnit& unit : comparison.worst) {
    std::vector<std::string> row{sim::device_name(unit.dp, unit.pp) + " " +
                                 sim::unit_name(unit.unit)};
    add_times(row, unit.time);
    worst.add(row);
  }
  text << worst.text();
}

}  // namespace slimpack::report
