// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_traces.hpp"

#include <cstddef>
#include <ostream>
#include <string_view>

#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

void write_times(JsonWriter& json, const ComparedTime& time) {
  json.member("predicted_s", time.predicted);
  json.member("measured_s", time.measured);
  json.key("ratio");
  if (const auto ratio = time.ratio()) {
    json.number(*ratio);
  } else {
    json.null();
  }
}

void write_times(JsonWriter& json, std::string_view name, const ComparedTime& time) {
  json.key(name);
  json.begin_object(JsonLayout::flat);
  write_times(json, time);
  json.end_object();
}

void write_kind(JsonWriter& json, std::string_view name, const ComparedUnits& units) {
  json.begin_object(JsonLayout::flat);
  json.member("kind", name);
  json.member("count", units.count);
  write_times(json, units.sum);
  json.member("median_error", units.median_error);
  json.member("p95_error", units.p95_error);
  json.end_object();
}

}  // namespace

void write_trace_comparison_json(std::ostream& out, const TraceComparison& comparison) {
  JsonWriter json(out);
  json.begin_object();
  json.member("format", "slimpack-trace-comparison");
  json.member("version", 1);
  json.member("planner", comparison.planner);
  json.member("step", comparison.step);
  write_times(json, "iteration", comparison.iteration);
  json.key("kinds");
  json.begin_array();
  for (std::size_t kind = 0; kind < comparison.kinds.size(); ++kind) {
    if (!comparison.kinds[kind]) continue;
    write_kind(json, kind_name(static_cast<UnitKind>(kind)), *comparison.kinds[kind]);
  }
  write_kind(json, "all", comparison.all);
  json.end_array();
  json.key("devices");
  json.begin_array();
  for (const ComparedDevice& device : comparison.devices) {
    json.begin_object(JsonLayout::flat);
    json.member("dp", device.dp);
    json.member("pp", device.pp);
    write_times(json, "busy", device.busy);
    write_times(json, "idle", device.idle);
    write_times(json, "end", device.end);
    json.end_object();
  }
  json.end_array();
  json.key("worst");
  json.begin_array();
  for (const ComparedUnit& worst : comparison.worst) {
    const UnitKind kind = worst.unit.kind;
    json.begin_object(JsonLayout::flat);
    json.member("unit", kind_name(kind));
    json.member("dp", worst.dp);
    json.member("pp", worst.pp);
    if (names_pack(kind)) {
      json.member("pack", index(worst.unit.pack));
    }
    if (names_chunk(kind)) {
      json.member("chunk", worst.unit.chunk);
    }
    write_times(json, worst.time);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  json.finish();
}

}  // namespace slimpack::report
