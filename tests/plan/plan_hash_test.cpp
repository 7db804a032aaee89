// SPDX-License-Identifier: Apache-2.0
#include "slimpack/plan/plan_hash.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace slimpack;

namespace {

/// FNV-1a in the plainest arithmetic there is: a number of 16 bytes, multiplied digit by digit.
std::string slow_fnv(std::string_view bytes) {
  const auto digits = [](std::string_view hex) {
    std::vector<unsigned> value;
    for (std::size_t k = hex.size(); k > 0; k -= 2) {
      value.push_back(
          static_cast<unsigned>(std::stoul(std::string(hex.substr(k - 2, 2)), nullptr, 16)));
    }
    return value;
  };
  std::vector<unsigned> state = digits("6c62272e07bb014262b821756295c58d");
  const std::vector<unsigned> prime = digits("0000000001000000000000000000013b");
  for (const char character : bytes) {
    state[0] ^= static_cast<unsigned char>(character);
    std::vector<unsigned> product(16);
    for (std::size_t i = 0; i < 16; ++i) {
      unsigned carry = 0;
      for (std::size_t j = 0; i + j < 16; ++j) {
        const unsigned sum = product[i + j] + state[i] * prime[j] + carry;
        product[i + j] = sum & 255U;
        carry = sum >> 8U;
      }
    }
    state = product;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (std::size_t k = 16; k > 0; --k) {
    text += kHex[state[k - 1] >> 4U];
    text += kHex[state[k - 1] & 15U];
  }
  return text;
}

Plan some_plan() {
  Plan plan;
  plan.planner = "by hand";
  plan.step_index = 3;
  plan.target_tokens = 20;
  plan.sources = {{"a.lengths", 4, "0123"}};
  plan.origin = {{0, 1, Tokens{0}}, {0, 2, Tokens{5}}};
  plan.samples = {Tokens{10}, Tokens{12}};
  plan.model = {"small", 2, 8, 2, 1, 4, 16, 32, false, 1e4, 1e-5, 2};
  plan.memory.capacity = Bytes{1000};
  plan.parallel.dp = 2;
  plan.placement = {{0, 0, 0, 0}, {1, 0, 0, 1}};
  plan.stages = {{0, 0, 0, 2, true}};
  plan.groups = {{0}, {0, 1}};
  plan.sample_group = {GroupId{1}, GroupId{0}};
  plan.micropacks = {
      {Pass::forward, GroupId{1}, {{SampleId{0}, Tokens{0}, Tokens{10}}}, {RingMode::pass_kv}, {}},
      {Pass::backward,
       GroupId{1},
       {{SampleId{0}, Tokens{0}, Tokens{10}}},
       {RingMode::pass_kv},
       Recompute::light}};
  plan.schedule = {{0, 0, {{UnitKind::forward, PackId{0}, 0}, {UnitKind::optimizer, {}, 0}}},
                   {1, 0, {{UnitKind::forward, PackId{0}, 0}}}};
  return plan;
}

}  // namespace

TEST_CASE("plan_hash: the bytes of a string are hashed as FNV-1a says") {
  CHECK(to_string(detail::PlanHasher{}.value()) == "6c62272e07bb014262b821756295c58d");
  for (const std::string_view text : {"a", "foobar", "slimpack", "\xff\xff\xff\x80"}) {
    detail::PlanHasher hash;
    for (const char character : text) hash.byte(static_cast<unsigned char>(character));
    CHECK(to_string(hash.value()) == slow_fnv(text));
  }
  // Published with the algorithm.
  CHECK(slow_fnv("a") == "d228cb696f1a8caf78912b704e4a8964");
  CHECK(slow_fnv("foobar") == "343e1662793c64bf6f0d3597ba446f18");
}

TEST_CASE("plan_hash: any change of what decides execution changes it") {
  using Change = std::function<void(Plan&)>;
  const std::vector<Change> changes{
      [](Plan& p) { p.version = 1; },
      [](Plan& p) { ++p.step_index; },
      [](Plan& p) { ++p.target_tokens; },
      [](Plan& p) { ++p.sources[0].documents; },
      [](Plan& p) { p.sources[0].sha256 = "0124"; },
      [](Plan& p) { p.sources.emplace_back(); },
      [](Plan& p) { ++p.origin[0].source; },
      [](Plan& p) { ++p.origin[0].document; },
      [](Plan& p) { p.origin[1].first += Tokens{1}; },
      [](Plan& p) { p.samples[1] += Tokens{1}; },
      [](Plan& p) { std::swap(p.samples[0], p.samples[1]); },
      [](Plan& p) { p.samples.pop_back(); },
      [](Plan& p) { ++p.model.layers; },
      [](Plan& p) { ++p.model.hidden; },
      [](Plan& p) { ++p.model.heads; },
      [](Plan& p) { ++p.model.kv_heads; },
      [](Plan& p) { ++p.model.head_dim; },
      [](Plan& p) { ++p.model.ffn; },
      [](Plan& p) { ++p.model.vocab; },
      [](Plan& p) { p.model.tied = true; },
      [](Plan& p) { p.model.rope_theta *= 2; },
      [](Plan& p) { p.model.norm_eps *= 2; },
      [](Plan& p) { p.model.bytes_per_element = 4; },
      [](Plan& p) { p.memory.capacity += Bytes{1}; },
      [](Plan& p) { p.memory.reserved += Bytes{1}; },
      [](Plan& p) { p.memory.optimizer = OptimizerState::replicated; },
      [](Plan& p) { ++p.memory.gradient_bytes; },
      [](Plan& p) { p.memory.page_tokens += Tokens{1}; },
      [](Plan& p) { p.memory.cp_block_tokens += Tokens{1}; },
      [](Plan& p) { p.memory.head_tile += Tokens{1}; },
      [](Plan& p) { p.memory.weights = WeightState::sharded; },
      [](Plan& p) { ++p.parallel.dp; },
      [](Plan& p) { ++p.parallel.pp; },
      [](Plan& p) { ++p.parallel.tp; },
      [](Plan& p) { ++p.parallel.chunks; },
      [](Plan& p) { p.parallel.head = LmHead::shard; },
      [](Plan& p) { p.parallel.granularity += Tokens{1}; },
      [](Plan& p) { ++p.parallel.max_cp; },
      [](Plan& p) { ++p.placement[0].dp; },
      [](Plan& p) { ++p.placement[0].pp; },
      [](Plan& p) { ++p.placement[0].tp; },
      [](Plan& p) { ++p.placement[0].device; },
      [](Plan& p) { p.placement.pop_back(); },
      [](Plan& p) { ++p.stages[0].pp; },
      [](Plan& p) { ++p.stages[0].chunk; },
      [](Plan& p) { ++p.stages[0].first_layer; },
      [](Plan& p) { ++p.stages[0].end_layer; },
      [](Plan& p) { p.stages[0].embedding = false; },
      [](Plan& p) { ++p.groups[0][0]; },
      [](Plan& p) { p.groups = {{0, 0}, {1}}; },  // the same numbers, otherwise divided
      [](Plan& p) { p.sample_group[0] = GroupId{0}; },
      [](Plan& p) { p.sample_first = {0, 0}; },
      [](Plan& p) { p.micropacks[0].pass = Pass::backward; },
      [](Plan& p) { p.micropacks[0].group = GroupId{0}; },
      [](Plan& p) { p.micropacks[0].slices[0].sample = SampleId{1}; },
      [](Plan& p) { p.micropacks[0].slices[0].begin += Tokens{1}; },
      [](Plan& p) { p.micropacks[0].slices[0].end += Tokens{1}; },
      [](Plan& p) { p.micropacks[0].slices.emplace_back(); },
      [](Plan& p) { p.micropacks[0].exchange[0] = RingMode::pass_q; },
      [](Plan& p) { p.micropacks[0].exchange[0] = RingMode::by_heads; },
      [](Plan& p) { p.micropacks[0].exchange.clear(); },
      [](Plan& p) { p.micropacks[1].recompute = Recompute::full; },
      [](Plan& p) { p.micropacks[1].weights = WeightGradients::apart; },
      [](Plan& p) {
        p.micropacks[1].recompute = Recompute::full;
        p.micropacks[1].weights = WeightGradients::apart;
      },
      [](Plan& p) { p.micropacks[1].pass = Pass::weight; },
      [](Plan& p) { p.micropacks.pop_back(); },
      [](Plan& p) { ++p.schedule[0].dp; },
      [](Plan& p) { ++p.schedule[0].pp; },
      [](Plan& p) { p.schedule[0].order[0].kind = UnitKind::backward; },
      [](Plan& p) { p.schedule[0].order[0].pack = PackId{1}; },
      [](Plan& p) { ++p.schedule[0].order[0].chunk; },
      [](Plan& p) { std::swap(p.schedule[0].order[0], p.schedule[0].order[1]); },
      [](Plan& p) { p.schedule[0].order.pop_back(); },
      [](Plan& p) { p.schedule.pop_back(); },
      [](Plan& p) { ++p.max_in_flight; },
  };
  const Plan plan = some_plan();
  std::set<std::string> seen{to_string(plan_hash(plan))};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    Plan changed = plan;
    changes[i](changed);
    CHECK(seen.insert(to_string(plan_hash(changed))).second);
  }
}

TEST_CASE("plan_hash: names, cluster, cost and prediction do not change it") {
  const Plan plan = some_plan();
  Plan changed = plan;
  changed.planner = "another";
  changed.sources[0].path = "/elsewhere/a.lengths";
  changed.model.name = "renamed";
  changed.cluster.matrix_flops = 1;
  changed.cost = TableCost{};
  changed.prediction.iteration = Nanos{5};
  CHECK((plan_hash(changed) == plan_hash(plan)));
}

TEST_CASE("plan_hash: one plan by hand has the same hash everywhere") {
  Plan plan = some_plan();
  CHECK(to_string(plan_hash(plan)) == "1b87e862b83f8c194a0f767804892106");
  plan.version = 1;
  CHECK(to_string(plan_hash(plan)) == "132701eb634475f29f2434d2f7c47325");
}
