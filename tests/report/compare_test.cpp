// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "report/plans.hpp"
#include "report/src/drawn_ranks.hpp"
#include "report/xml.hpp"
#include "slimpack/report/compare_report.hpp"
#include "slimpack/report/page.hpp"

using namespace slimpack;

namespace {

report::ComparedPlan entry_of(const std::string& planner, std::int64_t step, std::int64_t seconds,
                              std::int64_t ideal) {
  report::ComparedPlan entry;
  entry.planner = planner;
  entry.step = step;
  entry.settings = {{"chunks", "1"}, {"recompute", "light"}};
  entry.plan_seconds = 0.5;
  report::Metrics metrics;
  metrics.iteration = Nanos{seconds * 1000000000};
  metrics.ideal = Nanos{ideal * 1000000000};
  metrics.efficiency = static_cast<double>(ideal) / static_cast<double>(seconds);
  metrics.tokens = Tokens{1000};
  metrics.samples = step == 4 ? 10 : 11;
  metrics.mfu = 0.5;
  metrics.bubble = 0.25;
  metrics.peak = Bytes{seconds * 1000};
  entry.metrics = metrics;
  return entry;
}

report::ComparedPlan infeasible_entry(const std::string& planner, std::int64_t step) {
  report::ComparedPlan entry;
  entry.planner = planner;
  entry.step = step;
  entry.why = report::why_infeasible({"bytes, \"all\" of them", 9, 8});
  return entry;
}

report::Comparison two_steps() {
  report::Comparison comparison;
  comparison.task.model = "small";
  comparison.task.cluster = "desk";
  comparison.task.context = Tokens{4096};
  comparison.task.overlong = "split";
  comparison.task.evaluations = 32;
  comparison.steps = {{4, 10, Tokens{1000}}, {5, 11, Tokens{1000}}};
  comparison.results = {entry_of("slimpack", 4, 2, 1),   entry_of("slimpack", 5, 3, 2),
                        entry_of("megatron", 4, 4, 1),   infeasible_entry("megatron", 5),
                        infeasible_entry("hopeless", 4), infeasible_entry("hopeless", 5)};
  return comparison;
}

template <class Write>
std::string text_of(const Write& write) {
  std::ostringstream out;
  write(out);
  return out.str();
}

}  // namespace

TEST_CASE("comparison: ratios are of summed time, over steps where both have a plan") {
  const report::Comparison comparison = two_steps();
  const auto summaries = report::summarize_comparison(comparison);
  REQUIRE(summaries.size() == 3);
  CHECK(summaries[0].iteration_s.mean == 2.5);
  CHECK(summaries[0].iteration_s.least == 2);
  CHECK(summaries[0].iteration_s.most == 3);
  CHECK(summaries[0].summed_efficiency == doctest::Approx(3.0 / 5));
  CHECK(summaries[0].tokens_per_s == doctest::Approx(400));
  CHECK(summaries[0].speedup == 2.0);
  CHECK(summaries[0].peak == Bytes{3000});
  CHECK(summaries[1].feasible == 1);
  CHECK(summaries[1].speedup == 1.0);
  CHECK(summaries[1].why == "bytes, \"all\" of them: needed 9, available 8");
  CHECK(summaries[2].feasible == 0);
  CHECK_FALSE(summaries[2].speedup.has_value());
  CHECK(report::speedup_of(comparison, comparison.results[0]) == 2.0);
  CHECK_FALSE(report::speedup_of(comparison, comparison.results[1]).has_value());
  CHECK_FALSE(report::speedup_of(comparison, comparison.results[3]).has_value());
}

TEST_CASE("comparison: speed-ups are over the baseline that was asked for") {
  report::Comparison comparison = two_steps();
  comparison.baseline = "slimpack";
  const auto summaries = report::summarize_comparison(comparison);
  CHECK(summaries[0].speedup == 1.0);
  CHECK(summaries[1].speedup == 0.5);
  const std::string json = text_of([&](auto& out) { write_comparison_json(out, comparison); });
  CHECK(json.find("\"baseline\": \"slimpack\"") != std::string::npos);
  CHECK(json.find("\"speedup\": 0.5,") != std::string::npos);
  CHECK(json.find("speedup_over_megatron") == std::string::npos);
  const std::string csv = text_of([&](auto& out) { write_comparison_csv(out, comparison); });
  CHECK(csv.find(",speedup_over_slimpack,plan_seconds,") != std::string::npos);
  const std::string table = text_of([&](auto& out) { write_comparison_text(out, comparison); });
  CHECK(table.find("speed-up over slimpack") != std::string::npos);
}

TEST_CASE(
    "comparison: documents that move between steps are told, and speed-ups are for as many "
    "tokens") {
  report::Comparison comparison = two_steps();
  comparison.results[0].metrics->tokens = Tokens{500};
  comparison.results[1].metrics->tokens = Tokens{1500};
  CHECK(report::moves_documents(comparison, comparison.results[0]));
  CHECK_FALSE(report::moves_documents(comparison, comparison.results[2]));
  CHECK_FALSE(report::moves_documents(comparison, comparison.results[3]));
  CHECK(report::speedup_of(comparison, comparison.results[0]) == 1.0);
  const auto summaries = report::summarize_comparison(comparison);
  CHECK(summaries[0].moves);
  CHECK(summaries[0].tokens == Tokens{2000});
  CHECK(summaries[0].speedup == 1.0);
  CHECK_FALSE(summaries[1].moves);
  const std::string note =
      "slimpack moves documents between steps: step 4 has 500 of 1.000 K tokens, step 5 has "
      "1.500 K of 1.000 K tokens; compare sums over all steps, not single ones";
  const std::string table = text_of([&](auto& out) { write_comparison_text(out, comparison); });
  CHECK(table.find(note + "\n") != std::string::npos);
  CHECK(table.find("planning s   tokens\n") != std::string::npos);
  const std::string page = text_of([&](auto& out) { write_comparison_html(out, comparison, {}); });
  CHECK(page.find("<p class=\"warning\">* " + note + ".</p>") != std::string::npos);
  const std::string before = text_of([](auto& out) { write_comparison_text(out, two_steps()); });
  CHECK(before.find("moves") == std::string::npos);
}

TEST_CASE("comparison: results in another order are refused") {
  report::Comparison comparison = two_steps();
  std::swap(comparison.results[1], comparison.results[2]);
  CHECK_THROWS_WITH_AS(static_cast<void>(report::summarize_comparison(comparison)),
                       "comparison: results must stand by planner, then step, got 4", InvalidInput);
  comparison.results.pop_back();
  CHECK_THROWS_WITH_AS(static_cast<void>(report::summarize_comparison(comparison)),
                       "comparison: there must be one result for each planner and step, got 5",
                       InvalidInput);
}

TEST_CASE("comparison: CSV has as many fields in each row as columns, quoted where needed") {
  const std::string csv =
      text_of([](auto& out) { report::write_comparison_csv(out, two_steps()); });
  std::istringstream lines(csv);
  std::size_t columns = 0, rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    std::size_t fields = 1;
    bool quoted = false;
    for (const char character : line) {
      if (character == '"') quoted = !quoted;
      if (character == ',' && !quoted) ++fields;
    }
    CHECK_FALSE(quoted);
    if (rows == 0) columns = fields;
    CHECK(fields == columns);
  }
  CHECK(rows == 7);
  CHECK(columns == 5 + 7 + static_cast<std::size_t>(sim::kGapCauses) + 7 + 7);
  CHECK(csv.find("slimpack,4,true,,chunks=1;recompute=light,2.000000000,1.000000000,,0.5,") !=
        std::string::npos);
  CHECK(csv.find("megatron,5,false,\"bytes, \"\"all\"\" of them: needed 9, available 8\",,,") !=
        std::string::npos);
}

TEST_CASE("comparison: JSON and table name every planner, and why there is no plan") {
  const std::string json =
      text_of([](auto& out) { report::write_comparison_json(out, two_steps()); });
  CHECK(json.find("\"speedup_over_megatron\": 2,") != std::string::npos);
  CHECK(json.find("\"why\": \"bytes, \\\"all\\\" of them: needed 9, available 8\"") !=
        std::string::npos);
  const std::string table =
      text_of([](auto& out) { report::write_comparison_text(out, two_steps()); });
  CHECK(table.find("2.5000 (2.0000-3.0000)") != std::string::npos);
  CHECK(table.find("hopeless  infeasible: bytes") != std::string::npos);
  CHECK(table.find("megatron: 1 of 2 steps infeasible") != std::string::npos);
  CHECK(table.find("slimpack: step 4: chunks 1, recompute light") != std::string::npos);
}

TEST_CASE("comparison: the picture has a timeline a plan on one axis") {
  std::vector<report::ComparedTimeline> timelines;
  report::Comparison comparison;
  comparison.steps = {{3, 3, Tokens{16}}};
  for (const std::string name : {"one", "two"}) {
    Plan plan = test::tiny_plan();
    plan.planner = name;
    sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
    report::ComparedPlan entry;
    entry.planner = name;
    entry.step = 3;
    entry.metrics = report::metrics_of(plan, simulation);
    comparison.results.push_back(entry);
    timelines.push_back({std::move(plan), std::move(simulation)});
  }
  comparison.results.push_back(infeasible_entry("hopeless <&>", 3));
  const std::string svg =
      text_of([&](auto& out) { report::write_comparison_svg(out, comparison, timelines); });
  std::vector<std::string> headings, stages;
  bool told = false, sized = false;
  for (const test::Element& element : test::read_xml(svg)) {
    if (element.name != "text") continue;
    if (element.text.starts_with("one: ") || element.text.starts_with("two: ")) {
      headings.push_back(element.text);
    }
    if (element.text.starts_with("stage ")) stages.push_back(element.text);
    sized =
        sized || element.text.find("; 3 samples, 16 tokens; one time axis") != std::string::npos;
    told = told || element.text.find("hopeless &lt;&amp;&gt;: infeasible") != std::string::npos;
  }
  CHECK(headings.size() == 2);
  CHECK(stages.size() == 8);
  CHECK(told);
  CHECK(sized);
  timelines[1].plan.step_index = 9;
  CHECK_THROWS_WITH_AS(static_cast<void>(text_of([&](auto& out) {
                         report::write_comparison_svg(out, comparison, timelines);
                       })),
                       "comparison: drawn plans must be of one step, got 9", InvalidInput);
  const std::string empty =
      text_of([&](auto& out) { report::write_comparison_svg(out, comparison, {}); });
  CHECK_FALSE(test::read_xml(empty).empty());
  comparison.steps.clear();
  CHECK_THROWS_WITH_AS(static_cast<void>(text_of(
                           [&](auto& out) { report::write_comparison_svg(out, comparison, {}); })),
                       "comparison: there must be a step", InvalidInput);
}

TEST_CASE("comparison: of many ranks the busiest and the idlest are drawn") {
  report::ComparedTimeline timeline;
  timeline.plan.parallel.pp = 2;
  for (const std::int64_t busy : {1, 1, 9, 9, 5, 5, 3, 3}) {
    timeline.simulation.timeline.busy.push_back(Nanos{busy});
  }
  using Ranks = std::vector<std::size_t>;
  CHECK(report::detail::drawn_ranks(timeline.plan, timeline.simulation, 4) == Ranks{0, 1, 2, 3});
  CHECK(report::detail::drawn_ranks(timeline.plan, timeline.simulation, 1) == Ranks{1});
  CHECK(report::detail::drawn_ranks(timeline.plan, timeline.simulation, 2) == Ranks{0, 1});
}
