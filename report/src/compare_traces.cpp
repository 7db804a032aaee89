// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_traces.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

namespace {

class TraceMatch {
 public:
  TraceMatch(const StepTrace& predicted, const StepTrace& measured)
      : predicted_(predicted), measured_(measured) {}

  [[nodiscard]] std::variant<TraceComparison, TraceMismatch> compare(std::size_t worst) {
    if (auto what = other_step()) return TraceMismatch{*std::move(what)};
    add(predicted_, &Pair::predicted);
    add(measured_, &Pair::measured);
    if (auto what = unmatched()) return TraceMismatch{*std::move(what)};
    TraceComparison comparison;
    comparison.planner = predicted_.planner.empty() ? measured_.planner : predicted_.planner;
    comparison.step = predicted_.step;
    comparison.iteration = {predicted_.iteration, measured_.iteration};
    add_units(comparison, worst);
    add_devices(comparison);
    return comparison;
  }

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, Unit>;
  struct Side {
    bool there = false;
    Nanos time, end;
    std::optional<Tokens> tokens;
  };
  struct Pair {
    Side predicted, measured;
    [[nodiscard]] ComparedTime time() const noexcept { return {predicted.time, measured.time}; }
  };

  [[nodiscard]] std::optional<std::string> other_step() const {
    if (!predicted_.planner.empty() && !measured_.planner.empty() &&
        predicted_.planner != measured_.planner) {
      return "the plan must be the same, but planner is '" + predicted_.planner +
             "' in the predicted trace and '" + measured_.planner + "' in the measured one";
    }
    if (predicted_.step != measured_.step) {
      return "the step must be the same, but is " + std::to_string(predicted_.step) +
             " in the predicted trace and " + std::to_string(measured_.step) +
             " in the measured one";
    }
    return std::nullopt;
  }

  void add(const StepTrace& trace, Side Pair::* member) {
    for (const TracedUnit& traced : trace.units) {
      Side& side = pairs_[{traced.dp, traced.pp, traced.unit}].*member;
      side.there = true;
      side.time += traced.end - traced.begin;
      side.end = std::max(side.end, traced.end);
      side.tokens = traced.tokens;
    }
  }

  /// A reduction without time is not in a simulated trace, so one may be missing.
  [[nodiscard]] std::optional<std::string> unmatched() const {
    for (const auto& [key, pair] : pairs_) {
      const auto& [dp, pp, unit] = key;
      const std::string name = sim::device_name(dp, pp) + " " + sim::unit_name(unit);
      if (pair.predicted.there != pair.measured.there) {
        if (unit.kind == UnitKind::reduce) continue;
        return std::string("the traces must have the same units, but only the ") +
               (pair.predicted.there ? "predicted" : "measured") + " one has " + name;
      }
      if (pair.predicted.tokens && pair.measured.tokens &&
          *pair.predicted.tokens != *pair.measured.tokens) {
        return "a unit must have the same tokens, but " + name + " has " +
               std::to_string(pair.predicted.tokens->value) + " in the predicted trace and " +
               std::to_string(pair.measured.tokens->value) + " in the measured one";
      }
    }
    return std::nullopt;
  }

  /// The least error that `share` of 100 of them do not exceed.
  [[nodiscard]] static double percentile(const std::vector<double>& rising, std::size_t share) {
    return rising[(rising.size() * share + 99) / 100 - 1];
  }
  [[nodiscard]] static ComparedUnits summed(const std::vector<ComparedTime>& times) {
    ComparedUnits units;
    std::vector<double> errors;
    for (const ComparedTime& time : times) {
      ++units.count;
      units.sum.predicted += time.predicted;
      units.sum.measured += time.measured;
      errors.push_back(time.error());
    }
    std::sort(errors.begin(), errors.end());
    units.median_error = percentile(errors, 50);
    units.p95_error = percentile(errors, 95);
    return units;
  }

  void add_units(TraceComparison& comparison, std::size_t worst) const {
    std::array<std::vector<ComparedTime>, kWords<UnitKind>.size()> kinds;
    std::vector<ComparedTime> all;
    std::vector<ComparedUnit> apart;
    for (const auto& [key, pair] : pairs_) {
      const auto& [dp, pp, unit] = key;
      const ComparedTime time = pair.time();
      kinds[static_cast<std::size_t>(unit.kind)].push_back(time);
      all.push_back(time);
      if (time.predicted != time.measured) apart.push_back({dp, pp, unit, time});
    }
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      if (!kinds[kind].empty()) comparison.kinds[kind] = summed(kinds[kind]);
    }
    if (!all.empty()) comparison.all = summed(all);
    const auto difference = [](const ComparedUnit& unit) {
      const Nanos longer = unit.time.predicted - unit.time.measured;
      return std::max(longer, -longer);
    };
    std::stable_sort(apart.begin(), apart.end(), [&](const ComparedUnit& a, const ComparedUnit& b) {
      return difference(a) > difference(b);
    });
    if (apart.size() > worst) apart.resize(worst);
    comparison.worst = std::move(apart);
  }

  void add_devices(TraceComparison& comparison) const {
    for (const auto& [key, pair] : pairs_) {
      const auto& [dp, pp, unit] = key;
      if (comparison.devices.empty() || comparison.devices.back().dp != dp ||
          comparison.devices.back().pp != pp) {
        comparison.devices.push_back({dp, pp, {}, comparison.iteration, {}});
      }
      if (unit.kind == UnitKind::reduce) continue;
      ComparedDevice& device = comparison.devices.back();
      device.busy.predicted += pair.predicted.time;
      device.busy.measured += pair.measured.time;
      device.idle.predicted -= pair.predicted.time;
      device.idle.measured -= pair.measured.time;
      device.end.predicted = std::max(device.end.predicted, pair.predicted.end);
      device.end.measured = std::max(device.end.measured, pair.measured.end);
    }
  }

  const StepTrace& predicted_;
  const StepTrace& measured_;
  std::map<Key, Pair> pairs_;
};

}  // namespace

std::variant<TraceComparison, TraceMismatch> compare_traces(const StepTrace& predicted,
                                                            const StepTrace& measured,
                                                            std::size_t worst) {
  return TraceMatch(predicted, measured).compare(worst);
}

}  // namespace slimpack::report
