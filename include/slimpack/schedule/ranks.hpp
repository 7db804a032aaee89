// SPDX-License-Identifier: Apache-2.0
// Assigns micro-batches to data-parallel ranks: in turn, balanced, or by largest differences.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/schedule/detail/karmarkar_karp.hpp"

namespace slimpack::schedule {

/// Half the forward FLOPs of one layer on a sample of `length` tokens: matrix products and causal
/// attention. Int128 also holds the sum over every sample of a step.
[[nodiscard]] constexpr Int128 sample_work(const ModelShape& model, Tokens length) noexcept {
  return Int128{length.value} * model.layer_matrix_weights() +
         Int128{length.value} * length.value * model.query_width();
}

/// Positions of micro-batches, one list a rank, ascending.
using ShardLayout = std::vector<std::vector<std::size_t>>;

/// Micro-batch i goes to rank i mod `ranks`. Throws InvalidInput if ranks < 1. O(count).
[[nodiscard]] inline ShardLayout assign_round_robin(std::size_t count, std::int32_t ranks) {
  require(ranks >= 1, "assign_round_robin: ranks must be >= 1", ranks);
  ShardLayout layout(static_cast<std::size_t>(ranks));
  for (std::size_t item = 0; item < count; ++item) layout[item % layout.size()].push_back(item);
  return layout;
}

/// Assigns micro-batches in rounds of one a rank, heaviest first. The heaviest of a round goes to
/// the rank with the least work. The numbers of two ranks differ by at most one. Equal
/// micro-batches go by position, equal ranks by number. Throws InvalidInput if ranks < 1. O(n log
/// n).
[[nodiscard]] inline ShardLayout assign_balanced(std::span<const Int128> work, std::int32_t ranks) {
  require(ranks >= 1, "assign_balanced: ranks must be >= 1", ranks);
  std::vector<std::size_t> heaviest_first(work.size());
  std::iota(heaviest_first.begin(), heaviest_first.end(), std::size_t{0});
  std::stable_sort(heaviest_first.begin(), heaviest_first.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  const auto count = static_cast<std::size_t>(ranks);
  ShardLayout layout(count);
  std::vector<Int128> load(count);
  std::vector<std::size_t> lightest_first(count);
  std::iota(lightest_first.begin(), lightest_first.end(), std::size_t{0});
  for (std::size_t i = 0; i < heaviest_first.size(); ++i) {
    if (i % count == 0) {
      std::sort(lightest_first.begin(), lightest_first.end(), [&](std::size_t a, std::size_t b) {
        return std::tie(load[a], a) < std::tie(load[b], b);
      });
    }
    const std::size_t rank = lightest_first[i % count];
    layout[rank].push_back(heaviest_first[i]);
    load[rank] += work[heaviest_first[i]];
  }
  for (auto& items : layout) std::sort(items.begin(), items.end());
  return layout;
}

/// How many items each part gets.
enum class PartSizes : std::uint8_t {
  free,   ///< any number of items in each part
  equal,  ///< the same number of items in each part
};

/// Assigns items to `parts` so that their sums of work are nearly equal (Karmarkar and Karp, 1982,
/// in the form for several parts): each item begins as a state of one set, with `PartSizes::equal`
/// each `parts` neighbours in ascending order of work as one of `parts` sets; the two states whose
/// largest and smallest sets differ most are joined, largest sets to smallest, until one is left.
/// Parts are ordered from the largest sum to the smallest, their items ascending. Ties as in verl's
/// `karmarkar_karp`: of states with equal spread that with the larger first set goes first, and of
/// sets with equal sums that with more items, then with the later first item is the larger. With
/// fewer items than parts the last parts are empty. Throws InvalidInput if parts < 1, a work is
/// < 1, or parts are to be equal and do not divide the items. O(n parts log(n parts)).
[[nodiscard]] inline ShardLayout assign_karmarkar_karp(std::span<const Int128> work,
                                                       std::size_t parts, PartSizes sizes) {
  require(parts >= 1, "assign_karmarkar_karp: parts must be >= 1");
  require(sizes == PartSizes::free || work.size() % parts == 0,
          "assign_karmarkar_karp: equal parts must divide the items",
          static_cast<std::int64_t>(work.size()));
  for (const Int128 each : work) {
    require(each > 0, "assign_karmarkar_karp: a work must be >= 1",
            static_cast<std::int64_t>(each));
  }
  return detail::KarmarkarKarp(work, parts).run(sizes == PartSizes::equal);
}

}  // namespace slimpack::schedule
