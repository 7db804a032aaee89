// SPDX-License-Identifier: Apache-2.0
// How far predicted times are from measured ones: by kind of unit, by device, for the step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

/// A time twice.
struct ComparedTime {
  Nanos predicted, measured;
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
  std::int64_t count = 0;
  ComparedTime sum;
  double median_error = 0;  ///< the least that half of the units' errors do not exceed
  double p95_error = 0;     ///< the least that 95 of 100 do not exceed
  friend bool operator==(const ComparedUnits&, const ComparedUnits&) = default;
};

/// F, B, H and O of a device: their time, the step's rest, and the instant at which the last ends.
struct ComparedDevice {
  std::int32_t dp = 0, pp = 0;
  ComparedTime busy, idle, end;
  friend bool operator==(const ComparedDevice&, const ComparedDevice&) = default;
};

struct ComparedUnit {
  std::int32_t dp = 0, pp = 0;
  Unit unit;
  ComparedTime time;
  friend bool operator==(const ComparedUnit&, const ComparedUnit&) = default;
};

/// The buckets of a reduction count together as one unit.
struct TraceComparison {
  std::string planner;
  std::int64_t step = 0;
  ComparedTime iteration;
  std::array<std::optional<ComparedUnits>, 5> kinds;  ///< by UnitKind, those that are there
  ComparedUnits all;
  std::vector<ComparedDevice> devices;  ///< by dp, then pp
  std::vector<ComparedUnit> worst;      ///< the most different times first, equal ones by device
  friend bool operator==(const TraceComparison&, const TraceComparison&) = default;
};

/// Two traces that are not of one step; `what` is a sentence on the first difference.
struct TraceMismatch {
  std::string what;
  friend bool operator==(const TraceMismatch&, const TraceMismatch&) = default;
};

/// The names that comparisons use for kinds of units.
[[nodiscard]] constexpr std::string_view kind_name(UnitKind kind) noexcept {
  constexpr std::array<std::string_view, 5> kNames{"F", "B", "H", "R", "O"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace detail {

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
    std::array<std::vector<ComparedTime>, 5> kinds;
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

}  // namespace detail

/// Matches the units of two traces of one step by device, kind, MicroPack and chunk, and compares
/// their times; of the units that differ most `worst` are kept. A reduction that only one of them
/// has took no time in the other. Planners that both name, steps, any other unit that only one has,
/// and tokens that both tell must be the same, else it says which is not; an empty trace compares
/// as nothing. Percentiles are by nearest rank. O(units log units).
[[nodiscard]] inline std::variant<TraceComparison, TraceMismatch> compare_traces(
    const StepTrace& predicted, const StepTrace& measured, std::size_t worst = 10) {
  return detail::TraceMatch(predicted, measured).compare(worst);
}

}  // namespace slimpack::report
