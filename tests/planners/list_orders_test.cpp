// SPDX-License-Identifier: Apache-2.0
// Whether list scheduling contains what published orders do well.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/search/detail/evaluate.hpp"
#include "slimpack/schedule/list_schedule.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/draws.hpp"

using namespace slimpack;

namespace {

/// The least predicted time of a plan's packs by list scheduling with the options that slimpack's
/// planner tries; nothing where none fits into memory.
Nanos relisted(const Plan& given, const planners::PlanRequest& request) {
  const PricedPlan times(given);
  const MemoryModel memory(given);
  Nanos least = Nanos::max();
  for (const std::int32_t block : {0, given.parallel.pp}) {
    for (const int rule : {0, 1, 2, 3}) {
      schedule::ListOptions options;
      options.head_batch = 1;
      options.chunk_block = block;
      options.even_blocks = rule % 2 == 1;
      options.backward_first = rule / 2 == 1;
      auto listed = schedule::list_schedule(given, times, memory, options);
      if (!std::holds_alternative<std::vector<DeviceSchedule>>(listed)) continue;
      Plan plan = given;
      plan.schedule = std::get<std::vector<DeviceSchedule>>(std::move(listed));
      if (planners::predict(plan, request, times, memory)) continue;
      CHECK(validate(plan).valid());
      least = std::min(least, plan.prediction.iteration);
    }
  }
  return least;
}

}  // namespace

TEST_CASE("list_schedule: no later than interleaved 1F1B on the same packs") {
  constexpr std::uint64_t kDraws = test::draws(180U);
  std::int64_t plans = 0, sooner = 0, later = 0;
  double worst = 0, sum = 0;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t context = 32'768;
    planners::PlanRequest request =
        test::request_of(test::random_lengths(random, random.between(3, 60), context), 4);
    request.model = model_preset("llama-7b").value();
    request.context = {context};
    request.dp = static_cast<std::int32_t>(random.between(1, 2));
    request.pp = static_cast<std::int32_t>(1U << random.between(1, 3));
    request.tp = 2;
    request.chunks = random.chance(1, 2) ? 2 : 4;
    request.head = LmHead::last;
    request.effort = planners::Effort::fast;
    const planners::PlanOutcome outcome = plan_by("megatron-interleaved", request);
    const auto* given = std::get_if<Plan>(&outcome.result);
    if (given == nullptr) continue;
    const Nanos own = relisted(*given, request);
    if (own == Nanos::max()) continue;
    ++plans;
    const double ratio = seconds(own) / seconds(given->prediction.iteration);
    // Orders that are made event by event: a later choice may cost what an earlier one gained.
    CHECK(ratio < 1.05);
    worst = std::max(worst, ratio);
    sum += std::log(ratio);
    sooner += ratio < 0.999 ? 1 : 0;
    later += ratio > 1.01 ? 1 : 0;
  }
  MESSAGE(plans, " plans, ", sooner, " sooner, ", later, " more than 1 % later, mean ",
          std::exp(sum / static_cast<double>(plans)), ", worst ", worst);
  CHECK(plans >= static_cast<std::int64_t>(kDraws / 3));
  CHECK(later <= plans / 10);
  CHECK(sum <= 0);
}

TEST_CASE("list_schedule: as soon as interleaved 1F1B whatever number of packs is left over") {
  std::int64_t plans = 0;
  double worst = 0;
  for (const std::int32_t pp : {2, 4}) {
    for (const std::int32_t chunks : {2, 4}) {
      for (std::size_t samples = 1; samples <= 16; ++samples) {
        CAPTURE(pp);
        CAPTURE(chunks);
        CAPTURE(samples);
        const std::int64_t context = 8192;  // each sample is a micro-batch
        planners::PlanRequest request =
            test::request_of(std::vector<std::int64_t>(samples, context), 4);
        request.model = model_preset("llama-7b").value();
        request.context = {context};
        request.pp = pp;
        request.tp = 4;
        request.chunks = chunks;
        request.head = LmHead::last;
        request.recompute = Recompute::full;
        request.effort = planners::Effort::fast;
        const planners::PlanOutcome outcome = plan_by("megatron-interleaved", request);
        const auto* given = std::get_if<Plan>(&outcome.result);
        if (given == nullptr || given->micropacks.size() != 2 * samples) continue;
        const Nanos own = relisted(*given, request);
        if (own == Nanos::max()) continue;
        ++plans;
        const double ratio = seconds(own) / seconds(given->prediction.iteration);
        CHECK(ratio < 1.01);
        worst = std::max(worst, ratio);
      }
    }
  }
  MESSAGE(plans, " plans, worst ", worst);
  CHECK(plans >= 48);
}
