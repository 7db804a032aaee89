// SPDX-License-Identifier: Apache-2.0
// Gradients by central differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slimpack/core/random.hpp"

namespace slimpack::test {

inline std::vector<double> random_values(Random& random, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = random.normal();
  return values;
}

/// The largest difference between `gradient` and central differences of `loss` in `at`, over the
/// largest gradient. `loss` reads `at` anew each time.
inline double difference_of(std::span<double> at, std::span<const double> gradient,
                            const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double value = at[i];
    at[i] = value + kStep;
    const double above = loss();
    at[i] = value - kStep;
    const double below = loss();
    at[i] = value;
    const double measured = (above - below) / (2 * kStep);
    difference = std::max(difference, std::abs(measured - gradient[i]));
    largest = std::max(largest, std::abs(measured));
  }
  return difference / largest;
}

/// sum of a * b: a loss whose gradient with respect to b is a.
inline double product(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace slimpack::test
