// SPDX-License-Identifier: Apache-2.0
// Zeppelin's partition of a micro-batch: documents local to a rank, to a node, or over all nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/wlb_shards.hpp"

namespace slimpack::planners::detail {

/// Which ranks of a group share a node: `node[rank]` counts from 0 in the order of the ranks.
struct RankNodes {
  std::vector<std::size_t> node;
  std::vector<std::vector<std::size_t>> ranks;  ///< of each node
  friend bool operator==(const RankNodes&, const RankNodes&) = default;
};

/// From the number of each rank's node.
[[nodiscard]] inline RankNodes rank_nodes(std::span<const std::int64_t> numbers) {
  RankNodes result;
  std::vector<std::int64_t> seen;
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    const auto found = std::find(seen.begin(), seen.end(), numbers[rank]);
    const auto node = static_cast<std::size_t>(found - seen.begin());
    if (found == seen.end()) {
      seen.push_back(numbers[rank]);
      result.ranks.emplace_back();
    }
    result.node.push_back(node);
    result.ranks[node].push_back(rank);
  }
  return result;
}

/// Documents longer than `node` tokens run on all nodes, others longer than `rank` on one node,
/// the rest on one rank.
struct ZoneLimits {
  Tokens rank, node;
  friend bool operator==(const ZoneLimits&, const ZoneLimits&) = default;
};

/// What a rank has to do, and what its rings bring: tokens whose keys and values arrive over the
/// links of its node, and over its own network interface once those of a node share the traffic.
struct ZoneLoad {
  PackLoad load;
  Tokens inside, between;
};

/// A partition, and how many documents are in each zone.
struct Zones {
  std::vector<ZoneLoad> ranks;
  std::int64_t local = 0, node = 0, cluster = 0;
};

/// Places documents zone by zone, longest first: those of all nodes cut into 2 x ranks chunks over
/// all ranks, those of one node likewise over the ranks of the node that has least pairs a rank,
/// local ones on the rank with least pairs; ties go to fewer tokens, then to the lowest number. A
/// ring between nodes passes every chunk into every node once: the interfaces of the node's ranks
/// take equal parts of it, which its links hand out and put together again. O(n log n + chunks).
[[nodiscard]] inline Zones partition(std::span<const Tokens> documents, const RankNodes& nodes,
                                     const ZoneLimits& limits, Tokens tile) {
  std::vector<Tokens> longest_first(documents.begin(), documents.end());
  std::sort(longest_first.begin(), longest_first.end(), std::greater<>{});
  Zones zones;
  zones.ranks.resize(nodes.node.size());
  const auto share = [&](Tokens length, std::span<const std::size_t> ranks, bool over_nodes) {
    const auto count = static_cast<std::int64_t>(ranks.size());
    for (std::int64_t i = 0; i < count; ++i) {
      ZoneLoad& rank = zones.ranks[ranks[static_cast<std::size_t>(i)]];
      const Tokens before = rank.load.tokens;
      add_document(rank.load, length, i, count, tile);
      const Tokens received = length - (rank.load.tokens - before);
      rank.inside += received;
      if (!over_nodes) continue;
      const std::size_t node = nodes.node[ranks[static_cast<std::size_t>(i)]];
      const auto interfaces = static_cast<std::int64_t>(nodes.ranks[node].size());
      const Tokens part{(received.value + interfaces - 1) / interfaces};
      rank.between += part;
      rank.inside += received - part;
    }
  };
  std::vector<std::size_t> all(nodes.node.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const Tokens length : longest_first) {
    if (nodes.ranks.size() > 1 && length > limits.node) {
      share(length, all, true);
      ++zones.cluster;
    } else if (length > limits.rank) {
      // Pairs a rank, compared without division.
      const auto less = [&](const auto& a, const auto& b) {
        Int128 pairs_a = 0, pairs_b = 0, tokens_a = 0, tokens_b = 0;
        for (const std::size_t rank : a) {
          pairs_a += zones.ranks[rank].load.pairs2;
          tokens_a += zones.ranks[rank].load.tokens.value;
        }
        for (const std::size_t rank : b) {
          pairs_b += zones.ranks[rank].load.pairs2;
          tokens_b += zones.ranks[rank].load.tokens.value;
        }
        const Int128 ranks_a = static_cast<Int128>(a.size()),
                     ranks_b = static_cast<Int128>(b.size());
        return std::tuple(pairs_a * ranks_b, tokens_a * ranks_b) <
               std::tuple(pairs_b * ranks_a, tokens_b * ranks_a);
      };
      share(length, *std::min_element(nodes.ranks.begin(), nodes.ranks.end(), less), false);
      ++zones.node;
    } else {
      const auto least = std::min_element(
          zones.ranks.begin(), zones.ranks.end(), [](const ZoneLoad& a, const ZoneLoad& b) {
            return std::tie(a.load.pairs2, a.load.tokens) < std::tie(b.load.pairs2, b.load.tokens);
          });
      add_queries(least->load, Tokens{}, length, tile);
      ++zones.local;
    }
  }
  return zones;
}

/// Tokens that change ranks when each rank gets the same number of them, the first one more.
struct Remapping {
  Tokens inside;   ///< most that one rank sends or receives
  Tokens between;  ///< most that one interface does, those of a node taking equal parts
  Tokens moved;    ///< all together
};
[[nodiscard]] inline Remapping remapping(const Zones& zones, const RankNodes& nodes) {
  std::int64_t total = 0;
  for (const ZoneLoad& rank : zones.ranks) total += rank.load.tokens.value;
  const auto count = static_cast<std::int64_t>(zones.ranks.size());
  std::vector<std::int64_t> excess;  // of a rank
  for (std::int64_t rank = 0; rank < count; ++rank) {
    const std::int64_t even = total / count + (rank < total % count ? 1 : 0);
    excess.push_back(zones.ranks[static_cast<std::size_t>(rank)].load.tokens.value - even);
  }
  Remapping result;
  for (const std::int64_t tokens : excess) {
    result.inside = std::max(result.inside, Tokens{std::max(tokens, -tokens)});
    result.moved += Tokens{std::max<std::int64_t>(tokens, 0)};
  }
  for (const auto& ranks : nodes.ranks) {
    std::int64_t net = 0;
    for (const std::size_t rank : ranks) net += excess[rank];
    const auto interfaces = static_cast<std::int64_t>(ranks.size());
    result.between =
        std::max(result.between, Tokens{(std::max(net, -net) + interfaces - 1) / interfaces});
  }
  return result;
}

/// Limits to try on a micro-batch. Inside a node no documents are cut, or those longer than certain
/// multiples of a rank's even part of the tokens, or all. Between nodes the same holds with a
/// node's even part, except that never all are cut.
[[nodiscard]] inline std::vector<ZoneLimits> limit_choices(std::span<const Tokens> documents,
                                                           const RankNodes& nodes) {
  Tokens total, longest;
  for (const Tokens length : documents) {
    total += length;
    longest = std::max(longest, length);
  }
  const auto choices = [&](std::int64_t parts, std::int64_t least) {
    std::vector<Tokens> limits{longest};
    for (std::int64_t eighths = 16; eighths >= least; eighths /= 2) {
      const Tokens limit{total.value * eighths / (8 * parts)};
      if (limit < limits.back()) limits.push_back(limit);
    }
    return limits;
  };
  std::vector<Tokens> rank = choices(static_cast<std::int64_t>(nodes.node.size()), 1);
  rank.push_back(Tokens{});
  std::vector<Tokens> node{longest};
  if (nodes.ranks.size() > 1) node = choices(static_cast<std::int64_t>(nodes.ranks.size()), 2);
  std::vector<ZoneLimits> limits;
  std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> seen;  // documents above each limit
  const auto above = [&](Tokens limit) {
    return std::count_if(documents.begin(), documents.end(),
                         [&](Tokens length) { return length > limit; });
  };
  for (const Tokens most : node) {
    for (const Tokens most_local : rank) {
      const ZoneLimits each{std::min(most_local, most), most};
      const std::pair<std::ptrdiff_t, std::ptrdiff_t> counts{above(each.rank), above(each.node)};
      if (std::find(seen.begin(), seen.end(), counts) != seen.end()) continue;
      seen.push_back(counts);
      limits.push_back(each);
    }
  }
  return limits;
}

}  // namespace slimpack::planners::detail
