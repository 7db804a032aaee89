// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/trace.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "report/measured.hpp"
#include "report/plans.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

std::string measured_text(const Plan& plan, const std::vector<report::MeasuredUnit>& units) {
  std::ostringstream out;
  report::write_measured_trace(out, plan, units);
  return out.str();
}

/// The lines of a trace that hold `part`, without the comma at their end.
std::multiset<std::string> lines_with(const std::string& text, const std::string& part) {
  std::multiset<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find(part) == std::string::npos) continue;
    if (line.back() == ',') line.pop_back();
    lines.insert(line);
  }
  return lines;
}

TEST_CASE("write_measured_trace: units are written as simulated ones are, in whatever order") {
  for (std::uint64_t seed = 0; seed < test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    std::vector<report::MeasuredUnit> units = test::measured_units(simulation);
    std::ostringstream simulated;
    report::write_trace(simulated, plan, simulation, {.gaps = true, .memory = false});
    const std::string text = measured_text(plan, units);
    for (const char* part : {"\"cat\": \"forward\"", "\"cat\": \"backward\"", "\"cat\": \"head\"",
                             "\"cat\": \"optimizer\"", "process_", " compute\"", " gaps\""}) {
      CHECK(lines_with(text, part) == lines_with(simulated.str(), part));
    }
    Random random(seed);
    random.shuffle(std::span(units));
    CHECK(measured_text(plan, units) == text);
  }
}

TEST_CASE("write_measured_trace: units and gaps of a device fill the step") {
  for (std::uint64_t seed = 0; seed < test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const auto document =
        nlohmann::json::parse(measured_text(plan, test::measured_units(simulation)));
    CHECK(document.at("otherData").at("times") == "measured");
    CHECK(document.at("otherData").at("planner") == plan.planner);
    CHECK(document.at("otherData").at("iteration_ns") == simulation.timeline.makespan.value);
    std::map<std::pair<int, int>, double> covered;  // process and stage: microseconds
    for (const auto& event : document.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const std::string category = event.at("cat");
      const int threads = 3 + 2 * plan.parallel.pp;  // of a stage
      if (category == "gap") CHECK(event.at("name") == "measured");
      covered[{event.at("pid"), (event.at("tid").get<int>() - 1) / threads}] +=
          event.at("dur").get<double>();
    }
    for (const auto& entry : covered) {
      CHECK(entry.second ==
            doctest::Approx(static_cast<double>(simulation.timeline.makespan.value) / 1000));
    }
  }
}

TEST_CASE("write_measured_trace: a reduction is one event on its thread") {
  const Plan plan = test::uniform_plan(2, 1, 1);  // F, H, B, R, O
  const std::string text =
      measured_text(plan, {{0, 3, Nanos{500}, Nanos{1500}}, {0, 4, Nanos{1500}, Nanos{1600}}});
  const auto lines = lines_with(text, "\"reduce\"");
  REQUIRE(lines.size() == 1);
  CHECK(*lines.begin() ==
        "{\"name\": \"R chunk 0\", \"cat\": \"reduce\", \"ph\": \"X\", \"pid\": 1, \"tid\": 3, "
        "\"ts\": 0.500, \"dur\": 1.000, \"args\": {\"unit\": \"R\", \"stage\": 0, \"chunk\": 0}}");
  CHECK(lines_with(text, "stage 0 reduce").size() == 2);
  CHECK(lines_with(text, "\"gap\"").size() == 2);  // before O, and all of the other rank's step
}

TEST_CASE("write_measured_trace: what cannot have been measured is refused") {
  const Plan plan = test::uniform_plan(1, 1, 2);  // F 0, H 0, F 2, H 2, B 1, B 3, R, O
  const auto refuse = [&](const std::vector<report::MeasuredUnit>& units, const char* sentence) {
    CHECK_THROWS_WITH_AS(static_cast<void>(report::measured_trace(plan, units)), sentence,
                         InvalidInput);
  };
  const Nanos a{1}, b{2};
  refuse({{1, 0, a, b}}, "measured unit: device must be in the schedule, got 1");
  refuse({{0, 8, a, b}}, "measured unit: dp 0 pp 0: unit must be in its order, got 8");
  refuse({{0, 0, Nanos{-1}, b}},
         "measured unit: dp 0 pp 0 F 0 chunk 0: begin must be >= 0, got -1");
  refuse({{0, 1, b, a}}, "measured unit: dp 0 pp 0 H 0: end must be >= begin, got 1");
  refuse({{0, 7, a, b}, {0, 7, b, b}}, "measured unit: dp 0 pp 0 O: must be measured once");
  refuse({{0, 0, a, b}, {0, 1, a, b}},
         "measured unit: dp 0 pp 0 H 0: must not begin before the unit ahead of it has ended, got "
         "1");
  CHECK_NOTHROW(static_cast<void>(
      report::measured_trace(plan, std::vector<report::MeasuredUnit>{{0, 6, a, b}, {0, 7, a, b}})));
  CHECK(report::measured_trace(plan, {}).units.empty());
}

}  // namespace
}  // namespace slimpack
