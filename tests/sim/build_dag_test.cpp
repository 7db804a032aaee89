// SPDX-License-Identifier: Apache-2.0
// What build_dag makes of a plan, and what it refuses.
#include "slimpack/sim/build_dag.hpp"

#include <doctest/doctest.h>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/hand_plan.hpp"
#include "slimpack/sim/dag.hpp"

using namespace slimpack;

namespace {

test::HandPlan two_stages() {
  test::HandPlan hand;
  hand.pp = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 B1 B3 R0 O", "F0 H0 B1 F2 H2 B3 R0 O"};
  return hand;
}

void refused(const Plan& plan, const char* what, const test::HandTimes& times = {}) {
  CHECK_THROWS_WITH_AS(static_cast<void>(sim::build_dag(plan, times)), what, InvalidInput);
}

}  // namespace

TEST_CASE("build_dag: nodes, names, resources and channels of two stages") {
  const sim::Dag dag = sim::build_dag(two_stages().plan(), test::HandTimes{});
  std::string names;
  for (std::size_t i = 0; i < dag.size(); ++i) {
    names += sim::node_name(dag, sim::NodeId{static_cast<std::uint32_t>(i)}) + "\n";
  }
  CHECK("\n" + names == R"(
dp 0 pp 0 F 0 chunk 0
message 0 from dp 0 pp 0 to pp 1, group 0 (F 0 chunk 0)
dp 0 pp 0 F 2 chunk 0
message 1 from dp 0 pp 0 to pp 1, group 0 (F 2 chunk 0)
dp 0 pp 0 B 1 chunk 0
dp 0 pp 0 B 3 chunk 0
dp 0 pp 0 O
dp 0 pp 1 F 0 chunk 0
dp 0 pp 1 H 0
dp 0 pp 1 B 1 chunk 0
message 0 from dp 0 pp 1 to pp 0, group 0 (B 1 chunk 0)
dp 0 pp 1 F 2 chunk 0
dp 0 pp 1 H 2
dp 0 pp 1 B 3 chunk 0
message 1 from dp 0 pp 1 to pp 0, group 0 (B 3 chunk 0)
dp 0 pp 1 O
pp 0 R chunk 0 bucket 0
pp 1 R chunk 0 bucket 0
)");
  REQUIRE(dag.devices.size() == 2);
  CHECK(dag.resources.size() == 6);
  REQUIRE(dag.channels.size() == 2);
  CHECK(dag.channels[1].pass == Pass::backward);
  CHECK(dag.channels[1].from_pp == 1);
  CHECK(dag.channels[1].to_pp == 0);
  CHECK(dag.channels[1].messages == 2);
  for (const sim::Resource& resource : dag.resources) CHECK_FALSE(resource.first_come);
  CHECK(dag.initial_memory.size() == 4);  // two receives are posted ahead on each side
}

TEST_CASE("build_dag: channels between the same devices in one direction use one link") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.chunks = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 F0.1 F2.1 B1.1 B3.1 B1 B3 R1 R0 O",
                 "F0 F2 F0.1 H0 B1.1 F2.1 H2 B3.1 B1 B3 R1 R0 O"};
  const sim::Dag dag = sim::build_dag(hand.plan(), test::HandTimes{});
  REQUIRE(dag.channels.size() == 4);
  CHECK(dag.channels[0].link == dag.channels[1].link);
  CHECK(dag.channels[2].link == dag.channels[3].link);
  CHECK(dag.channels[0].link != dag.channels[2].link);
  CHECK(dag.resources[index(dag.channels[0].link)].first_come);
}

TEST_CASE("build_dag: a bucket of R is labelled, and a part of its B releases it") {
  test::HandPlan hand;
  hand.stage_layers = 3;
  hand.sample_group = {0};
  hand.orders = {"F0 H0 B1 R0 O"};
  const sim::Dag dag = sim::build_dag(hand.plan(), test::HandTimes{});
  REQUIRE(dag.parts.size() == 2);
  CHECK(dag.label[index(dag.parts[0].whole)].kind == sim::NodeKind::backward);
  CHECK(dag.parts[1].numerator == 2);
  CHECK(dag.parts[1].denominator == 3);
  CHECK(sim::node_name(dag, dag.parts[1].node) == "bucket 1 of dp 0 pp 0 B 1 chunk 0");
  std::vector<std::uint32_t> buckets;
  for (const sim::NodeLabel& label : dag.label) {
    if (label.kind == sim::NodeKind::reduce) buckets.push_back(label.bucket);
  }
  CHECK(buckets == std::vector<std::uint32_t>{0, 1, 2});
}

TEST_CASE(
    "build_dag: a tied table makes the stages that hold it reduce their last bucket together") {
  Plan plan = two_stages().plan();
  plan.model.tied = true;
  test::HandTimes times;
  times.reduce_time = 10;
  const sim::Dag dag = sim::build_dag(plan, times);
  REQUIRE(dag.collectives.rows() == 1);
  CHECK(dag.collectives[0].size() == 2);
  for (const sim::NodeId node : dag.collectives[0]) {
    CHECK(dag.label[index(node)].kind == sim::NodeKind::reduce);
    CHECK(dag.duration[index(node)] == Nanos{10});
  }
  plan.model.tied = false;
  CHECK(sim::build_dag(plan, times).collectives.rows() == 0);
}

TEST_CASE("build_dag: refuses plans whose arrays do not fit together, naming the place") {
  Plan plan = two_stages().plan();
  const auto with = [&](auto&& change) {
    Plan changed = plan;
    change(changed);
    return changed;
  };
  refused(with([](Plan& p) { p.parallel.dp = 0; }), "build_dag: parallel.dp must be >= 1, got 0");
  refused(with([](Plan& p) { p.parallel.pp = 0; }), "build_dag: parallel.pp must be >= 1, got 0");
  refused(with([](Plan& p) { p.parallel.tp = 0; }), "build_dag: parallel.tp must be >= 1, got 0");
  refused(with([](Plan& p) { p.parallel.chunks = 0; }),
          "build_dag: parallel.chunks must be >= 1, got 0");
  refused(with([](Plan& p) { p.max_in_flight = 0; }), "build_dag: window must be >= 1, got 0");
  refused(with([](Plan& p) { p.memory.page_tokens = {}; }),
          "build_dag: memory.page_tokens must be >= 1, got 0");
  refused(with([](Plan& p) { p.memory.cp_block_tokens = {}; }),
          "build_dag: memory.share_tokens must be >= 1, got 0");
  refused(with([](Plan& p) { p.stages.pop_back(); }),
          "build_dag: stages must have one entry a stage and chunk, got 1");
  refused(with([](Plan& p) { std::swap(p.stages[0], p.stages[1]); }),
          "build_dag: stages[0] must be in the order of chunk, pp");
  refused(with([](Plan& p) { p.stages[1].end_layer = 0; }),
          "build_dag: stages[1] must have a number of layers >= 0, got -1");
  refused(with([](Plan& p) { p.groups[0].clear(); }), "build_dag: groups[0] must not be empty");
  refused(with([](Plan& p) { p.groups[0] = {1}; }),
          "build_dag: groups[0] must be ascending ranks below parallel.dp, got 1");
  refused(with([](Plan& p) { p.groups[0] = {0, 0}; }),
          "build_dag: groups[0] must be ascending ranks below parallel.dp, got 0");
  refused(with([](Plan& p) { p.sample_group.pop_back(); }),
          "build_dag: sample_group must have one entry a sample, got 1");
  refused(with([](Plan& p) { p.samples[1] = {}; }), "build_dag: samples[1] must be >= 1, got 0");
  refused(with([](Plan& p) { p.sample_group[1] = GroupId{5}; }),
          "build_dag: sample_group[1] must be a group, got 5");
  refused(with([](Plan& p) { p.micropacks[2].group = GroupId{5}; }),
          "build_dag: micropacks[2].group must be a group, got 5");
  refused(with([](Plan& p) { p.micropacks[2].slices[0].sample = SampleId{7}; }),
          "build_dag: micropacks[2] must hold known samples, got 7");
  refused(with([](Plan& p) {
            p.groups.push_back({0});
            p.sample_group[1] = GroupId{1};
          }),
          "build_dag: micropacks[2] must hold samples of its own group only, not sample, got 1");
  refused(with([](Plan& p) {
            p.parallel.dp = 2;
            p.groups = {{0, 1}};
            const std::vector<DeviceSchedule> first = p.schedule;
            for (DeviceSchedule device : first) {
              device.dp = 1;
              p.schedule.push_back(device);
            }
          }),
          "build_dag: micropacks[0].exchange must have one entry a slice, got 0");
  refused(with([](Plan& p) { p.schedule.pop_back(); }),
          "build_dag: schedule must have one entry a device, got 1");
  refused(with([](Plan& p) { std::swap(p.schedule[0], p.schedule[1]); }),
          "build_dag: schedule[0] must be sorted by dp, then pp");
}

TEST_CASE("build_dag: refuses slices that do not partition their sample") {
  const Plan plan = two_stages().plan();
  Plan changed = plan;
  changed.micropacks[2].slices[0].end = Tokens{3};
  refused(changed, "build_dag: the forward slices of sample 1 do not partition its 4 tokens");
  changed = plan;
  changed.micropacks[1].slices.push_back({SampleId{0}, Tokens{1}, Tokens{4}});
  refused(changed, "build_dag: the backward slices of sample 0 do not partition its 4 tokens");
  changed = plan;
  changed.micropacks[1].slices.clear();
  refused(changed, "build_dag: the backward slices of sample 0 do not partition its 4 tokens");
}

TEST_CASE("build_dag: refuses units that are wrong, missing or there twice") {
  const auto with_orders = [](const char* first, const char* second) {
    test::HandPlan hand = two_stages();
    hand.orders = {first, second};
    return hand.plan();
  };
  const char* first = "F0 F2 B1 B3 R0 O";
  const char* second = "F0 H0 B1 F2 H2 B3 R0 O";
  refused(
      with_orders("F0 F2 B1 B3.1 R0 O", second),
      "build_dag: unit 3 of device (dp 0, pp 0), B of MicroPack 3, chunk 1, must name a chunk of "
      "the plan");
  refused(
      with_orders("F0 F9 B1 B3 R0 O", second),
      "build_dag: unit 1 of device (dp 0, pp 0), F of MicroPack 9, chunk 0, must name a MicroPack "
      "of the plan");
  refused(
      with_orders("F0 F3 B1 B3 R0 O", second),
      "build_dag: unit 1 of device (dp 0, pp 0), F of MicroPack 3, chunk 0, must name a MicroPack "
      "of its pass");
  refused(with_orders("F0 H0 F2 B1 B3 R0 O", second),
          "build_dag: unit 1 of device (dp 0, pp 0), H of MicroPack 0, must be on the last stage, "
          "which alone has the head");
  refused(with_orders("F0 F2 F0 B1 B3 R0 O", second),
          "build_dag: dp 0 pp 0 F 0 chunk 0 is there twice");
  refused(with_orders(first, "F0 H0 H0 B1 F2 H2 B3 R0 O"),
          "build_dag: dp 0 pp 1 H 0 is there twice");
  refused(with_orders(first, "F0 H0 B1 F2 H2 B3 R0 R0 O"),
          "build_dag: dp 0 pp 1 R chunk 0 is there twice");
  refused(with_orders(first, "F0 H0 B1 H2 B3 R0 O"), "build_dag: dp 0 pp 1 never runs F 2 chunk 0");
  refused(with_orders("F0 F2 B3 R0 O", second), "build_dag: dp 0 pp 0 never runs B 1 chunk 0");
  refused(with_orders(first, "F0 H0 B1 F2 B3 R0 O"), "build_dag: dp 0 pp 1 never runs H 2");

  test::HandPlan hand;
  hand.dp = 2;
  hand.groups = {{0}, {1}};
  hand.sample_group = {0, 1};
  hand.orders = {"F0 H0 B1 F2 R0 O", "F2 H2 B3 R0 O"};
  refused(
      hand.plan(),
      "build_dag: unit 3 of device (dp 0, pp 0), F of MicroPack 2, chunk 0, must name a MicroPack "
      "of a group of its rank");
  hand.orders = {"F0 H0 B1 R0 O", "F2 H2 B3 O"};
  refused(hand.plan(), "build_dag: dp 1 pp 0 never runs R chunk 0");
  hand.orders = {"F0 H0 B1 O", "F2 H2 B3 R0 O"};
  refused(hand.plan(), "build_dag: dp 0 pp 0 never runs R chunk 0");
}

TEST_CASE("build_dag: refuses negative times") {
  const Plan plan = two_stages().plan();
  test::HandTimes times;
  times.unit = [](std::uint32_t pack, std::int32_t) { return pack == 1 ? -3 : 1; };
  refused(plan, "build_dag: the time of dp 0 pp 0 B 1 chunk 0 must be >= 0 ns, got -3", times);
  times = {};
  times.head_time = -1;
  refused(plan, "build_dag: the time of dp 0 pp 1 H 0 must be >= 0 ns, got -1", times);
  times = {};
  times.transfer_time = -1;
  refused(plan,
          "build_dag: the time of the transfer after dp 0 pp 0 F 0 chunk 0 must be >= 0 ns, got -1",
          times);
  times = {};
  times.reduce_time = -1;
  refused(plan, "build_dag: the time of pp 0 R chunk 0 must be >= 0 ns, got -1", times);
  times = {};
  times.optimizer_time = -1;
  refused(plan, "build_dag: the time of dp 0 pp 0 O must be >= 0 ns, got -1", times);
}
