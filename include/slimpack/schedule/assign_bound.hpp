// SPDX-License-Identifier: Apache-2.0
// What no assignment of samples to ranks, of any groups, can do better: a relaxation of phase 1.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"

namespace slimpack::schedule {

/// A lower bound on the load of the fullest of `ranks` ranks, whatever samples are alone and
/// whatever groups of up to `max_cp` ranks, of any membership, share the others. `times[s]` is the
/// time of sample s on one rank, `part(s, g)` that of each of g ranks that share it, 2 <= g <=
/// max_cp. Sharing must save no work: g part(s, g) >= times[s].
///
/// It is the least T for which three things hold that every assignment with a fullest load T has:
/// each sample has a number of ranks whose parts take at most T; with the cheapest such numbers all
/// parts together take at most T on all ranks; and samples whose parts always take more than T / 2,
/// of which no rank has two, find as many ranks as they need. Which ranks share a sample, and that
/// parts do not divide further, is left out.
///
///     const std::int64_t least = least_fullest_load(times, 8, 4, part);
///
/// Throws InvalidInput if a number of ranks or a time is < 1. O(n + ranks max_cp log T).
[[nodiscard]] inline std::int64_t least_fullest_load(
    std::span<const std::int64_t> times, std::int32_t ranks, std::int32_t max_cp,
    const std::function<std::int64_t(std::size_t, std::int32_t)>& part) {
  require(ranks >= 1, "least_fullest_load: ranks must be >= 1", ranks);
  require(max_cp >= 1, "least_fullest_load: max_cp must be >= 1", max_cp);
  Int128 total = 0;
  for (const std::int64_t time : times) {
    require(time >= 1, "least_fullest_load: a time must be >= 1", time);
    total += time;
  }
  const auto mean = static_cast<std::int64_t>((total + ranks - 1) / ranks);

  // Samples of at most half the mean are best alone, and no rank is theirs, whatever T is: T is not
  // below the mean.
  std::vector<std::vector<std::int64_t>> parts;  // of each other sample, by ranks from 1 on
  Int128 work_alone = 0;
  const std::int32_t widest = std::min(ranks, max_cp);
  for (std::size_t sample = 0; sample < times.size(); ++sample) {
    if (times[sample] <= mean / 2) {
      work_alone += times[sample];
      continue;
    }
    parts.push_back({times[sample]});
    for (std::int32_t size = 2; size <= widest; ++size) parts.back().push_back(part(sample, size));
  }

  const auto possible = [&](std::int64_t most) {
    Int128 work = work_alone;
    std::int64_t needed = 0;
    for (const std::vector<std::int64_t>& sample : parts) {
      Int128 least_work = -1;
      std::int64_t least_ranks = 0;
      bool large = true;
      for (std::size_t i = 0; i < sample.size(); ++i) {
        if (sample[i] > most) continue;
        const auto size = static_cast<std::int64_t>(i) + 1;
        const Int128 shared = Int128{sample[i]} * size;
        if (least_work < 0 || shared < least_work) least_work = shared;
        if (least_ranks == 0) least_ranks = size;
        large = large && sample[i] > most / 2;
      }
      if (least_work < 0) return false;
      work += least_work;
      if (large) needed += least_ranks;
    }
    return work <= Int128{most} * ranks && needed <= ranks;
  };
  // All on one rank is possible, or shared by all where that is less.
  std::int64_t low = mean, high = mean;
  while (!possible(high)) {
    low = high + 1;
    high *= 2;
  }
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (possible(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace slimpack::schedule
