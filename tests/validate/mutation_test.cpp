// SPDX-License-Identifier: Apache-2.0
// One damage to a valid plan for each rule and part of a rule: the violation names that rule only.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/validate/validate.hpp"
#include "validate/hand_plan.hpp"

using namespace slimpack;
using namespace slimpack::test;

namespace {

std::string all_messages(const Validation& validation) {
  std::string text;
  for (const Violation& violation : validation.violations) text += violation.message + "\n";
  return text;
}

/// Every violation is of `rule`, and one of them has this message.
void expect_only(const Plan& plan, int rule, const std::string& message) {
  const Validation validation = validate(plan);
  INFO(all_messages(validation));
  bool named = false;
  for (const Violation& violation : validation.violations) {
    CHECK(violation.rule == rule);
    named = named || violation.message == message;
  }
  CAPTURE(message);
  CHECK(named);
}

const Violation* violation_with(const Validation& validation, const std::string& message) {
  for (const Violation& violation : validation.violations) {
    if (violation.message == message) return &violation;
  }
  return nullptr;
}

Slice& slice(Plan& plan, std::size_t pack, std::size_t place = 0) {
  return plan.micropacks[pack].slices[place];
}

}  // namespace

TEST_CASE("hand plans: the undamaged ones are valid") {
  for (const std::int32_t dp : {1, 2, 3}) {
    for (const std::int32_t pp : {1, 2, 3}) {
      for (const std::int32_t chunks : {1, 2}) {
        for (const LmHead head : {LmHead::last, LmHead::shard}) {
          CAPTURE(dp);
          CAPTURE(pp);
          CAPTURE(chunks);
          const Validation validation = validate(usual_plan({dp, pp, chunks, head, 2}));
          INFO(all_messages(validation));
          CHECK(validation.valid());
          const Validation apart = validate(weight_plan({dp, pp, chunks, head, 2}));
          INFO(all_messages(apart));
          CHECK(apart.valid());
        }
      }
    }
  }
}

TEST_CASE("rule 1: slices partition their sample") {
  Plan plan = usual_plan({2, 2, 1, LmHead::last, 2});
  SUBCASE("forward gap") {
    slice(plan, 0).end = {2};
    expect_only(plan, 1, "rule 1, sample 0, MicroPack 1: forward slices leave out tokens [2, 4)");
  }
  SUBCASE("backward gap") {
    slice(plan, 3).end = {4};
    expect_only(plan, 1, "rule 1, sample 0, MicroPack 2: backward slices leave out tokens [4, 6)");
  }
  SUBCASE("end left out") {
    slice(plan, 7).end = {10};
    expect_only(plan, 1, "rule 1, sample 2: forward slices leave out tokens [10, 12)");
  }
  SUBCASE("beginning left out") {
    slice(plan, 0).begin = {2};
    expect_only(plan, 1, "rule 1, sample 0, MicroPack 0: forward slices leave out tokens [0, 2)");
  }
  SUBCASE("overlap") {
    slice(plan, 1).begin = {2};
    expect_only(plan, 1,
                "rule 1, sample 0, MicroPack 1: forward slices hold tokens [2, 4) more than once");
  }
  SUBCASE("empty slice") {
    slice(plan, 5).end = {0};
    const Validation validation = validate(plan);
    const Violation* violation =
        violation_with(validation, "rule 1, sample 1, MicroPack 5: backward slice [0, 0) is empty");
    REQUIRE(violation != nullptr);
    CHECK(violation->sample == SampleId{1});
    CHECK(violation->micropack == PackId{5});
    CHECK(!violation->dp);
    expect_only(plan, 1, "rule 1, sample 1: backward slices leave out tokens [0, 6)");
  }
  SUBCASE("outside its sample") {
    slice(plan, 4).end = {8};
    expect_only(plan, 1,
                "rule 1, sample 1, MicroPack 4: forward slice [0, 8) is not inside [0, 6)");
  }
  SUBCASE("off the granularity") {
    slice(plan, 0).end = {3};
    slice(plan, 1).begin = {3};
    expect_only(
        plan, 1,
        "rule 1, sample 0, MicroPack 0: forward boundary 3 is not a multiple of granularity 2");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("a sample's end need not be a multiple") {
    plan.samples[1] = {5};
    slice(plan, 4).end = {5};
    slice(plan, 5).end = {5};
    CHECK(validate(plan).valid());
  }
  SUBCASE("group above merge") {
    plan.parallel.max_cp = 1;
    expect_only(plan, 1, "rule 1: groups[2] has 2 ranks, merge is 1");
  }
}

TEST_CASE("rule 2: what a MicroPack may hold") {
  SUBCASE("several slices of a sample") {
    Plan plan = hand_plan({});
    const SampleId sample = add_sample(plan, 8, 0);
    add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}, {sample, {4}, {8}}});
    add_pack(plan, Pass::backward, 0, {{sample, {0}, {8}}});
    schedule_in_order(plan);
    expect_only(
        plan, 2,
        "rule 2, sample 0, MicroPack 0: the MicroPack holds more than one slice of the sample");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("sample of another group") {
    Plan plan = usual_plan({2, 2, 1, LmHead::last, 2});
    plan.sample_group[1] = GroupId{0};
    expect_only(
        plan, 2,
        "rule 2, sample 1, MicroPack 4: the MicroPack is of group 1, the sample of group 0");
    CHECK(validate(plan).violations.size() == 2);
  }
}

TEST_CASE("rule 3: what a device executes") {
  Plan plan = usual_plan({2, 2, 2, LmHead::last, 2});
  auto& first = order_of(plan, 0, 0);
  auto& last = order_of(plan, 0, 1);
  const auto drop = [](std::vector<Unit>& order, const Unit& unit) {
    order.erase(order.begin() + place_of(order, unit));
  };
  SUBCASE("F missing") {
    drop(first, f(1, 1));
    const Validation validation = validate(plan);
    INFO(all_messages(validation));
    REQUIRE(validation.violations.size() == 1);
    CHECK(validation.violations[0].message ==
          "rule 3, MicroPack 1, dp 0, pp 0: F of MicroPack 1, chunk 1 is missing");
    CHECK(validation.violations[0].rule == 3);
    CHECK(validation.violations[0].micropack == PackId{1});
    CHECK(validation.violations[0].dp == 0);
    CHECK(validation.violations[0].pp == 0);
    CHECK(!validation.violations[0].unit);
  }
  SUBCASE("B of a context-parallel group missing on one rank") {
    drop(first, b(8, 0));
    expect_only(plan, 3, "rule 3, MicroPack 8, dp 0, pp 0: B of MicroPack 8, chunk 0 is missing");
  }
  SUBCASE("H missing") {
    drop(last, h(0));
    expect_only(plan, 3, "rule 3, MicroPack 0, dp 0, pp 1: H of MicroPack 0 is missing");
  }
  SUBCASE("R missing") {
    drop(last, r(1));
    expect_only(plan, 3, "rule 3, dp 0, pp 1: R of chunk 1 is missing");
  }
  SUBCASE("O missing") {
    drop(last, o());
    expect_only(plan, 3, "rule 3, dp 0, pp 1: O is missing at the end");
  }
  SUBCASE("O not last") {
    move_unit(last, o(), 3);
    expect_only(plan, 3, "rule 3, dp 0, pp 1, unit 3: O is not last");
  }
  SUBCASE("two O") {
    last.push_back(o());
    expect_only(plan, 3,
                "rule 3, dp 0, pp 1, unit " + std::to_string(last.size() - 2) + ": O is not last");
  }
  SUBCASE("F twice") {
    first.insert(first.begin() + 5, f(0, 0));
    expect_only(
        plan, 3,
        "rule 3, MicroPack 0, dp 0, pp 0, unit 5: F of MicroPack 0, chunk 0 comes a second time");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("R twice") {
    first.insert(first.end() - 1, r(0));
    expect_only(plan, 3,
                "rule 3, dp 0, pp 0, unit " + std::to_string(first.size() - 2) +
                    ": R of chunk 0 comes a second time");
  }
  SUBCASE("H without a part of the head") {
    first.insert(first.begin() + 6, h(0));
    expect_only(plan, 3,
                "rule 3, MicroPack 0, dp 0, pp 0, unit 6: H of MicroPack 0 is on a stage without a "
                "part of the head");
  }
  SUBCASE("another rank's MicroPack") {
    first.insert(first.begin(), f(4, 0));
    expect_only(plan, 3,
                "rule 3, MicroPack 4, dp 0, pp 0, unit 0: F of MicroPack 4, chunk 0 is of a group "
                "that the rank is not in");
  }
  SUBCASE("MicroPack of the other pass") {
    first.insert(first.begin(), f(2, 0));
    expect_only(plan, 3,
                "rule 3, MicroPack 2, dp 0, pp 0, unit 0: F of MicroPack 2, chunk 0 is of a "
                "MicroPack of another pass");
  }
  SUBCASE("MicroPack that does not exist") {
    first.insert(first.begin(), b(77, 0));
    expect_only(plan, 3,
                "rule 3, MicroPack 77, dp 0, pp 0, unit 0: B of MicroPack 77, chunk 0 is of a "
                "MicroPack that does not exist");
  }
  SUBCASE("chunk that does not exist") {
    first.insert(first.begin(), f(0, 2));
    expect_only(plan, 3,
                "rule 3, MicroPack 0, dp 0, pp 0, unit 0: F of MicroPack 0, chunk 2 is of a chunk "
                "that does not exist");
  }
  SUBCASE("no schedule") {
    plan.schedule.erase(plan.schedule.begin() + 1);
    expect_only(plan, 3, "rule 3, dp 0, pp 1: the device has no schedule");
  }
  SUBCASE("two schedules") {
    plan.schedule.insert(plan.schedule.begin() + 1, plan.schedule[1]);
    expect_only(plan, 3, "rule 3, dp 0, pp 1: the device has more than one schedule");
  }
  SUBCASE("schedule of no device") {
    plan.schedule.push_back({2, 0, {}});
    expect_only(plan, 3, "rule 3, dp 2, pp 0: a schedule of a device that does not exist");
  }
  SUBCASE("hardly any schedule") {
    plan.parallel.dp = 2000;
    const Validation validation = validate(plan);
    CHECK(violation_with(
        validation, "rule 3: 4 schedules for 4000 devices; rules 3 to 7 are not checked further"));
  }
  SUBCASE("hardly any unit") {
    Plan wide = hand_plan({});
    wide.parallel.chunks = 1'000;
    wide.stages.clear();
    for (std::int32_t i = 0; i < 1'000; ++i) wide.stages.push_back({0, i, i, i + 1, i == 0});
    wide.model.layers = 1'000;
    for (int i = 0; i < 600; ++i) {
      const SampleId sample = add_sample(wide, 4, 0);
      add_pack(wide, Pass::forward, 0, {{sample, {0}, {4}}});
      add_pack(wide, Pass::backward, 0, {{sample, {0}, {4}}});
    }
    wide.schedule.push_back({0, 0, {o()}});
    expect_only(wide, 3,
                "rule 3: 1 units are far fewer than groups and MicroPacks ask for; rules 3 to 7 "
                "are not checked further");
  }
}

TEST_CASE("rule 4: order of a sample's slices on a device") {
  SUBCASE("forward slices fall") {
    Plan plan = usual_plan({1, 2, 1, LmHead::last, 2});
    for (const std::int32_t pp : {0, 1}) swap_units(order_of(plan, 0, pp), f(0), f(1));
    const Validation validation = validate(plan);
    INFO(all_messages(validation));
    REQUIRE(validation.violations.size() == 2);
    const Violation& violation = validation.violations[0];
    CHECK(violation.message ==
          "rule 4, sample 0, MicroPack 1, dp 0, pp 0, unit 0: forward slices must rise: slice "
          "[4, 8) runs before [0, 4) of MicroPack 0 (unit 1), chunk 0");
    CHECK(violation.rule == 4);
    CHECK(violation.sample == SampleId{0});
    CHECK(violation.micropack == PackId{1});
    CHECK(violation.unit == 0);
    CHECK(validation.violations[1].pp == 1);
  }
  SUBCASE("in one chunk only") {
    Plan plan = usual_plan({1, 1, 2, LmHead::last, 2});
    swap_units(order_of(plan, 0, 0), f(0, 1), f(1, 1));
    expect_only(plan, 4,
                "rule 4, sample 0, MicroPack 1, dp 0, pp 0, unit 2: forward slices must rise: "
                "slice [4, 8) runs before [0, 4) of MicroPack 0 (unit 3), chunk 1");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("backward slices rise") {
    Plan plan = usual_plan({1, 1, 1, LmHead::last, 2});
    swap_units(order_of(plan, 0, 0), b(2), b(3));
    expect_only(plan, 4,
                "rule 4, sample 0, MicroPack 3, dp 0, pp 0, unit 4: backward slices must fall: "
                "slice [0, 6) runs before [6, 8) of MicroPack 2 (unit 5), chunk 0");
  }
  SUBCASE("backward before the end of forward") {
    Plan plan = usual_plan({1, 2, 1, LmHead::last, 2});
    move_unit(order_of(plan, 0, 0), b(2), 1);
    expect_only(plan, 4,
                "rule 4, sample 0, MicroPack 2, dp 0, pp 0, unit 1: backward must follow the end "
                "of forward: backward slice [6, 8) runs before the forward slice [4, 8) of "
                "MicroPack 1 (unit 2), chunk 0");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("backward before the end of forward, in a context-parallel group") {
    Plan plan = usual_plan({2, 2, 1, LmHead::last, 2});
    move_unit(order_of(plan, 1, 0), b(8), 0);
    const Validation validation = validate(plan);
    INFO(all_messages(validation));
    bool found = false;
    for (const Violation& violation : validation.violations) {
      found = found || (violation.rule == 4 && violation.sample == SampleId{2} &&
                        violation.dp == 1 && violation.pp == 0 && violation.unit == 0);
      CHECK(violation.rule == 4);
    }
    CHECK(found);
  }
}

TEST_CASE("rule 5: what a unit needs") {
  SUBCASE("H before F") {
    Plan plan = usual_plan({1, 2, 1, LmHead::last, 2});
    move_unit(order_of(plan, 0, 1), h(1), 1);
    expect_only(plan, 5,
                "rule 5, MicroPack 1, dp 0, pp 1, unit 1: H of MicroPack 1 runs before F of "
                "MicroPack 1, chunk 0 (unit 2): H needs F of the last chunk");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("sharded H before F") {
    Plan plan = usual_plan({1, 2, 1, LmHead::shard, 2});
    move_unit(order_of(plan, 0, 0), h(1), 1);
    expect_only(plan, 5,
                "rule 5, MicroPack 1, dp 0, pp 0, unit 1: H of MicroPack 1 runs before F of "
                "MicroPack 1, chunk 0 (unit 2): H needs F of the last chunk");
  }
  for (const std::int32_t pp : {0, 1}) {
    CAPTURE(pp);
    // B 3 needs both H, the earlier B 2 only H 1.
    Plan plan = usual_plan({1, 2, 1, LmHead::shard, 2});
    for (const std::int32_t stage : {0, 1}) {
      order_of(plan, 0, stage) = {f(0), f(1), h(1), b(2), h(0), b(3), r(), o()};
    }
    REQUIRE(validate(plan).valid());
    swap_units(order_of(plan, 0, pp), h(0), b(3));
    expect_only(plan, 5,
                "rule 5, MicroPack 3, dp 0, pp " + std::to_string(pp) +
                    ", unit 4: B of MicroPack 3, chunk 0 runs before H of MicroPack 0 (unit 5): B "
                    "needs H of every forward token it holds");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("B before H where the head is last") {
    Plan plan = usual_plan({1, 1, 1, LmHead::last, 2});
    auto& order = order_of(plan, 0, 0);
    move_unit(order, h(1), place_of(order, b(2)));
    expect_only(plan, 5,
                "rule 5, MicroPack 2, dp 0, pp 0, unit 3: B of MicroPack 2, chunk 0 runs before H "
                "of MicroPack 1 (unit 4): B needs H of every forward token it holds");
  }
  SUBCASE("chunks in the wrong order") {
    Plan plan = hand_plan({1, 1, 2, LmHead::last, 2});
    const SampleId sample = add_sample(plan, 4, 0);
    add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
    add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
    plan.schedule.push_back({0, 0, {}});
    order_of(plan, 0, 0) = {f(0, 0), f(0, 1), h(0), b(1, 1), b(1, 0), r(0), r(1), o()};
    REQUIRE(validate(plan).valid());
    Plan forward = plan;
    swap_units(order_of(forward, 0, 0), f(0, 0), f(0, 1));
    expect_only(forward, 5,
                "rule 5, MicroPack 0, dp 0, pp 0, unit 0: F of MicroPack 0, chunk 1 runs before F "
                "of MicroPack 0, chunk 0 (unit 1): F of a chunk needs F of the chunk before");
    swap_units(order_of(plan, 0, 0), b(1, 0), b(1, 1));
    expect_only(plan, 5,
                "rule 5, MicroPack 1, dp 0, pp 0, unit 3: B of MicroPack 1, chunk 0 runs before B "
                "of MicroPack 1, chunk 1 (unit 4): B of a chunk needs B of the chunk after");
  }
  SUBCASE("R before the last B") {
    Plan plan = usual_plan({2, 1, 2, LmHead::last, 2});
    auto& order = order_of(plan, 1, 0);
    move_unit(order, r(0), place_of(order, b(8, 0)));
    const std::string unit = std::to_string(place_of(order, r(0)));
    expect_only(plan, 5,
                "rule 5, dp 1, pp 0, unit " + unit +
                    ": R of chunk 0 runs before B of MicroPack 8, chunk 0 (unit " +
                    std::to_string(place_of(order, b(8, 0))) + "): R follows the chunk's last B");
    CHECK(validate(plan).violations.size() == 1);
  }
}

TEST_CASE("weights apart: the format, and rules 1 and 2") {
  // One rank: weight packs 4 and 5. Two: 9, 10, and 11 in the group of ranks 0 and 1.
  Plan plan = weight_plan({1, 2, 1, LmHead::last, 2});
  SUBCASE("version 1 has no weight packs") {
    plan.version = 1;
    expect_only(plan, 0, "format, MicroPack 3: gradients of weights apart from B need version 2");
    CHECK(validate(plan).violations.size() == 3);
  }
  SUBCASE("apart belongs to backward packs") {
    plan.micropacks[0].weights = WeightGradients::apart;
    expect_only(plan, 0, "format, MicroPack 0: weights belongs to backward MicroPacks");
  }
  SUBCASE("weight packs recompute nothing") {
    plan.micropacks[4].recompute = Recompute::light;
    expect_only(plan, 0, "format, MicroPack 4: recompute belongs to backward MicroPacks");
  }
  SUBCASE("weight packs exchange nothing") {
    Plan wide = weight_plan({2, 2, 1, LmHead::last, 2});
    wide.micropacks[11].exchange = {RingMode::pass_kv};
    expect_only(wide, 0,
                "format, MicroPack 11: exchange belongs to forward and backward MicroPacks, 1 "
                "slices, 1 entries");
  }
  SUBCASE("tokens left out between slices") {
    slice(plan, 4).begin = {4};
    expect_only(plan, 1,
                "rule 1, sample 0: weight slices leave out tokens [2, 4), which backward leaves "
                "apart");
  }
  SUBCASE("tokens left out at the end") {
    slice(plan, 4).end = {4};
    expect_only(plan, 1,
                "rule 1, sample 0: weight slices leave out tokens [4, 6), which backward leaves "
                "apart");
  }
  SUBCASE("tokens whose weights B has") {
    slice(plan, 4).end = {8};
    expect_only(plan, 1,
                "rule 1, sample 0: weight slices hold tokens [6, 8), which backward does not leave "
                "apart");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("backward packs that leave nothing apart") {
    plan.micropacks[3].weights = WeightGradients::with;
    expect_only(plan, 1,
                "rule 1, sample 0: weight slices hold tokens [0, 6), which backward does not leave "
                "apart");
  }
  SUBCASE("overlap") {
    slice(plan, 5).end = {4};
    expect_only(plan, 1,
                "rule 1, sample 0, MicroPack 4: weight slices hold tokens [2, 4) more than once");
  }
  SUBCASE("empty slice") {
    slice(plan, 5).end = {0};
    expect_only(plan, 1, "rule 1, sample 0, MicroPack 5: weight slice [0, 0) is empty");
  }
  SUBCASE("off the granularity") {
    slice(plan, 4).begin = {3};
    slice(plan, 5).end = {3};
    expect_only(
        plan, 1,
        "rule 1, sample 0, MicroPack 5: weight boundary 3 is not a multiple of granularity 2");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("several slices of a sample") {
    Plan one = plan;
    one.micropacks[4].slices = {{SampleId{0}, {0}, {2}}, {SampleId{0}, {2}, {6}}};
    one.micropacks.pop_back();
    schedule_in_order(one);
    expect_only(
        one, 2,
        "rule 2, sample 0, MicroPack 4: the MicroPack holds more than one slice of the sample");
    CHECK(validate(one).violations.size() == 1);
  }
  SUBCASE("sample of another group") {
    Plan wide = weight_plan({2, 2, 1, LmHead::last, 2});
    wide.micropacks[10].group = GroupId{1};
    schedule_in_order(wide);
    expect_only(
        wide, 2,
        "rule 2, sample 0, MicroPack 10: the MicroPack is of group 1, the sample of group 0");
    CHECK(validate(wide).violations.size() == 1);
  }
}

TEST_CASE("weights apart: rules 3 and 5") {
  Plan plan = weight_plan({2, 2, 2, LmHead::last, 2});
  auto& order = order_of(plan, 1, 1);
  SUBCASE("W missing") {
    order.erase(order.begin() + place_of(order, w(11, 1)));
    expect_only(plan, 3, "rule 3, MicroPack 11, dp 1, pp 1: W of MicroPack 11, chunk 1 is missing");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("W twice") {
    order.insert(order.end() - 1, w(11, 0));
    expect_only(plan, 3,
                "rule 3, MicroPack 11, dp 1, pp 1, unit " + std::to_string(order.size() - 2) +
                    ": W of MicroPack 11, chunk 0 comes a second time");
  }
  SUBCASE("W of a backward pack") {
    order.insert(order.begin(), w(8, 0));
    expect_only(plan, 3,
                "rule 3, MicroPack 8, dp 1, pp 1, unit 0: W of MicroPack 8, chunk 0 is of a "
                "MicroPack of another pass");
  }
  SUBCASE("W before B") {
    move_unit(order, w(11, 0), place_of(order, b(8, 0)));
    expect_only(
        plan, 5,
        "rule 5, MicroPack 11, dp 1, pp 1, unit " + std::to_string(place_of(order, w(11, 0))) +
            ": W of MicroPack 11, chunk 0 runs before B of MicroPack 8, chunk 0 (unit " +
            std::to_string(place_of(order, b(8, 0))) + "): W needs B of every token it holds");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("R before the last W") {
    move_unit(order, r(0), place_of(order, w(11, 0)));
    expect_only(plan, 5,
                "rule 5, dp 1, pp 1, unit " + std::to_string(place_of(order, r(0))) +
                    ": R of chunk 0 runs before W of MicroPack 11, chunk 0 (unit " +
                    std::to_string(place_of(order, w(11, 0))) + "): R follows the chunk's last W");
    CHECK(validate(plan).violations.size() == 1);
  }
  SUBCASE("ranks of a group run their W when they like") {
    move_unit(order, w(11, 1), place_of(order, r(0)) - 1);
    CHECK(order[static_cast<std::size_t>(place_of(order, r(0)) - 1)] == w(11, 1));
    CHECK(validate(plan).valid());
  }
}

TEST_CASE("rule 6: channels deliver in the order sent") {
  Plan plan = hand_plan({1, 2, 1, LmHead::last, 4});
  for (int i = 0; i < 3; ++i) {
    const SampleId sample = add_sample(plan, 4, 0);
    add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
    add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
  }
  schedule_in_order(plan);
  REQUIRE(validate(plan).valid());
  SUBCASE("activations") {
    swap_units(order_of(plan, 0, 1), f(0), f(2));
    const Validation validation = validate(plan);
    INFO(all_messages(validation));
    REQUIRE(validation.violations.size() == 1);
    CHECK(validation.violations[0].message ==
          "rule 6, MicroPack 2, dp 0, pp 1, unit 0: the channel of group 0 from dp 0, pp 0 brings "
          "as message 0 the input of F of MicroPack 0, chunk 0, but F of MicroPack 2, chunk 0 is "
          "there to consume it");
    CHECK(validation.violations[0].rule == 6);
    CHECK(validation.violations[0].pp == 1);
    CHECK(validation.worst_case_peak.size() == 2);
  }
  SUBCASE("gradients") {
    swap_units(order_of(plan, 0, 0), b(3), b(5));
    expect_only(plan, 6,
                "rule 6, MicroPack 5, dp 0, pp 0, unit 4: the channel of group 0 from dp 0, pp 1 "
                "brings as message 1 the input of B of MicroPack 3, chunk 0, but B of MicroPack 5, "
                "chunk 0 is there to consume it");
    CHECK(validate(plan).violations.size() == 1);
  }
}

TEST_CASE("rule 6: collectives of ranks that share groups do not cross") {
  Plan plan = hand_plan({3, 1, 1, LmHead::last, 2});
  plan.groups.push_back({0, 1});
  plan.groups.push_back({0, 1, 2});
  const SampleId one = add_sample(plan, 8, 3), two = add_sample(plan, 8, 4);
  add_pack(plan, Pass::forward, 3, {{one, {0}, {8}}});
  add_pack(plan, Pass::forward, 4, {{two, {0}, {8}}});
  add_pack(plan, Pass::backward, 3, {{one, {0}, {8}}});
  add_pack(plan, Pass::backward, 4, {{two, {0}, {8}}});
  schedule_in_order(plan);
  REQUIRE(validate(plan).valid());
  SUBCASE("two groups") {
    swap_units(order_of(plan, 1, 0), f(0), f(1));
    expect_only(plan, 6,
                "rule 6, MicroPack 1, dp 1, pp 0, unit 0: F of MicroPack 1, chunk 0 comes before F "
                "of MicroPack 0, chunk 0, but after it on dp 0, pp 0: ranks that share groups run "
                "their collectives in one order");
    expect_only(
        plan, 6,
        "rule 6, MicroPack 0, dp 0, pp 0, unit 0: deadlock: F of MicroPack 0, chunk 0 "
        "waits for ever for a collective with dp 1, pp 0, which is at unit 0, F of MicroPack "
        "1, chunk 0");
    expect_only(plan, 6,
                "rule 6: deadlock: devices wait in a circle: dp 0, pp 0 (F of MicroPack 0, chunk 0)"
                " -> dp 1, pp 0 (F of MicroPack 1, chunk 0) -> dp 0, pp 0");
  }
  SUBCASE("F and B") {
    Plan other = plan;
    // B of the first sample moves before F of the second, on one rank only.
    auto& order = order_of(other, 0, 0);
    order = {f(0), h(0), b(2), f(1), h(1), b(3), r(), o()};
    expect_only(other, 6,
                "rule 6, MicroPack 1, dp 1, pp 0, unit 1: F of MicroPack 1, chunk 0 comes before B "
                "of MicroPack 2, chunk 0, but after it on dp 0, pp 0: ranks that share groups run "
                "their collectives in one order");
    // All ranks alike is fine.
    order_of(other, 1, 0) = order;
    CHECK(validate(other).valid());
  }
  SUBCASE("within one group") {
    Plan same = hand_plan({2, 1, 1, LmHead::last, 2});
    same.groups.push_back({0, 1});
    const SampleId a = add_sample(same, 8, 2), c = add_sample(same, 8, 2);
    add_pack(same, Pass::forward, 2, {{a, {0}, {8}}});
    add_pack(same, Pass::forward, 2, {{c, {0}, {8}}});
    add_pack(same, Pass::backward, 2, {{a, {0}, {8}}, {c, {0}, {8}}});
    schedule_in_order(same);
    REQUIRE(validate(same).valid());
    swap_units(order_of(same, 0, 0), f(0), f(1));
    expect_only(same, 6,
                "rule 6, MicroPack 0, dp 1, pp 0, unit 0: F of MicroPack 0, chunk 0 comes before F "
                "of MicroPack 1, chunk 0, but after it on dp 0, pp 0: ranks that share groups run "
                "their collectives in one order");
  }
}

TEST_CASE("rule 6: a circle of three groups, no two of which cross") {
  Plan plan = hand_plan({3, 1, 1, LmHead::last, 2});
  plan.groups.insert(plan.groups.end(), {{0, 1}, {1, 2}, {0, 2}});
  for (std::uint32_t group = 3; group < 6; ++group) {
    const SampleId sample = add_sample(plan, 8, group);
    add_pack(plan, Pass::forward, group, {{sample, {0}, {8}}});
    add_pack(plan, Pass::backward, group, {{sample, {0}, {8}}});
  }
  schedule_in_order(plan);
  REQUIRE(validate(plan).valid());
  // Rank 0 meets in group 3 first, rank 1 in 4, rank 2 in 5.
  swap_units(order_of(plan, 1, 0), f(0), f(2));
  swap_units(order_of(plan, 2, 0), f(2), f(4));
  expect_only(plan, 6,
              "rule 6: deadlock: devices wait in a circle: dp 0, pp 0 (F of MicroPack 0, chunk 0) "
              "-> dp 1, pp 0 (F of MicroPack 2, chunk 0) -> dp 2, pp 0 (F of MicroPack 4, chunk 0) "
              "-> dp 0, pp 0");
  for (const Violation& violation : validate(plan).violations) {
    CHECK(violation.message.find("one order") == std::string::npos);
  }
}

TEST_CASE("rule 6: windows") {
  // Stage 0 sends six packs before it takes one back for its second chunk. Stage 1 may have
  // `window` sends ended and as many unfinished, then it stops, and with it stage 0.
  Plan plan = hand_plan({1, 2, 2, LmHead::last, 1});
  for (int i = 0; i < 6; ++i) {
    const SampleId sample = add_sample(plan, 4, 0);
    add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
    add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
  }
  schedule_in_order(plan);
  expect_only(plan, 6,
              "rule 6, MicroPack 8, dp 0, pp 0, unit 4: deadlock: F of MicroPack 8, chunk 0 waits "
              "for ever for an end of one of 1 unfinished sends of group 0 to dp 0, pp 1, which is "
              "at unit 2, F of MicroPack 4, chunk 0");
  expect_only(plan, 6,
              "rule 6, MicroPack 4, dp 0, pp 1, unit 2: deadlock: F of MicroPack 4, chunk 0 waits "
              "for ever for an end of one of 1 unfinished sends of group 0 to dp 0, pp 0, which is "
              "at unit 4, F of MicroPack 8, chunk 0");
  // With w in flight, stage 1 stops at send 2w, so stage 0 has to be done with six by then.
  plan.max_in_flight = 2;
  const Validation two = validate(plan);
  INFO(all_messages(two));
  CHECK(two.valid());
}

TEST_CASE("rule 6: what else waits for ever") {
  SUBCASE("input that comes too late") {
    // Stage 0 wants the gradient of the first sample before it sends the second, which stage 1
    // wants before it sends the gradient.
    Plan plan = hand_plan({1, 2, 1, LmHead::last, 2});
    for (int i = 0; i < 2; ++i) {
      const SampleId sample = add_sample(plan, 4, 0);
      add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
      add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
    }
    schedule_in_order(plan);
    REQUIRE(validate(plan).valid());
    order_of(plan, 0, 0) = {f(0), b(1), f(2), b(3), r(), o()};
    expect_only(plan, 6,
                "rule 6, MicroPack 1, dp 0, pp 0, unit 1: deadlock: B of MicroPack 1, chunk 0 waits"
                " for ever for B of MicroPack 1, chunk 0 of dp 0, pp 1, which is at unit 1, F of "
                "MicroPack 2, chunk 0");
    order_of(plan, 0, 1) = {f(0), h(0), b(1), f(2), h(2), b(3), r(), o()};
    CHECK(validate(plan).valid());
  }
  SUBCASE("heads that cross") {
    Plan plan = usual_plan({1, 2, 1, LmHead::shard, 2});
    swap_units(order_of(plan, 0, 0), h(0), h(1));
    expect_only(plan, 6,
                "rule 6, MicroPack 1, dp 0, pp 0, unit 2: deadlock: H of MicroPack 1 waits for ever"
                " for a collective with dp 0, pp 1, which is at unit 2, H of MicroPack 0");
  }
  SUBCASE("order of R") {
    Plan plan = usual_plan({2, 1, 2, LmHead::last, 2});
    swap_units(order_of(plan, 1, 0), r(0), r(1));
    const std::string unit = std::to_string(place_of(order_of(plan, 1, 0), r(1)));
    expect_only(plan, 6,
                "rule 6, dp 1, pp 0, unit " + unit +
                    ": R of chunk 1 comes where other ranks have R of chunk 0");
    const std::string end = std::to_string(order_of(plan, 0, 0).size() - 1);
    expect_only(plan, 6,
                "rule 6, dp 0, pp 0, unit " + end +
                    ": deadlock: O waits for ever for R of chunk 0, not yet in turn at dp 1, pp 0, "
                    "which is at unit " +
                    std::to_string(order_of(plan, 1, 0).size() - 1) + ", O");
  }
  SUBCASE("tied tables: R of chunk 0 meets the stages that hold them") {
    Plan plan = usual_plan({2, 2, 2, LmHead::last, 2});
    plan.model.tied = true;
    for (const std::int32_t dp : {0, 1}) swap_units(order_of(plan, dp, 0), r(0), r(1));
    CHECK(validate(plan).valid());
  }
}

TEST_CASE("rule 7: the peak fits, one byte less does not") {
  Plan plan = usual_plan({2, 2, 2, LmHead::shard, 1});
  const Validation before = validate(plan);
  INFO(all_messages(before));
  REQUIRE(before.valid());
  REQUIRE(before.worst_case_peak.size() == 4);
  std::size_t fullest = 0;
  for (std::size_t i = 1; i < 4; ++i) {
    if (before.worst_case_peak[i] > before.worst_case_peak[fullest]) fullest = i;
  }
  plan.memory.capacity = before.worst_case_peak[fullest] + plan.memory.reserved;
  CHECK(validate(plan).valid());
  plan.memory.capacity -= Bytes{1};
  const Validation after = validate(plan);
  REQUIRE(!after.valid());
  for (const Violation& violation : after.violations) CHECK(violation.rule == 7);
  const Violation& violation = after.violations[0];
  CHECK(violation.dp == plan.schedule[fullest].dp);
  CHECK(violation.pp == plan.schedule[fullest].pp);
  REQUIRE(violation.unit);
  CHECK(violation.message.find("memory may reach " +
                               std::to_string(before.worst_case_peak[fullest].value) +
                               " bytes in ") != std::string::npos);
  CHECK(violation.message.find("capacity - reserved is " +
                               std::to_string(before.worst_case_peak[fullest].value - 1)) !=
        std::string::npos);
  CHECK(after.worst_case_peak == before.worst_case_peak);
}

TEST_CASE("rule 7: what a sample keeps when it is cut does not fit where it was not") {
  Plan plan = hand_plan({1, 2, 1, LmHead::last, 1});
  plan.memory.page_tokens = Tokens{16};
  for (int i = 0; i < 2; ++i) {
    const SampleId sample = add_sample(plan, 8, 0);
    add_pack(plan, Pass::forward, 0, {{sample, {0}, {8}}});
    add_pack(plan, Pass::backward, 0, {{sample, {0}, {8}}}, Recompute::full);
  }
  schedule_in_order(plan);
  const Validation before = validate(plan);
  REQUIRE(before.valid());
  plan.memory.capacity =
      plan.memory.reserved + std::max(before.worst_case_peak[0], before.worst_case_peak[1]);
  REQUIRE(validate(plan).valid());
  const auto expect_too_much = [](const Plan& damaged) {
    const Validation validation = validate(damaged);
    INFO(all_messages(validation));
    REQUIRE(!validation.valid());
    for (const Violation& violation : validation.violations) CHECK(violation.rule == 7);
  };
  Plan old = plan;
  old.version = 1;
  expect_too_much(old);
  Plan cut = plan;
  slice(cut, 0).end = Tokens{6};
  add_pack(cut, Pass::forward, 0, {{SampleId{0}, {6}, {8}}});
  schedule_in_order(cut);
  expect_too_much(cut);
  Plan kept = plan;
  kept.micropacks[1].recompute = Recompute::none;
  expect_too_much(kept);
}

TEST_CASE("format: what is asked outside the seven rules") {
  struct Case {
    const char* message;
    std::function<void(Plan&)> damage;
  };
  const std::vector<Case> cases = {
      {"format: parallel.dp must be >= 1, got 0", [](Plan& p) { p.parallel.dp = 0; }},
      {"format: parallel.pp must be >= 1, got -1", [](Plan& p) { p.parallel.pp = -1; }},
      {"format: parallel.tp must be >= 1, got 0", [](Plan& p) { p.parallel.tp = 0; }},
      {"format: parallel.chunks must be >= 1, got 0", [](Plan& p) { p.parallel.chunks = 0; }},
      {"format: parallel.granularity must be >= 1, got 0",
       [](Plan& p) { p.parallel.granularity = {0}; }},
      {"format: window must be >= 1, got 0", [](Plan& p) { p.max_in_flight = 0; }},
      {"format: version must be >= 1, got 0", [](Plan& p) { p.version = 0; }},
      {"format: version must be <= 3, got 4", [](Plan& p) { p.version = 4; }},
      {"format: model.hidden must be >= 1, got 0", [](Plan& p) { p.model.hidden = 0; }},
      {"format: model.kv_heads must divide model.heads 2, got 3",
       [](Plan& p) { p.model.kv_heads = 3; }},
      {"format: parallel.tp must divide model.kv_heads (2), got 3",
       [](Plan& p) {
         p.parallel.tp = 3;
         p.model.heads = 6;
         p.model.ffn = 6;
         p.model.kv_heads = 2;
       }},
      {"format: parallel.tp must divide model.ffn (7), got 2",
       [](Plan& p) {
         p.parallel.tp = 2;
         p.model.heads = p.model.kv_heads = 2;
         p.model.ffn = 7;
       }},
      {"format: memory.page_tokens must be >= 1, got 0",
       [](Plan& p) { p.memory.page_tokens = {0}; }},
      {"format: memory.capacity must be >= 0, got -1", [](Plan& p) { p.memory.capacity = {-1}; }},
      {"format: cluster.devices_per_node must be >= 1, got 0",
       [](Plan& p) { p.cluster.devices_per_node = 0; }},
      {"format: step.index must be >= 0, got -1", [](Plan& p) { p.step_index = -1; }},
      {"format: step.target_tokens must be in [23, 26], got 27",
       [](Plan& p) { p.target_tokens = 27; }},
      {"format: step.target_tokens must be in [23, 26], got 22",
       [](Plan& p) { p.target_tokens = 22; }},
      {"format, sample 1: a sample's length must be > 0, got 0",
       [](Plan& p) { p.samples[1] = {0}; }},
      {"format: origin must have one entry a sample, 3, has 2",
       [](Plan& p) { p.origin.pop_back(); }},
      {"format: sample_group must have one entry a sample, 3, has 2",
       [](Plan& p) { p.sample_group.pop_back(); }},
      {"format, sample 2: origin [1, 2, 0] is not in the sources",
       [](Plan& p) { p.origin[2].source = 1; }},
      {"format, sample 0: origin [0, 1000000, 0] is not in the sources",
       [](Plan& p) { p.origin[0].document = 1'000'000; }},
      {"format, sample 0: sample_group names group 9 of 3",
       [](Plan& p) { p.sample_group[0] = GroupId{9}; }},
      {"format: sample_first needs version 3", [](Plan& p) { p.sample_first = {0, 0, 0}; }},
      {"format: sample_first must have one entry a sample, 3, has 2",
       [](Plan& p) {
         p.version = 3;
         p.sample_first = {0, 0};
       }},
      {"format, sample 2: sample_first must be in [0, 2), got 2",
       [](Plan& p) {
         p.version = 3;
         p.sample_first = {0, 0, 2};
       }},
      {"format: stages must have one entry for each stage and chunk, 4, has 3",
       [](Plan& p) { p.stages.pop_back(); }},
      {"format: stages[1] must be pp 1, chunk 0, is pp 0, chunk 1",
       [](Plan& p) { std::swap(p.stages[1], p.stages[2]); }},
      {"format: stages[2] must hold layers from 2 on, holds [3, 3)",
       [](Plan& p) { p.stages[2].first_layer = 3; }},
      {"format: stages must end at model.layers 5, end at 4", [](Plan& p) { ++p.model.layers; }},
      {"format: stages[0] must hold the embedding", [](Plan& p) { p.stages[0].embedding = false; }},
      {"format: stages[3] must not hold the embedding",
       [](Plan& p) { p.stages[3].embedding = true; }},
      {"format: groups[0] must not be empty", [](Plan& p) { p.groups[0].clear(); }},
      {"format: groups[2] names dp 2 of 2", [](Plan& p) { p.groups[2] = {0, 2}; }},
      {"format: groups[2] must be ascending", [](Plan& p) { p.groups[2] = {1, 0}; }},
      {"format: groups[3] is the same set as groups[2]",
       [](Plan& p) { p.groups.push_back(p.groups[2]); }},
      {"format, MicroPack 9: a MicroPack holds at least a slice",
       [](Plan& p) { p.micropacks.push_back({}); }},
      {"format, MicroPack 0: recompute belongs to backward MicroPacks",
       [](Plan& p) { p.micropacks[0].recompute = Recompute::full; }},
      {"format, MicroPack 0: group 7 of 3", [](Plan& p) { p.micropacks[0].group = GroupId{7}; }},
      {"format, MicroPack 6: exchange must have one entry a slice, 1 slices, 0 entries",
       [](Plan& p) { p.micropacks[6].exchange.clear(); }},
      {"format, MicroPack 0: exchange belongs to groups of several ranks, 1 slices, 1 entries",
       [](Plan& p) { p.micropacks[0].exchange = {RingMode::pass_q}; }},
      {"format, MicroPack 6: exchange by heads needs version 3",
       [](Plan& p) {
         p.model.kv_heads = 2;
         p.micropacks[6].exchange = {RingMode::by_heads};
       }},
      {"format, MicroPack 8: exchange by heads needs a number of ranks that divides the 1 key "
       "heads of a device, or is a multiple of them that divides its 3 query heads, got 2",
       [](Plan& p) {
         p.version = 3;
         p.model.heads = 3;
         p.micropacks[8].exchange = {RingMode::by_heads};
       }},
      {"format, MicroPack 7: exchange by heads needs a number of ranks that divides the 3 key "
       "heads of a device, or is a multiple of them that divides its 3 query heads, got 2",
       [](Plan& p) {
         p.version = 3;
         p.parallel.tp = 2;
         p.model.heads = p.model.kv_heads = 6;
         p.micropacks[7].exchange = {RingMode::by_heads};
       }},
      {"format, sample 2, MicroPack 8: the slices of a sample are all exchanged by heads or none "
       "is; not so with those of MicroPack 6",
       [](Plan& p) {
         p.version = 3;
         p.model.kv_heads = 2;
         p.micropacks[6].exchange = p.micropacks[7].exchange = {RingMode::by_heads};
       }},
      {"format, sample 2, MicroPack 7: the slices of a sample are all exchanged by heads or none "
       "is; not so with those of MicroPack 6",
       [](Plan& p) {
         p.version = 3;
         p.model.kv_heads = 2;
         p.micropacks[7].exchange = p.micropacks[8].exchange = {RingMode::by_heads};
       }},
      {"format, MicroPack 0: a slice names sample 8 of 3",
       [](Plan& p) { slice(p, 0).sample = SampleId{8}; }},
      {"format: placement names dp 2, pp 0, tp 0, which does not exist",
       [](Plan& p) { p.placement[0].dp = 2; }},
      {"format: placement must list every device once, lists 3",
       [](Plan& p) { p.placement.pop_back(); }},
      {"format: placement lists dp 0, pp 1, tp 0 twice", [](Plan& p) { p.placement[0].pp = 1; }},
      {"format: placement uses device 2 twice", [](Plan& p) { p.placement[0].device = 2; }},
      {"format: placement puts dp 0, pp 0 on device -3",
       [](Plan& p) { p.placement[0].device = -3; }},
      {"format: prediction.devices must list every device once, lists 3",
       [](Plan& p) { p.prediction.devices.pop_back(); }},
      {"format: prediction.devices lists dp 1, pp 1, tp 0 twice",
       [](Plan& p) { p.prediction.devices.push_back({1, 1, {}, {}}); }},
      {"format, dp 0, pp 0: schedules must be ordered by dp, then pp",
       [](Plan& p) { std::swap(p.schedule[0], p.schedule[1]); }},
  };
  const Plan plan = usual_plan({2, 2, 2, LmHead::last, 2});
  REQUIRE(validate(plan).valid());
  for (const Case& entry : cases) {
    CAPTURE(std::string(entry.message));
    Plan damaged = plan;
    entry.damage(damaged);
    const Validation validation = validate(damaged);
    INFO(all_messages(validation));
    const Violation* violation = violation_with(validation, entry.message);
    REQUIRE(violation != nullptr);
    CHECK(violation->rule == 0);
  }
  Plan early = plan;
  early.prediction.devices.clear();
  CHECK(validate(early).valid());
  Plan by_heads = plan;
  by_heads.version = 3;
  by_heads.model.kv_heads = 2;
  for (const std::size_t pack : {6U, 7U, 8U}) {
    by_heads.micropacks[pack].exchange = {RingMode::by_heads};
  }
  CHECK(validate(by_heads).valid());
}

TEST_CASE("validate: lists a hundred of a kind and counts the rest, all rules in one pass") {
  Plan plan = hand_plan({});
  for (int i = 0; i < 150; ++i) {
    const SampleId sample = add_sample(plan, 6, 0);
    add_pack(plan, Pass::forward, 0, {{sample, {0}, {3}}});
    add_pack(plan, Pass::backward, 0, {{sample, {0}, {6}}});
  }
  schedule_in_order(plan);
  auto& order = order_of(plan, 0, 0);
  move_unit(order, r(), 0);
  order.pop_back();
  plan.step_index = -4;
  const Validation validation = validate(plan);
  std::vector<int> rules;
  for (const Violation& violation : validation.violations) rules.push_back(violation.rule);
  CHECK(std::is_sorted(rules.begin(), rules.end()));
  CHECK(std::count(rules.begin(), rules.end(), 0) == 1);
  CHECK(std::count(rules.begin(), rules.end(), 1) == 202);
  CHECK(std::count(rules.begin(), rules.end(), 3) == 1);
  CHECK(std::count(rules.begin(), rules.end(), 5) == 1);
  CHECK(violation_with(validation, "rule 1: 50 more of the kind: boundary off the granularity"));
  CHECK(violation_with(validation, "rule 1: 50 more of the kind: tokens in no slice"));
}
