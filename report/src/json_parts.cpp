// SPDX-License-Identifier: Apache-2.0
#include "json_parts.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"

namespace slimpack::report::detail {

namespace {

/// Figures of an infeasible entry are null, under the keys of a feasible one.
void write_no_metrics(JsonWriter& json) {
  for (const std::string_view key :
       {"iteration_s", "ideal_s", "lower_bound_s", "efficiency", "tokens_per_s", "mfu", "bubble",
        "gaps", "dp_imbalance", "dp_over_least", "forward_cv", "backward_cv", "peak_bytes",
        "communication_bytes", "communication", "merged_tokens", "micropacks"}) {
    json.key(key);
    json.null();
  }
}

/// A key that names the default baseline stands only where speed-ups are over it.
void write_speedup(JsonWriter& json, const Comparison& comparison, std::optional<double> speedup) {
  if (comparison.baseline == kDefaultBaseline) json.member("speedup_over_megatron", speedup);
  json.member("speedup", speedup);
}

void write_entry(JsonWriter& json, const Comparison& comparison, const ComparedPlan& entry) {
  json.begin_object();
  json.member("planner", entry.planner);
  write_outcome(json, entry);
  write_speedup(json, comparison, speedup_of(comparison, entry));
  json.member("plan_seconds", entry.plan_seconds);
  json.key("simulate_seconds");
  if (entry.metrics) {
    json.number(entry.simulate_seconds);
  } else {
    json.null();
  }
  json.member("samples", entry.metrics ? std::optional(entry.metrics->samples) : std::nullopt);
  json.member("tokens", entry.metrics ? std::optional(entry.metrics->tokens) : std::nullopt);
  json.end_object();
}

void write_range(JsonWriter& json, std::string_view key, const FigureRange& range, bool present) {
  json.key(key);
  if (!present) {
    json.null();
    return;
  }
  json.begin_object(JsonLayout::flat);
  json.member("mean", range.mean);
  json.member("min", range.least);
  json.member("max", range.most);
  json.end_object();
}

void write_planner_summary(JsonWriter& json, const Comparison& comparison,
                           const PlannerSummary& summary) {
  const bool any = summary.feasible > 0;
  json.begin_object();
  json.member("planner", summary.planner);
  json.member("steps", summary.steps);
  json.member("feasible_steps", summary.feasible);
  write_range(json, "iteration_s", summary.iteration_s, any);
  write_range(json, "efficiency", summary.efficiency, any);
  write_range(json, "plan_seconds", summary.plan_seconds, true);
  write_range(json, "cpu_seconds", summary.cpu_seconds, true);
  write_range(json, "simulate_seconds", summary.simulate_seconds, any);
  const auto figure = [&](std::string_view key, double value) {
    json.member(key, any ? std::optional(value) : std::nullopt);
  };
  figure("efficiency_of_summed_time", summary.summed_efficiency);
  figure("tokens_per_s", summary.tokens_per_s);
  figure("mfu", summary.mfu);
  figure("bubble", summary.bubble);
  write_speedup(json, comparison, summary.speedup);
  json.member("peak_bytes", any ? std::optional(summary.peak) : std::nullopt);
  json.member("tokens", any ? std::optional(summary.tokens) : std::nullopt);
  json.end_object();
}

}  // namespace

void write_lengths(JsonWriter& json, const ComparedTask& task) {
  json.key("lengths");
  json.begin_array();
  for (const Source& source : task.sources) {
    json.begin_object(JsonLayout::flat);
    json.member("path", source.path);
    json.member("documents", source.documents);
    json.member("sha256", source.sha256);
    json.end_object();
  }
  json.end_array();
}

void write_steps(JsonWriter& json, const std::vector<ComparedStep>& steps) {
  json.key("steps");
  json.begin_array();
  for (const ComparedStep& step : steps) {
    json.begin_object(JsonLayout::flat);
    json.member("step", step.step);
    json.member("samples", step.samples);
    json.member("tokens", step.tokens);
    json.end_object();
  }
  json.end_array();
}

void write_task(JsonWriter& json, const Comparison& comparison) {
  const ComparedTask& task = comparison.task;
  write_lengths(json, task);
  json.key("batch");
  json.begin_object();
  json.member("context", task.context);
  json.member("overlong", task.overlong);
  json.member("batch_tokens", task.batch_tokens);
  json.member("batch_samples", task.batch_samples);
  json.member("seed", task.seed);
  json.member("shuffle", task.shuffle);
  json.member("evaluations", task.evaluations);
  write_steps(json, comparison.steps);
  json.end_object();
  json.member("model", task.model);
  json.member("cluster", task.cluster);
  json.key("parallel");
  json.begin_object(JsonLayout::flat);
  json.member("dp", task.dp);
  json.member("pp", task.pp);
  json.member("tp", task.tp);
  json.member("chunks", task.chunks);
  std::optional<std::string_view> word;
  if (task.head) word = *task.head == LmHead::shard ? "shard" : "last";
  json.member("head", word);
  word.reset();
  if (task.recompute) word = to_string(*task.recompute);
  json.member("recompute", word);
  json.member("granularity", task.granularity);
  json.member("merge", task.max_cp);
  json.end_object();
  json.member("baseline", comparison.baseline);
}

void write_outcome(JsonWriter& json, const ComparedPlan& entry) {
  json.member("step", entry.step);
  json.member("feasible", entry.metrics.has_value());
  json.key("why");
  if (entry.metrics) {
    json.null();
  } else {
    json.text(entry.why);
  }
  json.key("settings");
  json.begin_object(JsonLayout::flat);
  for (const auto& [name, text] : entry.settings) json.member(name, text);
  json.end_object();
  json.member("evaluations", entry.evaluations);
  json.member("simulated_devices", entry.simulated_devices);
  json.member("cpu_seconds", entry.cpu_seconds);
  if (entry.metrics) {
    write_metrics(json, *entry.metrics);
  } else {
    write_no_metrics(json);
  }
}

void write_results(JsonWriter& json, const Comparison& comparison,
                   const std::vector<PlannerSummary>& summaries) {
  json.key("results");
  json.begin_array();
  for (const ComparedPlan& entry : comparison.results) write_entry(json, comparison, entry);
  json.end_array();
  json.key("summary");
  json.begin_array();
  for (const PlannerSummary& summary : summaries) write_planner_summary(json, comparison, summary);
  json.end_array();
}

void write_gaps(JsonWriter& json, const std::array<Nanos, sim::kGapCauses>& gaps) {
  json.key("gaps");
  json.begin_object(JsonLayout::flat);
  for (std::size_t cause = 0; cause < gaps.size(); ++cause) {
    json.member(sim::to_string(static_cast<sim::GapCause>(cause)), gaps[cause]);
  }
  json.end_object();
}

}  // namespace slimpack::report::detail
