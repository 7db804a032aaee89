// SPDX-License-Identifier: Apache-2.0
// A comparison of planners as a table to read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/detail/text.hpp"

namespace slimpack::report {

namespace detail {

/// Rows of cells under a header: the first column to the left, the others to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { add(std::move(header)); }
  void add(std::vector<std::string> row) {
    if (width_.size() < row.size()) width_.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      width_[i] = std::max(width_[i], row[i].size());
    }
    rows_.push_back({std::move(row), {}});
  }
  /// A row of the first cells and a remark that may reach across all other columns.
  void remark(std::vector<std::string> cells, std::string text) {
    add(std::move(cells));
    rows_.back().remark = std::move(text);
  }
  void write(TextWriter& text) const {
    for (const Row& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.cells.size(); ++i) {
        const std::string space(width_[i] - row.cells[i].size(), ' ');
        line += i == 0 ? row.cells[i] + space : "  " + space + row.cells[i];
      }
      if (!row.remark.empty()) line += "  " + row.remark;
      while (!line.empty() && line.back() == ' ') line.pop_back();
      text << line << '\n';
    }
  }

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string remark;
  };
  std::vector<std::size_t> width_;
  std::vector<Row> rows_;
};

[[nodiscard]] inline std::string settings_line(const ComparedPlan& entry) {
  std::string line;
  for (const auto& [name, text] : entry.settings) {
    line.append(line.empty() ? "" : ", ").append(name).append(" ").append(text);
  }
  return line;
}

inline void write_task_line(TextWriter& text, const Comparison& comparison) {
  const ComparedTask& task = comparison.task;
  Tokens tokens;
  std::int64_t samples = 0;
  for (const ComparedStep& step : comparison.steps) {
    tokens += step.tokens;
    samples += step.samples;
  }
  text << one_line(task.model) << " on " << one_line(task.cluster) << ", dp " << task.dp << " x pp "
       << task.pp;
  if (task.tp > 1) text << " x tp " << task.tp;
  text << ", context " << task.context.value << ": " << comparison.steps.size()
       << (comparison.steps.size() == 1 ? " step, " : " steps, ") << samples << " samples, "
       << count_text(tokens.value) << " tokens; " << task.evaluations
       << " candidates a planner and step\n";
}

/// "4.310", with several steps "4.310 (4.213-4.402)".
[[nodiscard]] inline std::string range_text(const FigureRange& range, double scale, int decimals,
                                            bool several) {
  std::string text = fixed(range.mean * scale, decimals);
  if (several) {
    text += " (" + fixed(range.least * scale, decimals) + "-" +
            fixed(range.most * scale, decimals) + ")";
  }
  return text;
}

}  // namespace detail

/// Writes a row a planner: iteration time (mean, with several steps least and most), efficiency,
/// speed-up over megatron of summed time, MFU, idle share, peak memory, planning time; planners
/// without a plan for some step say why. Below, what each planner chose in the first step that it
/// has a plan for. Throws InvalidInput as `summarize_comparison` does.
inline void write_comparison_text(std::ostream& out, const Comparison& comparison) {
  using detail::fixed;
  const auto summaries = summarize_comparison(comparison);
  const bool several = comparison.steps.size() > 1;
  detail::TextWriter text(out);
  detail::write_task_line(text, comparison);
  detail::TextTable table({"planner", several ? "iteration s (min-max)" : "iteration s",
                           several ? "efficiency % (min-max)" : "efficiency %", "speed-up", "MFU %",
                           "idle %", "peak GB", "planning s"});
  for (const PlannerSummary& summary : summaries) {
    if (summary.feasible == 0) {
      table.remark({summary.planner}, "infeasible: " + summary.why);
      continue;
    }
    table.add({summary.planner, detail::range_text(summary.iteration_s, 1, 4, several),
               detail::range_text(summary.efficiency, 100, 1, several),
               summary.speedup ? detail::fixed(*summary.speedup, 3) : "-",
               detail::fixed(summary.mfu * 100, 1), detail::fixed(summary.bubble * 100, 1),
               detail::fixed(static_cast<double>(summary.peak.value) * 1e-9, 1),
               detail::fixed(summary.plan_seconds.mean, 3)});
  }
  table.write(text);
  text << '\n';
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    const PlannerSummary& summary = summaries[i];
    const std::size_t first = i * comparison.steps.size();
    if (summary.feasible > 0) {
      std::size_t entry = first;
      while (!comparison.results[entry].metrics) ++entry;
      text << summary.planner << ": ";
      if (several) text << "step " << comparison.results[entry].step << ": ";
      text << detail::settings_line(comparison.results[entry]) << '\n';
      if (summary.feasible < summary.steps) {
        text << summary.planner << ": " << summary.steps - summary.feasible << " of "
             << summary.steps << " steps infeasible: " << summary.why << '\n';
      }
    }
  }
}

}  // namespace slimpack::report
