// SPDX-License-Identifier: Apache-2.0
// Packs whole samples into bins of a fixed capacity.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack::schedule {

/// Positions of items in the input, bin by bin.
using Bins = std::vector<std::vector<std::size_t>>;

/// Throws InvalidInput unless every item is between 1 and `capacity`.
inline void check_items(std::span<const Tokens> items, Tokens capacity) {
  for (const Tokens item : items) {
    require(item.value > 0, "packing: an item must be > 0 tokens", item.value);
    require(item <= capacity, "packing: an item must not exceed the capacity", item.value);
  }
}

/// Fills bins in input order and opens the next where an item does not fit: no bin is empty, items
/// and bins keep the input's order. Throws InvalidInput if an item is < 1 or exceeds the capacity.
/// O(n).
[[nodiscard]] inline Bins pack_next_fit(std::span<const Tokens> items, Tokens capacity) {
  check_items(items, capacity);
  Bins bins;
  Tokens free;
  for (std::size_t item = 0; item < items.size(); ++item) {
    if (bins.empty() || items[item] > free) {
      bins.emplace_back();
      free = capacity;
    }
    bins.back().push_back(item);
    free -= items[item];
  }
  return bins;
}

/// Puts items, longest first, into the fullest bin that still takes them. Equal items go in input
/// order, equally full bins by the lowest number; bins are numbered as they are opened, and their
/// items listed in input order. Throws InvalidInput if an item is < 1 or exceeds the capacity.
/// O(n log n).
[[nodiscard]] inline Bins pack_best_fit_decreasing(std::span<const Tokens> items, Tokens capacity) {
  check_items(items, capacity);
  std::vector<std::size_t> longest_first(items.size());
  std::iota(longest_first.begin(), longest_first.end(), std::size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](std::size_t a, std::size_t b) { return items[a] > items[b]; });
  Bins bins;
  std::set<std::pair<Tokens, std::size_t>> open;  // free tokens, bin
  for (const std::size_t item : longest_first) {
    Tokens free = capacity;
    std::size_t bin = bins.size();
    if (const auto tightest = open.lower_bound({items[item], 0}); tightest != open.end()) {
      std::tie(free, bin) = *tightest;
      open.erase(tightest);
    } else {
      bins.emplace_back();
    }
    bins[bin].push_back(item);
    open.emplace(free - items[item], bin);
  }
  for (auto& bin : bins) std::sort(bin.begin(), bin.end());
  return bins;
}

}  // namespace slimpack::schedule
