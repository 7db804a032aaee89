// SPDX-License-Identifier: Apache-2.0
// Sets of numbers that are joined, and which numbers end up together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace slimpack {

/// Disjoint sets of the numbers 0 .. count - 1, at first one each:
///
///     UnionFind sets(4);
///     sets.join(3, 1);
///     sets.numbered();  // {0, 1, 2, 1}
class UnionFind {
 public:
  /// `count` sets of one number each. O(count).
  explicit UnionFind(std::size_t count) : root_(count) {
    std::iota(root_.begin(), root_.end(), std::size_t{0});
  }

  /// Joins the sets of two numbers. Nearly O(1).
  void join(std::size_t a, std::size_t b) noexcept {
    a = find(a);
    b = find(b);
    root_[std::max(a, b)] = std::min(a, b);
  }
  /// The lowest number of the set of `item`. Nearly O(1).
  [[nodiscard]] std::size_t find(std::size_t item) noexcept {
    while (root_[item] != item) item = root_[item] = root_[root_[item]];
    return item;
  }
  /// The set of each number; sets are numbered from 0 in the order of their lowest numbers.
  /// O(count).
  [[nodiscard]] std::vector<std::size_t> numbered() {
    std::vector<std::size_t> set(root_.size());
    std::size_t sets = 0;
    for (std::size_t item = 0; item < set.size(); ++item) {
      const std::size_t lowest = find(item);
      set[item] = lowest == item ? sets++ : set[lowest];
    }
    return set;
  }

 private:
  std::vector<std::size_t> root_;
};

}  // namespace slimpack
