// SPDX-License-Identifier: Apache-2.0
// Planners side by side as one HTML page that needs nothing else: tables, timelines, charts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/compare_json.hpp"
#include "slimpack/report/compare_step.hpp"
#include "slimpack/report/detail/drawn_ranks.hpp"
#include "slimpack/report/detail/json.hpp"
#include "slimpack/report/detail/page_plan.hpp"
#include "slimpack/report/detail/page_text.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

/// How much of the timelines a page carries.
struct HtmlOptions {
  /// Units and gaps of all plans together, at about five bytes each; ranks beyond are left out.
  std::size_t most_entries = 2'000'000;
  /// Points of all memory curves together, at about five bytes each.
  std::size_t most_points = 1'000'000;
};

namespace detail {

/// A plan with its simulation, wherever they are kept.
struct DrawnPlan {
  const Plan& plan;
  const sim::PlanSimulation& simulation;
};

/// The data of a page: a JSON object that is safe inside of a script element.
class PageData {
 public:
  PageData(const Comparison& comparison, std::span<const DrawnPlan> drawn,
           const HtmlOptions& options)
      : comparison_(comparison), options_(options) {
    for (const DrawnPlan& one : drawn) {
      plans_.push_back(std::make_unique<PagePlan>(one.plan, one.simulation));
      entries_ += plans_.back()->entries();
      lanes_ += one.plan.schedule.size();
    }
  }

  [[nodiscard]] std::size_t entries() const noexcept { return entries_; }

  /// O(nodes + edges + events log events) beside the text.
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    JsonWriter json(out);
    json.begin_object();
    const auto names = [&json]<std::size_t Count>(std::string_view key, auto first) {
      json.key(key);
      json.begin_array(true);
      for (std::size_t i = 0; i < Count; ++i) {
        json.text(to_string(static_cast<decltype(first)>(i)));
      }
      json.end_array();
    };
    names.template operator()<sim::kGapCauses>("gapCauses", sim::GapCause{});
    names.template operator()<sim::kMemoryKinds>("memoryKinds", sim::MemoryKind{});
    names.template operator()<kPathWorks>("pathWorks", PathWork{});
    names.template operator()<kPathReasons>("pathReasons", sim::PathReason{});
    json.key("plans");
    json.begin_array();
    for (const auto& plan : plans_) plan->write(json, ranks_of(*plan), points());
    json.end_array();
    json.end_object();
    json.finish();
    std::string data = std::move(out).str();
    data.resize(data.find_last_of('}'));
    std::ostringstream comparison;
    write_comparison_json(comparison, comparison_);
    data += ",\"comparison\": " + std::move(comparison).str() + "}\n";
    return script_safe(data);
  }

 private:
  static constexpr std::size_t kPathReasons = 5;

  /// As many ranks of each plan as its share of the entries allows, at least one.
  [[nodiscard]] std::vector<std::size_t> ranks_of(const PagePlan& plan) const {
    const auto all = static_cast<std::size_t>(plan.plan().parallel.dp);
    std::size_t most = all;
    if (entries_ > options_.most_entries) {
      most = std::max<std::size_t>(1, all * options_.most_entries / entries_);
    }
    return drawn_ranks(plan.plan(), plan.simulation(), most);
  }
  [[nodiscard]] std::size_t points() const {
    return std::clamp<std::size_t>(options_.most_points / std::max<std::size_t>(1, lanes_), 100,
                                   2000);
  }

  const Comparison& comparison_;
  HtmlOptions options_;
  std::vector<std::unique_ptr<PagePlan>> plans_;
  std::size_t entries_ = 0, lanes_ = 0;
};

inline void write_page(std::ostream& out, const Comparison& comparison,
                       std::span<const DrawnPlan> drawn, const HtmlOptions& options) {
  const PageData data(comparison, drawn, options);
  out << page_text(comparison, data.text(), data.entries());
}

/// A comparison of one plan with nothing.
[[nodiscard]] inline Comparison comparison_of(const Plan& plan,
                                              const sim::PlanSimulation& simulation) {
  Comparison comparison;
  ComparedTask& task = comparison.task;
  task.sources = plan.sources;
  task.model = plan.model.name;
  task.cluster = plan.cluster.name;
  task.dp = plan.parallel.dp;
  task.pp = plan.parallel.pp;
  task.tp = plan.parallel.tp;
  task.chunks = plan.parallel.chunks;
  task.head = plan.parallel.head;
  task.granularity = plan.parallel.granularity;
  task.max_cp = plan.parallel.max_cp;
  ComparedStep step{plan.step_index, static_cast<std::int64_t>(plan.samples.size()), {}};
  for (const Tokens length : plan.samples) {
    step.tokens += length;
    task.context = std::max(task.context, length);
  }
  comparison.steps.push_back(step);
  ComparedPlan entry;
  entry.planner = plan.planner;
  entry.step = plan.step_index;
  entry.metrics = metrics_of(plan, simulation);
  comparison.results.push_back(std::move(entry));
  return comparison;
}

}  // namespace detail

/// Writes a page that opens from a file, without network, for light and dark screens: the planners'
/// figures in tables that sort (all of `compare --json`), the timelines of `timelines` on one time
/// axis to zoom into, with each unit's samples and each gap's cause, memory of every device against
/// the limit, times of MicroPacks, work of ranks, critical paths. Everything but tables needs the
/// script inside. Where plans are very large, of each plan only some data-parallel ranks are in the
/// page, at least one, and it says so. The timelines are of the step that the first of them has.
/// The same comparison gives the same bytes. Throws InvalidInput if they are of several steps or
/// the comparison has none, or its results stand in another order.
inline void write_comparison_html(std::ostream& out, const Comparison& comparison,
                                  std::span<const ComparedTimeline> timelines,
                                  const HtmlOptions& options = {}) {
  require(!comparison.steps.empty(), "comparison: there must be a step");
  std::vector<detail::DrawnPlan> drawn;
  for (const ComparedTimeline& timeline : timelines) {
    require(timeline.plan.step_index == timelines.front().plan.step_index,
            "comparison: drawn plans must be of one step", timeline.plan.step_index);
    drawn.push_back({timeline.plan, timeline.simulation});
  }
  detail::write_page(out, comparison, drawn, options);
}

/// The same page for one plan.
inline void write_html(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                       const HtmlOptions& options = {}) {
  const detail::DrawnPlan drawn{plan, simulation};
  detail::write_page(out, detail::comparison_of(plan, simulation), {&drawn, 1}, options);
}

}  // namespace slimpack::report
