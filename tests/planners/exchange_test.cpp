// SPDX-License-Identifier: Apache-2.0
// Which samples of a plan are exchanged by heads.
#include "slimpack/planners/slimpack/exchange.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/slimpack/rounds.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/draws.hpp"

namespace exchange_test {

using namespace slimpack;

namespace {

[[nodiscard]] bool by_heads(const MicroPack& pack) {
  return std::ranges::find(pack.exchange, RingMode::by_heads) != pack.exchange.end();
}

/// The time of all units of packs that have samples in common with `pack`.
[[nodiscard]] Nanos joined_time(const Plan& plan, const std::vector<std::size_t>& first,
                                std::size_t pack) {
  Plan whole = plan;
  whole.memory.weights = WeightState::replicated;
  const PricedPlan prices(whole);
  Nanos sum;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    if (first[i] == first[pack]) sum += prices.compute(static_cast<PackId>(i), 0);
  }
  return sum;
}

TEST_CASE("exchange_by_heads: packs change together where that takes less time, and only there") {
  std::int64_t changed = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < test::draws(std::uint64_t{60}); ++seed) {
    CAPTURE(seed);
    Random random(seed + 700);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = random.between(1, 6); i > 0; --i) {
      lengths.push_back(random.between(50, 3000));
    }
    planners::PlanRequest request = test::request_of(lengths);
    request.dp = 4;
    request.model.heads = request.model.kv_heads = 8;
    request.cluster.devices_per_node = random.chance(1, 2) ? 2 : 8;
    // Heads go in pieces, each of which takes the latency.
    request.cluster.inside.latency_s = random.chance(1, 2) ? 0 : 1e-4;
    request.cluster.between.latency_s = request.cluster.inside.latency_s;
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const planners::detail::RoundCandidates candidates(problem, "slimpack",
                                                       {WeightState::replicated});
    planners::RoundSettings settings;
    settings.degrees = 3;
    settings.cp_block = Tokens{16};
    Plan rings = candidates.build(settings);
    for (MicroPack& pack : rings.micropacks) {
      std::ranges::fill(pack.exchange, RingMode::pass_kv);
    }
    Plan plan = rings;
    planners::exchange_by_heads(plan);
    CHECK(validate(plan).valid());
    std::vector<std::size_t> packs(plan.micropacks.size());
    for (std::size_t i = 0; i < packs.size(); ++i) packs[i] = i;
    const std::vector<std::size_t> first = planners::detail::first_with_samples_of(plan, packs);
    Plan all = rings;
    for (MicroPack& pack : all.micropacks) {
      std::ranges::fill(pack.exchange, RingMode::by_heads);
    }
    for (std::size_t i = 0; i < packs.size(); ++i) {
      CHECK(by_heads(plan.micropacks[i]) == by_heads(plan.micropacks[first[i]]));
      if (rings.micropacks[i].exchange.empty()) continue;
      const std::size_t ranks = plan.groups[index(plan.micropacks[i].group)].size();
      if (ranks == 3) {
        CHECK(!by_heads(plan.micropacks[i]));
        continue;
      }
      const bool faster = joined_time(all, first, i) < joined_time(rings, first, i);
      CHECK(by_heads(plan.micropacks[i]) == faster);
      (faster ? changed : kept) += 1;
    }
  }
  CHECK(changed >= 1);
  CHECK(kept >= 1);
}

TEST_CASE("exchange_by_heads: packs with samples in common are found whatever joins them") {
  Plan plan;
  plan.samples.assign(5, Tokens{8});
  const auto add = [&](Pass pass, std::vector<std::size_t> samples) {
    MicroPack& pack = plan.micropacks.emplace_back();
    pack.pass = pass;
    for (const std::size_t sample : samples) {
      pack.slices.push_back({static_cast<SampleId>(sample), {}, Tokens{8}});
    }
  };
  add(Pass::forward, {0, 1});
  add(Pass::forward, {2});
  add(Pass::forward, {3, 4});
  add(Pass::backward, {4});
  add(Pass::backward, {3});
  add(Pass::backward, {1, 2});
  add(Pass::backward, {0});
  CHECK(planners::detail::first_with_samples_of(plan, {0, 1, 2, 3, 4, 5, 6}) ==
        std::vector<std::size_t>{0, 0, 2, 2, 2, 0, 0});
  // Packs that are not asked about join nothing.
  CHECK(planners::detail::first_with_samples_of(plan, {0, 1, 6}) ==
        std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 0});
}

TEST_CASE("exchange_by_heads: plans before version 3 stay as they are") {
  planners::PlanRequest request = test::request_of({900, 800});
  request.dp = 2;
  const planners::SlimpackProblem problem(request, "slimpack", {});
  Plan plan =
      planners::detail::RoundCandidates(problem, "slimpack", WeightState::replicated).build({});
  plan.version = 2;
  const Plan before = plan;
  planners::exchange_by_heads(plan);
  CHECK(plan == before);
}

}  // namespace

}  // namespace exchange_test
