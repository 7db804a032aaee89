// SPDX-License-Identifier: Apache-2.0
// Flexible context parallelism: sequences to groups, groups to micro-batches, ranks to groups.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"

namespace slimpack::planners {

/// Samples that run together, and how many ranks they take.
struct FcpGroup {
  std::int64_t ranks = 1;            ///< fewest that hold them, or those that run them
  std::vector<std::size_t> samples;  ///< positions, longest first
  friend bool operator==(const FcpGroup&, const FcpGroup&) = default;
};

/// Packs samples best fit decreasing by memory: a sample that fits beside those of a group, whose
/// ranks hold `capacity` tokens each, joins the group with least room; any other opens a group of
/// the fewest ranks that hold it. Ties go to the earlier sample and group. Throws InvalidInput if a
/// length or the capacity is < 1. O(n log n).
[[nodiscard]] inline std::vector<FcpGroup> pack_by_memory(std::span<const Tokens> lengths,
                                                          Tokens capacity) {
  require(capacity.value >= 1, "pack_by_memory: capacity must be >= 1", capacity.value);
  std::vector<FcpGroup> groups;
  std::set<std::pair<Tokens, std::size_t>> open;  // room and group
  for (const std::size_t sample : longest_first(lengths)) {
    const Tokens length = lengths[sample];
    require(length.value >= 1, "pack_by_memory: a length must be >= 1", length.value);
    std::pair<Tokens, std::size_t> group{Tokens{}, groups.size()};
    if (const auto tightest = open.lower_bound({length, 0}); tightest != open.end()) {
      group = *tightest;
      open.erase(tightest);
    } else {
      groups.push_back({(length.value + capacity.value - 1) / capacity.value, {}});
      group.first = capacity * groups.back().ranks;
    }
    groups[group.second].samples.push_back(sample);
    open.insert({group.first - length, group.second});
  }
  return groups;
}

/// Distributes groups over micro-batches so that the fewest ranks of each add up to at most
/// `ranks`: most work first, each to the micro-batch with least work that has ranks for it, over at
/// least `count` micro-batches and as many more as it takes. Ties go to the lowest position. None
/// is empty. Throws InvalidInput if a group needs more ranks than there are, or count < 1. O(n log
/// n) where groups need few of the ranks, O(n^2) at worst.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> fill_micro_batches(
    std::span<const FcpGroup> groups, std::span<const Int128> work, std::int64_t ranks,
    std::int64_t count) {
  require(count >= 1, "fill_micro_batches: count must be >= 1", count);
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  std::vector<std::vector<std::size_t>> batches(
      std::min(static_cast<std::size_t>(count), groups.size()));
  std::vector<std::int64_t> used(batches.size());
  std::set<std::pair<Int128, std::size_t>> open;  // work and micro-batch of those with ranks left
  for (std::size_t i = 0; i < batches.size(); ++i) open.insert({Int128{0}, i});
  for (const std::size_t group : order) {
    const std::int64_t needed = groups[group].ranks;
    require(needed <= ranks, "fill_micro_batches: a group needs more ranks than there are", needed);
    const auto least = std::find_if(open.begin(), open.end(), [&](const auto& batch) {
      return used[batch.second] + needed <= ranks;
    });
    std::pair<Int128, std::size_t> batch{0, batches.size()};
    if (least == open.end()) {
      batches.emplace_back();
      used.push_back(0);
    } else {
      batch = *least;
      open.erase(least);
    }
    batches[batch.second].push_back(group);
    used[batch.second] += needed;
    if (used[batch.second] < ranks) open.insert({batch.first + work[group], batch.second});
  }
  return batches;
}

/// Ranks for the groups of a micro-batch so that the slowest takes the least time possible.
/// `times[g][k - fewest[g]]` is what group g takes on k ranks, up to the most that it may have;
/// they need not fall with k. Of equally good answers each group has the fewest ranks. The
/// publication solves this by dynamic programming over groups and ranks; the least time that leaves
/// enough ranks is the same optimum. Throws InvalidInput if times are missing or the fewest ranks
/// do not suffice. O(times log times).
[[nodiscard]] inline std::vector<std::int64_t> divide_ranks(
    std::span<const std::int64_t> fewest, const std::vector<std::vector<std::int64_t>>& times,
    std::int64_t ranks) {
  require(times.size() == fewest.size(), "divide_ranks: there must be times for every group",
          static_cast<std::int64_t>(times.size()));
  std::vector<std::int64_t> limits;
  std::int64_t least = 0;
  for (std::size_t group = 0; group < times.size(); ++group) {
    require(!times[group].empty(), "divide_ranks: a group must have a time");
    limits.insert(limits.end(), times[group].begin(), times[group].end());
    least += fewest[group];
  }
  require(least <= ranks, "divide_ranks: the fewest ranks of all groups must suffice", least);
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  // The fewest ranks on which every group is done by then; empty: too many, or none is.
  const auto within = [&](std::int64_t limit) {
    std::vector<std::int64_t> division;
    std::int64_t sum = 0;
    for (std::size_t group = 0; group < times.size(); ++group) {
      const auto& own = times[group];
      const auto fast =
          std::find_if(own.begin(), own.end(), [&](std::int64_t time) { return time <= limit; });
      if (fast == own.end()) return std::vector<std::int64_t>{};
      division.push_back(fewest[group] + (fast - own.begin()));
      sum += division.back();
    }
    return sum <= ranks ? division : std::vector<std::int64_t>{};
  };
  const auto best = std::partition_point(limits.begin(), limits.end(),
                                         [&](std::int64_t limit) { return within(limit).empty(); });
  return times.empty() ? std::vector<std::int64_t>{} : within(*best);
}

/// First ranks of groups of such sizes, at most `ranks` together, `node` neighbouring ranks being
/// on one node: large groups begin a node, others lie inside one where that is possible, the
/// largest first in the node with least room; else all lie one behind the other. O(groups x nodes).
[[nodiscard]] inline std::vector<std::int32_t> place_groups(std::span<const std::int64_t> sizes,
                                                            std::int64_t ranks, std::int64_t node) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::int64_t> used(static_cast<std::size_t>((ranks + node - 1) / node));
  const auto room = [&](std::size_t i) {
    return std::min(node, ranks - static_cast<std::int64_t>(i) * node) - used[i];
  };
  std::vector<std::int32_t> first(sizes.size());
  std::size_t fresh = 0;  // nodes before it have been given to large groups
  bool inside = true;
  for (const std::size_t group : order) {
    std::size_t best = used.size();
    if (sizes[group] > node) {
      best = fresh;
      const auto whole = static_cast<std::size_t>(sizes[group] / node);
      if (static_cast<std::int64_t>(fresh) * node + sizes[group] > ranks) {
        inside = false;
        break;
      }
      for (std::size_t i = 0; i < whole; ++i) used[fresh + i] = node;
      first[group] = static_cast<std::int32_t>(static_cast<std::int64_t>(best) * node);
      fresh += whole;
      if (sizes[group] % node != 0) used[fresh++] = sizes[group] % node;
      continue;
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (room(i) >= sizes[group] && (best == used.size() || room(i) < room(best))) best = i;
    }
    if (best == used.size()) {
      inside = false;
      break;
    }
    first[group] = static_cast<std::int32_t>(static_cast<std::int64_t>(best) * node + used[best]);
    used[best] += sizes[group];
  }
  if (inside) return first;
  std::int32_t next = 0;
  for (const std::size_t group : order) {
    first[group] = next;
    next += static_cast<std::int32_t>(sizes[group]);
  }
  return first;
}

}  // namespace slimpack::planners
