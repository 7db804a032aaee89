// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "describe.hpp"
#include "drawn_ranks.hpp"
#include "figures.hpp"
#include "lane_path.hpp"
#include "picture.hpp"
#include "plan_picture.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// The legend of several pictures: an entry for all that any of them has.
class SharedLegend {
 public:
  void add(const Picture& picture) {
    for (const LegendEntry& entry : picture.legend) {
      seen_.emplace(entry.style, entry.shade);
      if (entry.style == "limit") limit_ = entry.text;
    }
  }
  [[nodiscard]] std::vector<LegendEntry> entries() const {
    std::vector<LegendEntry> legend;
    const auto offer = [&](std::string style, int shade, std::string text) {
      if (seen_.contains({style, shade})) legend.push_back({std::move(style), shade, text});
    };
    offer("forward", 0, "forward");
    offer("backward", 0, "backward");
    offer("head-unit", 0, "head");
    offer("optimizer", 0, "optimizer");
    offer("weight", 0, "weight gradients apart");
    offer("forward", 1, "later chunks, weaker");
    offer("merged", 0, "context-parallel group");
    offer("reduce", 0, "reduction of gradients");
    for (std::size_t cause = 0; cause < sim::kGapCauses; ++cause) {
      offer(paint_class(static_cast<std::size_t>(Paint::gap), cause), 0,
            "idle: " + std::string(idle_cause(static_cast<sim::GapCause>(cause))));
    }
    offer("always", 0, "weights, gradients, optimizer");
    offer("held", 0, "memory held");
    offer("limit", 0, limit_);
    return legend;
  }

 private:
  std::set<std::pair<std::string, int>> seen_;
  std::string limit_;
};

class ComparisonPicture {
 public:
  /// Lanes of all plans together, as far as each may draw one rank.
  static constexpr std::size_t kMostLanes = 96;

  ComparisonPicture(const Comparison& comparison, std::int64_t step,
                    std::span<const ComparedTimeline> timelines)
      : comparison_(comparison), step_(step), timelines_(timelines) {
    for (const ComparedTimeline& timeline : timelines) {
      plans_.push_back(std::make_unique<PlanPicture>(timeline.plan, timeline.simulation));
    }
  }

  [[nodiscard]] Picture picture() const {
    Picture picture;
    picture.title = "The same step by " + std::to_string(timelines_.size()) +
                    (timelines_.size() == 1 ? " planner" : " planners") + ", step " +
                    std::to_string(step_);
    add_lines(picture);
    picture.span = Nanos{1};
    SharedLegend legend;
    for (std::size_t i = 0; i < timelines_.size(); ++i) {
      const Picture own = plans_[i]->picture();
      legend.add(own);
      picture.span = std::max(picture.span, own.span);
      picture.limit = std::max(picture.limit, own.limit);
      picture.with_reductions = picture.with_reductions || own.with_reductions;
      add_lanes(picture, i);
    }
    picture.legend = legend.entries();
    return picture;
  }

 private:
  void add_lines(Picture& picture) const {
    const ComparedTask& task = comparison_.task;
    std::string line = clipped(one_line(task.model), 40) + " on " +
                       clipped(one_line(task.cluster), 40) + ", dp " + std::to_string(task.dp) +
                       " x pp " + std::to_string(task.pp);
    if (task.tp > 1) line += " x tp " + std::to_string(task.tp);
    for (const ComparedStep& step : comparison_.steps) {
      if (step.step != step_) continue;
      line += "; " + std::to_string(step.samples) + " samples, " + count_text(step.tokens.value) +
              " tokens";
    }
    picture.lines.push_back(line + "; one time axis, gaps up to each plan's own end");
    for (const ComparedPlan& entry : comparison_.results) {
      if (entry.step != step_ || entry.metrics) continue;
      picture.lines.push_back(clipped(one_line(entry.planner + ": infeasible: " + entry.why), 200));
    }
  }

  void add_lanes(Picture& picture, std::size_t i) const {
    const ComparedTimeline& timeline = timelines_[i];
    const auto stages = static_cast<std::size_t>(timeline.plan.parallel.pp);
    const std::size_t room = kMostLanes / timelines_.size() / stages;
    const std::vector<std::size_t> ranks =
        drawn_ranks(timeline.plan, timeline.simulation, std::max<std::size_t>(1, room));
    if (ranks.size() < static_cast<std::size_t>(timeline.plan.parallel.dp)) {
      picture.footnote = "Of each plan " + std::to_string(ranks.size()) + " of " +
                         std::to_string(timeline.plan.parallel.dp) +
                         " data-parallel ranks are drawn, from the busiest to the idlest; figures "
                         "are of all.";
    }
    const std::size_t drawn = std::min<std::size_t>(stages, PlanPicture::kMostLanes);
    for (const std::size_t rank : ranks) {
      for (std::size_t stage = 0; stage < drawn; ++stage) {
        picture.lanes.push_back(plans_[i]->lane(rank * stages + stage));
        if (rank == ranks.front() && stage == 0) picture.lanes.back().heading = heading(i);
      }
    }
  }

  [[nodiscard]] std::string heading(std::size_t i) const {
    const Plan& plan = timelines_[i].plan;
    const Metrics& metrics = plans_[i]->metrics();
    std::string text = clipped(one_line(plan.planner), 40) + ": " + time_text(metrics.iteration) +
                       ", efficiency " + percent(metrics.efficiency);
    if (const auto* entry = feasible_entry(comparison_, plan.planner, step_)) {
      if (const auto speedup = speedup_of(comparison_, *entry);
          speedup && plan.planner != comparison_.baseline) {
        text += ", " + fixed(*speedup, 2) + " times as fast as " + comparison_.baseline;
      }
      if (moves_documents(comparison_, *entry)) {
        text += ", has " + tokens_of_step(comparison_, *entry);
      }
    }
    return text;
  }

  const Comparison& comparison_;
  std::int64_t step_;
  std::span<const ComparedTimeline> timelines_;
  std::vector<std::unique_ptr<PlanPicture>> plans_;
};

}  // namespace

void write_comparison_svg(std::ostream& out, const Comparison& comparison,
                          std::span<const ComparedTimeline> timelines) {
  require(!comparison.steps.empty(), "comparison: there must be a step");
  const std::int64_t step =
      timelines.empty() ? comparison.steps.front().step : timelines.front().plan.step_index;
  for (const ComparedTimeline& timeline : timelines) {
    require(timeline.plan.step_index == step, "comparison: drawn plans must be of one step",
            timeline.plan.step_index);
  }
  const ComparisonPicture drawn(comparison, step, timelines);
  const Picture picture = drawn.picture();
  write_picture(out, picture);
}

}  // namespace slimpack::report
