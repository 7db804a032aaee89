// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_report.hpp"

#include <cstddef>
#include <ostream>

#include "describe.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/tables.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;

void write_comparison_text(std::ostream& out, const Comparison& comparison) {
  const auto summaries = summarize_comparison(comparison);
  const bool several = comparison.steps.size() > 1;
  TextWriter text(out);
  write_task_line(text, comparison);
  TextTable table({"planner", several ? "iteration s (min-max)" : "iteration s",
                   several ? "efficiency % (min-max)" : "efficiency %", "speed-up", "MFU %",
                   "idle %", "peak GB", "planning s"});
  for (const PlannerSummary& summary : summaries) {
    if (summary.feasible == 0) {
      table.remark({summary.planner}, "infeasible: " + summary.why);
      continue;
    }
    table.add({summary.planner, range_text(summary.iteration_s, 1, 4, several),
               range_text(summary.efficiency, 100, 1, several),
               summary.speedup ? fixed(*summary.speedup, 3) : "-", fixed(summary.mfu * 100, 1),
               fixed(summary.bubble * 100, 1),
               fixed(static_cast<double>(summary.peak.value) * 1e-9, 1),
               fixed(summary.plan_seconds.mean, 3)});
  }
  text << table.text();
  text << '\n';
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    const PlannerSummary& summary = summaries[i];
    const std::size_t first = i * comparison.steps.size();
    if (summary.feasible > 0) {
      std::size_t entry = first;
      while (!comparison.results[entry].metrics) ++entry;
      text << summary.planner << ": ";
      if (several) text << "step " << comparison.results[entry].step << ": ";
      text << settings_line(comparison.results[entry]) << '\n';
      if (summary.feasible < summary.steps) {
        text << summary.planner << ": " << summary.steps - summary.feasible << " of "
             << summary.steps << " steps infeasible: " << summary.why << '\n';
      }
    }
  }
}

}  // namespace slimpack::report
