// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/summary.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "report/golden.hpp"
#include "report/plans.hpp"
#include "report/src/describe.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using Json = nlohmann::json;

std::string json_of(const Plan& plan, const sim::PlanSimulation& simulation,
                    const report::SimulationSummary& summary) {
  std::ostringstream out;
  report::write_summary_json(out, plan, simulation, summary);
  return out.str();
}

std::string text_of(const Plan& plan, const sim::PlanSimulation& simulation,
                    const report::SimulationSummary& summary) {
  std::ostringstream out;
  report::write_summary_text(out, plan, simulation, summary);
  return out.str();
}

std::int64_t from_seconds(const Json& value) {
  return std::llround(value.get<double>() * 1e9);
}

std::vector<report::JitterReport> draw(const sim::PlanSimulation& simulation) {
  std::vector<report::JitterReport> reports;
  for (const sim::JitterKind kind : {sim::JitterKind::noise, sim::JitterKind::slow_device}) {
    sim::JitterOptions options;
    options.kind = kind;
    options.draws = 10;
    reports.push_back({options, sim::draw_jitter(simulation.dag, simulation.timeline, options)});
  }
  return reports;
}

TEST_CASE("write_summary_json: says what the simulation says, and its sums agree") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const report::SimulationSummary summary = report::summarize(plan, simulation, draw(simulation));
    const Json json = Json::parse(json_of(plan, simulation, summary));
    const report::Metrics& metrics = summary.metrics;
    CHECK(json.at("format") == "slimpack-simulation");
    CHECK(json.at("version") == 1);
    CHECK(from_seconds(json.at("iteration_s")) == metrics.iteration.value);
    CHECK(from_seconds(json.at("ideal_s")) == metrics.ideal.value);
    CHECK(json.at("lower_bound_s").is_null());
    CHECK(json.at("efficiency").get<double>() == metrics.efficiency);
    CHECK(json.at("mfu").get<double>() == metrics.mfu);
    CHECK(json.at("tokens_per_s").get<double>() == metrics.tokens_per_s);
    CHECK(json.at("bubble").get<double>() == metrics.bubble);
    CHECK(json.at("dp_imbalance").get<double>() == metrics.dp_imbalance);
    CHECK(json.at("forward_cv").get<double>() == metrics.forward_cv);
    CHECK(json.at("backward_cv").get<double>() == metrics.backward_cv);
    CHECK(json.at("peak_bytes") == metrics.peak.value);
    CHECK(json.at("fits") == true);
    CHECK(json.at("merged_tokens") == metrics.merged_tokens.value);
    CHECK(json.at("micropacks") ==
          std::ranges::count_if(plan.micropacks,
                                [](const MicroPack& pack) { return pack.pass != Pass::weight; }));
    std::int64_t sum = 0;
    for (const Json& part : json.at("communication")) sum += part.get<std::int64_t>();
    CHECK(json.at("communication_bytes") == sum);

    std::map<std::string, std::int64_t> gaps;
    REQUIRE(json.at("devices").size() == plan.schedule.size());
    for (const Json& device : json.at("devices")) {
      std::int64_t idle = 0;
      for (const auto& [cause, time] : device.at("gaps").items()) {
        idle += from_seconds(time);
        gaps[cause] += from_seconds(time);
      }
      CHECK(from_seconds(device.at("idle_s")) == idle);
      CHECK(from_seconds(device.at("busy_s")) + idle == metrics.iteration.value);
      std::int64_t held = 0;
      for (const Json& bytes : device.at("at_peak")) held += bytes.get<std::int64_t>();
      CHECK(device.at("peak_bytes") == held);
    }
    for (const auto& [cause, time] : json.at("gaps").items())
      CHECK(from_seconds(time) == gaps[cause]);

    const Json& path = json.at("critical_path");
    std::int64_t spent = 0;
    for (const Json& time : path.at("seconds")) spent += from_seconds(time);
    CHECK(spent == metrics.iteration.value);
    CHECK(path.at("path").size() + path.at("steps_left_out").get<std::size_t>() ==
          path.at("steps").get<std::size_t>());
    REQUIRE(json.at("jitter").size() == 2);
    CHECK(json.at("jitter")[1].at("kind") == "slow_device");
    CHECK(json.at("jitter")[0].at("change") == 0.05);
    CHECK(json.at("jitter")[0].at("draws_s").size() == 10);
  }
}

TEST_CASE("write_summary_json: a known bound and odd names") {
  Plan plan = test::tiny_plan();
  plan.prediction.lower_bound = Nanos{150000};
  plan.memory.capacity = Bytes{600};
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  const Json json = Json::parse(json_of(plan, simulation, report::summarize(plan, simulation)));
  CHECK(json.at("planner") == "by hand <&\"'>");
  CHECK(json.at("lower_bound_s") == 0.00015);
  CHECK(json.at("limit_bytes") == 100);
  CHECK(json.at("fits") == false);
  CHECK(json.at("jitter").empty());
}

TEST_CASE("write_summary_json, write_summary_text: the whole of a small plan") {
  Plan plan = test::tiny_plan();
  plan.prediction.lower_bound = Nanos{150000};
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  const report::SimulationSummary summary = report::summarize(plan, simulation, draw(simulation));
  test::check_golden("tiny.summary.json", json_of(plan, simulation, summary));
  test::check_golden("tiny.summary.txt", text_of(plan, simulation, summary));
}

TEST_CASE("write_summary_text: a line a device, then a line a stage, then one for all") {
  struct Case {
    int dp, pp, most_lines;
  };
  for (const Case& one : {Case{4, 8, 43}, Case{8, 8, 75}, Case{20, 4, 15}, Case{1, 70, 12}}) {
    const int dp = one.dp, pp = one.pp;
    CAPTURE(dp);
    CAPTURE(pp);
    const Plan plan = test::uniform_plan(dp, pp, 2);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const std::string text = text_of(plan, simulation, report::summarize(plan, simulation));
    CHECK(std::count(text.begin(), text.end(), '\n') <= one.most_lines);
    CHECK((text.find("\ndp 0 pp 0 ") != std::string::npos) == (dp * pp <= 64));
    CHECK((text.find("stage, mean of ranks") != std::string::npos) == (dp == 20));
    CHECK((text.find("70 devices") != std::string::npos) == (pp == 70));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      CHECK(line.size() <= 240);
      if (!line.empty()) CHECK(line.back() != ' ');
    }
  }
}

TEST_CASE("write_summary_text: too much memory is not overlooked") {
  Plan plan = test::tiny_plan();
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  CHECK(text_of(plan, simulation, report::summarize(plan, simulation)).find("TOO MUCH") ==
        std::string::npos);
  plan.memory.capacity = Bytes{1000};
  CHECK(
      text_of(plan, simulation, report::summarize(plan, simulation)).find("of 500 B (TOO MUCH)") !=
      std::string::npos);
}

TEST_CASE("largest_first: sorted, zeros left out, cut short") {
  using report::detail::largest_first;
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  CHECK(report::detail::largest_first({{1, "a"}, {3, "b"}, {0, "c"}, {3, "d"}}, text) ==
        "b 3, d 3, a 1");
  CHECK(report::detail::largest_first({}, text) == "none");
  CHECK(report::detail::largest_first(
            {{1, "a"}, {2, "b"}, {3, "c"}, {4, "d"}, {5, "e"}, {6, "f"}, {7, "g"}}, text) ==
        "g 7, f 6, e 5, d 4, c 3, b 2 and 1 more");
  CHECK(report::detail::signed_percent(0.012) == "+1.2 %");
  CHECK(report::detail::signed_percent(-0.012) == "-1.2 %");
  CHECK(report::detail::signed_percent(-0.0001) == "0.0 %");
  CHECK(report::detail::signed_percent(0.0001) == "0.0 %");
}

}  // namespace
}  // namespace slimpack
