// SPDX-License-Identifier: Apache-2.0
// Plans, tasks and settings in words, for titles and tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/tune_report.hpp"
#include "slimpack/sim/timeline.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

/// "dp 4 x pp 8, 2 chunks, head shard".
[[nodiscard]] std::string describe_parallel(const Parallel& parallel);

/// "llama-7b on h100, dp 4 x pp 8, head last".
[[nodiscard]] std::string describe_setting(const Plan& plan);

/// Why a device is idle, as pictures and tables say it. Files keep the words of `sim::to_string`.
[[nodiscard]] std::string_view idle_cause(sim::GapCause cause) noexcept;

[[nodiscard]] std::string settings_line(const ComparedPlan& entry);

void write_task_line(TextWriter& text, const Comparison& comparison);

/// "4.310", with several steps "4.310 (4.213-4.402)".
[[nodiscard]] std::string range_text(const FigureRange& range, double scale, int decimals,
                                     bool several);

/// An amount and its name.
using TextPart = std::pair<std::int64_t, std::string_view>;

/// "kept activations 20.1 GB, weights 3.2 GB and 2 more": the parts above zero, largest first, ties
/// as listed.
template <class Text>
[[nodiscard]] std::string largest_first(std::vector<TextPart> parts, const Text& text) {
  constexpr std::size_t kMost = 6;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const TextPart& a, const TextPart& b) { return a.first > b.first; });
  while (!parts.empty() && parts.back().first <= 0) parts.pop_back();
  std::string out;
  for (std::size_t i = 0; i < parts.size() && i < kMost; ++i) {
    if (i > 0) out += ", ";
    out += std::string(parts[i].second) + " " + text(parts[i].first);
  }
  if (parts.size() > kMost) out += " and " + std::to_string(parts.size() - kMost) + " more";
  return out.empty() ? "none" : out;
}

/// "+1.2 %", "0.0 %", "-0.6 %".
[[nodiscard]] std::string signed_percent(double fraction);

/// What a place is called; planner and batch only where there are several.
[[nodiscard]] std::string place_name(const TuneReport& report, TunedPlace place);

/// "2.4 M of 4.0 M tokens": what a planner's own step has of the tokens of the step given.
[[nodiscard]] std::string tokens_of_step(const Comparison& comparison, const ComparedPlan& entry);

/// "wlb-llm moves documents between steps: ...", with its tokens by step, where planner `place` of
/// the comparison does so; else empty.
[[nodiscard]] std::string moved_documents(const Comparison& comparison, std::size_t place);

/// "speed-up", with its baseline where that is not the default one.
[[nodiscard]] std::string speedup_heading(const Comparison& comparison);

}  // namespace slimpack::report::detail
