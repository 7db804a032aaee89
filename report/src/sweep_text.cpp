// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/sweep.hpp"

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/report/compare.hpp"
#include "slimpack/report/tables.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// The planner's first feasible entry of a comparison, else its first.
[[nodiscard]] const ComparedPlan& first_feasible(const Comparison& comparison,
                                                 std::size_t planner) {
  const std::size_t steps = comparison.steps.size();
  for (std::size_t i = planner * steps; i < (planner + 1) * steps; ++i) {
    if (comparison.results[i].metrics) return comparison.results[i];
  }
  return comparison.results[planner * steps];
}

/// "name=text;name=text".
[[nodiscard]] std::string settings_field(const ComparedPlan& entry) {
  std::string field;
  for (const auto& [name, text] : entry.settings) {
    field.append(field.empty() ? "" : ";").append(name).append("=").append(text);
  }
  return field;
}

}  // namespace

void write_sweep_text(std::ostream& out, const Sweep& sweep) {
  TextWriter text(out);
  std::vector<std::string> header;
  for (const SweepAxis& axis : sweep.axes) header.push_back(axis.key);
  for (const char* column : {"planner", "iteration s", "efficiency %", "speed-up", "tokens/s",
                             "MFU %", "idle %", "peak GB", "recompute"}) {
    header.emplace_back(column);
  }
  TextTable table(std::move(header));
  for (const SweepPoint& point : sweep.points) {
    const auto summaries = summarize_comparison(point.comparison);
    for (std::size_t i = 0; i < summaries.size(); ++i) {
      const PlannerSummary& summary = summaries[i];
      std::vector<std::string> row = point.values;
      row.push_back(summary.planner);
      if (summary.feasible < summary.steps) {
        std::string steps;
        if (summary.steps > 1) {
          steps = " in " + std::to_string(summary.steps - summary.feasible) + " of " +
                  std::to_string(summary.steps) + " steps";
        }
        table.remark(std::move(row), "infeasible" + steps + ": " + summary.why);
        continue;
      }
      const auto& settings = first_feasible(point.comparison, i).settings;
      const auto recompute = settings.find("recompute");
      for (std::string cell :
           {fixed(summary.iteration_s.mean, 4), fixed(100 * summary.summed_efficiency, 1),
            summary.speedup ? fixed(*summary.speedup, 3) : std::string("-"),
            rate_text(summary.tokens_per_s), fixed(100 * summary.mfu, 1),
            fixed(100 * summary.bubble, 1),
            fixed(static_cast<double>(summary.peak.value) * 1e-9, 1),
            recompute == settings.end() ? std::string("-") : recompute->second}) {
        row.push_back(std::move(cell));
      }
      table.add(std::move(row));
    }
  }
  text << table.text();
}

void write_sweep_csv(std::ostream& out, const Sweep& sweep) {
  TextWriter text(out);
  CsvRow header;
  for (const SweepAxis& axis : sweep.axes) header.add(axis.key);
  for (const char* column : {"planner", "steps", "feasible_steps", "why", "settings", "iteration_s",
                             "efficiency_of_summed_time", "tokens_per_s", "mfu", "bubble",
                             "speedup_over_megatron", "peak_bytes", "plan_seconds"}) {
    header.add(std::string_view(column));
  }
  text << header.text();
  for (const SweepPoint& point : sweep.points) {
    const auto summaries = summarize_comparison(point.comparison);
    for (std::size_t i = 0; i < summaries.size(); ++i) {
      const PlannerSummary& summary = summaries[i];
      CsvRow row;
      for (const std::string& value : point.values) row.add(value);
      row.add(summary.planner).add(summary.steps).add(summary.feasible).add(summary.why);
      row.add(settings_field(first_feasible(point.comparison, i)));
      if (summary.feasible > 0) {
        row.add(summary.iteration_s.mean).add(summary.summed_efficiency);
        row.add(summary.tokens_per_s).add(summary.mfu).add(summary.bubble);
        row.add(summary.speedup ? shortest(*summary.speedup) : std::string());
        row.add(summary.peak.value);
      } else {
        for (int field = 0; field < 7; ++field) row.none();
      }
      row.add(summary.plan_seconds.mean);
      text << row.text();
    }
  }
}

}  // namespace slimpack::report
