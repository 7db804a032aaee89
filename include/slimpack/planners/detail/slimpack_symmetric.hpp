// SPDX-License-Identifier: Apache-2.0
// One set of packs for both passes: a slice of a long sample in each, filled up with short samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/pack/cut.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::detail {

/// Packs of a line in forward order, and in what order they go backward.
struct SymmetricPacks {
  std::vector<std::vector<Slice>> packs;
  std::vector<std::size_t> backward;

  [[nodiscard]] CutLine line(Pass pass) const {
    CutLine line;
    for (std::size_t at = 0; at < packs.size(); ++at) {
      const auto& pack = packs[pass == Pass::forward ? at : backward[at]];
      line.slices.insert(line.slices.end(), pack.begin(), pack.end());
      line.first.push_back(line.slices.size());
    }
    return line;
  }
};

/// `units` packs or a few more: each sample worth more than half a pack is cut into slices of equal
/// time, one a pack, no two such samples in one; the others go whole, longest first, to the pack
/// with the least time. Samples keep their order by their first slices; backward the packs of a cut
/// sample come in reverse. O(n log n).
[[nodiscard]] inline SymmetricPacks pack_symmetrically(std::span<const LineSample> samples,
                                                       const SliceCost& cost, std::int64_t units,
                                                       const CutRules& rules) {
  Work total = 0;
  for (const LineSample& sample : samples) total += cost.slice({}, sample.length);
  const Work unit = std::max<Work>(1, total / std::max<std::int64_t>(1, units));
  SymmetricPacks result;
  std::vector<Work> time;
  std::vector<LineSample> rest;
  for (const LineSample& sample : samples) {
    const Work work = cost.slice({}, sample.length);
    if (2 * work <= unit) {
      rest.push_back(sample);
      continue;
    }
    CutRules own = rules;
    own.units = std::max<std::int64_t>(1, static_cast<std::int64_t>((work + unit - 1) / unit));
    own.head = own.tail = {};
    const CutLine line = cut_line(std::span(&sample, 1), Pass::forward, cost, own);
    const std::size_t first = result.packs.size();
    for (std::size_t at = 0; at < line.packs(); ++at) {
      const Slice& slice = line.pack(at).front();
      result.packs.push_back({slice});
      time.push_back(cost.slice(slice.begin, slice.end));
    }
    for (std::size_t at = result.packs.size(); at > first; --at) result.backward.push_back(at - 1);
  }
  while (static_cast<std::int64_t>(result.packs.size()) < units && !rest.empty()) {
    result.backward.push_back(result.packs.size());
    result.packs.emplace_back();
    time.push_back(0);
  }
  using Pack = std::pair<Work, std::size_t>;
  std::priority_queue<Pack, std::vector<Pack>, std::greater<>> least;
  for (std::size_t at = 0; at < time.size(); ++at) least.push({time[at], at});
  std::sort(rest.begin(), rest.end(), [](const LineSample& a, const LineSample& b) {
    return a.length != b.length ? a.length > b.length : a.id < b.id;
  });
  for (const LineSample& sample : rest) {
    Pack pack = least.top();
    least.pop();
    result.packs[pack.second].push_back({sample.id, Tokens{}, sample.length});
    pack.first += cost.slice({}, sample.length);
    least.push(pack);
  }
  // Packs that nothing was left for.
  std::vector<std::size_t> moved(result.packs.size());
  std::size_t kept = 0;
  for (std::size_t at = 0; at < result.packs.size(); ++at) {
    moved[at] = kept;
    if (result.packs[at].empty()) continue;
    if (kept != at) result.packs[kept] = std::move(result.packs[at]);
    ++kept;
  }
  std::vector<std::size_t> backward;
  for (const std::size_t at : result.backward) {
    const bool empty = at + 1 < moved.size() ? moved[at + 1] == moved[at] : kept == moved[at];
    if (!empty) backward.push_back(moved[at]);
  }
  result.packs.resize(kept);
  result.backward = std::move(backward);
  return result;
}

}  // namespace slimpack::detail
