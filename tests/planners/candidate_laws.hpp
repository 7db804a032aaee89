// SPDX-License-Identifier: Apache-2.0
// Random steps for a planner's candidates, and the laws that hold of every candidate.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::test {

/// Up to `samples` samples for dp in [1, dp) ranks of pp in [1, pp) stages with 8 to 23 layers.
inline planners::PlanRequest random_step(Random& random, std::int64_t samples, std::int64_t dp,
                                         std::int64_t pp) {
  const std::vector<std::int64_t> lengths =
      random_lengths(random, random.between(1, samples), 1024);
  planners::PlanRequest request = request_of(lengths, random.between(8, 24));
  request.dp = static_cast<std::int32_t>(random.between(1, dp));
  request.pp = static_cast<std::int32_t>(random.between(1, pp));
  return request;
}

/// A random point of a space of settings.
template <class Settings>
planners::SettingPoint random_point(const planners::SettingSpace<Settings>& space, Random& random) {
  planners::SettingPoint point;
  for (const std::size_t size : space.sizes()) point.push_back(random.below(size));
  return point;
}

/// Draws points: each candidate that exists is a valid plan which fits, within its own time too and
/// in no less, and says its `setting`. Calls see(plan) for each.
template <class Candidates, class See>
void check_candidates(const Candidates& candidates, const planners::PlanRequest& request,
                      Random& random, int draws, const std::string& setting, const See& see) {
  for (int draw = 0; draw < draws; ++draw) {
    const planners::SettingPoint point = random_point(candidates.space(), random);
    if (!candidates.space().exists(point)) continue;
    const auto settings = candidates.space().at(point);
    Plan plan = candidates.build(settings);
    CHECK(planners::predict(plan, request) == std::nullopt);
    Plan again = plan;
    again.prediction = {};
    const Nanos time = plan.prediction.iteration;
    const auto late = planners::predict_within(again, request, time - Nanos{1});
    REQUIRE(late.has_value());
    CHECK(late->constraint == "nanoseconds of a step");
    CHECK(late->needed <= time.value);
    CHECK(again.prediction == Prediction{});
    CHECK(planners::predict_within(again, request, time) == std::nullopt);
    CHECK(again == plan);
    for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
    planners::SettingTexts texts = candidates.space().describe(settings);
    candidates.describe(settings, plan, texts);
    CHECK(texts.contains(setting));
    see(plan);
  }
}

}  // namespace slimpack::test
