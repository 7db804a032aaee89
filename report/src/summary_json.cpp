// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/summary.hpp"

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "json_parts.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// The key of a memory kind: its name with underscores.
[[nodiscard]] std::string json_key(std::string_view name) {
  std::string key(name);
  for (char& character : key) {
    if (character == ' ') character = '_';
  }
  return key;
}

void write_kinds(JsonWriter& json, std::string_view key, const sim::MemoryByKind& bytes) {
  json.key(key);
  json.begin_object(JsonLayout::flat);
  for (std::size_t kind = 0; kind < bytes.size(); ++kind) {
    json.member(json_key(sim::to_string(static_cast<sim::MemoryKind>(kind))), bytes[kind]);
  }
  json.end_object();
}

void write_plan_facts(JsonWriter& json, const Plan& plan, const Metrics& metrics) {
  json.member("planner", plan.planner);
  json.member("step", plan.step_index);
  json.member("model", plan.model.name);
  json.member("cluster", plan.cluster.name);
  json.key("parallel");
  json.begin_object(JsonLayout::flat);
  json.member("dp", plan.parallel.dp);
  json.member("pp", plan.parallel.pp);
  json.member("tp", plan.parallel.tp);
  json.member("chunks", plan.parallel.chunks);
  json.member("head", plan.parallel.head == LmHead::shard ? "shard" : "last");
  json.member("granularity", plan.parallel.granularity);
  json.member("merge", plan.parallel.max_cp);
  json.end_object();
  json.member("samples", metrics.samples);
  json.member("tokens", metrics.tokens);
  json.member("forward_micropacks", metrics.forward_packs);
  json.member("backward_micropacks", metrics.backward_packs);
}

void write_devices(JsonWriter& json, const sim::PlanSimulation& simulation, const sim::Gaps& gaps) {
  const sim::Timeline& timeline = simulation.timeline;
  json.key("devices");
  json.begin_array();
  for (std::size_t i = 0; i < simulation.dag.devices.size(); ++i) {
    const sim::DagDevice& device = simulation.dag.devices[i];
    json.begin_object();
    json.member("dp", device.dp);
    json.member("pp", device.pp);
    json.member("busy_s", timeline.busy[i]);
    json.member("idle_s", timeline.makespan - timeline.busy[i]);
    write_gaps(json, gaps.device[i]);
    json.member("peak_bytes", timeline.peak[i].bytes);
    json.member("peak_at_s", timeline.peak[i].time);
    write_kinds(json, "at_peak", simulation.at_peak[i]);
    json.end_object();
  }
  json.end_array();
}

void write_path(JsonWriter& json, const sim::PlanSimulation& simulation, const PathSummary& path) {
  json.key("critical_path");
  json.begin_object();
  json.key("seconds");
  json.begin_object(JsonLayout::flat);
  for (std::size_t work = 0; work < path.time.size(); ++work) {
    json.member(to_string(static_cast<PathWork>(work)), path.time[work]);
  }
  json.end_object();
  json.member("steps", path.steps);
  json.member("steps_left_out", path.steps - path.shown.size());
  json.key("path");
  json.begin_array();
  for (const sim::PathStep& step : path.shown) {
    const sim::NodeLabel& label = simulation.dag.label[index(step.node)];
    json.begin_object(JsonLayout::flat);
    json.member("name", sim::node_name(simulation.dag, step.node));
    json.member("work", to_string(path_work(label.kind)));
    json.member("start_s", simulation.timeline.start[index(step.node)]);
    json.member("end_s", simulation.timeline.end[index(step.node)]);
    json.member("reason", sim::to_string(step.reason));
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_jitter(JsonWriter& json, std::span<const JitterReport> reports) {
  json.key("jitter");
  json.begin_array();
  for (const JitterReport& report : reports) {
    json.begin_object();
    json.member("kind", json_key(to_string(report.options.kind)));
    json.member("change", static_cast<double>(report.options.parts_per_million) / 1e6);
    json.member("seed", report.options.seed);
    json.member("planned_s", report.result.planned);
    json.member("mean_s", report.result.mean);
    json.member("least_s", report.result.least);
    json.member("most_s", report.result.most);
    json.key("draws_s");
    json.begin_array(JsonLayout::flat);
    for (const Nanos draw : report.result.makespan) json.time(draw);
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

}  // namespace

void write_summary_json(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                        const SimulationSummary& summary) {
  const Metrics& metrics = summary.metrics;
  const sim::DagDevice& fullest = simulation.dag.devices[index(metrics.peak_device)];
  JsonWriter json(out);
  json.begin_object();
  json.member("format", "slimpack-simulation");
  json.member("version", 1);
  write_plan_facts(json, plan, metrics);
  write_metrics(json, metrics);
  json.member("limit_bytes", memory_limit(plan));
  json.member("fits", metrics.peak <= memory_limit(plan));
  json.key("peak");
  json.begin_object();
  json.member("dp", fullest.dp);
  json.member("pp", fullest.pp);
  json.member("at_s", simulation.timeline.peak[index(metrics.peak_device)].time);
  write_kinds(json, "kinds", metrics.at_peak);
  json.end_object();
  write_devices(json, simulation, summary.gaps);
  write_path(json, simulation, summary.path);
  write_jitter(json, summary.jitter);
  json.end_object();
  json.finish();
}

}  // namespace slimpack::report
