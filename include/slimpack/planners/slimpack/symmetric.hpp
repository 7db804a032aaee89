// SPDX-License-Identifier: Apache-2.0
// One set of packs for both passes: a slice of a long sample in each, filled up with short samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/longest_first.hpp"

namespace slimpack::planners {

/// Packs of a queue that have the same slices in both passes.
struct SymmetricPacks {
  std::vector<std::vector<Slice>> packs;  ///< in forward order
  std::vector<std::size_t> backward;      ///< indices in `packs`, in backward order

  /// The packs of one pass in its order.
  [[nodiscard]] schedule::PackCuts cuts(Pass pass) const {
    schedule::PackCuts cuts;
    for (std::size_t i = 0; i < packs.size(); ++i) {
      const auto& pack = packs[pass == Pass::forward ? i : backward[i]];
      cuts.slices.insert(cuts.slices.end(), pack.begin(), pack.end());
      cuts.first.push_back(cuts.slices.size());
    }
    return cuts;
  }
};

/// `units` packs or a few more: each sample worth more than half a pack is cut into slices of equal
/// time, one a pack, no two such samples in one; the others go whole, longest first, to the pack
/// with the least time. Samples keep their order by their first slices; backward the packs of a cut
/// sample come in reverse. O(n log n).
[[nodiscard]] inline SymmetricPacks pack_symmetrically(
    std::span<const schedule::QueuedSample> samples, const schedule::SliceCosts& costs,
    std::int64_t units, const schedule::CutRules& rules) {
  Int128 total = 0;
  for (const schedule::QueuedSample& sample : samples)
    total += costs.of(sample.length).slice({}, sample.length);
  const Int128 unit = std::max<Int128>(1, total / std::max<std::int64_t>(1, units));
  SymmetricPacks result;
  std::vector<Int128> time;
  std::vector<schedule::QueuedSample> rest;
  for (const schedule::QueuedSample& sample : samples) {
    const schedule::SliceCost& cost = costs.of(sample.length);
    const Int128 work = cost.slice({}, sample.length);
    if (2 * work <= unit) {
      rest.push_back(sample);
      continue;
    }
    schedule::CutRules own = rules;
    own.units = std::max<std::int64_t>(1, static_cast<std::int64_t>((work + unit - 1) / unit));
    own.front = own.back = {};
    const schedule::PackCuts cuts =
        schedule::cut_packs(std::span(&sample, 1), Pass::forward, cost, own);
    const std::size_t first = result.packs.size();
    for (std::size_t i = 0; i < cuts.packs(); ++i) {
      const Slice& slice = cuts.pack(i).front();
      result.packs.push_back({slice});
      time.push_back(cost.slice(slice.begin, slice.end));
    }
    for (std::size_t i = result.packs.size(); i > first; --i) result.backward.push_back(i - 1);
  }
  while (static_cast<std::int64_t>(result.packs.size()) < units && !rest.empty()) {
    result.backward.push_back(result.packs.size());
    result.packs.emplace_back();
    time.push_back(0);
  }
  schedule::LeastFirst<Int128> least(time);
  std::sort(rest.begin(), rest.end(),
            [](const schedule::QueuedSample& a, const schedule::QueuedSample& b) {
              return a.length != b.length ? a.length > b.length : a.id < b.id;
            });
  for (const schedule::QueuedSample& sample : rest) {
    result.packs[least.number()].push_back({sample.id, Tokens{}, sample.length});
    least.grow(costs.of(sample.length).slice({}, sample.length));
  }
  // Packs that nothing was left for.
  std::vector<std::size_t> moved(result.packs.size());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < result.packs.size(); ++i) {
    moved[i] = kept;
    if (result.packs[i].empty()) continue;
    if (kept != i) result.packs[kept] = std::move(result.packs[i]);
    ++kept;
  }
  std::vector<std::size_t> backward;
  for (const std::size_t i : result.backward) {
    const bool empty = i + 1 < moved.size() ? moved[i + 1] == moved[i] : kept == moved[i];
    if (!empty) backward.push_back(moved[i]);
  }
  result.packs.resize(kept);
  result.backward = std::move(backward);
  return result;
}

}  // namespace slimpack::planners
