// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/page.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drawn_ranks.hpp"
#include "page_plan.hpp"
#include "page_text.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/compare_report.hpp"
#include "slimpack/report/summary.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "trace_units.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

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
      json.begin_array(JsonLayout::flat);
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

  /// The ranks of a plan that are drawn: all, or so many, at least one, that the entries of all
  /// plans together come near `most_entries`.
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

void write_page(std::ostream& out, const Comparison& comparison, std::span<const DrawnPlan> drawn,
                const HtmlOptions& options) {
  const PageData data(comparison, drawn, options);
  out << page_text(comparison, data.text(), data.entries());
}

}  // namespace

void write_comparison_html(std::ostream& out, const Comparison& comparison,
                           std::span<const ComparedTimeline> timelines,
                           const HtmlOptions& options) {
  require(!comparison.steps.empty(), "comparison: there must be a step");
  std::vector<DrawnPlan> drawn;
  for (const ComparedTimeline& timeline : timelines) {
    require(timeline.plan.step_index == timelines.front().plan.step_index,
            "comparison: drawn plans must be of one step", timeline.plan.step_index);
    drawn.push_back({timeline.plan, timeline.simulation});
  }
  write_page(out, comparison, drawn, options);
}

void write_html(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                const HtmlOptions& options) {
  const DrawnPlan drawn{plan, simulation};
  write_page(out, comparison_of(plan, simulation), {&drawn, 1}, options);
}

}  // namespace slimpack::report
