// SPDX-License-Identifier: Apache-2.0
// Whole timelines solved by hand.
#include <doctest/doctest.h>
#include <cstdint>
#include <string>

#include "sim/hand_plan.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/sim/simulator.hpp"

using namespace slimpack;

namespace {

std::string solve(const test::HandPlan& hand, const test::HandTimes& times) {
  const sim::Dag dag = sim::build_dag(hand.plan(), times);
  return "\n" + test::timeline_text(dag, sim::simulate(dag));
}

/// Forward packs take 2, 3, 4, .. by sample; backward packs twice as much.
test::HandTimes unequal() {
  test::HandTimes times;
  times.unit = [](std::uint32_t pack, std::int32_t) -> std::int64_t {
    const std::int64_t forward = 2 + static_cast<std::int64_t>(pack / 2);
    return pack % 2 == 0 ? forward : 2 * forward;
  };
  times.transfer_time = 1;
  times.reduce_time = 2;
  return times;
}

}  // namespace

TEST_CASE("simulate: 1F1B on two stages with unequal units") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 B1 B3 R0 O", "F0 H0 B1 F2 H2 B3 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) F2[2,5) B1[11,15) B3[21,27) O[29,30)
dp0 pp1: F0[3,5) H0[5,6) B1[6,10) F2[10,13) H2[13,14) B3[14,20) O[22,23)
dp0 0>1: 0[2,3) 2[5,6)
dp0 1>0: 1[10,11) 3[20,21)
R pp0: 0/0[27,29)
R pp1: 0/0[20,22)
)");
}

TEST_CASE("simulate: 1F1B on three stages with unequal units") {
  test::HandPlan hand;
  hand.pp = 3;
  hand.sample_group = {0, 0, 0};
  hand.orders = {"F0 F2 F4 B1 B3 B5 R0 O", "F0 F2 B1 F4 B3 B5 R0 O",
                 "F0 H0 B1 F2 H2 B3 F4 H4 B5 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) F2[2,5) F4[5,9) B1[19,23) B3[31,37) B5[46,54) O[56,57)
dp0 pp1: F0[3,5) F2[6,9) B1[14,18) F4[18,22) B3[24,30) B5[37,45) O[47,48)
dp0 pp2: F0[6,8) H0[8,9) B1[9,13) F2[13,16) H2[16,17) B3[17,23) F4[23,27) H4[27,28) B5[28,36) O[38,39)
dp0 0>1: 0[2,3) 2[5,6) 4[9,10)
dp0 1>2: 0[5,6) 2[9,10) 4[22,23)
dp0 1>0: 1[18,19) 3[30,31) 5[45,46)
dp0 2>1: 1[13,14) 3[23,24) 5[36,37)
R pp0: 0/0[54,56)
R pp1: 0/0[45,47)
R pp2: 0/0[36,38)
)");
}

TEST_CASE("simulate: on shared links messages to both neighbours take turns") {
  test::HandPlan hand;
  hand.pp = 3;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 B1 B3 R0 O", "F0 B1 F2 B3 R0 O", "F0 H0 B1 F2 H2 B3 R0 O"};
  test::HandTimes times;
  times.transfer_time = 4;
  times.unit = [](std::uint32_t, std::int32_t stage) { return stage == 1 ? 1 : 2; };
  Plan plan = hand.plan();
  plan.placement = {{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 2, 0, 2}};
  const auto text = [&] {
    const sim::Dag dag = sim::build_dag(plan, times);
    return "\n" + test::timeline_text(dag, sim::simulate(dag));
  };
  plan.cluster.devices_per_node = 8;
  plan.cluster.inside = {2e9, 0};
  plan.cluster.between = {1e9, 0};
  const std::string apart = text();
  CHECK(apart == R"(
dp0 pp0: F0[0,2) F2[2,4) B1[25,27) B3[40,42) O[42,43)
dp0 pp1: F0[6,7) B1[20,21) F2[21,22) B3[35,36) O[36,37)
dp0 pp2: F0[11,13) H0[13,14) B1[14,16) F2[26,28) H2[28,29) B3[29,31) O[31,32)
dp0 0>1: 0[2,6) 2[6,10)
dp0 1>2: 0[7,11) 2[22,26)
dp0 1>0: 1[21,25) 3[36,40)
dp0 2>1: 1[16,20) 3[31,35)
R pp0: 0/0[42,42)
R pp1: 0/0[36,36)
R pp2: 0/0[31,31)
)");
  plan.cluster.small.shared_links = true;
  CHECK(text() == R"(
dp0 pp0: F0[0,2) F2[2,4) B1[25,27) B3[43,45) O[45,46)
dp0 pp1: F0[6,7) B1[20,21) F2[21,22) B3[38,39) O[39,40)
dp0 pp2: F0[11,13) H0[13,14) B1[14,16) F2[29,31) H2[31,32) B3[32,34) O[34,35)
dp0 0>1: 0[2,6) 2[6,10)
dp0 1>: 0[7,11) 1[21,25) 2[25,29) 3[39,43)
dp0 2>1: 1[16,20) 3[34,38)
R pp0: 0/0[45,45)
R pp1: 0/0[39,39)
R pp2: 0/0[34,34)
)");
  // The last stage is on another node, so that the way there is another link.
  plan.cluster.devices_per_node = 2;
  CHECK(text() == apart);
}

TEST_CASE("simulate: 1F1B on four stages with unequal units") {
  test::HandPlan hand;
  hand.pp = 4;
  hand.sample_group = {0, 0, 0, 0};
  hand.orders = {"F0 F2 F4 F6 B1 B3 B5 B7 R0 O", "F0 F2 F4 B1 F6 B3 B5 B7 R0 O",
                 "F0 F2 B1 F4 B3 F6 B5 B7 R0 O", "F0 H0 B1 F2 H2 B3 F4 H4 B5 F6 H6 B7 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) F2[2,5) F4[5,9) F6[9,14) B1[27,31) B3[41,47) B5[58,66) B7[78,88) O[90,91)
dp0 pp1: F0[3,5) F2[6,9) F4[10,14) B1[22,26) F6[26,31) B3[34,40) B5[49,57) B7[67,77) O[79,80)
dp0 pp2: F0[6,8) F2[10,13) B1[17,21) F4[21,25) B3[27,33) F6[33,38) B5[40,48) B7[56,66) O[68,69)
dp0 pp3: F0[9,11) H0[11,12) B1[12,16) F2[16,19) H2[19,20) B3[20,26) F4[26,30) H4[30,31) B5[31,39) F6[39,44) H6[44,45) B7[45,55) O[57,58)
dp0 0>1: 0[2,3) 2[5,6) 4[9,10) 6[14,15)
dp0 1>2: 0[5,6) 2[9,10) 4[14,15) 6[31,32)
dp0 1>0: 1[26,27) 3[40,41) 5[57,58) 7[77,78)
dp0 2>3: 0[8,9) 2[13,14) 4[25,26) 6[38,39)
dp0 2>1: 1[21,22) 3[33,34) 5[48,49) 7[66,67)
dp0 3>2: 1[16,17) 3[26,27) 5[39,40) 7[55,56)
R pp0: 0/0[88,90)
R pp1: 0/0[77,79)
R pp2: 0/0[66,68)
R pp3: 0/0[55,57)
)");
}

// R of chunk 1 follows B of chunk 0, so it is released as a whole when it is queued.
TEST_CASE("simulate: two chunks a stage, activations and gradients on one link") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.chunks = 2;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 F0.1 F2.1 B1.1 B3.1 B1 B3 R1 R0 O",
                 "F0 F2 F0.1 H0 B1.1 F2.1 H2 B3.1 B1 B3 R1 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) F2[2,5) F0.1[6,8) F2.1[10,13) B1.1[17,21) B3.1[27,33) B1[33,37) B3[41,47) O[51,52)
dp0 pp1: F0[3,5) F2[6,9) F0.1[9,11) H0[11,12) B1.1[12,16) F2.1[16,19) H2[19,20) B3.1[20,26) B1[26,30) B3[34,40) O[44,45)
dp0 0>1: 0[2,3) 2[5,6) 0.1[8,9) 2.1[13,14) 1.1[21,22) 3.1[33,34)
dp0 1>0: 0[5,6) 2[9,10) 1.1[16,17) 3.1[26,27) 1[30,31) 3[40,41)
R pp0: 1/0[47,49) 0/0[49,51)
R pp1: 1/0[40,42) 0/0[42,44)
)");
}

TEST_CASE("simulate: two ranks run a sample of both between their own") {
  test::HandPlan hand;
  hand.dp = 2;
  hand.groups = {{0}, {1}, {0, 1}};
  hand.sample_group = {0, 1, 2};
  hand.orders = {"F0 H0 B1 F4 H4 B5 R0 O", "F4 H4 F2 H2 B3 B5 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) H0[2,3) B1[3,7) F4[7,11) H4[11,12) B5[22,30) O[32,33)
dp1 pp0: F4[7,11) H4[11,12) F2[12,15) H2[15,16) B3[16,22) B5[22,30) O[32,33)
R pp0: 0/0[30,32)
)");
}

TEST_CASE("simulate: a sharded head is a collective of the stages") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.head = LmHead::shard;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 H0 H2 B1 B3 R0 O", "F0 H0 B1 F2 H2 B3 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) F2[2,5) H0[5,6) H2[13,14) B1[14,18) B3[21,27) O[29,30)
dp0 pp1: F0[3,5) H0[5,6) B1[6,10) F2[10,13) H2[13,14) B3[14,20) O[22,23)
dp0 0>1: 0[2,3) 2[5,6)
dp0 1>0: 1[10,11) 3[20,21)
R pp0: 0/0[27,29)
R pp1: 0/0[20,22)
)");
}

// One in flight: F2 awaits the end of the first send at 5; message 2 moves at 8, when it is queued,
// its receive being posted since 7; B3 awaits the first gradient's end at 39.
TEST_CASE(
    "simulate: one message in flight makes every transfer a rendezvous, two let units run ahead") {
  test::HandPlan hand;
  hand.pp = 2;
  hand.sample_group = {0, 0, 0, 0};
  hand.orders = {"F0 F2 F4 F6 B1 B3 B5 B7 R0 O", "F0 F2 F4 H0 H2 H4 F6 H6 B1 B3 B5 B7 R0 O"};
  test::HandTimes times = unequal();
  times.transfer_time = 3;
  hand.max_in_flight = 1;
  CHECK(solve(hand, times) == R"(
dp0 pp0: F0[0,2) F2[5,8) F4[11,15) F6[18,23) B1[39,43) B3[48,54) B5[59,67) B7[72,82) O[84,85)
dp0 pp1: F0[5,7) F2[11,14) F4[18,22) H0[22,23) H2[23,24) H4[24,25) F6[26,31) H6[31,32) B1[32,36) B3[39,45) B5[48,56) B7[59,69) O[71,72)
dp0 0>1: 0[2,5) 2[8,11) 4[15,18) 6[23,26)
dp0 1>0: 1[36,39) 3[45,48) 5[56,59) 7[69,72)
R pp0: 0/0[82,84)
R pp1: 0/0[69,71)
)");
  hand.max_in_flight = 2;
  CHECK(solve(hand, times) == R"(
dp0 pp0: F0[0,2) F2[2,5) F4[5,9) F6[9,14) B1[32,36) B3[38,44) B5[46,54) B7[56,66) O[68,69)
dp0 pp1: F0[5,7) F2[8,11) F4[12,16) H0[16,17) H2[17,18) H4[18,19) F6[19,24) H6[24,25) B1[25,29) B3[29,35) B5[35,43) B7[43,53) O[55,56)
dp0 0>1: 0[2,5) 2[5,8) 4[9,12) 6[14,17)
dp0 1>0: 1[29,32) 3[35,38) 5[43,46) 7[53,56)
R pp0: 0/0[66,68)
R pp1: 0/0[53,55)
)");
}

// B runs from 7 to 13 and releases a layer's bucket at 9, 11 and 13. Of 36 weights a layer has 9,
// embedding, final norm and head together 9: the last bucket takes half of the time.
TEST_CASE("simulate: buckets of R overlap the chunk's last B") {
  test::HandPlan hand;
  hand.stage_layers = 3;
  hand.sample_group = {0};
  test::HandTimes times;
  times.unit = [](std::uint32_t, std::int32_t) { return 6; };
  times.reduce_time = 4;
  hand.orders = {"F0 H0 B1 R0 O"};
  CHECK(solve(hand, times) == R"(
dp0 pp0: F0[0,6) H0[6,7) B1[7,13) O[15,16)
R pp0: 0/0[9,10) 0/1[11,12) 0/2[13,15)
)");
  times.reduce_time = 36;
  CHECK(solve(hand, times) == R"(
dp0 pp0: F0[0,6) H0[6,7) B1[7,13) O[45,46)
R pp0: 0/0[9,18) 0/1[18,27) 0/2[27,45)
)");
  hand.sample_group = {0, 0};
  hand.orders = {"F0 H0 F2 H2 B3 B1 R0 O"};
  CHECK(solve(hand, times) == R"(
dp0 pp0: F0[0,6) H0[6,7) F2[7,13) H2[13,14) B3[14,20) B1[20,26) O[58,59)
R pp0: 0/0[22,31) 0/1[31,40) 0/2[40,58)
)");
}

// Rank 1 has released everything at 13, rank 0 releases at 22, 24 and 26.
TEST_CASE("simulate: a bucket waits until all ranks have released it") {
  test::HandPlan hand;
  hand.dp = 2;
  hand.stage_layers = 3;
  hand.groups = {{0}, {1}};
  hand.sample_group = {0, 1, 0};
  test::HandTimes times;
  times.unit = [](std::uint32_t, std::int32_t) { return 6; };
  times.reduce_time = 4;
  hand.orders = {"F0 H0 B1 F4 H4 B5 R0 O", "F2 H2 B3 R0 O"};
  CHECK(solve(hand, times) == R"(
dp0 pp0: F0[0,6) H0[6,7) B1[7,13) F4[13,19) H4[19,20) B5[20,26) O[28,29)
dp1 pp0: F2[0,6) H2[6,7) B3[7,13) O[28,29)
R pp0: 0/0[22,23) 0/1[24,25) 0/2[26,28)
)");
}

TEST_CASE("simulate: one stage hands chunks over in place, without transfers") {
  test::HandPlan hand;
  hand.chunks = 2;
  hand.max_in_flight = 1;
  hand.sample_group = {0, 0};
  hand.orders = {"F0 F2 F0.1 H0 B1.1 F2.1 H2 B1 B3.1 B3 R1 R0 O"};
  CHECK(solve(hand, unequal()) == R"(
dp0 pp0: F0[0,2) F2[2,5) F0.1[5,7) H0[7,8) B1.1[8,12) F2.1[12,15) H2[15,16) B1[16,20) B3.1[20,26) B3[26,32) O[36,37)
R pp0: 1/0[32,34) 0/0[34,36)
)");
}
