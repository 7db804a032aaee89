// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/trace.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/dag.hpp"
#include "trace_units.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// The units by device and place. Throws as `measured_trace` says.
[[nodiscard]] std::vector<MeasuredUnit> checked_units(const Plan& plan,
                                                      std::span<const MeasuredUnit> units) {
  std::vector<MeasuredUnit> sorted(units.begin(), units.end());
  std::sort(sorted.begin(), sorted.end(), [](const MeasuredUnit& a, const MeasuredUnit& b) {
    return std::tie(a.device, a.unit) < std::tie(b.device, b.unit);
  });
  const MeasuredUnit* before = nullptr;   // whatever came last
  const MeasuredUnit* compute = nullptr;  // the device's last unit but reductions
  for (const MeasuredUnit& measured : sorted) {
    require(measured.device < plan.schedule.size(), "measured unit: device must be in the schedule",
            static_cast<std::int64_t>(measured.device));
    const DeviceSchedule& device = plan.schedule[measured.device];
    const std::string place = "measured unit: " + sim::device_name(device.dp, device.pp);
    require(measured.unit < device.order.size(), place + ": unit must be in its order",
            static_cast<std::int64_t>(measured.unit));
    const Unit& unit = device.order[measured.unit];
    const std::string name = place + " " + sim::unit_name(unit);
    require(measured.begin >= Nanos{}, name + ": begin must be >= 0", measured.begin.value);
    require(measured.begin <= measured.end, name + ": end must be >= begin", measured.end.value);
    if (before != nullptr && before->device == measured.device) {
      require(before->unit != measured.unit, name + ": must be measured once");
    } else {
      compute = nullptr;
    }
    before = &measured;
    if (unit.kind == UnitKind::reduce) continue;
    require(compute == nullptr || compute->end <= measured.begin,
            name + ": must not begin before the unit ahead of it has ended", measured.begin.value);
    compute = &measured;
  }
  return sorted;
}

}  // namespace

StepTrace measured_trace(const Plan& plan, std::span<const MeasuredUnit> units) {
  StepTrace trace{plan.planner, plan.step_index, {}, {}};
  for (const MeasuredUnit& measured : checked_units(plan, units)) {
    const DeviceSchedule& device = plan.schedule[measured.device];
    trace.units.push_back(traced_unit(plan, device.dp, device.pp, device.order[measured.unit],
                                      measured.begin, measured.end));
    trace.iteration = std::max(trace.iteration, measured.end);
  }
  return trace;
}

void write_measured_trace(std::ostream& out, const Plan& plan,
                          std::span<const MeasuredUnit> units) {
  const StepTrace trace = measured_trace(plan, units);
  std::vector<bool> reducing(static_cast<std::size_t>(plan.parallel.pp), false);
  for (const TracedUnit& traced : trace.units) {
    if (traced.unit.kind == UnitKind::reduce) reducing[static_cast<std::size_t>(traced.pp)] = true;
  }
  PlanTraceWriter writer(out, plan);
  writer.name_ranks();
  for (const DeviceSchedule& device : plan.schedule) {
    writer.name_device(device.dp, device.pp, true, reducing[static_cast<std::size_t>(device.pp)]);
  }
  for (const TracedUnit& traced : trace.units) writer.unit(traced);

  auto next = trace.units.begin();
  for (const DeviceSchedule& device : plan.schedule) {
    Nanos idle_since;
    const auto gap_until = [&](Nanos until) {
      if (idle_since < until) writer.gap(device.dp, device.pp, "measured", idle_since, until);
    };
    for (; next != trace.units.end() && next->dp == device.dp && next->pp == device.pp; ++next) {
      if (next->unit.kind == UnitKind::reduce) continue;
      gap_until(next->begin);
      idle_since = next->end;
    }
    gap_until(trace.iteration);
  }
  writer.finish(trace.iteration, "measured");
}

}  // namespace slimpack::report
