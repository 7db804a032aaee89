// SPDX-License-Identifier: Apache-2.0
// On one stage: whole samples packed so that few rows of matrix products are filled up in vain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/fit_modes.hpp"
#include "slimpack/planners/slimpack/split_packs.hpp"

namespace slimpack::planners {

namespace detail {

/// Slices in so many packs, all but the last of at most `capacity` tokens: one pack after the other
/// takes, longest first, what still fits; the last has the rest.
[[nodiscard]] inline std::vector<std::vector<Slice>> fill_packs(std::vector<Slice> slices,
                                                                std::size_t packs,
                                                                std::int64_t capacity) {
  std::ranges::stable_sort(slices,
                           [](const Slice& a, const Slice& b) { return a.length() > b.length(); });
  std::vector<std::vector<Slice>> filled(packs);
  for (std::size_t i = 0; i + 1 < packs; ++i) {
    std::int64_t room = capacity;
    std::erase_if(slices, [&](const Slice& slice) {
      if (slice.length().value > room) return false;
      room -= slice.length().value;
      filled[i].push_back(slice);
      return true;
    });
  }
  filled.back() = std::move(slices);
  return filled;
}

}  // namespace detail

/// Packs the samples of each rank's own packs anew where that fills up fewer rows of matrix
/// products (`matrix_tile_rows`): as many packs, all but the last nearly as long as an even share
/// in whole tiles. Packs count that are the same in both passes and hold whole samples of a group
/// of one rank, two or more of a mode. Whether anything has changed. O(packs x samples of a rank).
inline bool fill_tiles(Plan& plan) {
  const std::int64_t tile = plan.cluster.small.matrix_tile_rows;
  if (tile <= 1) return false;
  std::map<std::pair<GroupId, Recompute>, std::vector<detail::TwinPacks>> packs;
  for (const detail::TwinPacks& twins : detail::twin_packs(plan)) {
    const MicroPack& backward = plan.micropacks[index(twins.second)];
    if (plan.groups[index(backward.group)].size() > 1) continue;
    packs[{backward.group, backward.recompute}].push_back(twins);
  }
  const auto tiles = [&](std::span<const Slice> slices) {
    std::int64_t tokens = 0;
    for (const Slice& slice : slices) tokens += slice.length().value;
    return (tokens + tile - 1) / tile;
  };
  bool changed = false;
  for (const auto& [kind, twins] : packs) {
    if (twins.size() < 2) continue;
    std::vector<Slice> all;
    std::int64_t before = 0, after = 0;
    for (const auto& [forward, backward] : twins) {
      const std::vector<Slice>& own = plan.micropacks[index(forward)].slices;
      all.insert(all.end(), own.begin(), own.end());
      before += tiles(own);
    }
    const auto count = static_cast<std::int64_t>(twins.size());
    const std::int64_t capacity = (tiles(all) + count - 1) / count * tile;
    const std::vector<std::vector<Slice>> filled =
        detail::fill_packs(std::move(all), twins.size(), capacity);
    for (const std::vector<Slice>& pack : filled) after += tiles(pack);
    const bool empty = std::ranges::any_of(filled, [](const auto& pack) { return pack.empty(); });
    if (empty || after >= before) continue;
    changed = true;
    for (std::size_t i = 0; i < twins.size(); ++i) {
      plan.micropacks[index(twins[i].first)].slices = filled[i];
      plan.micropacks[index(twins[i].second)].slices = filled[i];
    }
  }
  return changed;
}

/// What F, H, B and R of twin packs take on the rank that is last.
[[nodiscard]] inline Nanos slowest_rank(const Plan& plan, const PricedPlan& times) {
  std::vector<std::vector<detail::TwinPacks>> of_rank(static_cast<std::size_t>(plan.parallel.dp));
  for (const detail::TwinPacks& twins : detail::twin_packs(plan)) {
    for (const std::int32_t dp : plan.groups[index(plan.micropacks[index(twins.first)].group)]) {
      of_rank[static_cast<std::size_t>(dp)].push_back(twins);
    }
  }
  Nanos slowest;
  for (const auto& own : of_rank) slowest = std::max(slowest, detail::twins_time(plan, times, own));
  return slowest;
}

}  // namespace slimpack::planners
