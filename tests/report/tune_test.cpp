// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tune.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/planners/published/megatron.hpp"

using namespace slimpack;

namespace {

std::vector<planners::PlanRequest> steps_of_lengths(std::int64_t count, std::uint64_t seed,
                                                    std::int64_t samples = 24) {
  Random random(seed);
  std::vector<planners::PlanRequest> steps;
  for (std::int64_t step = 0; step < count; ++step) {
    steps.push_back(test::request_of(test::random_lengths(random, samples, 1024)));
    steps.back().batch.step = step;
  }
  return steps;
}

/// Plans of Megatron, but none below the effort and at the degrees that are asked for.
struct Choosy {
  static constexpr std::string_view name = "choosy";
  static constexpr std::string_view description = "for tests";
  static inline std::int32_t refused_pp = 0;
  static inline planners::Effort from = planners::Effort::fast;
  static inline std::int64_t needed = 110;
  [[nodiscard]] planners::PlanOutcome plan(const planners::PlanRequest& request) const {
    planners::PlanOutcome outcome = planners::Megatron{}.plan(request);
    if (request.pp == refused_pp && request.effort < from) {
      outcome.result = Infeasible{"patience", needed, 100};
    }
    return outcome;
  }
};
static_assert(planners::Planner<Choosy>);

/// The least time over all choices, each step planned by itself.
std::pair<planners::Degrees, Nanos> best_by_hand(const planners::PlannerInfo& planner,
                                                 const std::vector<planners::PlanRequest>& steps,
                                                 std::int64_t devices) {
  std::optional<std::pair<planners::Degrees, Nanos>> best;
  const planners::PlanRequest& first = steps.front();
  for (const planners::Degrees& degrees :
       planners::degree_choices(first.model, first.cluster, devices)) {
    Nanos sum;
    bool feasible = true;
    for (const planners::PlanRequest& step : steps) {
      const planners::PlanOutcome outcome = planner.plan(planners::at_degrees(step, degrees));
      const Plan* plan = planners::plan_in(outcome.result);
      feasible = feasible && plan != nullptr;
      if (plan != nullptr) sum += plan->prediction.iteration;
    }
    if (feasible && (!best || sum < best->second)) best = {degrees, sum};
  }
  return best.value();
}

}  // namespace

TEST_CASE("tune: at fast effort the best of all choices, each planned by itself") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto steps = steps_of_lengths(2, seed);
    for (const planners::PlannerInfo& planner : {planners::planner_info<planners::Megatron>(),
                                                 planners::planner_info<planners::MegatronCp>()}) {
      report::TuneOptions options;
      options.devices = 8;
      const report::Tuning tuning = report::tune(planner, steps, options);
      const auto [degrees, time] = best_by_hand(planner, steps, 8);
      REQUIRE(tuning.best() != nullptr);
      CHECK(tuning.best()->degrees == degrees);
      CHECK(tuning.best()->time == time);
      CHECK(tuning.planner == planner.name);
      const auto all = planners::degree_choices(steps[0].model, steps[0].cluster, 8);
      REQUIRE(tuning.tried.size() == all.size());
      std::vector<planners::Degrees> tried;
      for (const report::TunedDegrees& one : tuning.tried) tried.push_back(one.degrees);
      CHECK(std::is_permutation(tried.begin(), tried.end(), all.begin()));
      for (std::size_t i = 1; i < tuning.tried.size(); ++i) {
        CHECK(tuning.tried[i - 1].time <= tuning.tried[i].time);
      }
    }
  }
}

TEST_CASE("tune: times are sums of the steps' entries, and the split of causes adds up to them") {
  const auto steps = steps_of_lengths(3, 5);
  report::TuneOptions options;
  options.devices = 8;
  const report::Tuning tuning =
      report::tune(planners::planner_info<planners::MegatronCp>(), steps, options);
  std::int64_t evaluations = 0;
  for (const report::TunedDegrees& one : tuning.tried) {
    REQUIRE(one.steps.size() == 3);
    REQUIRE(one.time.has_value());
    Nanos sum, ideal;
    for (const report::ComparedPlan& entry : one.steps) {
      sum += entry.metrics->iteration;
      ideal += entry.metrics->ideal;
      evaluations += entry.evaluations;
    }
    CHECK(one.time == sum);
    CHECK(one.split.total() == sum);
    CHECK(one.split[report::TimeShare::ideal] == ideal);
    CHECK(one.split[report::TimeShare::overhead] > Nanos{});
    CHECK(one.split[report::TimeShare::optimizer] > Nanos{});
    CHECK((one.split[report::TimeShare::communication] > Nanos{}) ==
          (one.degrees.tp > 1 || std::any_of(one.steps.begin(), one.steps.end(), [](auto& entry) {
             return entry.metrics->merged_tokens > Tokens{};
           })));
    Nanos difference;
    for (const report::TimeDifference& cause : report::time_differences(*tuning.best(), one)) {
      difference += cause.time;
    }
    CHECK(difference == *one.time - *tuning.best()->time);
  }
  CHECK(tuning.evaluations == evaluations);
}

TEST_CASE("tune: ties go to the earlier choice, and best is null without a feasible one") {
  const auto none = [](const planners::PlanRequest&) {
    planners::PlanOutcome outcome;
    outcome.result = Infeasible{"luck", 2, 1};
    outcome.evaluations = 1;
    return outcome;
  };
  const auto steps = steps_of_lengths(1, 2);
  report::TuneOptions options;
  options.devices = 8;
  const report::Tuning tuning = report::tune({"unlucky", "for tests", none}, steps, options);
  CHECK(tuning.best() == nullptr);
  const auto all = planners::degree_choices(steps[0].model, steps[0].cluster, 8);
  REQUIRE(tuning.tried.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(tuning.tried[i].degrees == all[i]);
    CHECK(tuning.tried[i].why == "luck: needed 2, available 1");
  }
}

TEST_CASE("tune: recomputation is found in the split where it is asked for") {
  auto steps = steps_of_lengths(1, 7);
  report::TuneOptions options;
  options.devices = 2;
  for (const Recompute mode : {Recompute::none, Recompute::full}) {
    steps[0].recompute = mode;
    const report::Tuning tuning =
        report::tune(planners::planner_info<planners::Megatron>(), steps, options);
    const Nanos repeated = tuning.best()->split[report::TimeShare::recompute];
    const Nanos ideal = tuning.best()->split[report::TimeShare::ideal];
    CHECK((mode == Recompute::none ? repeated == Nanos{} : repeated * 5 > ideal));
  }
}

TEST_CASE("tune: the same answer with several threads, and told progress ends at its most") {
  const auto steps = steps_of_lengths(2, 11);
  report::TuneOptions options;
  options.devices = 4;
  const report::Tuning one =
      report::tune(planners::planner_info<planners::MegatronCp>(), steps, options);
  options.threads = 3;
  std::int64_t told = 0, last = 0, expected = 0;
  options.progress = [&](std::int64_t done, std::int64_t most) {
    CHECK(done >= last);
    last = done;
    expected = most;
    ++told;
  };
  const report::Tuning three =
      report::tune(planners::planner_info<planners::MegatronCp>(), steps, options);
  REQUIRE(one.tried.size() == three.tried.size());
  for (std::size_t i = 0; i < one.tried.size(); ++i) {
    CHECK(one.tried[i].degrees == three.tried[i].degrees);
    CHECK(one.tried[i].time == three.tried[i].time);
    CHECK(one.tried[i].split == three.tried[i].split);
  }
  CHECK(told > 0);
  CHECK(last == expected);
}

TEST_CASE("tune: degrees whose weights do not fit are skipped, with what is lacking") {
  auto steps = steps_of_lengths(1, 3);
  const Bytes needed = planners::least_static_bytes(steps[0], {1, 2, 1});
  steps[0].memory.reserved = Bytes{0};
  steps[0].memory.capacity = needed - Bytes{1};
  report::TuneOptions options;
  options.devices = 2;
  options.bounds.tp = 1;
  const report::Tuning tuning =
      report::tune(planners::planner_info<planners::Megatron>(), steps, options);
  REQUIRE(tuning.tried.size() == 2);
  CHECK(tuning.best() == nullptr);
  CHECK(tuning.evaluations == 0);
  for (const report::TunedDegrees& one : tuning.tried) {
    CHECK(one.skipped);
    CHECK(one.steps.empty());
    CHECK_FALSE(one.time.has_value());
  }
  CHECK(tuning.tried[1].why ==
        "bytes of weights, gradients and optimizer state on the fullest device: needed " +
            std::to_string(needed.value) + ", available " + std::to_string(needed.value - 1));
}

TEST_CASE("tune: rounds of rising budgets for the better half, the close ones and a near miss") {
  auto steps = steps_of_lengths(1, 9);
  steps[0].effort = planners::Effort::normal;
  report::TuneOptions options;
  options.devices = 8;
  options.finalists = 2;
  Choosy::refused_pp = 8;
  Choosy::from = planners::Effort::normal;
  Choosy::needed = 110;
  const report::Tuning near = report::tune(planners::planner_info<Choosy>(), steps, options);
  const auto all = static_cast<std::int64_t>(near.tried.size());
  REQUIRE(near.rounds.size() > 2);
  CHECK(near.rounds.front().degrees == all);
  CHECK(near.rounds.back().budget == 768);
  CHECK(near.rounds.back().degrees < all);
  std::int64_t evaluations = 0;
  for (std::size_t i = 0; i < near.rounds.size(); ++i) {
    evaluations += near.rounds[i].evaluations;
    CHECK(near.rounds[i].budget >= 32);
    const auto gain = report::gain_of_round(near, i);
    CHECK(gain.has_value() == (i > 0));
    if (i == 0) continue;
    const std::int64_t before = near.rounds[i - 1].budget;
    CHECK(near.rounds[i].budget == (before < 128 ? 2 * before : 768));
    CHECK(*near.rounds[i].best <= *near.rounds[i - 1].best);
    CHECK(*gain >= 0);
  }
  CHECK(evaluations == near.evaluations);
  CHECK(near.rounds.back().best == near.best()->time);
  CHECK(near.cpu_seconds > 0);
  for (const report::TunedDegrees& one : near.tried) {
    CHECK(one.time.has_value());
    CHECK(one.steps[0].evaluations <= one.budget);
    if (one.degrees.pp == 8) CHECK(one.effort == planners::Effort::normal);
  }
  Choosy::needed = 200;
  const report::Tuning far = report::tune(planners::planner_info<Choosy>(), steps, options);
  CHECK(far.tried.back().degrees.pp == 8);
  CHECK(far.tried.back().why == "patience: needed 200, available 100");
  Choosy::refused_pp = 0;
}

TEST_CASE("tune: with all degrees as finalists there is one round with the whole budget") {
  auto steps = steps_of_lengths(1, 9);
  steps[0].budget = 80;
  report::TuneOptions options;
  options.devices = 8;
  options.finalists = 1000;
  const auto planner = planners::planner_info<planners::Megatron>();
  const report::Tuning tuning = report::tune(planner, steps, options);
  REQUIRE(tuning.rounds.size() == 1);
  CHECK(tuning.rounds[0].budget == 80);
  CHECK(tuning.rounds[0].degrees == static_cast<std::int64_t>(tuning.tried.size()));
  CHECK(tuning.simulated_devices == tuning.evaluations * 8);
  options.finalists = 1;
  const report::Tuning rounds = report::tune(planner, steps, options);
  CHECK(rounds.rounds.size() > 1);
  CHECK_THROWS_WITH_AS(static_cast<void>(report::gain_of_round(rounds, 9)),
                       "gain_of_round: there is no such round, got 9", InvalidInput);
}

TEST_CASE("tune: what cannot be tuned is refused") {
  report::TuneOptions options;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(report::tune(planners::planner_info<planners::Megatron>(), {}, options)),
      "tune: there must be a step", InvalidInput);
  const auto steps = steps_of_lengths(1, 1);
  options.finalists = 0;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(report::tune(planners::planner_info<planners::Megatron>(), steps, options)),
      "tune: finalists must be >= 1, got 0", InvalidInput);
  options.finalists = 1;
  options.devices = 0;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(report::tune(planners::planner_info<planners::Megatron>(), steps, options)),
      "devices must be >= 1, got 0", InvalidInput);
}
