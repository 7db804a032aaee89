// SPDX-License-Identifier: Apache-2.0
// Sizes and places of context-parallel groups in phase 1.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/schedule/assign_rules.hpp"

namespace slimpack::schedule::detail {

/// By rank, what it has to do before any sample.
[[nodiscard]] inline std::vector<std::int64_t> load_before(const AssignRules& rules) {
  if (!rules.besides.empty()) return rules.besides;
  return std::vector<std::int64_t>(static_cast<std::size_t>(rules.ranks));
}

/// Sizes of context-parallel groups, what a rank of one computes, and where groups lie.
class CpGroups {
 public:
  explicit CpGroups(const AssignRules& rules)
      : rules_(rules), most_(std::min(rules.max_cp, rules.ranks)) {}

  /// The smallest group, 1 if none is needed, for a sample of this need.
  [[nodiscard]] std::int32_t size_for(std::size_t sample, const SampleNeed& need,
                                      Int128 total) const {
    for (std::int32_t size = rules_.min_cp; size < most_; size = larger(size)) {
      const bool quick = Int128{part(sample, need, size)} * 1000 * rules_.ranks <=
                         total * Int128{rules_.threshold_permille};
      if (quick && need.bytes.value / size + 1 <= rules_.room.value) return size;
    }
    return most_;
  }

  /// The largest size.
  [[nodiscard]] std::int32_t most() const noexcept { return most_; }

  /// Time of each of `size` ranks that share a sample.
  [[nodiscard]] std::int64_t part(std::size_t sample, const SampleNeed& need,
                                  std::int32_t size) const {
    if (size == 1) return need.time;
    return rules_.part ? rules_.part(sample, size) : (need.time + size - 1) / size;
  }

  /// The first rank of the block of `size` ranks that a sample goes to.
  [[nodiscard]] std::int32_t block(std::int32_t size, const std::vector<std::int64_t>& load) const {
    std::int32_t best = 0;
    std::pair<bool, std::int64_t> least{true, 0};
    for (std::int32_t first = 0; first + size <= rules_.ranks; first += size) {
      const auto from = load.begin() + first;
      const std::pair<bool, std::int64_t> here{crosses(first, size),
                                               *std::max_element(from, from + size)};
      if (first == 0 || here < least) {
        best = first;
        least = here;
      }
    }
    return best;
  }

  /// The least multiple of a size that divides all ranks, or the largest size: so that groups lie
  /// inside one another, and few ranks wait for each other.
  [[nodiscard]] std::int32_t larger(std::int32_t size) const {
    std::int32_t next = 2 * size;
    while (next < most_ && rules_.ranks % next != 0) next += size;
    return std::min(next, most_);
  }

 private:
  [[nodiscard]] bool crosses(std::int32_t first, std::int32_t size) const {
    if (rules_.node.empty()) return false;
    const auto from = rules_.node.begin() + first;
    return std::any_of(from, from + size, [&](std::int64_t node) { return node != *from; });
  }

  const AssignRules& rules_;
  std::int32_t most_;
};

}  // namespace slimpack::schedule::detail
