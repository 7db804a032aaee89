// SPDX-License-Identifier: Apache-2.0
// Random valid plans have no violation; random damage never stops the validator.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/planners/search/worst_memory.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/draws.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"
#include "support/random_times.hpp"

using namespace slimpack;

namespace {

std::string first_messages(const Validation& validation) {
  std::string text;
  for (std::size_t i = 0; i < validation.violations.size() && i < 5; ++i) {
    text += validation.violations[i].message + "\n";
  }
  return text;
}

test::RandomPlanOptions options_of(std::uint64_t seed) {
  test::RandomPlanOptions options;
  if (seed % 4 == 1) options.cp_groups = true;
  if (seed % 8 == 2) {
    options.max_tp = 3;
    options.vary_bytes = true;
  }
  if (seed % 16 == 3) options.large_model = true;
  if (seed % 16 == 4) {
    options.max_in_flight = 1;
    options.chunks = 3;
  }
  options.weights = seed % 2 == 0;
  return options;
}

/// A value that a damaged file might have in a place of `was`.
std::int64_t odd_value(Random& random, std::int64_t was) {
  switch (random.below(6)) {
    case 0:
      return was < 1'000'000 ? was + 1 : 0;
    case 1:
      return was > -1'000'000 ? was - 1 : 0;
    case 2:
      return 0;
    case 3:
      return std::numeric_limits<std::int64_t>::max();
    case 4:
      return std::numeric_limits<std::int64_t>::min();
    default:
      return random.between(-5, 50);
  }
}

void damage(Random& random, Plan& plan) {
  const auto pick = [&](auto& values) -> auto& { return values[random.below(values.size())]; };
  const auto wide = [&](std::int64_t& value) { value = odd_value(random, value); };
  const auto narrow = [&](std::int32_t& value) {
    value = static_cast<std::int32_t>(odd_value(random, value));
  };
  auto& pack = pick(plan.micropacks);
  auto& device = pick(plan.schedule);
  switch (random.below(26)) {
    case 0:
      return wide(pick(pack.slices).begin.value);
    case 1:
      return wide(pick(pack.slices).end.value);
    case 2:
      pick(pack.slices).sample = SampleId(random.below(20));
      return;
    case 3:
      pack.group = GroupId(random.below(8));
      return;
    case 4:
      pack.pass = static_cast<Pass>((static_cast<int>(pack.pass) + random.between(1, 2)) % 3);
      return;
    case 5:
      pack.slices.clear();
      return;
    case 6:
      return wide(pick(plan.samples).value);
    case 7:
      return narrow(plan.parallel.dp);
    case 8:
      return narrow(plan.parallel.pp);
    case 9:
      return narrow(plan.parallel.chunks);
    case 10:
      return wide(plan.parallel.granularity.value);
    case 11:
      return narrow(plan.max_in_flight);
    case 12:
      return wide(plan.model.hidden);
    case 13:
      return wide(plan.memory.page_tokens.value);
    case 14:
      return wide(plan.memory.cp_block_tokens.value);
    case 15:
      return narrow(pick(pick(plan.groups)));
    case 16:
      pick(plan.sample_group) = GroupId(random.below(8));
      return;
    case 17:
      return narrow(pick(device.order).chunk);
    case 18:
      pick(device.order).pack = PackId(random.below(30));
      return;
    case 19:
      pick(device.order).kind = static_cast<UnitKind>(random.below(6));
      return;
    case 20:
      random.shuffle(std::span(device.order));
      return;
    case 21:
      std::swap(pick(device.order), pick(device.order));
      return;
    case 22:
      device.order.pop_back();
      return;
    case 23:
      pack.weights =
          pack.weights == WeightGradients::with ? WeightGradients::apart : WeightGradients::with;
      return;
    case 24:
      plan.version = 3 - plan.version;
      return;
    default:
      return narrow(device.pp);
  }
}

}  // namespace

TEST_CASE("validate: random valid plans have no violation") {
  test::Features found;
  std::int64_t units = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(2400U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options_of(seed));
    found += test::features_of(plan);
    for (const DeviceSchedule& device : plan.schedule) {
      units += static_cast<std::int64_t>(device.order.size());
    }
    const Validation validation = validate(plan);
    INFO(first_messages(validation));
    REQUIRE(validation.valid());
    REQUIRE(validation.worst_case_peak.size() == plan.schedule.size());
  }
  MESSAGE(test::to_string(found) << ", units " << units);
  CHECK(found.merged_kv > slimpack::test::draws(500));
  CHECK(found.merged_q > slimpack::test::draws(500));
  CHECK(found.shared_ranks > slimpack::test::draws(100));
  CHECK(found.chunks > slimpack::test::draws(1000));
  CHECK(found.sharded_head > slimpack::test::draws(500));
  CHECK(found.tied > slimpack::test::draws(500));
  CHECK(found.grouped_queries > slimpack::test::draws(500));
  CHECK(found.differing_cuts > slimpack::test::draws(1000));
  for (const std::int64_t count : found.recompute) CHECK(count > slimpack::test::draws(1000));
  CHECK(found.mixed_recompute > slimpack::test::draws(1000));
  CHECK(found.uneven_stages > slimpack::test::draws(1000));
  CHECK(found.empty_stages > slimpack::test::draws(50));
  CHECK(found.idle_ranks > slimpack::test::draws(200));
  CHECK(found.tensor_parallel > slimpack::test::draws(50));
  CHECK(found.weights > slimpack::test::draws(800));
  CHECK(found.weights_in_groups > slimpack::test::draws(200));
  CHECK(found.max_in_flight[0] > slimpack::test::draws(200));
  CHECK(found.max_in_flight[1] > slimpack::test::draws(200));
  CHECK(found.max_in_flight[2] > slimpack::test::draws(200));
}

TEST_CASE("validate: plans by heads are valid, and hold what planners and simulator count") {
  std::int64_t reached = 0, below = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(400U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = options_of(seed);
    options.max_tp = 3;
    const Plan plan = test::random_heads_plan(seed, options);
    const Validation validation = validate(plan);
    INFO(first_messages(validation));
    REQUIRE(validation.valid());
    CHECK((planners::worst_memory(plan) == validation.worst_case_peak));
    const sim::PlanSimulation priced = sim::simulate_plan(plan);
    const sim::PlanSimulation drawn = sim::simulate_plan(plan, test::RandomTimes{seed});
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      const Bytes most = validation.worst_case_peak[device];
      for (const sim::PlanSimulation* simulation : {&priced, &drawn}) {
        const Bytes peak = simulation->timeline.peak[device].bytes;
        CHECK(peak <= most);
        ++(peak == most ? reached : below);
      }
    }
  }
  CHECK(reached > slimpack::test::draws(500));
  CHECK(below > 0);
}

TEST_CASE("random_plan: a seed gives one plan, options are kept") {
  CHECK(test::random_plan(7) == test::random_plan(7));
  CHECK(test::random_plan(7) != test::random_plan(8));
  test::RandomPlanOptions options;
  options.dp = 3;
  options.pp = 2;
  options.chunks = 2;
  options.max_in_flight = 1;
  options.tp = 2;
  options.head = LmHead::shard;
  options.tied = true;
  options.cp_groups = true;
  options.recompute = Recompute::layer;
  options.exchange = RingMode::pass_q;
  options.same_cuts = true;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options);
    CHECK(validate(plan).valid());
    const test::Features found = test::features_of(plan);
    CHECK(plan.parallel.dp == 3);
    CHECK(plan.parallel.pp == 2);
    CHECK(plan.parallel.chunks == 2);
    CHECK(plan.parallel.tp == 2);
    CHECK(found.max_in_flight[0] == 1);
    CHECK(found.sharded_head == 1);
    CHECK(found.tied == 1);
    CHECK(found.merged_q == 1);
    CHECK(found.merged_kv == 0);
    CHECK(found.differing_cuts == 0);
    CHECK(found.recompute[2] == 1);
    CHECK(found.recompute[0] + found.recompute[1] + found.recompute[3] == 0);
  }
}

TEST_CASE("validate: damaged plans are answered, never refused, twice alike") {
  std::int64_t broken = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(6000U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Plan plan = seed / 10 % 8 == 5 ? test::random_heads_plan(seed / 10)
                                   : test::random_plan(seed / 10, options_of(seed / 10));
    const std::int64_t times = random.between(1, 3);
    for (std::int64_t i = 0; i < times; ++i) {
      if (plan.micropacks.empty() || plan.schedule.empty()) break;
      bool hollow = false;
      for (const auto& pack : plan.micropacks) hollow = hollow || pack.slices.empty();
      for (const auto& device : plan.schedule) hollow = hollow || device.order.empty();
      if (!hollow) damage(random, plan);
    }
    const Validation validation = validate(plan);
    broken += validation.valid() ? 0 : 1;
    REQUIRE(validate(plan) == validation);
  }
  MESSAGE(broken << " of 6000 damaged plans are invalid");
  CHECK(broken > slimpack::test::draws(4000));
}

TEST_CASE("validate: an empty plan breaks rules and no more") {
  const Validation validation = validate(Plan{});
  CHECK(!validation.valid());
  CHECK(validation.worst_case_peak.empty());
}
