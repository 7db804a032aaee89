// SPDX-License-Identifier: Apache-2.0
// A comparison of planners as CSV: a row for each planner and step (docs/reports.md).
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "slimpack/core/units.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/detail/text.hpp"
#include "slimpack/sim/bottlenecks.hpp"

namespace slimpack::report {

namespace detail {

/// One field, quoted where it has to be.
[[nodiscard]] inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"') quoted += '"';
    quoted += character;
  }
  return quoted + '"';
}

/// Fields of one row; `none` leaves a field empty.
class CsvRow {
 public:
  explicit CsvRow(TextWriter& text) : text_(text) {}
  CsvRow& add(std::string_view field) {
    text_ << (first_ ? "" : ",") << csv_field(field);
    first_ = false;
    return *this;
  }
  CsvRow& add(Nanos time) { return add(seconds_text(time)); }
  CsvRow& add(double value) { return add(shortest(value)); }
  CsvRow& add(std::int64_t value) { return add(std::to_string(value)); }
  CsvRow& none() { return add(std::string_view{}); }
  void end() { text_ << '\n'; }

 private:
  TextWriter& text_;
  bool first_ = true;
};

inline void write_csv_figures(CsvRow& row, const Metrics& metrics) {
  row.add(metrics.iteration).add(metrics.ideal);
  if (metrics.lower_bound > Nanos{}) {
    row.add(metrics.lower_bound);
  } else {
    row.none();
  }
  row.add(metrics.efficiency).add(metrics.tokens_per_s).add(metrics.mfu).add(metrics.bubble);
  for (const Nanos gap : metrics.gaps) row.add(gap);
  row.add(metrics.dp_imbalance).add(metrics.forward_cv).add(metrics.backward_cv);
  row.add(metrics.peak.value).add(metrics.communication.total().value);
  row.add(metrics.merged_tokens.value).add(metrics.forward_packs + metrics.backward_packs);
}

}  // namespace detail

/// Writes a header and the rows, keys as in JSON: `settings` as `name=text` with semicolons,
/// `gaps` one column a cause, `gap_CAUSE_s`; figures of infeasible entries are empty. O(results^2).
inline void write_comparison_csv(std::ostream& out, const Comparison& comparison) {
  detail::TextWriter text(out);
  text << "planner,step,feasible,why,settings,iteration_s,ideal_s,lower_bound_s,efficiency,"
          "tokens_per_s,mfu,bubble";
  for (std::size_t cause = 0; cause < sim::kGapCauses; ++cause) {
    text << ",gap_" << sim::to_string(static_cast<sim::GapCause>(cause)) << "_s";
  }
  text << ",dp_imbalance,forward_cv,backward_cv,peak_bytes,communication_bytes,merged_tokens,"
          "micropacks,speedup_over_megatron,plan_seconds,simulate_seconds\n";
  constexpr std::size_t kFigures = 14 + sim::kGapCauses;
  for (const ComparedPlan& entry : comparison.results) {
    detail::CsvRow row(text);
    row.add(entry.planner).add(entry.step).add(entry.metrics ? "true" : "false").add(entry.why);
    std::string settings;
    for (const auto& [name, value] : entry.settings) {
      settings.append(settings.empty() ? "" : ";").append(name).append("=").append(value);
    }
    row.add(settings);
    if (entry.metrics) {
      detail::write_csv_figures(row, *entry.metrics);
    } else {
      for (std::size_t i = 0; i < kFigures; ++i) row.none();
    }
    const auto speedup = speedup_of(comparison, entry);
    row.add(speedup ? detail::shortest(*speedup) : std::string());
    row.add(entry.plan_seconds);
    row.add(entry.metrics ? detail::shortest(entry.simulate_seconds) : std::string());
    row.end();
  }
}

}  // namespace slimpack::report
