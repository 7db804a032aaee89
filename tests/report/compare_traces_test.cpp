// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare_traces.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "report/measured.hpp"
#include "report/plans.hpp"
#include "slimpack/report/trace.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

StepTrace stretched(StepTrace trace, std::int64_t numerator, std::int64_t denominator) {
  const auto scale = [&](Nanos& time) {
    REQUIRE(time.value * numerator % denominator == 0);
    time = {time.value * numerator / denominator};
  };
  scale(trace.iteration);
  for (TracedUnit& traced : trace.units) scale(traced.begin), scale(traced.end);
  return trace;
}

report::TraceComparison matched(const StepTrace& predicted, const StepTrace& measured) {
  const auto answer = report::compare_traces(predicted, measured);
  if (const auto* mismatch = std::get_if<report::TraceMismatch>(&answer)) FAIL(mismatch->what);
  return std::get<report::TraceComparison>(answer);
}

std::string unmatched(const StepTrace& predicted, const StepTrace& measured) {
  const auto answer = report::compare_traces(predicted, measured);
  REQUIRE(std::holds_alternative<report::TraceMismatch>(answer));
  return std::get<report::TraceMismatch>(answer).what;
}

TEST_CASE("compare_traces: a plan compared with itself has ratio 1 and no error") {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const StepTrace trace = report::simulated_trace(plan, simulation);
    const report::TraceComparison same = matched(trace, trace);
    CHECK(same.iteration.ratio() == 1.0);
    CHECK(same.all.median_error == 0);
    CHECK(same.all.p95_error == 0);
    REQUIRE(same.devices.size() == simulation.dag.devices.size());
    for (std::size_t i = 0; i < same.devices.size(); ++i) {
      const report::ComparedDevice& device = same.devices[i];
      CHECK(device.dp == simulation.dag.devices[i].dp);
      CHECK(device.pp == simulation.dag.devices[i].pp);
      CHECK(device.busy ==
            report::ComparedTime{simulation.timeline.busy[i], simulation.timeline.busy[i]});
      CHECK(device.idle.predicted == simulation.timeline.makespan - device.busy.predicted);
      CHECK(device.idle.measured == device.idle.predicted);
      CHECK(device.end.predicted == device.end.measured);
    }
    std::int64_t count = 0;
    for (const auto& kind : same.kinds) {
      if (!kind) continue;
      count += kind->count;
      CHECK(kind->sum.predicted == kind->sum.measured);
    }
    CHECK(count == same.all.count);
    CHECK(same.worst.empty());

    // As if measured with nothing to wait for in reductions, which may be missing.
    const report::TraceComparison measured =
        matched(trace, report::measured_trace(plan, test::measured_units(simulation)));
    for (std::size_t i = 0; i < measured.devices.size(); ++i) {
      CHECK(measured.devices[i] == same.devices[i]);
    }
  }
}

TEST_CASE("compare_traces: what is measured twice or half as long as predicted") {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const StepTrace trace =
        stretched(report::simulated_trace(plan, sim::simulate_plan(plan)), 2, 1);
    for (const std::int64_t factor : {1, 4}) {
      const report::TraceComparison compared = matched(trace, stretched(trace, factor, 2));
      const double ratio = factor == 1 ? 2 : 0.5;
      const double error = factor == 1 ? 1 : 0.5;
      CHECK(compared.iteration.ratio() == ratio);
      CHECK(compared.all.sum.ratio() == ratio);
      CHECK(compared.all.p95_error == error);
      for (const auto& kind : compared.kinds) {
        if (kind && kind->sum.measured > Nanos{}) CHECK(kind->sum.ratio() == ratio);
      }
      for (const report::ComparedDevice& device : compared.devices) {
        if (device.busy.measured > Nanos{}) CHECK(device.busy.ratio() == ratio);
        if (device.end.measured > Nanos{}) CHECK(device.end.ratio() == ratio);
      }
      for (std::size_t i = 1; i < compared.worst.size(); ++i) {
        CHECK(compared.worst[i - 1].time.predicted >= compared.worst[i].time.predicted);
      }
    }
  }
}

/// F 0 takes 100 and 80, F 2 100 and 125, H 50 and 50, two buckets 6 together and 12, O 10 and 0.
struct HandTraces {
  StepTrace predicted{"by hand", 7, Nanos{300}, {}}, measured{"by hand", 7, Nanos{400}, {}};
  HandTraces() {
    const auto add = [](StepTrace& trace, Unit unit, std::int64_t begin, std::int64_t end) {
      trace.units.push_back({0, 1, unit, {}, {}, false, Nanos{begin}, Nanos{end}});
    };
    add(predicted, {UnitKind::forward, PackId{0}, 1}, 0, 100);
    add(predicted, {UnitKind::forward, PackId{2}, 1}, 100, 200);
    add(predicted, {UnitKind::head, PackId{2}, 0}, 200, 250);
    add(predicted, {UnitKind::reduce, {}, 1}, 200, 204);
    predicted.units.back().bucket = 0;
    add(predicted, {UnitKind::reduce, {}, 1}, 210, 212);
    predicted.units.back().bucket = 1;
    add(predicted, {UnitKind::optimizer, {}, 0}, 290, 300);
    add(measured, {UnitKind::forward, PackId{0}, 1}, 0, 80);
    add(measured, {UnitKind::forward, PackId{2}, 1}, 80, 205);
    add(measured, {UnitKind::head, PackId{2}, 0}, 205, 255);
    add(measured, {UnitKind::reduce, {}, 1}, 300, 312);
    add(measured, {UnitKind::optimizer, {}, 0}, 399, 399);
  }
};

TEST_CASE("compare_traces: figures of a step compared by hand, as data, text and JSON") {
  const HandTraces traces;
  const report::TraceComparison compared = matched(traces.predicted, traces.measured);
  CHECK(compared.iteration.ratio() == 0.75);
  const report::ComparedUnits forward{2, {Nanos{200}, Nanos{205}}, 0.2, 0.25};
  CHECK(compared.kinds[0] == forward);
  CHECK_FALSE(compared.kinds[1].has_value());
  CHECK(compared.kinds[2]->p95_error == 0);
  CHECK(compared.kinds[3]->sum == report::ComparedTime{Nanos{6}, Nanos{12}});
  CHECK(compared.kinds[3]->median_error == 0.5);
  CHECK(compared.kinds[4]->median_error == 10);  // over a nanosecond, as nothing was measured
  CHECK(compared.all.count == 5);
  CHECK(compared.all.median_error == 0.25);
  CHECK(compared.all.p95_error == 10);
  REQUIRE(compared.devices.size() == 1);
  CHECK(compared.devices[0] ==
        report::ComparedDevice{
            0, 1, {Nanos{260}, Nanos{255}}, {Nanos{40}, Nanos{145}}, {Nanos{300}, Nanos{399}}});
  REQUIRE(compared.worst.size() == 4);  // H differs by nothing
  CHECK(compared.worst[0].unit.pack == PackId{2});
  CHECK(compared.worst[0].time == report::ComparedTime{Nanos{100}, Nanos{125}});
  CHECK(compared.worst[3].unit.kind == UnitKind::reduce);

  std::ostringstream text;
  report::write_trace_comparison_text(text, compared);
  CHECK(text.str() ==
        R"(by hand, step 7: predicted 300 ns, measured 400 ns, predicted / measured 0.750

units  count  predicted  measured  ratio  median error      95 %
F          2     200 ns    205 ns  0.976        20.0 %    25.0 %
H          1      50 ns     50 ns  1.000         0.0 %     0.0 %
R          1       6 ns     12 ns  0.500        50.0 %    50.0 %
O          1      10 ns      0 ns      -      1000.0 %  1000.0 %
all        5     266 ns    267 ns  0.996        25.0 %  1000.0 %

device     busy predicted  measured  ratio  idle predicted  measured  ratio  end predicted  measured  ratio
dp 0 pp 1          260 ns    255 ns  1.020           40 ns    145 ns  0.276         300 ns    399 ns  0.752

differing most         predicted  measured  ratio
dp 0 pp 1 F 2 chunk 1     100 ns    125 ns  0.800
dp 0 pp 1 F 0 chunk 1     100 ns     80 ns  1.250
dp 0 pp 1 O                10 ns      0 ns      -
dp 0 pp 1 R chunk 1         6 ns     12 ns  0.500
)");

  std::ostringstream out;
  report::write_trace_comparison_json(out, compared);
  const auto json = nlohmann::json::parse(out.str());
  CHECK(json.at("format") == "slimpack-trace-comparison");
  CHECK(json.at("iteration").at("ratio") == 0.75);
  REQUIRE(json.at("kinds").size() == 5);
  CHECK(json.at("kinds")[0].at("kind") == "F");
  CHECK(json.at("kinds")[0].at("p95_error") == 0.25);
  CHECK(json.at("kinds")[3].at("ratio").is_null());
  CHECK(json.at("kinds")[4].at("kind") == "all");
  CHECK(json.at("devices")[0].at("idle").at("measured_s") == 145e-9);
  CHECK(json.at("worst")[0].at("pack") == 2);
  CHECK_FALSE(json.at("worst")[2].contains("pack"));
  CHECK_FALSE(json.at("worst")[2].contains("chunk"));
}

TEST_CASE("compare_traces: at most so many worst units, and nothing from nothing") {
  const HandTraces traces;
  const auto answer = report::compare_traces(traces.predicted, traces.measured, 2);
  CHECK(std::get<report::TraceComparison>(answer).worst.size() == 2);
  const report::TraceComparison nothing = matched(StepTrace{}, StepTrace{});
  CHECK(nothing.all.count == 0);
  CHECK(nothing.devices.empty());
  CHECK_FALSE(nothing.iteration.ratio().has_value());
}

TEST_CASE("compare_traces: traces that are not of one step say the first difference") {
  HandTraces traces;
  StepTrace other = traces.measured;
  other.units.pop_back();
  CHECK(unmatched(traces.predicted, other) ==
        "the traces must have the same units, but only the predicted one has dp 0 pp 1 O");
  other = traces.predicted;
  other.units[1].dp = 3;
  CHECK(
      unmatched(traces.predicted, other) ==
      "the traces must have the same units, but only the predicted one has dp 0 pp 1 F 2 chunk 1");
  CHECK(unmatched(StepTrace{"", 7, {}, {}}, traces.measured) ==
        "the traces must have the same units, but only the measured one has dp 0 pp 1 F 0 chunk 1");
  other = traces.measured;
  other.step = 8;
  CHECK(unmatched(traces.predicted, other) ==
        "the step must be the same, but is 7 in the predicted trace and 8 in the measured one");
  other = traces.measured;
  other.planner = "else";
  CHECK(unmatched(traces.predicted, other) ==
        "the plan must be the same, but planner is 'by hand' in the predicted trace and 'else' in "
        "the measured one");
  other.planner.clear();
  CHECK(matched(traces.predicted, other).planner == "by hand");
  traces.predicted.units[0].tokens = Tokens{128};
  other.units[0].tokens = Tokens{256};
  CHECK(
      unmatched(traces.predicted, other) ==
      "a unit must have the same tokens, but dp 0 pp 1 F 0 chunk 1 has 128 in the predicted trace "
      "and 256 in the measured one");
}

TEST_CASE("compare_traces: a reduction that one trace lacks took no time there") {
  HandTraces traces;
  traces.predicted.units.erase(traces.predicted.units.begin() + 3,
                               traces.predicted.units.begin() + 5);
  const report::TraceComparison compared = matched(traces.predicted, traces.measured);
  CHECK(compared.kinds[3]->sum == report::ComparedTime{Nanos{0}, Nanos{12}});
  CHECK(matched(traces.measured, traces.predicted).kinds[3]->sum ==
        report::ComparedTime{Nanos{12}, Nanos{0}});
}

}  // namespace
}  // namespace slimpack
