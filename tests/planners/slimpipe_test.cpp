// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/slimpipe.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

constexpr auto free_of_charge = [](Bytes, std::int32_t, std::int32_t) { return Nanos{}; };

planners::StageWork work(std::int32_t stage, std::int64_t linear, std::int64_t attention) {
  return {stage, {Nanos{linear}, Nanos{attention}}, 100, 60, {}};
}

/// Links that cost nothing, and a model whose attention outweighs the rest.
planners::PlanRequest long_sequences(std::int64_t count, std::int32_t pp) {
  planners::PlanRequest request =
      test::request_of(std::vector<std::int64_t>(static_cast<std::size_t>(count), 65536), 2 * pp);
  request.pp = pp;
  request.context = {65536};
  request.cluster.inside = request.cluster.between = {1e24, 0};
  return request;
}

Nanos sum(const std::vector<Nanos>& times) {
  return std::accumulate(times.begin(), times.end(), Nanos{});
}

}  // namespace

TEST_CASE("exchange_attention: everyone spends the mean, by hand") {
  const std::vector<planners::StageWork> units{work(0, 10, 60), work(1, 10, 0), work(2, 10, 31)};
  const planners::ExchangedWork even = planners::exchange_attention(units, free_of_charge);
  REQUIRE(even.exchanged);
  CHECK(even.time == std::vector<Nanos>{{41}, {40}, {40}});
  // Stage 0 keeps 31 and gives 29 to stage 1, stage 2 gives 1: queries, and keys in proportion.
  CHECK(even.bytes == (100 + 29) + (100 + 2));
}

TEST_CASE("exchange_attention: traffic hides but for its share, or is not worth it") {
  const std::vector<planners::StageWork> units{work(0, 10, 60), work(1, 10, 0)};
  const auto lasting = [](std::int64_t time) {
    return [=](Bytes bytes, std::int32_t from, std::int32_t to) {
      CHECK(bytes == Bytes{130});
      CHECK(from == 0);
      CHECK(to == 1);
      return Nanos{time};
    };
  };
  // 10 besides attention, the longer of 30 of attention and the transfer, half of the shorter.
  CHECK(planners::exchange_attention(units, lasting(20)).time == std::vector<Nanos>{{50}, {50}});
  CHECK(planners::exchange_attention(units, lasting(44)).time == std::vector<Nanos>{{69}, {69}});
  // The message of stage 0 goes first: half of five more is seen.
  std::vector<planners::StageWork> sending = units;
  sending[0].message = Nanos{5};
  CHECK(planners::exchange_attention(sending, lasting(20)).time == std::vector<Nanos>{{53}, {50}});
  const planners::ExchangedWork own = planners::exchange_attention(units, lasting(45));
  CHECK(!own.exchanged);
  CHECK(own.time == std::vector<Nanos>{{70}, {10}});
  CHECK(own.bytes == 0);
}

TEST_CASE("exchange_attention: attention keeps its sum, the slowest never loses") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<planners::StageWork> units;
    Nanos total, slowest;
    for (std::int32_t stage = 0; stage < random.between(1, 9); ++stage) {
      units.push_back(work(stage, random.between(0, 50), random.between(0, 1000)));
      total += units.back().parts.total();
      slowest = std::max(slowest, units.back().parts.total());
    }
    if (units.empty()) continue;
    const planners::ExchangedWork even = planners::exchange_attention(units, free_of_charge);
    CHECK(sum(even.time) == total);
    CHECK(*std::max_element(even.time.begin(), even.time.end()) <= slowest);
    CHECK(even.exchanged == (even.bytes > 0));
  }
}

TEST_CASE("slimpipe: two stages, two slices, by hand") {
  planners::PlanRequest request = long_sequences(1, 2);
  planners::PackedSettings settings;
  settings.slices = 2;
  const Plan plan =
      planners::build_packed(request, "slimpipe", settings, planners::detail::SlimpipeSlices{});
  REQUIRE(plan.micropacks.size() == 4);
  const AnyModel model = make_model(plan);
  const planners::PlanParts parts(plan, Links(plan), model);
  const PricedPlan prices(plan);
  const planners::detail::SlimpipeTimes exchanged(plan, model, prices);
  const auto part = [&](std::size_t pack, std::int32_t line) {
    return parts(static_cast<PackId>(pack), line);
  };
  const auto time = [&](std::size_t pack, std::size_t line) {
    return exchanged.times[2 * pack + line];
  };
  // F0 alone on stage 0; then F1 there and F0 on stage 1; then F1 alone on stage 1.
  CHECK(time(0, 0) == part(0, 0).total());
  CHECK(time(2, 1) == part(2, 1).total());
  const Nanos both = part(2, 0).attention + part(0, 1).attention;
  CHECK(time(2, 0) == part(2, 0).linear + Nanos{(both.value + 1) / 2});
  CHECK(time(0, 1) == part(0, 1).linear + Nanos{both.value / 2});
  // Backward from the last slice on the last stage.
  CHECK(time(3, 1) == part(3, 1).total());
  CHECK(time(1, 0) == part(1, 0).total());
  const Nanos back = part(1, 1).attention + part(3, 0).attention;
  CHECK(time(1, 1) + time(3, 0) == part(1, 1).linear + part(3, 0).linear + back);
  CHECK(exchanged.bytes > 0);
}

TEST_CASE("slimpipe: stages that exchange start together, by hand") {
  planners::PlanRequest request = long_sequences(1, 2);
  request.cluster.inside = {1e24, 1e-4};
  planners::PackedSettings settings;
  settings.slices = 2;
  const Plan plan =
      planners::build_packed(request, "slimpipe", settings, planners::detail::SlimpipeSlices{});
  const AnyModel model = make_model(plan);
  const PricedPlan prices(plan);
  const planners::PlanParts parts(plan, Links(plan), model);
  const planners::detail::SlimpipeTimes exchanged(plan, model, prices);
  const auto part = [&](std::size_t pack, std::int32_t line) {
    return parts(static_cast<PackId>(pack), line);
  };
  // While stage 0 waits for F0 to arrive on stage 1 it could have begun F1. Two layers send there
  // and back: four latencies, half of which would hide behind the attention if it were longer.
  const Nanos latency{100'000}, traffic = latency * 4;
  const Nanos both = part(2, 0).attention + part(0, 1).attention;
  const Nanos more{(both.value + 1) / 2}, less{both.value / 2};
  const auto shared = [&](Nanos linear, Nanos share) {
    const Nanos shorter = std::min(share, traffic);
    return linear + std::max(share, traffic) + Nanos{(shorter.value + 1) / 2};
  };
  REQUIRE(part(2, 0).total() > shared(part(2, 0).linear, more) + latency);
  CHECK(exchanged.times[2 * 2 + 0] == latency + shared(part(2, 0).linear, more));
  CHECK(exchanged.times[2 * 0 + 1] == shared(part(0, 1).linear, less));
}

TEST_CASE("slimpipe: the exchange keeps the work and shortens the step") {
  planners::PlanRequest request = long_sequences(2, 4);
  for (const std::int32_t chunks : {1, 2}) {
    CAPTURE(chunks);
    planners::PackedSettings settings;
    settings.slices = 16;
    settings.chunks = chunks;
    Plan plan =
        planners::build_packed(request, "slimpipe", settings, planners::detail::SlimpipeSlices{});
    const AnyModel model = make_model(plan);
    const PricedPlan prices(plan);
    planners::detail::SlimpipeTimes exchanged(plan, model, prices);
    const planners::PlanParts parts(plan, Links(plan), model);
    Nanos own;
    for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
      for (std::int32_t line = 0; line < virtual_stages_of(plan).size(); ++line) {
        own += parts(static_cast<PackId>(pack), line).total();
      }
    }
    CHECK(sum(exchanged.times) >= own);  // stages also wait for each other
    CHECK(sum(exchanged.times).value < own.value + own.value / 10);
    Plan plain = plan;
    CHECK(planners::predict(plain, request) == std::nullopt);
    const UnitTimeOverrides times(plan, PricedPlan(plan), exchanged.times);
    CHECK(planners::predict(plan, request, times, MemoryModel(plan)) == std::nullopt);
    CHECK(plan.prediction.iteration.value < plain.prediction.iteration.value * 95 / 100);
    CHECK(plan.prediction.iteration >= plan.prediction.ideal);
  }
}

TEST_CASE("slimpipe: never slower than its order alone where everything is tried") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(seed);
    Random random(seed + 31);
    planners::PlanRequest request = test::request_of(test::random_lengths(random, 8, 1024), 4);
    request.pp = 2;
    request.chunks = 1;
    request.head = LmHead::last;
    request.fewer_last_layers = 0;
    request.effort = planners::Effort::thorough;
    const planners::PlanOutcome outcome = plan_by("slimpipe", request);
    const Plan& plan = plan_of(outcome);
    CHECK(plan.prediction.iteration <=
          plan_of(plan_by("slimpipe-order", request)).prediction.iteration);
    const bool exchanged = outcome.settings.at("exchange") == "attention";
    CHECK(std::holds_alternative<planners::SimulationOnlyPlan>(outcome.result) == exchanged);
  }
}

TEST_CASE("slimpipe: fitted and table costs split into attention and the rest") {
  planners::PlanRequest request = long_sequences(2, 2);
  FittedCost fitted;
  fitted.layer_forward = FittedTerms{1e-5, 1e-6, 1e-8, 1e-13, 1e-6, 0};
  fitted.layer_backward = FittedTerms{1e-5, 1e-6, 2e-8, 3e-13, 1e-6, 0};
  TableCost table;
  table.tokens = {{128}, {4096}};
  table.context = {{0}, {65536}};
  table.forward_s = {1e-5, 2e-5, 1e-4, 3e-3};
  table.backward_s = {2e-5, 5e-5, 2e-4, 8e-3};
  for (const CostSpec& cost : {CostSpec{fitted}, CostSpec{table}}) {
    request.cost = cost;
    const planners::PlanOutcome outcome = plan_by("slimpipe", request);
    const Plan& plan = plan_of(outcome);
    for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
    CHECK(plan.prediction.iteration > plan.prediction.ideal);
    CHECK(std::get<planners::SimulationOnlyPlan>(outcome.result).exchange.value().value > 0);
  }
}

TEST_CASE("slimpipe: merged slices exchange what is fewer bytes") {
  planners::PlanRequest request = long_sequences(2, 1);
  request.dp = 2;
  planners::PackedSettings settings;
  settings.ranks = 2;
  settings.slices = 8;
  Plan plan =
      planners::build_packed(request, "slimpipe", settings, planners::detail::SlimpipeSlices{});
  planners::detail::exchange_fewer_bytes(plan);
  for (const MicroPack& pack : plan.micropacks) {
    REQUIRE(pack.slices.size() == pack.exchange.size());
    // Halves of the heads hold keys: a query and its output weigh two and a bit keys and values.
    const bool early = pack.slices.front().begin.value == 0;
    CHECK((pack.exchange.front() == RingMode::pass_kv) ==
          (early || (pack.pass == Pass::forward && pack.slices.front().begin.value == 8192)));
  }
}
