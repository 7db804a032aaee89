// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_report.hpp"

#include <cstddef>
#include <ostream>
#include <string>

#include "slimpack/core/units.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/report/tables.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

void write_csv_figures(CsvRow& row, const Metrics& metrics) {
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

}  // namespace

void write_comparison_csv(std::ostream& out, const Comparison& comparison) {
  TextWriter text(out);
  text << "planner,step,feasible,why,settings,iteration_s,ideal_s,lower_bound_s,efficiency,"
          "tokens_per_s,mfu,bubble";
  for (std::size_t cause = 0; cause < sim::kGapCauses; ++cause) {
    text << ",gap_" << sim::to_string(static_cast<sim::GapCause>(cause)) << "_s";
  }
  text << ",dp_imbalance,forward_cv,backward_cv,peak_bytes,communication_bytes,merged_tokens,"
          "micropacks,"
       << CsvRow().add("speedup_over_" + comparison.baseline).fields()
       << ",plan_seconds,simulate_seconds,tokens,evaluations,simulated_devices,cpu_seconds\n";
  constexpr std::size_t kFigures = 14 + sim::kGapCauses;
  for (const ComparedPlan& entry : comparison.results) {
    CsvRow row;
    row.add(entry.planner).add(entry.step).add(entry.metrics ? "true" : "false").add(entry.why);
    std::string settings;
    for (const auto& [name, value] : entry.settings) {
      settings.append(settings.empty() ? "" : ";").append(name).append("=").append(value);
    }
    row.add(settings);
    if (entry.metrics) {
      write_csv_figures(row, *entry.metrics);
    } else {
      for (std::size_t i = 0; i < kFigures; ++i) row.none();
    }
    const auto speedup = speedup_of(comparison, entry);
    row.add(speedup ? shortest(*speedup) : std::string());
    row.add(entry.plan_seconds);
    row.add(entry.metrics ? shortest(entry.simulate_seconds) : std::string());
    row.add(entry.metrics ? std::to_string(entry.metrics->tokens.value) : std::string());
    row.add(entry.evaluations).add(entry.simulated_devices).add(entry.cpu_seconds);
    text << row.text();
  }
}

}  // namespace slimpack::report
