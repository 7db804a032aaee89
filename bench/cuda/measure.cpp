// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace slimpack::bench {

double quantile(std::span<const double> sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::int64_t sets_needed(double set_bytes, std::int64_t cache_bytes) {
  constexpr double kMost = 64;
  const double needed =
      std::ceil(2.0 * static_cast<double>(cache_bytes) / std::max(set_bytes, 1.0));
  return static_cast<std::int64_t>(std::clamp(needed, 1.0, kMost));
}

Times measure(const Case& of, const Machine& machine, double budget_ms) {
  constexpr double kStretch = 2;
  constexpr std::int64_t kLeast = 5, kMost = 100, kMostBatch = 500;
  Times times;
  times.sets = sets_needed(of.set_bytes, machine.cache_bytes);
  const Launch launch = of.prepare(machine, times.sets);
  std::int64_t turn = 0;
  const auto stretch = [&](std::int64_t launches) {
    cuda::Event begin(cuda::EventUse::time), end(cuda::EventUse::time);
    begin.record(machine.stream);
    for (std::int64_t i = 0; i < launches; ++i) launch(turn++ % times.sets);
    end.record(machine.stream);
    end.synchronize();
    return static_cast<double>(end.milliseconds_since(begin)) / static_cast<double>(launches);
  };
  const double cold = stretch(times.sets);
  constexpr double kLong = 50;  // not to be run more often than needed, or code was being loaded
  const double first = std::max(stretch(cold > kLong ? 1 : 2), 1e-4);
  times.batch = std::clamp(static_cast<std::int64_t>(std::ceil(kStretch / first)), std::int64_t{1},
                           kMostBatch);
  times.samples =
      std::clamp(static_cast<std::int64_t>(budget_ms / (first * static_cast<double>(times.batch))),
                 kLeast, kMost);
  std::vector<double> found;
  for (std::int64_t sample = 0; sample < times.samples; ++sample) {
    found.push_back(stretch(times.batch));
  }
  std::ranges::sort(found);
  times.median = quantile(found, 0.5);
  times.low = quantile(found, 0.1);
  times.high = quantile(found, 0.9);
  return times;
}

}  // namespace slimpack::bench
