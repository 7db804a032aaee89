// SPDX-License-Identifier: Apache-2.0
// What rule 0 asks of plans whose ranks share weights: a mutation for each sentence.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/cost/presets.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/validate.hpp"

namespace shared_weights_test {

using namespace slimpack;

namespace {

/// Two ranks, two rounds: a sample that both share, then one on each.
Plan two_rounds() {
  Plan plan;
  plan.version = 3;
  plan.planner = "hand";
  plan.target_tokens = 28;
  plan.sources = {{"lengths", 3, ""}};
  plan.samples = {Tokens{16}, Tokens{8}, Tokens{4}};
  for (std::int64_t i = 0; i < 3; ++i) plan.origin.push_back({0, i, {}});
  plan.model = {"small", 2, 8, 2, 2, 4, 16, 32, false, 1e4, 1e-5, 2};
  plan.cluster = cluster_preset("h100").value();
  plan.memory.capacity = Bytes{1'000'000};
  plan.memory.weights = WeightState::sharded;
  plan.memory.cp_block_tokens = Tokens{4};
  plan.parallel.dp = 2;
  plan.parallel.granularity = Tokens{4};
  plan.parallel.max_cp = 2;
  plan.placement = {{0, 0, 0, 0}, {1, 0, 0, 1}};
  plan.stages = {{0, 0, 0, 2, true}};
  plan.groups = {{0}, {1}, {0, 1}};
  plan.sample_group = {GroupId{2}, GroupId{0}, GroupId{1}};
  for (std::size_t sample = 0; sample < 3; ++sample) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      MicroPack pack;
      pack.pass = pass;
      pack.group = plan.sample_group[sample];
      pack.slices = {{static_cast<SampleId>(sample), Tokens{}, plan.samples[sample]}};
      if (sample == 0) pack.exchange = {RingMode::pass_kv};
      plan.micropacks.push_back(pack);
    }
  }
  for (const std::int32_t dp : {0, 1}) {
    std::vector<Unit> order;
    for (const std::int32_t pack : {0, 2 + 2 * dp}) {
      order.push_back({UnitKind::forward, static_cast<PackId>(pack), 0});
      order.push_back({UnitKind::head, static_cast<PackId>(pack), 0});
      order.push_back({UnitKind::backward, static_cast<PackId>(pack + 1), 0});
    }
    order.push_back({UnitKind::reduce, {}, 0});
    order.push_back({UnitKind::optimizer, {}, 0});
    plan.schedule.push_back({dp, 0, order});
  }
  return plan;
}

TEST_CASE("validate: ranks that share weights run rounds on one stage") {
  const Plan good = two_rounds();
  for (const Violation& violation : validate(good).violations) FAIL_CHECK(violation.message);
  CHECK((plan_from_json(plan_to_json(good), "plan.json") == good));
  // What devices always hold is counted twice, by other formulas.
  Plan whole = good;
  whole.memory.weights = WeightState::replicated;
  for (const bool tied : {false, true}) {
    Plan shared = good;
    shared.model.tied = whole.model.tied = tied;
    CHECK(validate(whole).worst_case_peak[0] - validate(shared).worst_case_peak[0] ==
          static_bytes(whole, 0).total() - static_bytes(shared, 0).total());
  }
  const std::vector<std::pair<std::string, std::function<void(Plan&)>>> wrong{
      {"format: sharded weights need version 3", [](Plan& p) { p.version = 2; }},
      {"format: sharded weights need sharded optimizer state",
       [](Plan& p) { p.memory.optimizer = OptimizerState::replicated; }},
      {"format: sharded weights need one stage of one chunk", [](Plan& p) { p.parallel.pp = 2; }},
      {"format: sharded weights need several data-parallel ranks",
       [](Plan& p) { p.parallel.dp = 1; }},
      {"format, MicroPack 1: sharded weights need the gradients of weights to be computed in B",
       [](Plan& p) { p.micropacks[1].weights = WeightGradients::apart; }},
      {"format, dp 1, pp 0: sharded weights need as many units on all ranks",
       [](Plan& p) { p.schedule[1].order.pop_back(); }},
      {"format, dp 1, pp 0, unit 4: sharded weights need units of one kind at one position "
       "of all orders",
       [](Plan& p) { std::swap(p.schedule[1].order[4], p.schedule[1].order[5]); }},
      {"format, MicroPack 0, dp 1, pp 0, unit 3: sharded weights need a MicroPack to be at "
       "one position of all its ranks' orders",
       [](Plan& p) { std::swap(p.schedule[1].order[0], p.schedule[1].order[3]); }},
      {"format, MicroPack 0, dp 0, pp 0, unit 3: sharded weights need MicroPacks of a pass "
       "to run in the order of their ids",
       [](Plan& p) { std::swap(p.schedule[0].order[0], p.schedule[0].order[3]); }},
  };
  for (const auto& mutation : wrong) {
    const std::string& message = mutation.first;
    CAPTURE(message);
    Plan plan = good;
    mutation.second(plan);
    bool found = false;
    std::string all;
    for (const Violation& violation : validate(plan).violations) {
      found = found || violation.message == message;
      all += violation.message + "\n";
    }
    CAPTURE(all);
    CHECK(found);
  }
}

TEST_CASE("plan.json: sharded weights are known from version 3 on") {
  std::string text = plan_to_json(two_rounds());
  CHECK(text.find("\"weights\": \"sharded\"") != std::string::npos);
  Plan whole = two_rounds();
  whole.memory.weights = WeightState::replicated;
  CHECK(plan_to_json(whole).find("replicated\"") == std::string::npos);
  const auto at = text.find("\"version\": 3");
  REQUIRE(at != std::string::npos);
  text[at + 11] = '2';
  CHECK_THROWS_WITH_AS(
      static_cast<void>(plan_from_json(text, "plan.json")),
      "plan.json: memory.weights: is known from version 3 of plans on, found 'sharded'",
      InvalidInput);
}

}  // namespace
}  // namespace shared_weights_test
