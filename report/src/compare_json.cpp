// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_report.hpp"

#include <ostream>

#include "json_parts.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/report/compare.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

void write_comparison_json(std::ostream& out, const Comparison& comparison) {
  const auto summaries = summarize_comparison(comparison);
  JsonWriter json(out);
  json.begin_object();
  json.member("format", "slimpack-comparison");
  json.member("version", 1);
  write_task(json, comparison);
  write_results(json, comparison, summaries);
  json.end_object();
  json.finish();
}

}  // namespace slimpack::report
