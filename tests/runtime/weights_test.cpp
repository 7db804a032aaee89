// SPDX-License-Identifier: Apache-2.0
// Units W, executed: the gradients of the same plan whose B computes all of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/joined_plan.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

TEST_CASE("W: gradients equal those of the same plan without W") {
  std::int64_t apart = 0, in_groups = 0;
  double worst = 0;
  for (std::uint64_t seed = 0; seed < test::draws(150U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::may_have_weights();
    options.version = 2;
    if (seed % 2 == 0) options.cp_groups = true;
    const Plan plan = test::random_plan(seed, options);
    const Plan whole = test::joined(plan);
    const runtime::StepData data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    auto split = cpu::make_devices(plan, seed), together = cpu::make_devices(whole, seed);
    const runtime::StepResult a = runtime::run_step(plan, data, std::span(split));
    const runtime::StepResult b = runtime::run_step(whole, data, std::span(together));
    CHECK(std::abs(a.loss - b.loss) <= 1e-14 * b.loss);
    for (std::size_t device = 0; device < split.size(); ++device) {
      for (const runtime::HeldTensor& tensor : split[device].tensors()) {
        const auto got = split[device].gradients(tensor);
        const auto want = together[device].gradients(tensor);
        REQUIRE(got.size() == want.size());
        double largest = 0, difference = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          largest = std::max(largest, std::abs(want[i]));
          difference = std::max(difference, std::abs(got[i] - want[i]));
        }
        CAPTURE(tensor.shape.name);
        CHECK(difference <= 1e-12 * largest);
        if (largest > 0) worst = std::max(worst, difference / largest);
      }
    }
    const test::Features found = test::features_of(plan);
    apart += found.weights;
    in_groups += found.weights_in_groups;
  }
  MESSAGE(apart << " plans with W, " << in_groups
                << " of them in groups, worst relative difference " << worst);
  CHECK(apart > test::draws(100));
  CHECK(in_groups > test::draws(30));
}

TEST_CASE("W: what weight packs hold, and when they run, is checked") {
  test::RandomPlanOptions options = test::may_have_weights();
  options.version = 2;
  options.max_granularity = 1;
  Plan plan;
  std::size_t id = 0;
  for (std::uint64_t seed = 0; id == 0; ++seed) {
    plan = test::random_plan(seed, options);
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const MicroPack& pack = plan.micropacks[i];
      if (pack.pass == Pass::weight && pack.slices.front().length() > Tokens{1}) id = i;
    }
  }
  Plan wrong = plan;
  wrong.micropacks[id].slices.front().begin += Tokens{1};
  const std::string message =
      "execution: the weight slices must hold what backward leaves apart of sample, got " +
      std::to_string(index(plan.micropacks[id].slices.front().sample));
  CHECK_THROWS_WITH_AS(static_cast<void>(runtime::make_program(wrong)), message.c_str(),
                       InvalidInput);
}
