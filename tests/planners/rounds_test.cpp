// SPDX-License-Identifier: Apache-2.0
// Plans in rounds, whose ranks may share weights.
#include "slimpack/planners/slimpack/rounds.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/pack_rounds.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/draws.hpp"

namespace rounds_test {

using namespace slimpack;
using planners::detail::RoundCandidates;

namespace {

const std::vector<WeightState> kBoth{WeightState::sharded, WeightState::replicated};

TEST_CASE("rounds: every candidate over random batches and ranks is a valid plan") {
  std::int64_t several = 0, odd = 0;
  for (std::uint64_t seed = 0; seed < test::draws(std::uint64_t{30}); ++seed) {
    CAPTURE(seed);
    Random random(seed + 40);
    planners::PlanRequest request = test::random_step(random, 40, 20, 1);
    request.dp = std::max(request.dp, 2);
    request.pp = 1;
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const RoundCandidates candidates(problem, "slimpack", kBoth[seed % 2]);
    test::check_candidates(candidates, request, random, 4, "rounds", [&](const Plan& plan) {
      // All ranks run as many packs of a pass, so a round has all of them.
      std::vector<std::set<std::int32_t>> ranks;
      const PackRounds rounds(plan);
      for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
        if (plan.micropacks[i].pass != Pass::forward) continue;
        ranks.resize(std::max(ranks.size(), rounds.of(i) + 1));
        const auto& group = plan.groups[index(plan.micropacks[i].group)];
        odd += group.size() % 2 == 1 && group.size() > 1 ? 1 : 0;
        for (const std::int32_t dp : group) CHECK(ranks[rounds.of(i)].insert(dp).second);
      }
      for (const auto& of_round : ranks) {
        CHECK(of_round.size() == static_cast<std::size_t>(plan.parallel.dp));
      }
      several += ranks.size() > 1 ? 1 : 0;
      const PricedPlan prices(plan);
      CHECK(sim::simulate_plan(plan, prices).timeline.makespan == plan.prediction.iteration);
    });
  }
  CHECK(several >= test::draws(20));
  CHECK(odd >= 1);
}

TEST_CASE(
    "rounds: a sample that fills all ranks may be cut, its first part leaner than the other") {
  std::int64_t cut = 0, whole_plans = 0;
  for (std::uint64_t seed = 0; seed < test::draws(std::uint64_t{20}); ++seed) {
    CAPTURE(seed);
    Random random(seed + 90);
    std::vector<std::int64_t> lengths{6000 + static_cast<std::int64_t>(random.below(9000))};
    for (std::uint64_t more = random.below(5); more > 0; --more) {
      lengths.push_back(1 + static_cast<std::int64_t>(random.below(900)));
    }
    planners::PlanRequest request = test::request_of(lengths);
    request.dp = 2 + static_cast<std::int32_t>(random.below(3));
    request.context = Tokens{16000};
    request.recompute = Recompute::layer;
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const RoundCandidates candidates(problem, "slimpack", kBoth[seed % 2]);
    const planners::SettingPoint start = candidates.space().starts().front();
    for (const std::int64_t sixteenths : {0, 1, 2, 4, 8}) {
      Plan plan = candidates.build(candidates.space().at(start));
      // What a request asks for is kept.
      for (const MicroPack& pack : plan.micropacks) {
        if (pack.pass == Pass::backward) REQUIRE(pack.recompute == Recompute::layer);
      }
      planners::cut_rounds(plan, sixteenths);
      plan.schedule.clear();
      planners::add_round_orders(plan);
      CHECK(planners::predict(plan, request) == std::nullopt);
      for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
      std::int64_t parts = 0;
      for (const MicroPack& pack : plan.micropacks) {
        const bool first = std::ranges::all_of(
            pack.slices, [](const Slice& slice) { return slice.begin == Tokens{}; });
        const bool whole = first && std::ranges::all_of(pack.slices, [&](const Slice& slice) {
                             return slice.end == plan.samples[index(slice.sample)];
                           });
        if (!whole) ++parts;
        if (!whole)
          CHECK(plan.groups[index(pack.group)].size() ==
                static_cast<std::size_t>(plan.parallel.dp));
        if (pack.pass == Pass::forward) continue;
        CHECK(pack.recompute == (first ? Recompute::layer : Recompute::light));
      }
      CHECK((sixteenths > 0 || parts == 0));
      ++(parts > 0 ? cut : whole_plans);
    }
  }
  CHECK(cut >= test::draws(10));
  CHECK(whole_plans >= test::draws(10));
}

TEST_CASE("rounds: with shared weights all ranks run each unit together") {
  for (std::uint64_t seed = 0; seed < test::draws(std::uint64_t{20}); ++seed) {
    CAPTURE(seed);
    Random random(seed + 90);
    planners::PlanRequest request = test::random_step(random, 40, 12, 1);
    request.dp = std::max(request.dp, 2);
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const RoundCandidates candidates(problem, "slimpack", WeightState::sharded);
    const Plan plan =
        candidates.build(candidates.space().at(test::random_point(candidates.space(), random)));
    Plan whole = plan;
    whole.memory.weights = WeightState::replicated;
    const PricedPlan prices(plan), apart(whole);
    const Links links(plan);
    const WeightTraffic traffic = std::visit(
        [&](const auto& model) { return weight_traffic(plan, links, model, 0); }, make_model(plan));
    const PackRounds rounds(plan);
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const auto pack = static_cast<PackId>(i);
      const bool forward = plan.micropacks[i].pass == Pass::forward;
      // A unit takes no less than by itself and than what it sends.
      CHECK(prices.compute(pack, 0) > apart.compute(pack, 0));
      CHECK(prices.compute(pack, 0) > traffic.gather + (forward ? Nanos{} : traffic.scatter));
      for (std::size_t j = 0; j < i; ++j) {
        if (plan.micropacks[j].pass != plan.micropacks[i].pass || rounds.of(j) != rounds.of(i)) {
          continue;
        }
        if (forward) CHECK(prices.compute(static_cast<PackId>(j), 0) == prices.compute(pack, 0));
      }
    }
    CHECK(prices.reduce(0, 0) == Nanos{});
    CHECK(prices.optimizer(0, 0) < apart.optimizer(0, 0));
    // So no rank is ever ahead of another by more than what their H differ in.
    const sim::PlanSimulation step = sim::simulate_plan(plan, prices);
    std::vector<Nanos> ends;
    for (std::size_t node = 0; node < step.dag.size(); ++node) {
      const auto& label = step.dag.label[node];
      if (label.kind == sim::NodeKind::optimizer) ends.push_back(step.timeline.start[node]);
    }
    REQUIRE(ends.size() == static_cast<std::size_t>(plan.parallel.dp));
    CHECK(std::ranges::min(ends) == std::ranges::max(ends));
  }
}

TEST_CASE("rounds: what ranks that share weights send, by hand") {
  planners::PlanRequest request = test::request_of({64, 64, 64, 64});
  request.dp = 2;
  const planners::SlimpackProblem problem(request, "slimpack", {});
  const RoundCandidates candidates(problem, "slimpack", WeightState::sharded);
  planners::RoundSettings settings;
  settings.quarters = 8;  // two rounds instead of one
  settings.weights = WeightState::sharded;
  const Plan plan = candidates.build(settings);
  REQUIRE(PackRounds(plan).count() == 2);
  settings.weights = WeightState::replicated;
  const Plan whole = candidates.build(settings);
  const std::int64_t weights = device_weights(plan, 0).total();
  // Two F and two B gather 2 bytes a weight, two B scatter 4; else O gathers once and R scatters.
  CHECK(communication_of(plan).gathering == Bytes{4 * weights * 2});
  CHECK(communication_of(plan).reduction == Bytes{2 * weights * 4});
  CHECK(communication_of(whole).gathering == Bytes{weights * 2});
  CHECK(communication_of(whole).reduction == Bytes{weights * 4});
}

TEST_CASE("slimpack: where no device holds all weights, ranks share them") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700, 300, 200, 100, 50});
  request.dp = 4;
  request.memory.reserved = Bytes{0};
  const Plan frame = planners::plan_frame(request, "slimpack");
  request.memory.capacity = static_bytes(frame, 0).total();
  for (const planners::Effort effort : {planners::Effort::fast, planners::Effort::normal}) {
    request.effort = effort;
    const planners::PlanOutcome outcome = planners::plan_slimpack(request);
    const Plan* plan = planners::plan_in(outcome.result);
    REQUIRE(plan != nullptr);
    CHECK(plan->memory.weights == WeightState::sharded);
    CHECK(plan->version == kPlanVersion);
    CHECK(validate(*plan).valid());
    CHECK(plan->prediction.lower_bound <= plan->prediction.iteration);
  }
  request.weight_state = WeightState::replicated;
  CHECK(planners::plan_in(planners::plan_slimpack(request).result) == nullptr);
  // Ablations keep them whole.
  request.weight_state.reset();
  CHECK(planners::plan_in(
            planners::plan_slimpack(request, "slimpack-samples", {.slicing = false}).result) ==
        nullptr);
}

TEST_CASE("slimpack: plans keep the weight state that a request asks for, and may run in rounds") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700, 300, 200, 100, 50});
  request.dp = 4;
  request.effort = planners::Effort::normal;
  for (const WeightState state : kBoth) {
    request.weight_state = state;
    const Plan plan = std::get<Plan>(planners::plan_slimpack(request).result);
    CHECK(plan.memory.weights == state);
    CHECK(validate(plan).valid());
    // No slower than any round that the search of the state begins at.
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const RoundCandidates candidates(problem, "slimpack", state);
    for (const planners::SettingPoint& start : candidates.space().starts()) {
      Plan round = candidates.build(candidates.space().at(start));
      if (planners::predict(round, request)) continue;
      CHECK(plan.prediction.iteration <= round.prediction.iteration);
    }
  }
  request.weight_state = WeightState::sharded;
  const auto refuses = [&](const auto& change, const char* message) {
    planners::PlanRequest wrong = request;
    change(wrong);
    CHECK_THROWS_WITH_AS(static_cast<void>(planners::plan_slimpack(wrong)), message, InvalidInput);
  };
  const char* const rule =
      "weight state must be sharded only with pp 1, chunks 1, several ranks that all may share a "
      "sample, sharded optimizer state, weights computed in B, and any runtime";
  refuses([](planners::PlanRequest& r) { r.pp = 2; }, rule);
  refuses([](planners::PlanRequest& r) { r.dp = 1; }, rule);
  refuses([](planners::PlanRequest& r) { r.max_cp = 2; }, rule);
  refuses([](planners::PlanRequest& r) { r.optimizer = OptimizerState::replicated; }, rule);
  refuses([](planners::PlanRequest& r) { r.weights = WeightGradients::apart; }, rule);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::find_planner("kk").plan(request)),
                       "weight state must not be sharded with a planner that keeps weights whole",
                       InvalidInput);
}

}  // namespace
}  // namespace rounds_test
