// SPDX-License-Identifier: Apache-2.0
// The learning rate of a step: a linear warm-up, then half a cosine down to a floor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "slimpack/core/error.hpp"

namespace slimpack::runtime {

/// A schedule of learning rates: warm-up, then a cosine down to a floor.
struct LearningRate {
  double peak = 1e-3;       ///< at the end of the warm-up
  double floor = 1e-4;      ///< at the last step and behind it
  std::int64_t warmup = 0;  ///< steps until the peak
  std::int64_t steps = 1;   ///< of the whole training
};

/// The rate of step `step`, counted from 1: peak * step / warmup up to the peak, then falling along
/// the cosine (Loshchilov, Hutter, "SGDR", ICLR 2017), the floor from the last step on. Throws
/// InvalidInput unless step >= 1, 0 <= warmup <= steps, steps >= 1 and 0 <= floor <= peak.
[[nodiscard]] inline double learning_rate(const LearningRate& schedule, std::int64_t step) {
  require(step >= 1, "learning_rate: step must be >= 1", step);
  require(schedule.steps >= 1, "learning_rate: steps must be >= 1", schedule.steps);
  require(schedule.warmup >= 0 && schedule.warmup <= schedule.steps,
          "learning_rate: warmup must be in [0, steps]", schedule.warmup);
  require(schedule.floor >= 0 && schedule.floor <= schedule.peak,
          "learning_rate: floor must be in [0, peak]");
  if (step <= schedule.warmup) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  if (step >= schedule.steps) return schedule.floor;
  const double done = static_cast<double>(step - schedule.warmup) /
                      static_cast<double>(schedule.steps - schedule.warmup);
  const double share = 0.5 * (1.0 + std::cos(3.14159265358979323846 * done));
  return schedule.floor + (schedule.peak - schedule.floor) * share;
}

}  // namespace slimpack::runtime
