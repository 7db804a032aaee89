// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/svg.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "report/golden.hpp"
#include "report/measured.hpp"
#include "report/plans.hpp"
#include "report/src/text.hpp"
#include "report/xml.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/report/trace.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

std::string timelines_of(const std::vector<report::TitledTrace>& steps,
                         const std::string& title = "two") {
  std::ostringstream out;
  report::write_timelines_svg(out, title, steps);
  return out.str();
}

/// Texts of a picture by class, `x` and `y` left out.
std::vector<std::string> texts_of(const std::string& svg, const std::string& style) {
  std::vector<std::string> texts;
  for (const test::Element& element : test::read_xml(svg)) {
    if (element.name == "text" && element.attributes.at("class") == style) {
      texts.push_back(element.text);
    }
  }
  return texts;
}

/// One unit of each device of one rank with so many stages, a microsecond each.
StepTrace stair(std::int32_t dp, std::int32_t stages) {
  StepTrace trace{"stair", 0, Nanos{1000 * stages}, {}};
  for (std::int32_t rank = 0; rank < dp; ++rank) {
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      trace.units.push_back({rank,
                             stage,
                             {UnitKind::forward, PackId{0}, 0},
                             {},
                             {},
                             false,
                             Nanos{1000 * stage},
                             Nanos{1000 * stage + 1000}});
    }
  }
  return trace;
}

TEST_CASE("write_timelines_svg: each step under its title, a lane a device, one axis") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const StepTrace simulated = report::simulated_trace(plan, simulation);
    StepTrace measured = report::measured_trace(plan, test::measured_units(simulation));
    measured.iteration = measured.iteration * 2;
    const std::string svg = timelines_of({{"predicted <&>", simulated}, {"measured", measured}});
    CHECK(svg.find("url(") == std::string::npos);
    CHECK(svg.find("class=\"held\"") == std::string::npos);
    const std::vector<std::string> titles = texts_of(svg, "title");
    REQUIRE(titles.size() == 3);
    CHECK(titles[0] == "two");
    CHECK(titles[1] ==
          "predicted &lt;&amp;&gt;: " + report::detail::time_text(simulation.timeline.makespan));
    CHECK(titles[2] == "measured: " + report::detail::time_text(2 * simulation.timeline.makespan));
    CHECK(texts_of(svg, "end").size() == 2 * plan.schedule.size());
    const std::vector<std::string> notes = texts_of(svg, "note");
    REQUIRE(notes.size() == 2 * plan.schedule.size());
    for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
      const double share = static_cast<double>(simulation.timeline.busy[i].value) /
                           static_cast<double>(simulation.timeline.makespan.value);
      CHECK(notes[i] == "busy " + report::detail::percent(share));
      CHECK(notes[plan.schedule.size() + i] == "busy " + report::detail::percent(share / 2));
    }
  }
}

TEST_CASE("write_timelines_svg: places and lengths on the axis of the longest") {
  const std::string svg = timelines_of({{"a", stair(1, 2)}, {"b", stair(1, 4)}});
  // Four microseconds are 1400 pixels; a unit leaves a little room to the next.
  for (const char* line : {"M0 0h349.4\"", "M350 0h349.4\"", "M700 0h349.4\"", "M1050 0h349.4\"",
                           "M350 0h350\"", "M0 0h350\"", "M0 0h1050\""}) {
    CAPTURE(line);
    CHECK(svg.find(line) != std::string::npos);
  }
  CHECK(svg.find("M350 0h1050") != std::string::npos);  // idle to the end of the longer step
  CHECK(texts_of(svg, "end") ==
        std::vector<std::string>{"stage 0", "stage 1", "stage 0", "stage 1", "stage 2", "stage 3"});
  CHECK(texts_of(timelines_of({{"ranks", stair(2, 1)}}), "end") ==
        std::vector<std::string>{"rank 0", "rank 1"});
}

TEST_CASE("write_timelines_svg: with very many devices each step has its first ones") {
  const std::string svg = timelines_of({{"a", stair(13, 4)}, {"b", stair(2, 4)}});
  CHECK(texts_of(svg, "end").size() == 48 + 8);
  CHECK(svg.find("Of each step at most the first 48 devices are drawn.") != std::string::npos);
}

TEST_CASE("write_timelines_svg: the whole of a small picture") {
  const Plan plan = test::tiny_plan();
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  StepTrace measured = report::measured_trace(plan, test::measured_units(simulation));
  for (TracedUnit& traced : measured.units) {
    const Nanos late{(traced.end - traced.begin).value / 8};
    traced.begin = Nanos{traced.begin.value * 5 / 4} + late;
    traced.end = Nanos{traced.end.value * 5 / 4};
  }
  measured.iteration = Nanos{measured.iteration.value * 5 / 4};
  test::check_golden("tiny.timelines.svg",
                     timelines_of({{"predicted", report::simulated_trace(plan, simulation)},
                                   {"measured", measured}},
                                  "one step as predicted and as it ran"));
}

TEST_CASE("write_timelines_svg: what cannot be drawn is refused") {
  CHECK_THROWS_WITH_AS(timelines_of({}), "timelines: there must be a step", InvalidInput);
  CHECK_THROWS_WITH_AS(timelines_of({{"none", StepTrace{}}}),
                       "timeline: a step must have a unit, got 'none'", InvalidInput);
  StepTrace trace = stair(1, 2);
  trace.iteration = Nanos{1999};
  CHECK_THROWS_WITH_AS(timelines_of({{"short", trace}}),
                       "timeline: dp 0 pp 1 F 0 chunk 0: must lie within the step, got 1000",
                       InvalidInput);
}

}  // namespace
}  // namespace slimpack
