// SPDX-License-Identifier: Apache-2.0
// One set of packs for both passes: a slice of a long sample in each, filled up with short samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/longest_first.hpp"

namespace slimpack::planners {

/// Packs of a queue that have the same slices in both passes.
struct SymmetricPacks {
  schedule::PackCuts forward;         ///< in forward order
  std::vector<std::size_t> backward;  ///< their numbers, in backward order
};

/// `units` packs or a few more: each sample worth more than half a pack is cut into slices of equal
/// time, one a pack, no two such samples in one; the others go whole, longest first, to the pack
/// with the least time. Samples keep their order by their first slices; backward the packs of a cut
/// sample come in reverse. O(n log n).
[[nodiscard]] inline SymmetricPacks pack_symmetrically(
    std::span<const schedule::QueuedSample> samples, const schedule::SliceCosts& costs,
    std::int64_t units, const schedule::CutRules& rules) {
  std::vector<Int128> works;
  works.reserve(samples.size());
  Int128 total = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    // Samples of one length come one behind the other.
    const Tokens length = samples[i].length;
    const bool same = i > 0 && length == samples[i - 1].length;
    works.push_back(same ? works.back() : costs.of(length).slice({}, length));
    total += works.back();
  }
  const Int128 unit = std::max<Int128>(1, total / std::max<std::int64_t>(1, units));
  std::vector<Slice> slices;
  std::vector<std::uint32_t> pack_of;  // of each slice
  std::vector<Int128> time;            // of each pack
  std::vector<std::size_t> backward;
  const auto add = [&](std::size_t pack, const Slice& slice) {
    slices.push_back(slice);
    pack_of.push_back(static_cast<std::uint32_t>(pack));
  };
  std::vector<std::uint32_t> rest;  // positions of samples that are not cut
  slices.reserve(samples.size());
  pack_of.reserve(samples.size());
  rest.reserve(samples.size());
  for (std::size_t at = 0; at < samples.size(); ++at) {
    const schedule::QueuedSample& sample = samples[at];
    const Int128 work = works[at];
    if (2 * work <= unit) {
      rest.push_back(static_cast<std::uint32_t>(at));
      continue;
    }
    const schedule::SliceCost& cost = costs.of(sample.length);
    schedule::CutRules own = rules;
    own.units = std::max<std::int64_t>(1, static_cast<std::int64_t>((work + unit - 1) / unit));
    own.front = own.back = {};
    const schedule::PackCuts cuts =
        schedule::cut_packs(std::span(&sample, 1), Pass::forward, cost, own);
    const std::size_t first = time.size();
    for (std::size_t i = 0; i < cuts.packs(); ++i) {
      const Slice& slice = cuts.pack(i).front();
      add(time.size(), slice);
      time.push_back(cost.slice(slice.begin, slice.end));
    }
    for (std::size_t i = time.size(); i > first; --i) backward.push_back(i - 1);
  }
  while (static_cast<std::int64_t>(time.size()) < units && !rest.empty()) {
    backward.push_back(time.size());
    time.push_back(0);
  }
  schedule::LeastFirst<Int128> least(time);
  const auto longer = [&](std::uint32_t one, std::uint32_t other) {
    const schedule::QueuedSample &a = samples[one], &b = samples[other];
    return a.length != b.length ? a.length > b.length : a.id < b.id;
  };
  if (!std::is_sorted(rest.begin(), rest.end(), longer)) {
    std::sort(rest.begin(), rest.end(), longer);
  }
  for (const std::uint32_t at : rest) {
    add(least.number(), {samples[at].id, Tokens{}, samples[at].length});
    least.grow(works[at]);
  }

  std::vector<std::size_t> next(time.size() + 1, 0);  // where the next slice of a pack goes
  for (const std::uint32_t pack : pack_of) ++next[pack + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  SymmetricPacks result;
  std::vector<std::size_t> moved(time.size());  // some packs may have nothing left for them
  for (std::size_t i = 0; i < time.size(); ++i) {
    moved[i] = result.forward.packs();
    if (next[i] < next[i + 1]) result.forward.first.push_back(next[i + 1]);
  }
  for (const std::size_t i : backward) {
    if (next[i] < next[i + 1]) result.backward.push_back(moved[i]);
  }
  result.forward.slices.resize(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    result.forward.slices[next[pack_of[i]]++] = slices[i];
  }
  return result;
}

/// About `units` packs in blocks of `stages`, of which each has whole samples: these go, longest
/// first, to the fullest block that still takes them (`pack_best_fit_decreasing`), whose capacity
/// is an even part of all tokens, or the longest sample. Each block is then cut into packs of equal
/// cost. Backward the packs of a block come in reverse. `samples` come longest first. O(n log n).
[[nodiscard]] inline SymmetricPacks pack_in_blocks(std::span<const schedule::QueuedSample> samples,
                                                   const schedule::SliceCosts& costs,
                                                   std::int64_t units, std::int64_t stages,
                                                   const schedule::CutRules& rules) {
  std::vector<Tokens> lengths;
  lengths.reserve(samples.size());
  for (const schedule::QueuedSample& sample : samples) lengths.push_back(sample.length);
  const std::int64_t blocks = std::max<std::int64_t>(1, units / stages);
  const Tokens longest = *std::max_element(lengths.begin(), lengths.end());
  const Tokens even{(total_tokens(lengths).value + blocks - 1) / blocks};
  const Tokens capacity = std::max(even, longest);
  schedule::CutRules own = rules;
  own.units = stages;
  own.front = own.back = {};
  SymmetricPacks result;
  std::vector<schedule::QueuedSample> block;
  for (const auto& bin : schedule::pack_best_fit_decreasing(lengths, capacity)) {
    block.clear();
    for (const std::size_t item : bin) block.push_back(samples[item]);
    const schedule::PackCuts cuts = schedule::cut_packs(block, Pass::forward, costs, own);
    const std::size_t first = result.forward.packs();
    for (std::size_t i = 0; i < cuts.packs(); ++i) {
      const std::span<const Slice> pack = cuts.pack(i);
      result.forward.slices.insert(result.forward.slices.end(), pack.begin(), pack.end());
      result.forward.first.push_back(result.forward.slices.size());
    }
    for (std::size_t i = result.forward.packs(); i > first; --i) result.backward.push_back(i - 1);
  }
  return result;
}

}  // namespace slimpack::planners
