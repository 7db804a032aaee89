// SPDX-License-Identifier: Apache-2.0
#include "cell_result.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "slimpack/io/json_writer.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/report/time_split.hpp"
#include "slimpack/report/tune_report.hpp"

namespace slimpack::app {
namespace {

/// Degrees kept of those that lost, the best first.
constexpr std::size_t kKeptDegrees = 3;

[[nodiscard]] std::string without_line_feed(std::string text) {
  text.pop_back();
  return text;
}

void write_degrees(JsonWriter& json, const planners::Degrees& degrees) {
  json.member("dp", degrees.dp);
  json.member("pp", degrees.pp);
  json.member("tp", degrees.tp);
}

void write_cell(JsonWriter& json, const EvaluationCell& cell) {
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    if (kAxes[i].number) {
      json.member(kAxes[i].key, static_cast<std::int64_t>(std::stoll(cell.values[i])));
    } else {
      json.member(kAxes[i].key, cell.values[i]);
    }
  }
  json.member("lengths", cell.lengths);
  json.member("lengths_sha256", cell.requests.front().sources.front().sha256);
}

/// Texts of all steps that differ, in the order of steps.
[[nodiscard]] std::string joined_setting(const report::TunedDegrees& best,
                                         const std::string& name) {
  std::string joined;
  std::set<std::string> seen;
  for (const report::ComparedPlan& step : best.steps) {
    const auto found = step.settings.find(name);
    if (found == step.settings.end() || !seen.insert(found->second).second) continue;
    joined.append(joined.empty() ? "" : " / ").append(found->second);
  }
  return joined;
}

void write_best(JsonWriter& json, const report::TunedDegrees& best) {
  json.member("effort", slimpack::to_string(best.effort));
  json.key("degrees");
  json.begin_object();
  write_degrees(json, best.degrees);
  json.end_object();
  json.member("simulated_only",
              std::any_of(best.steps.begin(), best.steps.end(),
                          [](const report::ComparedPlan& step) { return step.simulated_only; }));
  json.key("settings");
  json.begin_object();
  for (const auto& [name, ignored] : best.steps.front().settings) {
    json.member(name, joined_setting(best, name));
  }
  json.end_object();
  const report::Metrics sum = report::summed_metrics(best.steps);
  report::write_metrics(json, sum);
  json.key("time_split");
  json.begin_object();
  for (std::size_t cause = 0; cause < report::kTimeCauses; ++cause) {
    json.member(report::time_cause(cause), best.split.time[cause]);
  }
  json.end_object();
  json.member("samples", sum.samples);
  json.member("tokens", sum.tokens);
  double plan_seconds = 0;
  for (const report::ComparedPlan& step : best.steps) plan_seconds += step.plan_seconds;
  json.member("plan_seconds", plan_seconds);
}

void write_others(JsonWriter& json, const report::Tuning& tuning, std::size_t first) {
  json.key("others");
  json.begin_array();
  for (std::size_t i = first; i < std::min(tuning.tried.size(), first + kKeptDegrees); ++i) {
    const report::TunedDegrees& tried = tuning.tried[i];
    json.begin_object();
    write_degrees(json, tried.degrees);
    json.member("iteration_s", tried.time);
    if (!tried.time) json.member("why", tried.why);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string result_key(const EvaluationCell& cell, std::string_view planner) {
  return cell.key + "/" + std::string(planner);
}

report::Tuning evaluate_cell(const EvaluationCell& cell, const planners::PlannerInfo& planner) {
  report::TuneOptions options;
  options.devices = cell.gpus;
  options.finalists = cell.finalists;
  report::Tuning tuning = report::tune(planner, cell.requests, options);
  if (tuning.best() != nullptr || cell.requests.front().effort != planners::Effort::fast)
    return tuning;
  std::vector<planners::PlanRequest> requests = cell.requests;
  for (planners::PlanRequest& request : requests) request.effort = planners::Effort::normal;
  report::Tuning again = report::tune(planner, requests, options);
  again.evaluations += tuning.evaluations;
  again.simulated_devices += tuning.simulated_devices;
  again.cpu_seconds += tuning.cpu_seconds;
  again.rounds.insert(again.rounds.begin(), tuning.rounds.begin(), tuning.rounds.end());
  again.seconds += tuning.seconds;
  return again;
}

std::string result_line(const EvaluationCell& cell, const report::Tuning& tuning,
                        const std::string& commit) {
  std::ostringstream out;
  JsonWriter json(out);
  const report::TunedDegrees* best = tuning.best();
  json.begin_object(JsonLayout::flat);
  json.member("version", kResultsVersion);
  json.member("key", result_key(cell, tuning.planner));
  json.member("commit", commit);
  json.key("cell");
  json.begin_object();
  write_cell(json, cell);
  json.end_object();
  const MemorySpec memory = planners::memory_of(cell.requests.front());
  json.member("limit_bytes", memory.capacity - memory.reserved);
  json.member("planner", tuning.planner);
  json.member("feasible", best != nullptr);
  json.member("evaluations", tuning.evaluations);
  json.member("simulated_devices", tuning.simulated_devices);
  json.member("cpu_seconds", tuning.cpu_seconds);
  json.member("tune_seconds", tuning.seconds);
  json.member("degrees_tried", static_cast<std::int64_t>(tuning.tried.size()));
  json.member("degrees_feasible",
              static_cast<std::int64_t>(std::count_if(
                  tuning.tried.begin(), tuning.tried.end(),
                  [](const report::TunedDegrees& tried) { return tried.time.has_value(); })));
  if (best != nullptr) {
    write_best(json, *best);
  } else {
    json.member("why", tuning.tried.empty() ? std::string("no degrees divide these devices")
                                            : tuning.tried.front().why);
  }
  report::write_tune_rounds(json, tuning);
  write_others(json, tuning, best != nullptr ? 1 : 0);
  json.end_object();
  json.finish();
  return without_line_feed(std::move(out).str());
}

std::string matrix_line(const EvaluationMatrix& matrix) {
  std::ostringstream out;
  JsonWriter json(out);
  json.begin_object(JsonLayout::flat);
  json.member("version", kResultsVersion);
  json.member("matrix", matrix.name);
  json.key("groups");
  json.begin_array();
  for (const EvaluationGroup& group : matrix.groups) {
    json.begin_object();
    json.member("name", group.name);
    json.key("planners");
    json.begin_array();
    for (const std::string& name : group.planners) json.text(name);
    json.end_array();
    json.key("cells");
    json.begin_array();
    for (const std::size_t i : group.cells) json.text(matrix.cells[i].key);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  json.finish();
  return without_line_feed(std::move(out).str());
}

}  // namespace slimpack::app
