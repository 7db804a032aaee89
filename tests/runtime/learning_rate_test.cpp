// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/learning_rate.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace slimpack;

TEST_CASE("learning rate: rises in a line, falls along a cosine, stays at its floor") {
  const runtime::LearningRate schedule{1.0, 0.2, 4, 12};
  CHECK(runtime::learning_rate(schedule, 1) == doctest::Approx(0.25));
  CHECK(runtime::learning_rate(schedule, 3) == doctest::Approx(0.75));
  CHECK(runtime::learning_rate(schedule, 4) == doctest::Approx(1.0));
  CHECK(runtime::learning_rate(schedule, 8) == doctest::Approx(0.6));
  CHECK(runtime::learning_rate(schedule, 6) == doctest::Approx(0.2 + 0.8 * 0.8535533906));
  CHECK(runtime::learning_rate(schedule, 12) == 0.2);
  CHECK(runtime::learning_rate(schedule, 1000) == 0.2);
  for (std::int64_t step = 5; step <= 12; ++step) {
    CHECK(runtime::learning_rate(schedule, step) < runtime::learning_rate(schedule, step - 1));
  }
  CHECK(runtime::learning_rate({1.0, 1.0, 0, 1}, 1) == 1.0);
  CHECK(runtime::learning_rate({1.0, 0.0, 0, 2}, 1) == doctest::Approx(0.5));
}

TEST_CASE("learning rate: impossible schedules are refused by name") {
#define CHECK_NO_RATE(schedule, step, sentence) \
  CHECK_THROWS_WITH_AS((void)runtime::learning_rate(schedule, step), sentence, InvalidInput)
  CHECK_NO_RATE((runtime::LearningRate{1, 0, 0, 5}), 0, "learning_rate: step must be >= 1, got 0");
  CHECK_NO_RATE((runtime::LearningRate{1, 0, 0, 0}), 1, "learning_rate: steps must be >= 1, got 0");
  CHECK_NO_RATE((runtime::LearningRate{1, 0, 6, 5}), 1,
                "learning_rate: warmup must be in [0, steps], got 6");
  CHECK_NO_RATE((runtime::LearningRate{1, 2, 0, 5}), 1,
                "learning_rate: floor must be in [0, peak]");
#undef CHECK_NO_RATE
}
