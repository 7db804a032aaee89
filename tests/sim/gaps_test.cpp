// SPDX-License-Identifier: Apache-2.0
// Gaps and critical paths of small plans, and jitter, solved by hand.
#include "slimpack/sim/bottlenecks.hpp"

#include <doctest/doctest.h>
#include <cstdint>
#include <sstream>
#include <string>

#include "sim/hand_plan.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/jitter.hpp"
#include "slimpack/sim/simulator.hpp"

using namespace slimpack;

namespace {

std::string gaps_of(const test::HandPlan& hand, const test::HandTimes& times, Bytes limit) {
  const sim::Dag dag = sim::build_dag(hand.plan(), times);
  const sim::Timeline timeline = sim::simulate(dag);
  std::ostringstream out;
  for (const sim::Gap& gap : sim::find_gaps(dag, timeline, limit).gaps) {
    const sim::DagDevice& device = dag.devices[index(gap.device)];
    out << "\ndp" << device.dp << " pp" << device.pp << " [" << gap.begin.value << ","
        << gap.end.value << ") " << sim::to_string(gap.cause);
    if (gap.instead) out << ", " << sim::node_name(dag, *gap.instead);
  }
  return out.str();
}

/// F take 2, B take 4.
test::HandTimes times() {
  test::HandTimes times;
  times.unit = [](std::uint32_t pack, std::int32_t) { return pack % 2 == 0 ? 2 : 4; };
  times.transfer_time = 3;
  times.reduce_time = 2;
  return times;
}

test::HandPlan three_samples() {
  test::HandPlan hand;
  hand.pp = 2;
  hand.max_in_flight = 1;
  hand.sample_group = {0, 0, 0};
  hand.orders = {"F0 F2 B1 F4 B3 B5 R0 O", "F0 H0 B1 F2 H2 B3 F4 H4 B5 R0 O"};
  return hand;
}

constexpr Bytes kPlenty{1'000'000};

}  // namespace

// Stage 0: F0[0,2) F2[5,7) B1[15,19) F4[19,21) B3[22,26) B5[34,38) O[40,41). F2 awaits the slot of
// message 0, which ends at 5. The gradient of B1 arrives at 15; F4 could have gone first when
// message 2, of F2, had ended at 10. Stage 1 ends O at 34.
TEST_CASE("find_gaps: messages in flight, peer and order, then the end of the step") {
  CHECK(gaps_of(three_samples(), times(), kPlenty) == R"(
dp0 pp0 [2,5) window
dp0 pp0 [7,10) peer
dp0 pp0 [10,15) order, dp 0 pp 0 F 4 chunk 0
dp0 pp0 [21,22) peer
dp0 pp0 [26,34) peer
dp0 pp0 [38,40) reduce
dp0 pp1 [0,5) fill
dp0 pp1 [19,24) peer
dp0 pp1 [31,33) drain
dp0 pp1 [34,38) drain
dp0 pp1 [38,41) reduce)");
}

// The same, but at no time of [10, 15) is there room for what F4 would hold.
TEST_CASE("find_gaps: what does not fit waits for memory") {
  const sim::Dag dag = sim::build_dag(three_samples().plan(), times());
  const sim::Timeline timeline = sim::simulate(dag);
  sim::MemoryCurves curves;
  static_cast<void>(sim::simulate(dag, curves));
  Bytes held, needed;
  for (const sim::MemoryPoint& point : curves.device[0]) {
    if (point.time <= Nanos{10}) held = point.bytes;
  }
  for (std::size_t i = 0; i < dag.size(); ++i) {
    if (sim::node_name(dag, sim::NodeId{static_cast<std::uint32_t>(i)}) != "dp 0 pp 0 F 4 chunk 0")
      continue;
    for (const sim::MemoryEvent& event :
         dag.memory_at(sim::NodeId{static_cast<std::uint32_t>(i)}, sim::Moment::start)) {
      needed += event.bytes;
    }
  }
  CHECK(needed > Bytes{});
  const auto cause_at_12 = [&](Bytes limit) {
    for (const sim::Gap& gap : sim::find_gaps(dag, timeline, limit).gaps) {
      if (gap.device == sim::DeviceId{0} && gap.begin <= Nanos{12} && Nanos{12} < gap.end) {
        return std::string(sim::to_string(gap.cause));
      }
    }
    return std::string("none");
  };
  CHECK(cause_at_12(held + needed) == "order");
  CHECK(cause_at_12(held + needed - Bytes{1}) == "memory");
}

// Rank 0 arrives at the shared F4 at 7, rank 1 has nothing before it. Rank 0 has nothing after H4
// until B5, which rank 1 reaches at 20.
TEST_CASE("find_gaps: meetings, and a rank that has ended while another works") {
  test::HandPlan hand;
  hand.dp = 2;
  hand.groups = {{0}, {1}, {0, 1}};
  hand.sample_group = {0, 1, 2};
  hand.orders = {"F0 H0 B1 F4 H4 B5 R0 O", "F2 F4 H4 H2 B5 B3 R0 O"};
  CHECK(gaps_of(hand, times(), kPlenty) == R"(
dp0 pp0 [10,11) meeting
dp0 pp0 [15,19) imbalance
dp0 pp0 [19,21) reduce
dp1 pp0 [2,7) meeting
dp1 pp0 [19,21) reduce)");
}

TEST_CASE("critical_path: each step with its reason") {
  const sim::Dag dag = sim::build_dag(three_samples().plan(), times());
  const sim::Timeline timeline = sim::simulate(dag);
  std::string text;
  for (const sim::PathStep& step : sim::critical_path(dag, timeline)) {
    text += "\n" + sim::node_name(dag, step.node) + " (" +
            std::string(sim::to_string(step.reason)) + ")";
  }
  CHECK(text == R"(
dp 0 pp 0 F 0 chunk 0 (start)
message 0 from dp 0 pp 0 to pp 1, group 0 (F 0 chunk 0) (data)
dp 0 pp 1 F 0 chunk 0 (data)
dp 0 pp 1 H 0 (resource)
dp 0 pp 1 B 1 chunk 0 (resource)
message 0 from dp 0 pp 1 to pp 0, group 0 (B 1 chunk 0) (data)
dp 0 pp 0 B 1 chunk 0 (data)
dp 0 pp 0 F 4 chunk 0 (resource)
message 2 from dp 0 pp 0 to pp 1, group 0 (F 4 chunk 0) (data)
dp 0 pp 1 F 4 chunk 0 (data)
dp 0 pp 1 H 4 (resource)
dp 0 pp 1 B 5 chunk 0 (resource)
message 2 from dp 0 pp 1 to pp 0, group 0 (B 5 chunk 0) (data)
dp 0 pp 0 B 5 chunk 0 (data)
pp 0 R chunk 0 bucket 0 (data)
dp 0 pp 0 O (data))");
}

// F 2'000'000, H 1'000'000, B 4'000'000, O 1'000'000 on one device; R 500'000 is never changed. B
// has three layers, so that R's last bucket goes when B ends.
TEST_CASE("draw_jitter: a slow device is slower by its part, R and releases follow") {
  test::HandPlan hand;
  hand.stage_layers = 3;
  hand.sample_group = {0};
  hand.orders = {"F0 H0 B1 R0 O"};
  test::HandTimes slow;
  slow.unit = [](std::uint32_t pack, std::int32_t) { return pack == 0 ? 2'000'000 : 4'000'000; };
  slow.head_time = slow.optimizer_time = 1'000'000;
  slow.reduce_time = 400'000;
  const sim::Dag dag = sim::build_dag(hand.plan(), slow);
  const sim::Timeline timeline = sim::simulate(dag);
  CHECK(timeline.makespan == Nanos{8'200'000});  // the last bucket is half of R
  sim::JitterOptions options;
  options.kind = sim::JitterKind::slow_device;
  options.parts_per_million = 250'000;
  options.draws = 3;
  const sim::Jitter jitter = sim::draw_jitter(dag, timeline, options);
  CHECK(jitter.planned == Nanos{8'200'000});
  CHECK(jitter.least == Nanos{10'200'000});
  CHECK(jitter.mean == Nanos{10'200'000});
  CHECK(jitter.most == Nanos{10'200'000});
  // With a long R its first bucket, released after a third of B, leads to the end.
  slow.reduce_time = 36'000'000;
  const sim::Dag long_dag = sim::build_dag(hand.plan(), slow);
  const sim::Timeline long_timeline = sim::simulate(long_dag);
  CHECK(long_timeline.makespan == Nanos{3'000'000 + 1'333'333 + 36'000'000 + 1'000'000});
  CHECK(sim::draw_jitter(long_dag, long_timeline, options).mean ==
        Nanos{3'750'000 + 1'666'666 + 36'000'000 + 1'250'000});
}

TEST_CASE("draw_jitter: the slowest of a collective counts") {
  test::HandPlan hand;
  hand.dp = 8;
  hand.groups = {{0, 1, 2, 3, 4, 5, 6, 7}};
  hand.sample_group = {0};
  hand.orders.assign(8, "F0 H0 B1 R0 O");
  test::HandTimes long_units;
  long_units.unit = [](std::uint32_t, std::int32_t) { return 1'000'000'000; };
  const sim::Dag dag = sim::build_dag(hand.plan(), long_units);
  sim::JitterOptions options;
  options.draws = 200;
  const sim::Jitter jitter = sim::draw_jitter(dag, sim::simulate(dag), options);
  // The mean of the largest of eight uniform draws from [-5 %, 5 %] is 5 % x 7/9.
  const double mean = static_cast<double>(jitter.mean.value) / 2e9 - 1;
  CHECK(mean == doctest::Approx(0.05 * 7 / 9).epsilon(0.05));
  CHECK(jitter.most.value <= 2'100'000'002);
}

TEST_CASE("draw_jitter: refuses options out of range") {
  const sim::Dag dag = sim::build_dag(three_samples().plan(), times());
  const sim::Timeline timeline = sim::simulate(dag);
  sim::JitterOptions options;
  options.draws = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(sim::draw_jitter(dag, timeline, options)),
                       "jitter: draws must be >= 1, got 0", InvalidInput);
  options = {};
  options.parts_per_million = 1'000'001;
  CHECK_THROWS_WITH_AS(static_cast<void>(sim::draw_jitter(dag, timeline, options)),
                       "jitter must be between 0 and 1000000 parts per million, got 1000001",
                       InvalidInput);
}
