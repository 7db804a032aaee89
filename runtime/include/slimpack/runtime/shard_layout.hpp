// SPDX-License-Identifier: Apache-2.0
// How elements that belong to several devices together are dealt to them, each its part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace slimpack::runtime {

/// Elements [begin, end), of which member i has those from begin + i * part on: as many, but fewer
/// or none where the piece ends.
struct ShardPiece {
  std::size_t begin = 0, end = 0, part = 0;
  /// First element of a member, and the one behind its last.
  [[nodiscard]] std::pair<std::size_t, std::size_t> of(std::size_t member) const noexcept {
    return {std::min(end, begin + part * member), std::min(end, begin + part * (member + 1))};
  }
  [[nodiscard]] bool even(std::size_t members) const noexcept {
    return part * members == end - begin;
  }
};

/// `size` elements for `members` devices. They are cut into pieces of at most `most` elements, so
/// that a piece can travel while others are still made, and each piece is dealt to all members.
struct ShardLayout {
  static constexpr std::size_t kWhole = 8;  ///< elements that are never divided
  static constexpr std::size_t kMost = std::size_t{1} << 23U;
  std::size_t size = 0, members = 1;
  std::size_t most = kMost;

  /// All but the last are even. O(pieces).
  [[nodiscard]] std::vector<ShardPiece> pieces() const {
    const std::size_t row = members * kWhole;
    const std::size_t step = std::max<std::size_t>(1, most / row) * row;
    std::vector<ShardPiece> all;
    for (std::size_t begin = 0; begin < size; begin += step) {
      const std::size_t end = std::min(size, begin + step);
      all.push_back({begin, end, (end - begin + row - 1) / row * kWhole});
    }
    return all;
  }
};

}  // namespace slimpack::runtime
