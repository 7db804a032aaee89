// SPDX-License-Identifier: Apache-2.0
#include "describe.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "figures.hpp"
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
       << " simulations of all devices a planner and step\n";
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

std::string tokens_of_step(const Comparison& comparison, const ComparedPlan& entry) {
  const ComparedStep* const step = compared_step(comparison, entry.step);
  return count_text(entry.metrics->tokens.value) + " of " +
         (step == nullptr ? "0" : count_text(step->tokens.value)) + " tokens";
}

std::string moved_documents(const Comparison& comparison, std::size_t place) {
  constexpr std::size_t kMost = 8;
  const std::size_t steps = comparison.steps.size();
  const std::span<const ComparedPlan> entries =
      std::span(comparison.results).subspan(place * steps, steps);
  if (std::none_of(entries.begin(), entries.end(),
                   [&](const ComparedPlan& entry) { return moves_documents(comparison, entry); })) {
    return {};
  }
  std::string text = entries.front().planner + " moves documents between steps: ";
  for (std::size_t i = 0; i < std::min(kMost, steps); ++i) {
    if (i > 0) text += ", ";
    text += "step " + std::to_string(entries[i].step) + " has ";
    text += entries[i].metrics ? tokens_of_step(comparison, entries[i]) : "no plan";
  }
  if (steps > kMost) text += " and so on";
  return text + "; compare sums over all steps, not single ones";
}

std::string_view idle_cause(sim::GapCause cause) noexcept {
  switch (cause) {
    case sim::GapCause::collective:
      return "collective";
    case sim::GapCause::max_in_flight:
      return "sends in flight";
    default:
      return sim::to_string(cause);
  }
}

std::string speedup_heading(const Comparison& comparison) {
  return comparison.baseline == kDefaultBaseline ? "speed-up"
                                                 : "speed-up over " + comparison.baseline;
}

}  // namespace slimpack::report::detail
