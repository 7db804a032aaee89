// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_report.hpp"

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <utility>
#include <vector>

#include "describe.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/tables.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

void write_comparison_text(std::ostream& out, const Comparison& comparison) {
  const auto summaries = summarize_comparison(comparison);
  const bool several = comparison.steps.size() > 1;
  TextWriter text(out);
  write_task_line(text, comparison);
  const bool moves = std::any_of(summaries.begin(), summaries.end(),
                                 [](const PlannerSummary& summary) { return summary.moves; });
  std::vector<std::string> header{"planner",
                                  several ? "iteration s (min-max)" : "iteration s",
                                  several ? "efficiency % (min-max)" : "efficiency %",
                                  speedup_heading(comparison),
                                  "MFU %",
                                  "idle %",
                                  "peak GB",
                                  "CPU s",
                                  "planning s"};
  if (moves) header.push_back("tokens");
  TextTable table(std::move(header));
  for (const PlannerSummary& summary : summaries) {
    if (summary.feasible == 0) {
      table.remark({summary.planner}, "infeasible: " + summary.why);
      continue;
    }
    std::vector<std::string> row{summary.planner,
                                 range_text(summary.iteration_s, 1, 4, several),
                                 range_text(summary.efficiency, 100, 1, several),
                                 summary.speedup ? fixed(*summary.speedup, 3) : "-",
                                 fixed(summary.mfu * 100, 1),
                                 fixed(summary.bubble * 100, 1),
                                 fixed(static_cast<double>(summary.peak.value) * 1e-9, 1),
                                 fixed(summary.cpu_seconds.mean, 3),
                                 fixed(summary.plan_seconds.mean, 3)};
    if (moves) row.push_back(count_text(summary.tokens.value));
    table.add(std::move(row));
  }
  text << table.text();
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (summaries[i].moves) text << moved_documents(comparison, i) << '\n';
  }
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
      if (!comparison.results[entry].against.empty()) {
        text << summary.planner << ", " << range_text(summary.iteration_s, 1, 4, several)
             << " s, is modelled with this against it: " << comparison.results[entry].against
             << '\n';
      }
      if (summary.feasible < summary.steps) {
        text << summary.planner << ": " << summary.steps - summary.feasible << " of "
             << summary.steps << " steps infeasible: " << summary.why << '\n';
      }
    }
  }
}

}  // namespace slimpack::report
