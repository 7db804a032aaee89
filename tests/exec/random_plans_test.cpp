// SPDX-License-Identifier: Apache-2.0
// Random valid plans, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "slimpack_cpu/check_plan.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

TEST_CASE("execution: random plans give the loss, gradients and weights of the unsliced oracle") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto check = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(check.worst_tensor);
    CHECK(check.loss_difference <= 1e-10);
    CHECK(check.gradient_difference <= 1e-10);
    CHECK(check.weight_difference <= 1e-10);
  }
}
