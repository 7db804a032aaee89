// SPDX-License-Identifier: Apache-2.0
#include "describe.hpp"

#include <cstdint>
#include <string>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/degrees.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/tune_report.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

std::string describe_parallel(const Parallel& parallel) {
  std::string text = "dp " + std::to_string(parallel.dp) + " x pp " + std::to_string(parallel.pp);
  if (parallel.tp > 1) text += " x tp " + std::to_string(parallel.tp);
  if (parallel.chunks > 1) text += ", " + std::to_string(parallel.chunks) + " chunks";
  return text + (parallel.head == LmHead::shard ? ", head sharded" : ", head last");
}

std::string describe_setting(const Plan& plan) {
  return clipped(one_line(plan.model.name), 40) + " on " +
         clipped(one_line(plan.cluster.name), 40) + ", " + describe_parallel(plan.parallel);
}

std::string settings_line(const ComparedPlan& entry) {
  std::string line;
  for (const auto& [name, text] : entry.settings) {
    line.append(line.empty() ? "" : ", ").append(name).append(" ").append(text);
  }
  return line;
}

void write_task_line(TextWriter& text, const Comparison& comparison) {
  const ComparedTask& task = comparison.task;
  Tokens tokens;
  std::int64_t samples = 0;
  for (const ComparedStep& step : comparison.steps) {
    tokens += step.tokens;
    samples += step.samples;
  }
  text << one_line(task.model) << " on " << one_line(task.cluster) << ", dp " << task.dp << " x pp "
       << task.pp;
  if (task.tp > 1) text << " x tp " << task.tp;
  text << ", context " << task.context.value << ": " << comparison.steps.size()
       << (comparison.steps.size() == 1 ? " step, " : " steps, ") << samples << " samples, "
       << count_text(tokens.value) << " tokens; " << task.evaluations
       << " candidates a planner and step\n";
}

std::string range_text(const FigureRange& range, double scale, int decimals, bool several) {
  std::string text = fixed(range.mean * scale, decimals);
  if (several) {
    text += " (" + fixed(range.least * scale, decimals) + "-" +
            fixed(range.most * scale, decimals) + ")";
  }
  return text;
}

std::string signed_percent(double fraction) {
  const std::string text = percent(fraction);
  if (text == "-0.0 %") return "0.0 %";
  return fraction > 0 && text != "0.0 %" ? "+" + text : text;
}

std::string place_name(const TuneReport& report, TunedPlace place) {
  const TunedPlanner& result = report.results[place.result];
  std::string name = planners::to_string(tuned_at(report, place).degrees);
  if (report.batches.size() > 1) {
    if (const auto limit = report.batches[result.batch].batch_tokens) {
      name += ", " + count_text(limit->value) + " tokens a step";
    }
  }
  return report.results.size() > report.batches.size() ? result.tuning.planner + " at " + name
                                                       : name;
}

}  // namespace slimpack::report::detail
