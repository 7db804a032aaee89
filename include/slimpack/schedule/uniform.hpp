// SPDX-License-Identifier: Apache-2.0
// Cuts a packed sequence into slices of equal length.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::schedule {

/// A sample of a packed sequence and its length.
struct PackedSample {
  SampleId sample{};
  Tokens length;
};

/// Cuts samples that lie one behind the other into at most `count` runs of equal length. Cut i of
/// the total T is wished at T i / count and falls on the nearest legal place: the end of a sample,
/// or a multiple of `granularity` inside one (the lower of two equally near). Cuts that fall
/// together are one, so there may be fewer runs than wished, never an empty one. Each run is the
/// slices of one MicroPack, in the sequence's order. Throws InvalidInput if count, granularity or a
/// length is < 1. O(samples + count).
[[nodiscard]] inline std::vector<std::vector<Slice>> cut_uniformly(
    std::span<const PackedSample> sequence, std::int64_t count, Tokens granularity) {
  require(count >= 1, "cut_uniformly: count must be >= 1", count);
  require(granularity.value >= 1, "cut_uniformly: granularity must be >= 1", granularity.value);
  Tokens total;
  for (const PackedSample& packed : sequence) {
    require(packed.length.value >= 1, "cut_uniformly: a length must be >= 1", packed.length.value);
    total += packed.length;
  }
  std::vector<Tokens> cuts;
  std::size_t k = 0;
  Tokens start;  // of sample `at` in the sequence
  for (std::int64_t cut = 1; cut < count; ++cut) {
    // T i / count, without overflow of the product.
    const Tokens wish{total.value / count * cut + total.value % count * cut / count};
    if (wish >= total) break;
    while (wish >= start + sequence[k].length) start += sequence[k++].length;
    const Tokens below = start + granularity * ((wish - start) / granularity);
    const Tokens above = std::min(below + granularity, start + sequence[k].length);
    const Tokens nearest = wish - below <= above - wish ? below : above;
    if (nearest > (cuts.empty() ? Tokens{} : cuts.back()) && nearest < total) {
      cuts.push_back(nearest);
    }
  }
  cuts.push_back(total);

  std::vector<std::vector<Slice>> runs;
  if (sequence.empty()) return runs;
  runs.emplace_back();
  auto cut = cuts.begin();
  start = {};
  for (const PackedSample& packed : sequence) {
    for (Tokens begin; begin < packed.length;) {
      if (start + begin == *cut) {
        runs.emplace_back();
        ++cut;
      }
      const Tokens end = std::min(packed.length, *cut - start);
      runs.back().push_back({packed.sample, begin, end});
      begin = end;
    }
    start += packed.length;
  }
  return runs;
}

}  // namespace slimpack::schedule
