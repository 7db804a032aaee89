// SPDX-License-Identifier: Apache-2.0
// Plans that never end, and what is said of them.
#include <doctest/doctest.h>
#include <utility>

#include "sim/hand_plan.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/dag_builder.hpp"
#include "slimpack/sim/simulator.hpp"

using namespace slimpack;

namespace {

void never_ends(const test::HandPlan& hand, const char* what) {
  const sim::Dag dag = sim::build_dag(hand.plan(), test::HandTimes{});
  CHECK_THROWS_WITH_AS(static_cast<void>(sim::simulate(dag)), what, Deadlock);
}

}  // namespace

TEST_CASE("simulate: a B before the H it needs") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 B1 B3 R0 O", "F0 H0 F2 B1 B3 H2 R0 O"};
  never_ends(
      hand,
      "the plan never ends: dp 0 pp 0 B 3 chunk 0 awaits message 1 from dp 0 pp 1 to pp 0, "
      "group 0 (B 3 chunk 0); message 1 from dp 0 pp 1 to pp 0, group 0 (B 3 chunk 0) awaits "
      "dp 0 pp 1 B 3 chunk 0; dp 0 pp 1 B 3 chunk 0 awaits dp 0 pp 1 H 2");
}

TEST_CASE("simulate: two stages in orders that wait for each other") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 B1 F2 B3 R0 O", "F2 H2 F0 H0 B1 B3 R0 O"};
  never_ends(
      hand,
      "the plan never ends: dp 0 pp 0 B 1 chunk 0 awaits message 0 from dp 0 pp 1 to pp 0, "
      "group 0 (B 1 chunk 0); message 0 from dp 0 pp 1 to pp 0, group 0 (B 1 chunk 0) awaits "
      "dp 0 pp 1 B 1 chunk 0; dp 0 pp 1 F 2 chunk 0 awaits message 1 from dp 0 pp 0 to pp 1, "
      "group 0 (F 2 chunk 0); message 1 from dp 0 pp 0 to pp 1, group 0 (F 2 chunk 0) awaits "
      "dp 0 pp 0 F 2 chunk 0");
}

TEST_CASE("simulate: a consumer out of order ends with two messages in flight, never with one") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 B1 B3 R0 O", "F2 H2 F0 H0 B1 B3 R0 O"};
  hand.max_in_flight = 1;
  never_ends(
      hand,
      "the plan never ends: dp 0 pp 0 B 1 chunk 0 awaits message 0 from dp 0 pp 1 to pp 0, "
      "group 0 (B 1 chunk 0); message 0 from dp 0 pp 1 to pp 0, group 0 (B 1 chunk 0) awaits "
      "dp 0 pp 1 B 1 chunk 0; dp 0 pp 1 F 2 chunk 0 awaits message 1 from dp 0 pp 0 to pp 1, "
      "group 0 (F 2 chunk 0); message 1 from dp 0 pp 0 to pp 1, group 0 (F 2 chunk 0) awaits "
      "dp 0 pp 1 F 0 chunk 0");
  hand.max_in_flight = 2;
  CHECK(sim::simulate(sim::build_dag(hand.plan(), test::HandTimes{})).makespan > Nanos{});
}

TEST_CASE("simulate: ranks of a group reach collectives in different orders") {
  test::HandPlan hand;
  hand.dp = 2;
  hand.groups = {{0, 1}};
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 H0 H2 B1 B3 R0 O", "F2 F0 H0 H2 B1 B3 R0 O"};
  never_ends(hand,
             "the plan never ends: dp 0 pp 0 F 0 chunk 0 awaits dp 1 pp 0 F 2 chunk 0; dp 1 pp 0 F "
             "2 chunk 0 awaits dp 0 pp 0 F 0 chunk 0");
}

TEST_CASE("simulate: O before an R, and R in different orders") {
  test::HandPlan hand;
  hand.dp = 2;
  hand.groups = {{0, 1}};
  hand.sample_group = {0};
  hand.orders = {"F0 H0 B1 O R0", "F0 H0 B1 R0 O"};
  never_ends(hand,
             "the plan never ends: dp 0 pp 0 O awaits pp 0 R chunk 0 bucket 0; pp 0 R chunk 0 "
             "bucket 0 awaits dp 0 pp 0 O; dp 1 pp 0 O awaits pp 0 R chunk 0 bucket 0");
  hand.chunks = 2;
  hand.groups = {{0}, {1}};
  hand.sample_group = {0, 1};
  hand.orders = {"F0 F0.1 H0 B1.1 B1 R1 R0 O", "F2 F2.1 H2 B3.1 B3 R0 R1 O"};
  never_ends(hand,
             "the plan never ends: dp 0 pp 0 O awaits pp 0 R chunk 1 bucket 0, pp 0 R chunk 0 "
             "bucket 0; pp 0 R chunk 1 bucket 0 awaits pp 0 R chunk 0 bucket 0; pp 0 R chunk 0 "
             "bucket 0 awaits pp 0 R chunk 1 bucket 0; dp 1 pp 0 O awaits pp 0 R chunk 1 bucket 0, "
             "pp 0 R chunk 0 bucket 0");
}

TEST_CASE("simulate: a cycle that no device is part of") {
  sim::DagBuilder builder;
  sim::NodeLabel label;
  label.kind = sim::NodeKind::release;
  const sim::NodeId a = builder.add_node(Nanos{1}, sim::kNoResource, label);
  label.bucket = 1;
  const sim::NodeId b = builder.add_node(Nanos{1}, sim::kNoResource, label);
  builder.add_edge(a, b);
  builder.add_edge(b, a);
  const sim::Dag dag = std::move(builder).finish();
  CHECK_THROWS_WITH_AS(static_cast<void>(sim::simulate(dag)),
                       "the plan never ends: bucket 0 of dp 0 pp 0 B 0 chunk 0 awaits bucket 1 of "
                       "dp 0 pp 0 B 0 chunk 0; bucket 1 of dp 0 pp 0 B 0 chunk 0 awaits bucket 0 "
                       "of dp 0 pp 0 B 0 chunk 0",
                       Deadlock);
}
