// SPDX-License-Identifier: Apache-2.0
// Times by CUDA events: warm caches are avoided by turns over several input sets, and what is told
// is the median of many runs with their spread.
#pragma once

#include <cstdint>
#include <span>

#include "cases.hpp"

namespace slimpack::bench {

/// Milliseconds of one launch.
struct Times {
  double median = 0;
  double low = 0, high = 0;  ///< a tenth of all times is below, and above
  std::int64_t samples = 0;  ///< timed stretches
  std::int64_t batch = 1;    ///< launches in one stretch
  std::int64_t sets = 1;     ///< input sets taken in turn
};

/// Linear between neighbours; `sorted` is not empty.
[[nodiscard]] double quantile(std::span<const double> sorted, double share);

/// Input sets for which none is left in a cache of `cache_bytes` when its turn comes again.
[[nodiscard]] std::int64_t sets_needed(double set_bytes, std::int64_t cache_bytes);

/// About `budget_ms` of runs after a warm-up of every set; at least five stretches, each of 2 ms
/// at least, so that neither the timer's resolution nor the gap before the first launch matters.
[[nodiscard]] Times measure(const Case& of, const Machine& machine, double budget_ms);

}  // namespace slimpack::bench
