// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/slimpack/estimate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "cost/shapes.hpp"
#include "planners/requests.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/slimpack/rank_balance.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"

using namespace slimpack;

namespace {

const std::vector<std::int64_t> kUnits{1, 2, 4, 8, 16, 32, 64, 128, 256};
const std::vector<planners::ModeChoice> kModes{Recompute::none, Recompute::light, Recompute::layer,
                                               Recompute::full};

planners::PlanRequest many_samples(std::int64_t count, Bytes capacity) {
  Random random(7);
  planners::PlanRequest request = test::request_of(test::random_lengths(random, count, 8192), 8);
  request.context = {8192};
  request.dp = 2;
  request.pp = 4;
  request.memory.reserved = Bytes{0};
  request.memory.capacity = capacity;
  return request;
}

/// Short samples and up to `longest` that are far longer, on four ranks of four stages with a
/// capacity between these megabytes.
planners::PlanRequest far_longer(Random& random, std::int64_t count, std::int64_t longest,
                                 std::int64_t least_mb, std::int64_t most_mb) {
  std::vector<std::int64_t> lengths = test::random_lengths(random, count, 2048);
  for (std::int64_t more = random.between(1, longest); more > 0; --more) {
    lengths.push_back(random.between(8192, 32768));
  }
  planners::PlanRequest request = test::request_of(lengths, 8);
  request.context = {32768};
  request.dp = request.pp = 4;
  request.memory.reserved = Bytes{0};
  request.memory.capacity = Bytes{random.between(least_mb, most_mb) * 1'000'000};
  return request;
}

}  // namespace

TEST_CASE("estimate: with much memory nothing is recomputed and fill and overhead are least") {
  const planners::SlimpackProblem problem(many_samples(2000, Bytes{1'000'000'000'000}), "slimpack",
                                          {});
  const double work = (static_cast<double>(problem.mean_work(Pass::forward)) +
                       static_cast<double>(problem.mean_work(Pass::backward))) /
                      static_cast<double>(planners::kCostScale);
  for (const std::int64_t overhead : {1'000, 100'000, 10'000'000}) {
    const planners::SettingEstimate estimate(problem, {problem, Nanos{overhead}});
    std::size_t before = kUnits.size();
    for (const std::int32_t chunks : {1, 2, 4}) {
      CAPTURE(overhead);
      CAPTURE(chunks);
      const auto best = estimate.best(kModes, kUnits, chunks, {});
      REQUIRE(best.has_value());
      CHECK(best->mode == 0);
      std::size_t least = 0;
      const auto time = [&](std::size_t i) {
        const auto units = static_cast<double>(kUnits[i]);
        return 3 * work / (units * chunks) + static_cast<double>(overhead) * units;
      };
      for (std::size_t i = 1; i < kUnits.size(); ++i) {
        if (time(i) < time(least)) least = i;
      }
      CHECK(best->units == least);
      CHECK(best->units <= before);  // chunks shorten fill and drain
      before = best->units;
    }
  }
}

TEST_CASE(
    "estimate: less memory never asks for fewer packs of the same mode, in the end for none") {
  std::optional<planners::SettingEstimate::Choice> before;
  bool absent = false, leaner = false;
  for (std::int64_t megabytes = 40'000; megabytes >= 20; megabytes = megabytes * 3 / 4) {
    CAPTURE(megabytes);
    const planners::SlimpackProblem problem(many_samples(500, Bytes{megabytes * 1'000'000}),
                                            "slimpack", {});
    const auto best =
        planners::SettingEstimate(problem, {problem, Nanos{100'000}}).best(kModes, kUnits, 1, {});
    if (!best) {
      absent = true;
      continue;
    }
    CHECK(!absent);
    if (before && best->mode == before->mode) CHECK(best->units >= before->units);
    leaner = leaner || best->mode > 0;
    before = best;
  }
  CHECK(leaner);
  CHECK(absent);
}

TEST_CASE("estimate: a sample is outsized if it takes longer than all of a rank on average") {
  const auto outsized = [](const std::vector<std::int64_t>& lengths) {
    planners::PlanRequest request = test::request_of(lengths);
    request.dp = 4;
    const planners::SlimpackProblem problem(request, "slimpack", {});
    return planners::SettingEstimate(problem, {problem, Nanos{1}}).outsized();
  };
  CHECK(outsized({1024, 1, 1, 1}));
  CHECK(!outsized({1024, 1024, 1024, 1024, 1024}));
}

TEST_CASE("estimate: weights apart pay between packs that are few for their many stages") {
  const std::size_t few = 5, many = 8;  // 32 and 256 packs
  const auto pays = [](std::int32_t stages, std::int32_t tp, std::size_t units,
                       const CostSpec& cost = AnalyticCost{}) {
    planners::PlanRequest request = test::request_of(std::vector<std::int64_t>(4096, 4096));
    request.model = model_preset("llama-7b").value();
    request.context = {4096};
    request.dp = 8;
    request.pp = stages;
    request.tp = tp;
    request.cost = cost;
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const planners::SettingEstimate estimate(problem, {problem, Nanos{100'000}});
    planners::SettingEstimate::Choice choice = estimate.best(kModes, kUnits, 4, {}).value();
    choice.units = units;
    return estimate.apart_pays(choice, kModes, kUnits, 4);
  };
  CHECK(pays(8, 1, few));
  CHECK(!pays(8, 1, many));
  CHECK(!pays(2, 1, many));
  CHECK(!pays(2, 8, few));  // W gathers rows that B has had once already
  CHECK(!pays(8, 1, few, test::exact_table(4e-6, 6.6e-7, 3.3e-9)));  // has no price of W
}

TEST_CASE("estimate: more packs around long samples never help, more ranks for these never harm") {
  using Sharing = planners::SettingEstimate::Sharing;
  Random random(11);
  int shorter = 0, longer = 0;
  for (int draw = 0; draw < 60; ++draw) {
    CAPTURE(draw);
    const planners::PlanRequest request = far_longer(random, 200, 3, 150, 1200);
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const planners::SettingEstimate estimate(problem, {problem, Nanos{100'000}});
    const auto time = [&](const Sharing& sharing) {
      const auto best = estimate.best(kModes, kUnits, 2, sharing);
      return best ? std::optional(best->time) : std::nullopt;
    };
    const auto not_after = [](const std::optional<Int128>& one, const std::optional<Int128>& two) {
      return !two || (one && *one <= *two);
    };
    const auto alone = time({});
    CHECK(not_after(alone, time({.loose = true})));
    longer += not_after(time({.loose = true}), alone) ? 0 : 1;
    const auto one = time({.ranks = 1, .as_needed = true});
    const auto four = time({.ranks = 4, .as_needed = true});
    CHECK(not_after(four, one));
    shorter += not_after(one, four) ? 0 : 1;
  }
  CHECK(longer > 5);
  CHECK(shorter > 20);
}

TEST_CASE("slimpack: samples far longer than others, little memory: fast ends near normal") {
  Random random(12);
  int plans = 0, at_once = 0;
  double logs = 0;
  for (int draw = 0; draw < 24; ++draw) {
    CAPTURE(draw);
    planners::PlanRequest request = far_longer(random, 60, 2, 400, 1500);
    const auto time = [](const planners::PlanOutcome& outcome) -> std::optional<double> {
      const auto* plan = std::get_if<Plan>(&outcome.result);
      if (plan == nullptr) return std::nullopt;
      return static_cast<double>(plan->prediction.iteration.value);
    };
    const auto fast = time(planners::plan_slimpack(request));
    const auto step = time(planners::plan_step(planners::find_planner("slimpack"), request));
    request.effort = planners::Effort::normal;
    const auto normal = time(planners::plan_slimpack(request));
    CHECK(step.has_value() == normal.has_value());
    if (!normal) continue;
    ++plans;
    if (!fast) continue;
    ++at_once;
    CHECK(*step == *fast);
    CHECK(*fast >= *normal);
    logs += std::log(*normal / *fast);
  }
  CAPTURE(plans);
  CAPTURE(at_once);
  CAPTURE(std::exp(logs / at_once));
  CHECK(plans >= 15);
  CHECK(at_once >= plans - 2);
  CHECK(std::exp(logs / at_once) >= .75);
}

TEST_CASE(
    "slimpack: a fast search plans what is likely best at once, and searches where it lacks") {
  Random random(13);
  planners::PlanRequest request = test::request_of(test::random_lengths(random, 1000, 8192));
  request.model = model_preset("llama-7b").value();
  request.context = {8192};
  request.dp = request.pp = 8;
  const std::int64_t component = 8, step = 64;  // devices
  const planners::PlanOutcome at_once = planners::plan_slimpack(request);
  REQUIRE(std::holds_alternative<Plan>(at_once.result));
  CHECK(at_once.evaluations == 2);
  CHECK(at_once.simulated_devices == component + step);

  request.memory.reserved = Bytes{0};
  int smaller = 0, searched = 0;
  for (std::int64_t megabytes = 60'000; megabytes >= 9'000; megabytes = megabytes * 9 / 10) {
    CAPTURE(megabytes);
    request.memory.capacity = Bytes{megabytes * 1'000'000};
    const planners::PlanOutcome outcome = planners::plan_slimpack(request);
    REQUIRE(std::holds_alternative<Plan>(outcome.result));
    smaller += outcome.simulated_devices == 2 * component + step ? 1 : 0;
    searched += outcome.simulated_devices > 2 * component + step ? 1 : 0;
    CHECK(outcome.simulated_devices <= 4 * step);
  }
  CHECK(smaller > 3);
  CHECK(searched > 0);
}

TEST_CASE("slimpack: ranks are uneven where none shares a sample and one has far more") {
  Random random(14);
  int shared = 0, even = 0, odd = 0;
  for (int draw = 0; draw < 40; ++draw) {
    CAPTURE(draw);
    planners::PlanRequest request = test::request_of(test::random_lengths(random, 6, 16384));
    request.context = {16384};
    request.dp = 2;
    const planners::PlanOutcome outcome = planners::plan_slimpack(request);
    const Plan& plan = std::get<Plan>(outcome.result);
    const planners::RankBalance balance = planners::rank_balance(plan);
    const bool shares = std::any_of(plan.sample_group.begin(), plan.sample_group.end(),
                                    [](GroupId group) { return index(group) >= 2; });
    const bool over = balance.fullest > 1.01 * balance.mean;
    CHECK(planners::is_uneven(plan) == (!shares && over));
    shared += shares ? 1 : 0;
    even += over ? 0 : 1;
    odd += over && !shares ? 1 : 0;
  }
  CHECK(shared > 0);
  CHECK(even > 0);
  CHECK(odd > 0);
}

TEST_CASE("slimpack: with many samples a fast search ends near a normal one") {
  planners::PlanRequest request = many_samples(3000, Bytes{2'500'000'000});
  const auto efficiency = [&](planners::Effort effort) {
    request.effort = effort;
    const planners::PlanOutcome outcome = planners::plan_slimpack(request);
    const Prediction& made = std::get<Plan>(outcome.result).prediction;
    return static_cast<double>(made.ideal.value) / static_cast<double>(made.iteration.value);
  };
  const double fast = efficiency(planners::Effort::fast);
  const double normal = efficiency(planners::Effort::normal);
  CAPTURE(normal);
  CHECK(fast >= .9 * normal);
}
