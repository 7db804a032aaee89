// SPDX-License-Identifier: Apache-2.0
// Sequences cut into chunks that depend on each other, and samples packed into chunks of their own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/sample_prices.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners::detail {

/// Chunks that run in turn, forward rising, backward falling: those of one long sample (whose last
/// may hold short ones too), or one of short samples.
struct ChunkGroup {
  std::vector<std::vector<Slice>> chunks;
  std::int64_t time = 0;  ///< of both passes on one stage
};

/// The load of a chunk on a rank alone.
[[nodiscard]] inline PackLoad chunk_load(const StagePrices& prices, std::span<const Slice> chunk) {
  PackLoad load;
  for (const Slice& slice : chunk) {
    const PackLoad one = prices.load(slice.begin, slice.end);
    load.tokens += one.tokens;
    for (const AttentionAmount& amount : kAttentionAmounts) {
      load.*amount.all += one.*amount.all;
    }
    load.segments += one.segments;
  }
  return load;
}

/// Fills in the times of groups, on the last stage.
inline void price_groups(std::vector<ChunkGroup>& groups, const StagePrices& prices,
                         Recompute mode) {
  for (ChunkGroup& group : groups) {
    group.time = 0;
    for (const auto& chunk : group.chunks) {
      group.time += prices.both_passes(chunk_load(prices, chunk), mode, prices.stages() - 1);
    }
  }
}

/// In which order a rank runs its groups.
enum class GroupOrder : std::uint8_t { most_chunks_first, as_given };

/// Positions of groups, one list a rank: assigned by time, longest first, then moved and
/// swapped until ranks are even (schedule/assign.hpp); in each list most chunks first, equal ones
/// by falling time, or as given.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> assign_groups(
    std::span<const ChunkGroup> groups, std::size_t ranks, GroupOrder order) {
  std::vector<schedule::SampleNeed> needs;
  for (const ChunkGroup& group : groups) {
    needs.push_back({std::max<std::int64_t>(1, group.time), {}});
  }
  schedule::AssignRules rules;
  rules.ranks = static_cast<std::int32_t>(ranks);
  const schedule::Assignment assigned = schedule::assign_samples(needs, rules);
  std::vector<std::vector<std::size_t>> by_rank(ranks);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    by_rank[index(assigned.sample_group[i])].push_back(i);
  }
  if (order == GroupOrder::as_given) return by_rank;
  for (auto& list : by_rank) {
    std::stable_sort(list.begin(), list.end(), [&](std::size_t a, std::size_t b) {
      const std::size_t left = groups[a].chunks.size(), right = groups[b].chunks.size();
      return left != right ? left > right : groups[a].time > groups[b].time;
    });
  }
  return by_rank;
}

}  // namespace slimpack::planners::detail

template <>
inline constexpr std::array<std::string_view, 2> slimpack::kWords<slimpack::schedule::ChunkLead>{
    "steady", "just-in-time"};
template <>
inline constexpr std::array<std::string_view, 2>
    slimpack::kWords<slimpack::planners::detail::GroupOrder>{"most-chunks-first", "as-given"};
