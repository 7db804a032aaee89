// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/compare.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace slimpack {
namespace {

report::ComparedPlan step_of(std::int64_t seconds, double mfu, Bytes peak) {
  report::Metrics metrics;
  metrics.iteration = Nanos{seconds * 1'000'000'000};
  metrics.ideal = Nanos{1'000'000'000};
  metrics.lower_bound = Nanos{1'500'000'000};
  metrics.mfu = mfu;
  metrics.bubble = mfu / 2;
  metrics.forward_cv = mfu / 4;
  metrics.peak = peak;
  metrics.gaps[1] = Nanos{seconds};
  metrics.communication.transfers = Bytes{seconds};
  metrics.tokens = Tokens{1000};
  metrics.samples = 3;
  metrics.forward_packs = 5;
  report::ComparedPlan step;
  step.metrics = metrics;
  return step;
}

}  // namespace

TEST_CASE("summed_metrics: sums, the highest peak, and means weighted by time") {
  const std::vector<report::ComparedPlan> steps{step_of(2, 0.5, Bytes{7}),
                                                step_of(6, 0.1, Bytes{9})};
  const report::Metrics sum = report::summed_metrics(steps);
  CHECK(sum.iteration == Nanos{8'000'000'000});
  CHECK(sum.ideal == Nanos{2'000'000'000});
  CHECK(sum.lower_bound == Nanos{3'000'000'000});
  CHECK(sum.efficiency == doctest::Approx(0.25));
  CHECK(sum.mfu == doctest::Approx((0.5 * 2 + 0.1 * 6) / 8));
  CHECK(sum.bubble == doctest::Approx(sum.mfu / 2));
  CHECK(sum.forward_cv == doctest::Approx(sum.mfu / 4));
  CHECK(sum.peak == Bytes{9});
  CHECK(sum.gaps[1] == Nanos{8});
  CHECK(sum.communication.total() == Bytes{8});
  CHECK(sum.tokens == Tokens{2000});
  CHECK(sum.tokens_per_s == doctest::Approx(250));
  CHECK(sum.samples == 6);
  CHECK(sum.forward_packs == 10);
}

TEST_CASE("summed_metrics: one step is itself, and a missing bound is missing in the sum") {
  std::vector<report::ComparedPlan> steps{step_of(4, 0.3, Bytes{1})};
  CHECK(report::summed_metrics(steps).mfu == doctest::Approx(0.3));
  steps.push_back(step_of(4, 0.3, Bytes{1}));
  steps.back().metrics->lower_bound = Nanos{};
  CHECK(report::summed_metrics(steps).lower_bound == Nanos{});
}

TEST_CASE("summed_metrics: no step and an infeasible one are refused") {
  std::vector<report::ComparedPlan> steps;
  CHECK_THROWS_WITH_AS(static_cast<void>(report::summed_metrics(steps)),
                       "summed_metrics: there must be a step", InvalidInput);
  steps.emplace_back();
  steps.back().step = 4;
  CHECK_THROWS_AS(static_cast<void>(report::summed_metrics(steps)), InvalidInput);
}

}  // namespace slimpack
