// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tune_report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "describe.hpp"
#include "figures.hpp"
#include "json_parts.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/degrees.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/report/tables.hpp"
#include "slimpack/report/tune.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// What the planner chose in the first step.
[[nodiscard]] std::string setting_of(const TunedDegrees& tuned, const std::string& name) {
  if (tuned.steps.empty()) return "-";
  const auto found = tuned.steps.front().settings.find(name);
  return found == tuned.steps.front().settings.end() ? "-" : found->second;
}

class TuneTables {
 public:
  TuneTables(std::ostream& out, const TuneReport& report)
      : text_(out), report_(report), ranking_(tuned_ranking(report)) {}

  void write() {
    const bool several = report_.results.size() > 1;
    write_head();
    if (several) write_results();
    for (const TunedPlanner& result : report_.results) write_rounds(result);
    text_ << '\n';
    if (ranking_.empty()) {
      if (!several) write_degrees(0);
      return;
    }
    write_degrees(ranking_.front().result);
    write_best();
  }

 private:
  void write_head() {
    const ComparedTask& task = report_.task;
    text_ << one_line(task.model) << " on " << report_.devices
          << (report_.devices == 1 ? " device of " : " devices of ") << one_line(task.cluster)
          << ", context " << task.context.value << ":";
    for (const TunedBatch& batch : report_.batches) {
      std::int64_t samples = 0;
      for (const ComparedStep& step : batch.steps) samples += step.samples;
      text_ << (&batch == &report_.batches.front() ? " " : "; ") << batch.steps.size()
            << (batch.steps.size() == 1 ? " step, " : " steps, ") << samples << " samples, "
            << count_text(batch.tokens().value) << " tokens";
    }
    text_ << "\n\n";
  }

  [[nodiscard]] std::vector<std::string> figures(TunedPlace place) const {
    const TunedDegrees& tuned = tuned_at(report_, place);
    const Metrics sum = summed_metrics(tuned.steps);
    const double whole = seconds(*tuned.time);
    return {rate_text(ratio(static_cast<double>(tokens_at(report_, place).value), whole)),
            fixed(whole / static_cast<double>(tuned.steps.size()), 4),
            fixed(100 * sum.efficiency, 1),
            fixed(100 * sum.mfu, 1),
            fixed(100 * sum.bubble, 1),
            fixed(static_cast<double>(sum.peak.value) * 1e-9, 1),
            setting_of(tuned, "recompute")};
  }
  [[nodiscard]] static std::vector<std::string> with_figures(std::vector<std::string> row,
                                                             std::vector<std::string> figures) {
    row.insert(row.end(), figures.begin(), figures.end());
    return row;
  }
  [[nodiscard]] static std::vector<std::string> header(std::vector<std::string> first) {
    return with_figures(std::move(first), {"tokens/s", "s a step", "efficiency %", "MFU %",
                                           "idle %", "peak GB", "recompute"});
  }

  [[nodiscard]] std::string batch_name(std::size_t batch) const {
    const auto limit = report_.batches[batch].batch_tokens;
    return limit ? count_text(limit->value) : std::string("all");
  }

  /// The best of each planner and batch.
  void write_results() {
    TextTable table(header({"planner", "tokens a step", "dp", "pp", "tp"}));
    std::vector<bool> written(report_.results.size());
    for (const TunedPlace place : ranking_) {
      if (written[place.result]) continue;
      written[place.result] = true;
      const planners::Degrees& degrees = tuned_at(report_, place).degrees;
      table.add(
          with_figures({report_.results[place.result].tuning.planner,
                        batch_name(report_.results[place.result].batch), std::to_string(degrees.dp),
                        std::to_string(degrees.pp), std::to_string(degrees.tp)},
                       figures(place)));
    }
    for (std::size_t i = 0; i < written.size(); ++i) {
      if (written[i]) continue;
      const Tuning& tuning = report_.results[i].tuning;
      table.remark({tuning.planner},
                   batch_name(report_.results[i].batch) +
                       " tokens a step: infeasible at all degrees: " + first_why(tuning));
    }
    text_ << table.text();
    text_ << '\n';
  }
  [[nodiscard]] static std::string first_why(const Tuning& tuning) {
    return tuning.tried.empty() ? "there are none" : tuning.tried.front().why;
  }

  /// What each round tried, the best time after it and how much that gained.
  void write_rounds(const TunedPlanner& result) {
    const Tuning& tuning = result.tuning;
    text_ << tuning.planner;
    if (report_.batches.size() > 1) text_ << ", " << batch_name(result.batch) << " tokens a step";
    text_ << ": ";
    for (std::size_t i = 0; i < tuning.rounds.size(); ++i) {
      const TuneRound& round = tuning.rounds[i];
      text_ << (i == 0 ? "" : "; ") << round.degrees << " degrees x " << round.budget << ": "
            << (round.best ? fixed(seconds(*round.best), 4) + " s" : std::string("infeasible"));
      if (const auto gain = gain_of_round(tuning, i))
        text_ << " (" << signed_percent(-*gain) << ")";
    }
    text_ << "; " << tuning.evaluations << " simulations, " << fixed(tuning.cpu_seconds, 1)
          << " CPU s\n";
  }

  /// All degrees of one planner and batch.
  void write_degrees(std::size_t result) {
    const Tuning& tuning = report_.results[result].tuning;
    text_ << tuning.planner << ":\n";
    TextTable table(header({"dp x pp x tp"}));
    for (std::size_t i = 0; i < tuning.tried.size(); ++i) {
      const TunedDegrees& tuned = tuning.tried[i];
      const std::string name = std::to_string(tuned.degrees.dp) + " x " +
                               std::to_string(tuned.degrees.pp) + " x " +
                               std::to_string(tuned.degrees.tp);
      if (tuned.time) {
        table.add(with_figures({name}, figures({result, i})));
      } else {
        table.remark({name}, (tuned.skipped ? "skipped: " : "infeasible: ") + tuned.why);
      }
    }
    text_ << table.text();
    text_ << '\n';
  }

  void write_best() {
    const TunedPlace best = ranking_.front();
    const TunedDegrees& tuned = tuned_at(report_, best);
    text_ << "best: " << place_name(report_, best) << ": " << settings_line(tuned.steps.front())
          << '\n';
    const auto tell = [&](const char* word, auto&& is) {
      const auto found = std::find_if(ranking_.begin() + 1, ranking_.end(), is);
      if (found != ranking_.end()) text_ << word << why_lost(report_, best, *found) << '\n';
    };
    tell("runner-up: ", [](TunedPlace) { return true; });
    // Where the runner-up differs in its degrees alone, the next planner or batch is of interest.
    if (ranking_.size() > 1 && ranking_[1].result == best.result) {
      tell("next: ", [&](TunedPlace place) { return place.result != best.result; });
    }
  }

  TextWriter text_;
  const TuneReport& report_;
  std::vector<TunedPlace> ranking_;
};

}  // namespace

void write_tuning_text(std::ostream& out, const TuneReport& report) {
  TuneTables(out, report).write();
}

}  // namespace slimpack::report
