// SPDX-License-Identifier: Apache-2.0
// slimpack compare-traces: how far a predicted trace is from a measured one.
#include "slimpack/report/compare_traces.hpp"

#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "command.hpp"
#include "common.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/io/trace_json.hpp"
#include "slimpack/report/svg.hpp"

namespace slimpack::app {
namespace {

struct CompareTracesOptions {
  std::string predicted, measured, svg;
  bool json = false;
};

int run(const CompareTracesOptions& options) {
  const bool to_standard = check_outputs({{"--svg", options.svg}});
  require(!to_standard || !options.json,
          "--json, --svg: only one of them can go to standard output");
  require(options.predicted != "-" || options.measured != "-",
          "PREDICTED, MEASURED: only one of them can be standard input");
  const StepTrace predicted = read_trace_file(options.predicted);
  const StepTrace measured = read_trace_file(options.measured);
  const auto answer = report::compare_traces(predicted, measured);
  if (const auto* mismatch = std::get_if<report::TraceMismatch>(&answer)) {
    std::cerr << fmt::format("slimpack: {}, {}: {}\n", options.predicted, options.measured,
                             mismatch->what);
    return 1;
  }
  const auto& comparison = std::get<report::TraceComparison>(answer);
  write_report(options.svg, [&](auto& out) {
    report::write_timelines_svg(
        out, "the same step as predicted and as measured",
        std::vector<report::TitledTrace>{{"predicted", predicted}, {"measured", measured}});
  });
  if (options.json) {
    report::write_trace_comparison_json(std::cout, comparison);
  } else if (!to_standard) {
    report::write_trace_comparison_text(std::cout, comparison);
  }
  return 0;
}

}  // namespace

Run add_compare_traces(CLI::App& command) {
  auto options = std::make_shared<CompareTracesOptions>();
  command
      .add_option("PREDICTED", options->predicted,
                  "trace.json of slimpack simulate, or - for standard input")
      ->required();
  command.add_option("MEASURED", options->measured, "trace.json of the same step as it ran")
      ->required();
  command.add_option("--svg", options->svg, "draw both on one time axis");
  command.add_flag("--json", options->json, "print JSON (docs/schemas.md)");
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
