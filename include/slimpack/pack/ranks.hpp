// SPDX-License-Identifier: Apache-2.0
// Deals micro-batches to data-parallel ranks in equal numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

/// Wide enough for the work of every sample of a step.
__extension__ using Work = __int128;

/// Half the forward FLOPs of one layer on a sample of `length` tokens: matrix products and causal
/// attention.
[[nodiscard]] constexpr Work sample_work(const ModelShape& model, Tokens length) noexcept {
  return Work{length.value} * model.layer_matrix_weights() +
         Work{length.value} * length.value * model.query_width();
}

/// Positions of micro-batches, one list a rank, ascending.
using Deal = std::vector<std::vector<std::size_t>>;

/// Micro-batch i goes to rank i mod `ranks`. Throws InvalidInput if ranks < 1. O(count).
[[nodiscard]] inline Deal deal_in_turn(std::size_t count, std::int32_t ranks) {
  require(ranks >= 1, "deal: ranks must be >= 1", ranks);
  Deal deal(static_cast<std::size_t>(ranks));
  for (std::size_t item = 0; item < count; ++item) deal[item % deal.size()].push_back(item);
  return deal;
}

/// Micro-batches, heaviest first, are dealt in rounds of one a rank, the heaviest of a round to the
/// rank that has least: numbers differ by at most one. Equal micro-batches go by position, equal
/// ranks by number. Throws InvalidInput if ranks < 1. O(n log n).
[[nodiscard]] inline Deal deal_balanced(std::span<const Work> work, std::int32_t ranks) {
  require(ranks >= 1, "deal: ranks must be >= 1", ranks);
  std::vector<std::size_t> heaviest_first(work.size());
  std::iota(heaviest_first.begin(), heaviest_first.end(), std::size_t{0});
  std::stable_sort(heaviest_first.begin(), heaviest_first.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  const auto count = static_cast<std::size_t>(ranks);
  Deal deal(count);
  std::vector<Work> load(count);
  std::vector<std::size_t> lightest_first(count);
  std::iota(lightest_first.begin(), lightest_first.end(), std::size_t{0});
  for (std::size_t at = 0; at < heaviest_first.size(); ++at) {
    if (at % count == 0) {
      std::sort(lightest_first.begin(), lightest_first.end(), [&](std::size_t a, std::size_t b) {
        return std::tie(load[a], a) < std::tie(load[b], b);
      });
    }
    const std::size_t rank = lightest_first[at % count];
    deal[rank].push_back(heaviest_first[at]);
    load[rank] += work[heaviest_first[at]];
  }
  for (auto& items : deal) std::sort(items.begin(), items.end());
  return deal;
}

}  // namespace slimpack
