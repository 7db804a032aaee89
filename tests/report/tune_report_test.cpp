// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tune_report.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/report/sweep.hpp"

using namespace slimpack;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

/// One step of 4 s of work, and what comes on top of it.
report::TunedDegrees tuned_with(planners::Degrees degrees,
                                std::vector<std::pair<std::size_t, std::int64_t>> more) {
  report::TunedDegrees tuned;
  tuned.degrees = degrees;
  tuned.split.time[0] = Nanos{4 * kSecond};
  for (const auto& [cause, seconds] : more) tuned.split.time[cause] = Nanos{seconds * kSecond};
  tuned.time = tuned.split.total();
  report::ComparedPlan entry;
  entry.settings = {{"recompute", "light"}};
  entry.metrics = report::Metrics{};
  entry.metrics->iteration = *tuned.time;
  tuned.steps.push_back(entry);
  return tuned;
}

report::TunedDegrees lacking(planners::Degrees degrees, bool skipped) {
  report::TunedDegrees tuned;
  tuned.degrees = degrees;
  tuned.skipped = skipped;
  tuned.why = "luck: needed 2, available 1";
  return tuned;
}

constexpr auto kRecomputeCause = static_cast<std::size_t>(report::TimeShare::recompute);
constexpr auto kFill = report::kTimeShares + static_cast<std::size_t>(sim::GapCause::fill);
constexpr auto kReduce = report::kTimeShares + static_cast<std::size_t>(sim::GapCause::reduce);

report::TuneReport two_batches() {
  report::TuneReport report;
  report.devices = 4;
  report.task.model = "small";
  report.task.cluster = "desk";
  report.batches = {{Tokens{1000}, {{0, 2, Tokens{1000}}}}, {Tokens{2000}, {{0, 4, Tokens{2000}}}}};
  report::Tuning small;
  small.planner = "one";
  small.tried = {tuned_with({4, 1, 1}, {{kRecomputeCause, 1}}),
                 tuned_with({2, 2, 1}, {{kFill, 3}, {kReduce, 1}}), lacking({1, 4, 1}, false),
                 lacking({1, 1, 4}, true)};
  report::Tuning large = small;
  large.tried = {tuned_with({4, 1, 1}, {{kReduce, 2}})};
  report.results = {{0, small}, {1, large}};
  return report;
}

template <class Write>
std::string written_by(const Write& write) {
  std::ostringstream out;
  write(out);
  return out.str();
}

}  // namespace

TEST_CASE("tuned_ranking: most tokens a second first, infeasible ones left out") {
  const report::TuneReport report = two_batches();
  CHECK(report::tuned_ranking(report) == std::vector<report::TunedPlace>{{1, 0}, {0, 0}, {0, 1}});
  CHECK(report::tuned_ranking(report::TuneReport{}).empty());
}

TEST_CASE("why_lost: the largest causes of the difference, for as many tokens") {
  const report::TuneReport report = two_batches();
  CHECK(report::why_lost(report, {0, 0}, {0, 1}) ==
        "dp 2 x pp 2 x tp 1, 1.000 K tokens a step takes 60.00 % longer than dp 4 x pp 1 x tp 1, "
        "1.000 K tokens a step: 3.000 s more filling of the pipeline, 1.000 s more reduction of "
        "gradients, 1.000 s less recomputation");
  CHECK(report::why_lost(report, {1, 0}, {0, 0}) ==
        "dp 4 x pp 1 x tp 1, 1.000 K tokens a step takes 66.67 % longer than dp 4 x pp 1 x tp 1, "
        "2.000 K tokens a step for as many tokens: 4.000 s more work, 2.000 s more recomputation, "
        "2.000 s less reduction of gradients");
}

TEST_CASE("tuning: table and JSON rank all degrees and name what the others lack") {
  const report::TuneReport report = two_batches();
  const std::string table = written_by([&](auto& out) { report::write_tuning_text(out, report); });
  CHECK(table.find("small on 4 devices of desk") != std::string::npos);
  CHECK(table.find("best: dp 4 x pp 1 x tp 1, 2.000 K tokens a step: recompute light\n") !=
        std::string::npos);
  CHECK(table.find("runner-up: dp 4 x pp 1 x tp 1, 1.000 K tokens") != std::string::npos);
  const std::string json = written_by([&](auto& out) { report::write_tuning_json(out, report); });
  CHECK(json.find("\"best\": {\"planner\": \"one\", \"batch\": 1, \"dp\": 4") != std::string::npos);
  CHECK(json.find("\"skipped\": true") != std::string::npos);
  CHECK(json.find("\"why\": \"luck: needed 2, available 1\"") != std::string::npos);

  report::TuneReport none = report;
  none.batches.pop_back();
  none.results.pop_back();
  none.results[0].tuning.tried.erase(none.results[0].tuning.tried.begin(),
                                     none.results[0].tuning.tried.begin() + 2);
  const std::string table_of_none =
      written_by([&](auto& out) { report::write_tuning_text(out, none); });
  CHECK(table_of_none.find("1 x 4 x 1     infeasible: luck") != std::string::npos);
  CHECK(table_of_none.find("1 x 1 x 4     skipped: luck") != std::string::npos);
  CHECK(written_by([&](auto& out) {
          report::write_tuning_json(out, none);
        }).find("\"best\": null") != std::string::npos);
}

TEST_CASE("sweep_points: every combination, the last axis running fastest") {
  using Points = std::vector<std::vector<std::string>>;
  CHECK(report::sweep_points({}) == Points{{}});
  CHECK(report::sweep_points({{"a", {"1", "2"}}, {"b", {"x", "y"}}}) ==
        Points{{"1", "x"}, {"1", "y"}, {"2", "x"}, {"2", "y"}});
  CHECK_THROWS_WITH_AS(static_cast<void>(report::sweep_points({{"a", {}}})),
                       "sweep: an axis must have a value, got 'a'", InvalidInput);
  const report::SweepAxis wide{"a", std::vector<std::string>(1000, "1")};
  CHECK_THROWS_WITH_AS(static_cast<void>(report::sweep_points({wide, wide})),
                       "sweep: there must be at most 100000 points", InvalidInput);
}

TEST_CASE("sweep: a row for each point and planner, with why where there is no plan") {
  report::Sweep sweep;
  sweep.axes = {{"pp", {"1", "2"}}};
  for (const std::string pp : {"1", "2"}) {
    report::SweepPoint point{{pp}, {}};
    point.comparison.steps = {{0, 1, Tokens{10}}};
    report::ComparedPlan entry;
    entry.planner = "one";
    if (pp == "1") {
      entry.metrics = report::Metrics{};
      entry.metrics->iteration = Nanos{kSecond};
    } else {
      entry.why = "luck, needed";
    }
    point.comparison.results.push_back(entry);
    sweep.points.push_back(std::move(point));
  }
  const std::string table = written_by([&](auto& out) { report::write_sweep_text(out, sweep); });
  CHECK(table.find("\n1       one       1.0000") != std::string::npos);
  CHECK(table.find("\n2       one  infeasible: luck, needed\n") != std::string::npos);
  const std::string csv = written_by([&](auto& out) { report::write_sweep_csv(out, sweep); });
  CHECK(csv.starts_with("pp,planner,steps,feasible_steps,why,settings,iteration_s,"));
  CHECK(csv.find("\n1,one,1,1,,,1,") != std::string::npos);
  CHECK(csv.find("\n2,one,1,0,\"luck, needed\",,,,,,,,,0\n") != std::string::npos);
  const std::string json = written_by([&](auto& out) { report::write_sweep_json(out, sweep); });
  CHECK(json.find("\"at\": {\"pp\": \"2\"}") != std::string::npos);
}
