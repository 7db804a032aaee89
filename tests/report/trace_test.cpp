// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/trace.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "report/golden.hpp"
#include "report/plans.hpp"
#include "report/src/trace_events.hpp"
#include "report/src/trace_units.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/report/dag_text.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using Json = nlohmann::json;

std::string trace_of(const Plan& plan, const sim::PlanSimulation& simulation,
                     const report::TraceOptions& options = {}) {
  std::ostringstream out;
  report::write_trace(out, plan, simulation, options);
  return out.str();
}

std::int64_t from_micros(const Json& micros) {
  return std::llround(micros.get<double>() * 1000);
}

struct Span {
  std::int64_t begin, end;
  std::string name, category;
};
struct Trace {
  std::map<std::pair<int, int>, std::vector<Span>> threads;  // pid, tid
  std::map<std::pair<int, int>, std::string> names;          // pid, tid
  std::map<std::pair<int, std::string>, std::vector<std::pair<std::int64_t, Json>>> counters;
  std::set<int> processes;
};

Trace parse(const std::string& text) {
  Trace trace;
  const Json document = Json::parse(text);
  for (const Json& event : document.at("traceEvents")) {
    const int pid = event.at("pid");
    const std::string kind = event.at("ph");
    if (kind == "M") {
      if (event.at("name") == "thread_name") {
        CHECK(trace.names
                  .emplace(std::pair(pid, event.at("tid").get<int>()),
                           event.at("args").at("name").get<std::string>())
                  .second);
      } else if (event.at("name") == "process_name") {
        CHECK(trace.processes.insert(pid).second);
      }
    } else if (kind == "X") {
      const std::int64_t begin = from_micros(event.at("ts"));
      trace.threads[{pid, event.at("tid").get<int>()}].push_back(
          {begin, begin + from_micros(event.at("dur")), event.at("name"), event.at("cat")});
    } else {
      REQUIRE(kind == "C");
      trace.counters[{pid, event.at("name").get<std::string>()}].emplace_back(
          from_micros(event.at("ts")), event.at("args"));
    }
  }
  return trace;
}

TEST_CASE("write_trace: threads do not overlap, and say what the simulation says") {
  for (std::uint64_t seed = 0; seed < test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const sim::Timeline& timeline = simulation.timeline;
    Trace trace = parse(trace_of(plan, simulation));
    CHECK(trace.processes.size() == static_cast<std::size_t>(plan.parallel.dp));
    std::map<std::string, std::int64_t> spans;
    for (auto& [place, thread] : trace.threads) {
      CHECK(trace.processes.contains(place.first));
      CHECK(place.first > 0);
      CHECK(place.second > 0);
      REQUIRE(trace.names.contains(place));
      std::sort(thread.begin(), thread.end(), [](const Span& a, const Span& b) {
        return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
      });
      for (std::size_t i = 1; i < thread.size(); ++i) {
        CHECK(thread[i - 1].end <= thread[i].begin);
      }
      CHECK(thread.back().end <= timeline.makespan.value);
      for (const Span& span : thread) ++spans[span.category];
    }
    for (std::size_t i = 0; i < simulation.dag.devices.size(); ++i) {
      const sim::DagDevice& device = simulation.dag.devices[i];
      const auto sum = [&](report::detail::TraceStream stream) {
        std::int64_t time = 0;
        for (const Span& span :
             trace.threads[{static_cast<int>(report::detail::trace_process(device.dp)),
                            static_cast<int>(report::detail::trace_thread(plan.parallel.pp,
                                                                          device.pp, stream))}]) {
          time += span.end - span.begin;
        }
        return time;
      };
      CHECK(sum(report::detail::TraceStream::compute) == timeline.busy[i].value);
      CHECK(sum(report::detail::TraceStream::gap) == (timeline.makespan - timeline.busy[i]).value);
    }
    std::map<sim::NodeKind, std::int64_t> nodes;
    std::map<Pass, std::int64_t> sent;
    for (const sim::NodeLabel& label : simulation.dag.label) {
      ++nodes[label.kind];
      if (label.kind == sim::NodeKind::transfer) {
        ++sent[simulation.dag.channels[index(label.channel)].pass];
      }
    }
    CHECK(spans["forward"] == nodes[sim::NodeKind::forward]);
    CHECK(spans["backward"] == nodes[sim::NodeKind::backward]);
    CHECK(spans["weight"] == nodes[sim::NodeKind::weight]);
    CHECK(spans["head"] == nodes[sim::NodeKind::head]);
    CHECK(spans["optimizer"] == nodes[sim::NodeKind::optimizer]);
    CHECK(spans["activations"] == 2 * sent[Pass::forward]);
    CHECK(spans["gradients"] == 2 * sent[Pass::backward]);
  }
}

TEST_CASE("write_trace: memory counters rise to the peak and return to what is always there") {
  for (std::uint64_t seed = 0; seed < test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const Trace trace = parse(trace_of(plan, simulation, {.gaps = false, .memory = true}));
    for (std::size_t i = 0; i < simulation.dag.devices.size(); ++i) {
      const sim::DagDevice& device = simulation.dag.devices[i];
      const std::string stage = "stage " + std::to_string(device.pp) + " memory: ";
      const int pid = static_cast<int>(report::detail::trace_process(device.dp));
      const auto& curve = trace.counters.at({pid, stage + "total"});
      std::int64_t most = 0, last = -1;
      for (const auto& [when, value] : curve) {
        CHECK(when > last);
        last = when;
        most = std::max(most, value.at("bytes").get<std::int64_t>());
      }
      CHECK(curve.front().first == 0);
      CHECK(last == simulation.timeline.makespan.value);
      CHECK(most == simulation.timeline.peak[i].bytes.value);
      CHECK(curve.back().second.at("bytes") == sim::total(device.always).value);
      for (int kind = 0; kind < sim::kMemoryKinds; ++kind) {
        const auto found = trace.counters.find(
            {pid, stage + std::string(sim::to_string(static_cast<sim::MemoryKind>(kind)))});
        if (found == trace.counters.end()) continue;
        CHECK(found->second.back().second.at("bytes") ==
              device.always[static_cast<std::size_t>(kind)].value);
        for (const auto& point : found->second) CHECK(point.second.at("bytes") >= 0);
      }
    }
  }
}

TEST_CASE("write_trace: gaps and memory only where they are asked for") {
  const Plan plan = test::tiny_plan();
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  const std::string bare = trace_of(plan, simulation, {.gaps = false, .memory = false});
  CHECK(bare.find("gap") == std::string::npos);
  CHECK(bare.find("\"C\"") == std::string::npos);
  CHECK(Json::parse(bare).at("otherData").at("planner") == plan.planner);
}

TEST_CASE("write_trace, write_dag: the whole of a small plan") {
  const Plan plan = test::tiny_plan();
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  test::check_golden("tiny.trace.json", trace_of(plan, simulation));
  std::ostringstream dag;
  report::write_dag(dag, simulation.dag, simulation.timeline, plan.planner + ", step 3");
  test::check_golden("tiny.dag.txt", dag.str());
}

TEST_CASE("TraceWriter: odd names stay valid, the clock keeps each nanosecond") {
  std::ostringstream out;
  report::detail::TraceWriter trace(out);
  const std::string odd = "a\"b\\c\n\x01\xFF\xC3\xA9";
  trace.process(4, odd);
  trace.thread(4, 7, odd);
  const std::vector<report::detail::TraceArgument> arguments{{"text", odd},
                                                             {"number", std::int64_t{-5}}};
  trace.span(4, 7, odd, "forward", Nanos{1}, Nanos{123456789012345}, arguments);
  trace.counter(4, odd, Nanos{5}, arguments);
  CHECK_THROWS_WITH_AS(trace.span(4, 7, "x", "y", Nanos{5}, Nanos{4}),
                       "TraceWriter::span: begin must be <= end, got 5", InvalidInput);
  trace.finish(arguments);
  const Json document = Json::parse(out.str());
  const Json& events = document.at("traceEvents");
  REQUIRE(events.size() == 6);
  const std::string read = "a\"b\\c\n\x01\xEF\xBF\xBD\xC3\xA9";
  CHECK(events[0].at("args").at("name") == read);
  CHECK(events[4].at("name") == read);
  CHECK(events[4].at("pid") == 5);
  CHECK(events[4].at("tid") == 7);
  CHECK(events[4].at("args").at("text") == read);
  CHECK(events[4].at("args").at("number") == -5);
  CHECK(out.str().find("\"ts\": 0.001, \"dur\": 123456789012.344") != std::string::npos);
  CHECK(document.at("otherData").at("text") == read);
}

TEST_CASE("describe_slices: long packs are cut short") {
  MicroPack pack;
  for (std::uint32_t i = 0; i < 4; ++i) {
    pack.slices.push_back({SampleId{i}, Tokens{i}, Tokens{2 * i + 1}});
  }
  CHECK(report::detail::describe_slices(pack, 4) == "0:[0,1) 1:[1,3) 2:[2,5) 3:[3,7)");
  CHECK(report::detail::describe_slices(pack, 2) == "0:[0,1) 1:[1,3) and 2 more");
  CHECK(report::detail::describe_slices(MicroPack{}).empty());
}

}  // namespace
}  // namespace slimpack
