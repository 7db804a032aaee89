// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tune_report.hpp"

#include <cstddef>
#include <ostream>

#include "figures.hpp"
#include "json_parts.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/planners/search/degrees.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/time_split.hpp"
#include "slimpack/report/tune.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

void write_degrees(JsonWriter& json, const planners::Degrees& degrees) {
  json.member("dp", degrees.dp);
  json.member("pp", degrees.pp);
  json.member("tp", degrees.tp);
}

void write_tuned_step(JsonWriter& json, const ComparedPlan& entry) {
  json.begin_object();
  write_outcome(json, entry);
  json.member("plan_seconds", entry.plan_seconds);
  json.end_object();
}

void write_tried(JsonWriter& json, const TuneReport& report, TunedPlace winner, TunedPlace place) {
  const TunedDegrees& tuned = tuned_at(report, place);
  json.begin_object();
  write_degrees(json, tuned.degrees);
  json.member("feasible", tuned.time.has_value());
  json.member("skipped", tuned.skipped);
  json.key("effort");
  if (tuned.skipped) {
    json.null();
  } else {
    json.text(slimpack::to_string(tuned.effort));
  }
  json.member("budget", tuned.skipped ? std::nullopt : std::optional(tuned.budget));
  json.member("time_s", tuned.time);
  json.key("tokens_per_s");
  if (tuned.time) {
    json.number(ratio(static_cast<double>(tokens_at(report, place).value), seconds(*tuned.time)));
  } else {
    json.null();
  }
  json.key("time_by_cause");
  if (tuned.time) {
    json.begin_object(JsonLayout::flat);
    for (std::size_t cause = 0; cause < kTimeCauses; ++cause) {
      json.member(time_cause(cause), tuned.split.time[cause]);
    }
    json.end_object();
  } else {
    json.null();
  }
  json.key("why");
  if (!tuned.time) {
    json.text(tuned.why);
  } else if (place == winner) {
    json.null();
  } else {
    json.text(why_lost(report, winner, place));
  }
  json.key("steps");
  json.begin_array();
  for (const ComparedPlan& entry : tuned.steps) write_tuned_step(json, entry);
  json.end_array();
  json.end_object();
}

}  // namespace

void write_tune_rounds(JsonWriter& json, const Tuning& tuning) {
  json.key("rounds");
  json.begin_array();
  for (std::size_t i = 0; i < tuning.rounds.size(); ++i) {
    const TuneRound& round = tuning.rounds[i];
    json.begin_object(JsonLayout::flat);
    json.member("degrees", round.degrees);
    json.member("budget", round.budget);
    json.member("evaluations", round.evaluations);
    json.member("cpu_seconds", round.cpu_seconds);
    json.member("best_s", round.best);
    json.member("gain", gain_of_round(tuning, i));
    json.end_object();
  }
  json.end_array();
}

void write_tuning_json(std::ostream& out, const TuneReport& report) {
  const auto ranking = tuned_ranking(report);
  const ComparedTask& task = report.task;
  JsonWriter json(out);
  json.begin_object();
  json.member("format", "slimpack-tuning");
  json.member("version", 1);
  write_lengths(json, task);
  json.member("model", task.model);
  json.member("cluster", task.cluster);
  json.member("devices", report.devices);
  json.member("context", task.context);
  json.member("overlong", task.overlong);
  json.member("seed", task.seed);
  json.member("shuffle", task.shuffle);
  json.key("batches");
  json.begin_array();
  for (const TunedBatch& batch : report.batches) {
    json.begin_object();
    json.member("batch_tokens", batch.batch_tokens);
    write_steps(json, batch.steps);
    json.end_object();
  }
  json.end_array();
  json.key("best");
  if (ranking.empty()) {
    json.null();
  } else {
    json.begin_object(JsonLayout::flat);
    const TunedPlanner& best = report.results[ranking.front().result];
    json.member("planner", best.tuning.planner);
    json.member("batch", best.batch);
    write_degrees(json, tuned_at(report, ranking.front()).degrees);
    json.end_object();
  }
  json.key("results");
  json.begin_array();
  for (std::size_t result = 0; result < report.results.size(); ++result) {
    const TunedPlanner& one = report.results[result];
    json.begin_object();
    json.member("planner", one.tuning.planner);
    json.member("batch", one.batch);
    json.member("evaluations", one.tuning.evaluations);
    json.member("simulated_devices", one.tuning.simulated_devices);
    json.member("cpu_seconds", one.tuning.cpu_seconds);
    json.member("seconds", one.tuning.seconds);
    write_tune_rounds(json, one.tuning);
    json.key("tried");
    json.begin_array();
    for (std::size_t i = 0; i < one.tuning.tried.size(); ++i) {
      const TunedPlace winner = ranking.empty() ? TunedPlace{} : ranking.front();
      write_tried(json, report, winner, {result, i});
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  json.finish();
}

}  // namespace slimpack::report
