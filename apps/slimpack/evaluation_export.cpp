// SPDX-License-Identifier: Apache-2.0
#include "evaluation_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cell_result.hpp"
#include "slimpack/report/tables.hpp"

namespace slimpack::app {
namespace {

constexpr std::string_view kOurs = "slimpack";

struct StoredResult {
  const EvaluationCell* cell = nullptr;
  std::string planner;
  const nlohmann::json* result = nullptr;  ///< null: not there yet
};

/// What the matrix asks for, each once, in the order of the file.
[[nodiscard]] std::vector<StoredResult> stored_results(const EvaluationMatrix& matrix,
                                                       const ResultStore& store) {
  std::vector<StoredResult> results;
  std::set<std::string> seen;
  for (const EvaluationGroup& group : matrix.groups) {
    for (const std::size_t i : group.cells) {
      for (const std::string& planner : group.planners) {
        const std::string key = result_key(matrix.cells[i], planner);
        if (!seen.insert(key).second) continue;
        results.push_back({&matrix.cells[i], planner, store.find(key)});
      }
    }
  }
  return results;
}

[[nodiscard]] bool feasible(const nlohmann::json& result) {
  return result.at("feasible");
}

/// Seconds of a planner's steps in a cell; absent where there is no feasible result.
[[nodiscard]] std::optional<double> time_in(const EvaluationCell& cell, std::string_view planner,
                                            const ResultStore& store) {
  const nlohmann::json* result = store.find(result_key(cell, planner));
  if (result == nullptr || !feasible(*result)) return std::nullopt;
  return result->at("iteration_s").get<double>();
}

/// A figure as it stands in JSON; empty where there is none.
[[nodiscard]] std::string field_of(const nlohmann::json& result, std::string_view key) {
  const auto found = result.find(key);
  if (found == result.end() || found->is_null()) return {};
  return found->is_string() ? found->get<std::string>() : found->dump();
}

[[nodiscard]] std::string settings_field(const nlohmann::json& result) {
  std::string text;
  const auto settings = result.find("settings");
  if (settings == result.end()) return text;
  for (const auto& [name, value] : settings->items()) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ";", name, value.get<std::string>());
  }
  return text;
}

constexpr std::array<std::string_view, 21> kFigures{
    "iteration_s",   "ideal_s",      "lower_bound_s", "efficiency",
    "tokens_per_s",  "mfu",          "bubble",        "dp_imbalance",
    "forward_cv",    "backward_cv",  "peak_bytes",    "communication_bytes",
    "merged_tokens", "micropacks",   "samples",       "tokens",
    "plan_seconds",  "tune_seconds", "evaluations",   "simulated_devices",
    "cpu_seconds"};

}  // namespace

void write_evaluation_json(std::ostream& out, const EvaluationMatrix& matrix,
                           const ResultStore& store) {
  out << "{\"format\": \"slimpack-evaluation\", \"version\": 1, \"matrix\": "
      << nlohmann::json(matrix.name).dump() << ", \"results\": [";
  bool first = true;
  for (const StoredResult& stored : stored_results(matrix, store)) {
    if (stored.result == nullptr) continue;
    out << (first ? "\n" : ",\n") << stored.result->dump();
    first = false;
  }
  out << "\n]}\n";
}

void write_evaluation_csv(std::ostream& out, const EvaluationMatrix& matrix,
                          const ResultStore& store) {
  for (const Axis& axis : kAxes) out << axis.key << ',';
  out << "planner,feasible,why,dp,pp,tp,settings";
  for (const std::string_view figure : kFigures) out << ',' << figure;
  out << '\n';
  for (const StoredResult& stored : stored_results(matrix, store)) {
    if (stored.result == nullptr) continue;
    const nlohmann::json& result = *stored.result;
    report::CsvRow row;
    for (const std::string& value : stored.cell->values) row.add(std::string_view(value));
    row.add(std::string_view(stored.planner)).add(feasible(result) ? "true" : "false");
    row.add(field_of(result, "why"));
    for (const std::string_view degree : {"dp", "pp", "tp"}) {
      row.add(feasible(result) ? field_of(result.at("degrees"), degree) : std::string());
    }
    row.add(settings_field(result));
    for (const std::string_view figure : kFigures) row.add(field_of(result, figure));
    out << row.text();
  }
}

void write_evaluation_text(std::ostream& out, const EvaluationMatrix& matrix,
                           const ResultStore& store, std::size_t computed) {
  const std::vector<StoredResult> results = stored_results(matrix, store);
  std::vector<std::string> planners;
  std::size_t present = 0;
  for (const StoredResult& stored : results) {
    if (std::find(planners.begin(), planners.end(), stored.planner) == planners.end()) {
      planners.push_back(stored.planner);
    }
    if (stored.result != nullptr) ++present;
  }
  report::TextTable table(
      {"planner", "results", "feasible", "slimpack faster, mean", "least", "CPU s, mean"});
  for (const std::string& planner : planners) {
    std::size_t there = 0, fits = 0, compared = 0, timed = 0;
    double logarithms = 0, cpu_seconds = 0, least = std::numeric_limits<double>::infinity();
    for (const StoredResult& stored : results) {
      if (stored.planner != planner || stored.result == nullptr) continue;
      ++there;
      if (const auto found = stored.result->find("cpu_seconds"); found != stored.result->end()) {
        cpu_seconds += found->get<double>();
        ++timed;
      }
      const auto theirs = time_in(*stored.cell, planner, store);
      if (theirs) ++fits;
      const auto ours = time_in(*stored.cell, kOurs, store);
      if (!theirs || !ours) continue;
      ++compared;
      logarithms += std::log(*theirs / *ours);
      least = std::min(least, *theirs / *ours);
    }
    std::vector<std::string> row{planner, std::to_string(there), std::to_string(fits), "-", "-",
                                 "-"};
    if (compared > 0) {
      row[3] = fmt::format("{:.3f}", std::exp(logarithms / static_cast<double>(compared)));
      row[4] = fmt::format("{:.3f}", least);
    }
    if (timed > 0) row[5] = fmt::format("{:.1f}", cpu_seconds / static_cast<double>(timed));
    table.add(std::move(row));
  }
  out << fmt::format("{}: {} of {} results, {} of them new\n", matrix.name, present, results.size(),
                     computed);
  out << table.text();
}

}  // namespace slimpack::app
