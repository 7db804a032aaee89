// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/sweep.hpp"

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "json_parts.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/report/compare.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

void write_sweep_json(std::ostream& out, const Sweep& sweep) {
  std::vector<std::vector<PlannerSummary>> summaries;
  for (const SweepPoint& point : sweep.points) {
    summaries.push_back(summarize_comparison(point.comparison));
  }
  JsonWriter json(out);
  json.begin_object();
  json.member("format", "slimpack-sweep");
  json.member("version", 1);
  json.key("axes");
  json.begin_array();
  for (const SweepAxis& axis : sweep.axes) {
    json.begin_object(JsonLayout::flat);
    json.member("key", axis.key);
    json.key("values");
    json.begin_array();
    for (const std::string& value : axis.values) json.text(value);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.key("points");
  json.begin_array();
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const SweepPoint& point = sweep.points[i];
    json.begin_object();
    json.key("at");
    json.begin_object(JsonLayout::flat);
    for (std::size_t axis = 0; axis < sweep.axes.size(); ++axis) {
      json.member(sweep.axes[axis].key, point.values[axis]);
    }
    json.end_object();
    write_task(json, point.comparison);
    write_results(json, point.comparison, summaries[i]);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  json.finish();
}

}  // namespace slimpack::report
