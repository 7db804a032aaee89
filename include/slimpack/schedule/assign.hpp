// SPDX-License-Identifier: Apache-2.0
// Phase 1: samples to data-parallel ranks, the longest to groups of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/schedule/detail/longest_first.hpp"

namespace slimpack::schedule {

/// What a sample asks of the rank that holds it alone.
struct SampleNeed {
  std::int64_t time = 0;  ///< forward and backward on one rank, in any unit, > 0
  Bytes bytes;            ///< at its most, on the fullest stage
};

/// When samples are merged, and how far.
struct AssignRules {
  std::int32_t ranks = 1;
  std::int32_t max_cp = 1;  ///< most ranks a group may have
  /// A sample is merged where its time exceeds so many thousandths of the mean load of a rank.
  std::int64_t threshold_permille = 1000;
  Bytes room = Bytes::max();       ///< a sample is merged where it needs more bytes of a rank
  std::vector<std::int64_t> node;  ///< of each rank; empty: all are in one
};

/// Which ranks hold each sample. Groups 0 .. ranks-1 are the ranks alone, merged ones follow in
/// order of size and first rank.
struct Assignment {
  std::vector<std::vector<std::int32_t>> groups;
  std::vector<GroupId> sample_group;
  std::vector<std::int64_t> load;  ///< time by rank
};

/// Deals samples to ranks so that the largest load is small. Samples above the rules' threshold or
/// room go, longest first, to the smallest group for which neither is exceeded by a part (the
/// largest allowed where none is small enough): ranks k g .. k g + g - 1, those inside one node
/// first, then the least loaded block, then the lowest. The others follow, longest first, each to
/// the least loaded rank; moves and swaps then relieve the fullest rank while that helps. Equal
/// times go in input order, equal ranks by number. Throws InvalidInput if a rule is < 1, a time is
/// < 1 or `node` does not name every rank. O(n log n).
[[nodiscard]] inline Assignment assign_samples(std::span<const SampleNeed> samples,
                                               const AssignRules& rules);

namespace detail {

inline void check_assign(std::span<const SampleNeed> samples, const AssignRules& rules) {
  require(rules.ranks >= 1, "assign_samples: ranks must be >= 1", rules.ranks);
  require(rules.max_cp >= 1, "assign_samples: merge must be >= 1", rules.max_cp);
  require(rules.threshold_permille >= 1, "assign_samples: the threshold must be >= 1",
          rules.threshold_permille);
  require(rules.node.empty() || rules.node.size() == static_cast<std::size_t>(rules.ranks),
          "assign_samples: there must be a node for every rank",
          static_cast<std::int64_t>(rules.node.size()));
  for (const SampleNeed& need : samples) {
    require(need.time >= 1, "assign_samples: a sample's time must be >= 1", need.time);
  }
}

/// Collects merged groups as they are first used.
class CpGroups {
 public:
  explicit CpGroups(const AssignRules& rules)
      : rules_(rules), most_(std::min(rules.max_cp, rules.ranks)) {}

  /// The smallest group, 1 if none is needed, for a sample of this need.
  [[nodiscard]] std::int32_t size_for(const SampleNeed& need, Int128 total) const {
    for (std::int32_t size = 1; size < most_; ++size) {
      const bool quick = Int128{need.time} * 1000 * rules_.ranks <=
                         total * Int128{rules_.threshold_permille} * Int128{size};
      if (quick && need.bytes.value / size + 1 <= rules_.room.value) return size;
    }
    return most_;
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

 private:
  [[nodiscard]] bool crosses(std::int32_t first, std::int32_t size) const {
    if (rules_.node.empty()) return false;
    const auto from = rules_.node.begin() + first;
    return std::any_of(from, from + size, [&](std::int64_t node) { return node != *from; });
  }

  const AssignRules& rules_;
  std::int32_t most_;
};

}  // namespace detail

inline Assignment assign_samples(std::span<const SampleNeed> samples, const AssignRules& rules) {
  detail::check_assign(samples, rules);
  const auto ranks = static_cast<std::size_t>(rules.ranks);
  Int128 total = 0;
  for (const SampleNeed& need : samples) total += need.time;
  const std::vector<std::uint32_t> order =
      longest_first(samples.size(), [&](std::uint32_t sample) { return samples[sample].time; });

  Assignment result;
  result.load.assign(ranks, 0);
  result.sample_group.resize(samples.size());
  const detail::CpGroups in_cp_group(rules);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::uint32_t>> blocks;
  std::vector<std::uint32_t> alone;
  alone.reserve(order.size());
  for (const std::uint32_t sample : order) {
    const std::int32_t size = rules.max_cp == 1 ? 1 : in_cp_group.size_for(samples[sample], total);
    if (size == 1) {
      alone.push_back(sample);
      continue;
    }
    const std::int32_t first = in_cp_group.block(size, result.load);
    blocks[{size, first}].push_back(sample);
    for (std::int32_t rank = first; rank < first + size; ++rank) {
      result.load[static_cast<std::size_t>(rank)] += (samples[sample].time + size - 1) / size;
    }
  }
  const auto time = [&](std::uint32_t sample) { return samples[sample].time; };
  auto assigned = assign_lpt(alone, result.load, time);
  rebalance(assigned, result.load, time);

  for (std::size_t rank = 0; rank < ranks; ++rank) {
    result.groups.push_back({static_cast<std::int32_t>(rank)});
    for (const std::uint32_t sample : assigned[rank]) {
      result.sample_group[sample] = static_cast<GroupId>(rank);
    }
  }
  for (const auto& [block, members] : blocks) {
    const auto group = static_cast<GroupId>(result.groups.size());
    std::vector<std::int32_t> all(static_cast<std::size_t>(block.first));
    std::iota(all.begin(), all.end(), block.second);
    result.groups.push_back(std::move(all));
    for (const std::uint32_t sample : members) result.sample_group[sample] = group;
  }
  return result;
}

}  // namespace slimpack::schedule
