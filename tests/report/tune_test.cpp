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
#include "slimpack/planners/megatron.hpp"
#include "slimpack/planners/megatron_cp.hpp"

using namespace slimpack;

namespace {

std::vector<PlanRequest> steps_of_lengths(std::int64_t count, std::uint64_t seed,
                                          std::int64_t samples = 24) {
  Random random(seed);
  std::vector<PlanRequest> steps;
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
  static inline Effort from = Effort::fast;
  static inline std::int64_t needed = 110;
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    PlanOutcome outcome = Megatron{}.plan(request);
    if (request.pp == refused_pp && request.effort < from) {
      outcome.result = Infeasible{"patience", needed, 100};
    }
    return outcome;
  }
};
static_assert(Planner<Choosy>);

/// The least time over all choices, each step planned by itself.
std::pair<Degrees, Nanos> best_by_hand(const PlannerInfo& planner,
                                       const std::vector<PlanRequest>& steps,
                                       std::int64_t devices) {
  std::optional<std::pair<Degrees, Nanos>> best;
  const PlanRequest& first = steps.front();
  for (const Degrees& degrees : degree_choices(first.model, first.cluster, devices)) {
    Nanos sum;
    bool feasible = true;
    for (const PlanRequest& step : steps) {
      const PlanOutcome outcome = planner.plan(at_degrees(step, degrees));
      const Plan* plan = plan_in(outcome.result);
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
    for (const PlannerInfo& planner : {planner_info<Megatron>(), planner_info<MegatronCp>()}) {
      TuneOptions options;
      options.devices = 8;
      const Tuning tuning = tune(planner, steps, options);
      const auto [degrees, time] = best_by_hand(planner, steps, 8);
      REQUIRE(tuning.best() != nullptr);
      CHECK(tuning.best()->degrees == degrees);
      CHECK(tuning.best()->time == time);
      CHECK(tuning.planner == planner.name);
      const auto all = degree_choices(steps[0].model, steps[0].cluster, 8);
      REQUIRE(tuning.tried.size() == all.size());
      std::vector<Degrees> tried;
      for (const TunedDegrees& one : tuning.tried) tried.push_back(one.degrees);
      CHECK(std::is_permutation(tried.begin(), tried.end(), all.begin()));
      for (std::size_t at = 1; at < tuning.tried.size(); ++at) {
        CHECK(tuning.tried[at - 1].time <= tuning.tried[at].time);
      }
    }
  }
}

TEST_CASE("tune: times are sums of the steps' entries, and the split of causes adds up to them") {
  const auto steps = steps_of_lengths(3, 5);
  TuneOptions options;
  options.devices = 8;
  const Tuning tuning = tune(planner_info<MegatronCp>(), steps, options);
  std::int64_t evaluations = 0;
  for (const TunedDegrees& one : tuning.tried) {
    REQUIRE(one.steps.size() == 3);
    REQUIRE(one.time.has_value());
    Nanos sum, ideal;
    for (const ComparedPlan& entry : one.steps) {
      sum += entry.metrics->iteration;
      ideal += entry.metrics->ideal;
      evaluations += entry.evaluations;
    }
    CHECK(one.time == sum);
    CHECK(one.split.total() == sum);
    CHECK(one.split[TimeShare::ideal] == ideal);
    CHECK(one.split[TimeShare::overhead] > Nanos{});
    CHECK(one.split[TimeShare::optimizer] > Nanos{});
    CHECK((one.split[TimeShare::communication] > Nanos{}) ==
          (one.degrees.tp > 1 || std::any_of(one.steps.begin(), one.steps.end(), [](auto& entry) {
             return entry.metrics->merged_tokens > Tokens{};
           })));
    Nanos difference;
    for (const TimeDifference& cause : time_differences(*tuning.best(), one)) {
      difference += cause.time;
    }
    CHECK(difference == *one.time - *tuning.best()->time);
  }
  CHECK(tuning.evaluations == evaluations);
}

TEST_CASE("tune: ties go to the earlier choice, and best is null without a feasible one") {
  const auto none = [](const PlanRequest&) { return PlanOutcome{Infeasible{"luck", 2, 1}, {}, 1}; };
  const auto steps = steps_of_lengths(1, 2);
  TuneOptions options;
  options.devices = 8;
  const Tuning tuning = tune({"unlucky", "for tests", none}, steps, options);
  CHECK(tuning.best() == nullptr);
  const auto all = degree_choices(steps[0].model, steps[0].cluster, 8);
  REQUIRE(tuning.tried.size() == all.size());
  for (std::size_t at = 0; at < all.size(); ++at) {
    CHECK(tuning.tried[at].degrees == all[at]);
    CHECK(tuning.tried[at].why == "luck: needed 2, available 1");
  }
}

TEST_CASE("tune: recomputation is found in the split where it is asked for") {
  auto steps = steps_of_lengths(1, 7);
  TuneOptions options;
  options.devices = 2;
  for (const Recompute mode : {Recompute::none, Recompute::full}) {
    steps[0].recompute = mode;
    const Tuning tuning = tune(planner_info<Megatron>(), steps, options);
    const Nanos repeated = tuning.best()->split[TimeShare::recompute];
    const Nanos ideal = tuning.best()->split[TimeShare::ideal];
    CHECK((mode == Recompute::none ? repeated == Nanos{} : repeated * 5 > ideal));
  }
}

TEST_CASE("tune: the same answer with several threads, and told progress ends at its most") {
  const auto steps = steps_of_lengths(2, 11);
  TuneOptions options;
  options.devices = 4;
  const Tuning one = tune(planner_info<MegatronCp>(), steps, options);
  options.threads = 3;
  std::int64_t told = 0, last = 0, expected = 0;
  options.progress = [&](std::int64_t done, std::int64_t most) {
    CHECK(done >= last);
    last = done;
    expected = most;
    ++told;
  };
  const Tuning three = tune(planner_info<MegatronCp>(), steps, options);
  REQUIRE(one.tried.size() == three.tried.size());
  for (std::size_t at = 0; at < one.tried.size(); ++at) {
    CHECK(one.tried[at].degrees == three.tried[at].degrees);
    CHECK(one.tried[at].time == three.tried[at].time);
    CHECK(one.tried[at].split == three.tried[at].split);
  }
  CHECK(told > 0);
  CHECK(last == expected);
}

TEST_CASE("tune: degrees whose weights do not fit are skipped, with what is lacking") {
  auto steps = steps_of_lengths(1, 3);
  const Bytes needed = least_static_bytes(steps[0], {1, 2, 1});
  steps[0].memory.reserved = Bytes{0};
  steps[0].memory.capacity = needed - Bytes{1};
  TuneOptions options;
  options.devices = 2;
  options.bounds.tp = 1;
  const Tuning tuning = tune(planner_info<Megatron>(), steps, options);
  REQUIRE(tuning.tried.size() == 2);
  CHECK(tuning.best() == nullptr);
  CHECK(tuning.evaluations == 0);
  for (const TunedDegrees& one : tuning.tried) {
    CHECK(one.skipped);
    CHECK(one.steps.empty());
    CHECK_FALSE(one.time.has_value());
  }
  CHECK(tuning.tried[1].why ==
        "bytes of weights, gradients and optimizer state on the fullest device: needed " +
            std::to_string(needed.value) + ", available " + std::to_string(needed.value - 1));
}

TEST_CASE("tune: more effort goes to the best few and to a near miss") {
  auto steps = steps_of_lengths(1, 9);
  steps[0].effort = Effort::normal;
  TuneOptions options;
  options.devices = 8;
  options.finalists = 2;
  Choosy::refused_pp = 8;
  Choosy::from = Effort::normal;
  Choosy::needed = 110;
  const Tuning near = tune(planner_info<Choosy>(), steps, options);
  std::int64_t again = 0;
  for (const TunedDegrees& one : near.tried) {
    CHECK(one.time.has_value());
    if (one.steps[0].evaluations > evaluations(Effort::fast, 24)) ++again;
    if (one.degrees.pp == 8) CHECK(one.effort == Effort::normal);
  }
  CHECK(again <= 3);
  Choosy::needed = 200;
  const Tuning far = tune(planner_info<Choosy>(), steps, options);
  CHECK(far.tried.back().degrees.pp == 8);
  CHECK(far.tried.back().why == "patience: needed 200, available 100");
  Choosy::refused_pp = 0;
}

TEST_CASE("tune: what cannot be tuned is refused") {
  TuneOptions options;
  CHECK_THROWS_WITH_AS(static_cast<void>(tune(planner_info<Megatron>(), {}, options)),
                       "tune: there must be a step", InvalidInput);
  const auto steps = steps_of_lengths(1, 1);
  options.finalists = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(tune(planner_info<Megatron>(), steps, options)),
                       "tune: finalists must be >= 1, got 0", InvalidInput);
  options.finalists = 1;
  options.devices = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(tune(planner_info<Megatron>(), steps, options)),
                       "devices must be >= 1, got 0", InvalidInput);
}
