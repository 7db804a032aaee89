// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/trace_json.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/report/trace.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack::trace_json_test {
namespace {

TEST_CASE("trace_from_json: a written trace reads back to the nanosecond") {
  for (std::uint64_t seed = 0; seed < test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    std::ostringstream out;
    report::write_trace(out, plan, simulation);
    CHECK(trace_from_json(out.str(), "trace.json") == report::simulated_trace(plan, simulation));

    std::vector<report::MeasuredUnit> units;
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      Nanos now{static_cast<std::int64_t>(seed)};
      for (std::size_t unit = 0; unit < plan.schedule[device].order.size(); ++unit) {
        const Nanos end = now + Nanos{static_cast<std::int64_t>(unit * unit * 123457)};
        units.push_back({device, unit, now, end});
        now = end + Nanos{7};
      }
    }
    std::ostringstream measured;
    report::write_measured_trace(measured, plan, units);
    CHECK(trace_from_json(measured.str(), "trace.json") == report::measured_trace(plan, units));
  }
}

TEST_CASE("trace_from_json: what is no unit is passed over, what is not told is left") {
  const StepTrace trace = trace_from_json(R"({"traceEvents": [
    {"ph": "M", "name": "process_name"}, {"ph": "X", "name": "no category", "ts": "odd"},
    {"ph": "X", "cat": "gap", "pid": "odd"}, {"ph": "C", "name": "memory"},
    {"ph": "X", "cat": "optimizer", "pid": 3, "ts": 1.5, "dur": 2.0004, "args": {"stage": 1}},
    {"ph": "X", "cat": "reduce", "pid": 3, "ts": 0, "dur": 1999999999999.999,
     "args": {"stage": 1, "chunk": 2}}]})",
                                          "t");
  CHECK(trace.planner.empty());
  CHECK(trace.step == 0);
  CHECK(trace.iteration == Nanos{1999999999999999});
  REQUIRE(trace.units.size() == 2);
  CHECK(trace.units[0] ==
        TracedUnit{2, 1, {UnitKind::optimizer, {}, 0}, {}, {}, false, Nanos{1500}, Nanos{3500}});
  CHECK(trace.units[1].unit == Unit{UnitKind::reduce, {}, 2});
}

TEST_CASE("trace_from_json: faults name file, place, rule and value") {
  const auto refuse = [](const std::string& text, const std::string& sentence) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(static_cast<void>(trace_from_json(text, "t.json")), sentence.c_str(),
                         InvalidInput);
  };
  const auto event = [](const std::string& category, const std::string& rest) {
    return R"({"traceEvents": [{"ph": "X", "cat": ")" + category + "\", " + rest + "}]}";
  };
  refuse("[]", "t.json: must be an object, found an array of 0");
  refuse("{}", "t.json: the key 'traceEvents' is missing");
  refuse(R"({"traceEvents": {}})", "t.json: traceEvents: must be an array, found an object");
  refuse(R"({"traceEvents": []})", "t.json: traceEvents: there must be an event of a unit");
  refuse(R"({"traceEvents": [3]})", "t.json: traceEvents[0]: must be an object, found 3");
  refuse(R"({"traceEvents": [{}]})", "t.json: traceEvents[0]: the key 'ph' is missing");
  refuse(R"({"traceEvents": [{"ph": 1}]})", "t.json: traceEvents[0].ph: must be a string, found 1");
  refuse(event("head", R"("ts": 0)"), "t.json: traceEvents[0]: the key 'args' is missing");
  refuse(event("head", R"("pid": 1, "args": {})"),
         "t.json: traceEvents[0].args: the key 'stage' is missing");
  refuse(event("head", R"("pid": 0, "args": {"stage": 0})"),
         "t.json: traceEvents[0].pid: must be an integer in 1 .. 2147483646, found 0");
  refuse(event("head", R"("args": {"dp": 0, "stage": -1})"),
         "t.json: traceEvents[0].args.stage: must be an integer in 0 .. 2147483646, found -1");
  refuse(event("forward", R"("args": {"dp": 0, "stage": 0, "pack": "x"})"),
         "t.json: traceEvents[0].args.pack: must be an integer in 0 .. 4294967294, found 'x'");
  refuse(event("forward", R"("args": {"dp": 0, "stage": 0, "pack": 1})"),
         "t.json: traceEvents[0].args: the key 'chunk' is missing");
  const std::string place = R"("args": {"dp": 0, "stage": 0})";
  refuse(event("optimizer", place + R"(, "ts": -1, "dur": 0)"),
         "t.json: traceEvents[0].ts: must be a number in 0.0 .. 2000000000000.0, found -1");
  refuse(event("optimizer", place + R"(, "ts": 0, "dur": 1e13)"),
         "t.json: traceEvents[0].dur: must be a number in 0.0 .. 2000000000000.0, found "
         "10000000000000.0");
  const std::string whole = R"({"ph": "X", "cat": "optimizer", "ts": 1, "dur": 2, )" + place + "}";
  refuse(
      R"({"traceEvents": [{"ph": "M"}, )" + whole + ", " + whole + "]}",
      "t.json: traceEvents[2]: a unit must be there once, but traceEvents[1] is of the same unit "
      "and device");
  refuse(R"({"traceEvents": [)" + whole + R"(], "otherData": {"iteration_ns": 2999}})",
         "t.json: otherData.iteration_ns: must be an integer in 3000 .. 4000000000000000, found "
         "2999");
  std::string many = R"({"traceEvents": [)";
  for (int stage = 0; stage < 4612; ++stage) {
    many +=
        R"({"ph": "X", "cat": "optimizer", "pid": 1, "ts": 0, "dur": 2e12, "args": {"stage": )" +
        std::to_string(stage) + (stage < 4611 ? "}}, " : "}}]}");
  }
  refuse(many,
         "t.json: traceEvents[4611].dur: the durations of all units must sum up within 63 bits of "
         "nanoseconds, found 2000000000000.0");
  CHECK_THROWS_AS(static_cast<void>(trace_from_json("{\"traceEvents\": [", "t.json")),
                  InvalidInput);
  CHECK_THROWS_AS(static_cast<void>(read_trace_file("/nowhere/trace.json")), InvalidInput);
}

TEST_CASE("trace_from_json: damaged text is read or refused, never worse") {
  const Plan plan = test::random_plan(3);
  std::ostringstream out;
  report::write_trace(out, plan, sim::simulate_plan(plan));
  const std::string trace = out.str();
  constexpr std::string_view kBytes = "{}[]\",:0-9eE.X";
  int refused = 0;
  for (std::uint64_t seed = 0; seed < test::draws(300U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::string damaged = trace;
    for (int change = 0; change < 3; ++change) {
      damaged[random.below(damaged.size())] = kBytes[random.below(kBytes.size())];
    }
    if (random.chance(1, 4)) damaged.resize(random.below(damaged.size()));
    try {
      static_cast<void>(trace_from_json(damaged, "t.json"));
    } catch (const InvalidInput& error) {
      ++refused;
      CHECK(std::string(error.what()).starts_with("t.json: "));
    }
  }
  CHECK(refused > test::draws(100));
}

}  // namespace
}  // namespace slimpack::trace_json_test
