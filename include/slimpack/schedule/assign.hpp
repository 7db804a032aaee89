// SPDX-License-Identifier: Apache-2.0
// Phase 1: assigns samples to data-parallel ranks, the longest ones to context-parallel groups.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/schedule/assign_rules.hpp"
#include "slimpack/schedule/detail/cp_groups.hpp"
#include "slimpack/schedule/detail/disjoint_groups.hpp"
#include "slimpack/schedule/detail/even_groups.hpp"
#include "slimpack/schedule/longest_first.hpp"

namespace slimpack::schedule {

/// Which ranks hold each sample. Groups 0 .. ranks-1 are the single ranks. Context-parallel groups
/// follow in the order of their size, then of their first rank.
struct Assignment {
  std::vector<std::vector<std::int32_t>> groups;  ///< the ranks of each group, ascending
  std::vector<GroupId> sample_group;              ///< by sample
  std::vector<std::int64_t> load;                 ///< by rank: the sum of its samples' times
};

/// Assigns samples to ranks so that the largest load is small. Samples above the rules' threshold
/// or room come first, the longest one first. Each goes to the smallest group size g at which a
/// part exceeds neither, or to the largest allowed size; sizes are a chain of divisors of the
/// number of ranks, from `min_cp` on each the least multiple of the one before. A group consists of
/// the ranks k g .. k g + g - 1. Groups inside one node are preferred, then the least loaded, then
/// the lowest. The other samples follow, longest first, each to the least loaded rank (LPT), or
/// group of `min_cp` ranks. Moves and swaps then rebalance the most loaded one while its load
/// falls. Equal times go in input order, equal ranks by number.
///
/// With `GroupRule::even` each sample, longest first, goes to the smallest group of whose ranks
/// none then has more than some limit a little above the mean: the limit with which the fullest
/// rank has least. Sizes are those of above and whole nodes.
///
/// With `GroupRule::disjoint` the largest load T is sought at which each sample has a smallest
/// number of ranks whose parts exceed neither T nor the room, those that need more than one find as
/// many as they need together, and all parts are at most T on all ranks. These samples have a group
/// each, the largest first on the node that it fills best, or else on those with most free ranks;
/// the others follow as before.
///     const Assignment assigned = assign_samples(needs, {.ranks = 8, .max_cp = 4});
///     const auto& ranks = assigned.groups[index(assigned.sample_group[0])];  // of sample 0
///
/// Throws InvalidInput if a rule is < 1, min_cp does not divide the ranks or is above max_cp, a
/// time is < 1, one besides < 0, or `node` or `besides` does not name every rank.
/// O(n log n).
[[nodiscard]] inline Assignment assign_samples(std::span<const SampleNeed> samples,
                                               const AssignRules& rules);

namespace detail {

inline void check_assign(std::span<const SampleNeed> samples, const AssignRules& rules) {
  require(rules.ranks >= 1, "assign_samples: ranks must be >= 1", rules.ranks);
  require(rules.min_cp >= 1 && rules.ranks % rules.min_cp == 0,
          "assign_samples: min_cp must divide the ranks", rules.min_cp);
  require(rules.max_cp >= rules.min_cp, "assign_samples: max_cp must be >= 1 and >= min_cp",
          rules.max_cp);
  require(rules.threshold_permille >= 1, "assign_samples: the threshold must be >= 1",
          rules.threshold_permille);
  require(rules.groups != GroupRule::disjoint || rules.min_cp == 1,
          "assign_samples: groups that share no rank have a min_cp of 1", rules.min_cp);
  require(rules.node.empty() || rules.node.size() == static_cast<std::size_t>(rules.ranks),
          "assign_samples: there must be a node for every rank",
          static_cast<std::int64_t>(rules.node.size()));
  require(rules.besides.empty() || rules.besides.size() == static_cast<std::size_t>(rules.ranks),
          "assign_samples: there must be a time besides for every rank",
          static_cast<std::int64_t>(rules.besides.size()));
  for (const std::int64_t time : rules.besides) {
    require(time >= 0, "assign_samples: a rank's time besides must be >= 0", time);
  }
  for (const SampleNeed& need : samples) {
    require(need.time >= 1, "assign_samples: a sample's time must be >= 1", need.time);
  }
}

/// Takes what ranks have to do besides from their loads.
inline void leave_out(const std::vector<std::int64_t>& besides, std::vector<std::int64_t>& load) {
  for (std::size_t rank = 0; rank < besides.size(); ++rank) load[rank] -= besides[rank];
}

/// Where samples of groups of any size go, and all others.
[[nodiscard]] inline Assignment assign_disjoint(std::span<const SampleNeed> samples,
                                                std::span<const std::uint32_t> order,
                                                const AssignRules& rules) {
  Assignment result;
  const auto ranks = static_cast<std::size_t>(rules.ranks);
  result.load = load_before(rules);
  result.sample_group.resize(samples.size());
  std::vector<DisjointGroups::Group> groups = DisjointGroups(samples, order, rules).groups();
  const CpGroups sizes(rules);
  std::vector<bool> shared(samples.size());
  for (const DisjointGroups::Group& group : groups) {
    shared[group.sample] = true;
    const auto size = static_cast<std::int32_t>(group.ranks.size());
    for (const std::int32_t rank : group.ranks) {
      result.load[static_cast<std::size_t>(rank)] +=
          sizes.part(group.sample, samples[group.sample], size);
    }
  }
  std::vector<std::uint32_t> alone;
  std::copy_if(order.begin(), order.end(), std::back_inserter(alone),
               [&](std::uint32_t sample) { return !shared[sample]; });
  const auto time = [&](std::uint32_t sample) { return samples[sample].time; };
  auto assigned = assign_lpt(alone, result.load, time);
  rebalance(assigned, result.load, time);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    result.groups.push_back({static_cast<std::int32_t>(rank)});
    for (const std::uint32_t sample : assigned[rank]) {
      result.sample_group[sample] = static_cast<GroupId>(rank);
    }
  }
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return std::pair(a.ranks.size(), a.ranks.front()) < std::pair(b.ranks.size(), b.ranks.front());
  });
  for (DisjointGroups::Group& group : groups) {
    result.sample_group[group.sample] = static_cast<GroupId>(result.groups.size());
    result.groups.push_back(std::move(group.ranks));
  }
  leave_out(rules.besides, result.load);
  return result;
}

}  // namespace detail

inline Assignment assign_samples(std::span<const SampleNeed> samples, const AssignRules& rules) {
  detail::check_assign(samples, rules);
  const auto ranks = static_cast<std::size_t>(rules.ranks);
  Int128 total = 0;
  for (const SampleNeed& need : samples) total += need.time;
  const std::vector<std::uint32_t> order =
      longest_first(samples.size(), [&](std::uint32_t sample) { return samples[sample].time; });
  if (rules.groups == GroupRule::disjoint) return detail::assign_disjoint(samples, order, rules);

  Assignment result;
  result.load = detail::load_before(rules);
  result.sample_group.resize(samples.size());
  const detail::CpGroups in_cp_group(rules);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::uint32_t>> blocks;
  const auto share = [&](std::uint32_t sample, std::int32_t size, std::int32_t first) {
    blocks[{size, first}].push_back(sample);
    const std::int64_t each = in_cp_group.part(sample, samples[sample], size);
    for (std::int32_t rank = first; rank < first + size; ++rank) {
      result.load[static_cast<std::size_t>(rank)] += each;
    }
  };
  std::vector<std::uint32_t> least;  // samples of the smallest groups
  if (rules.max_cp == rules.min_cp) {
    least = order;
  } else if (rules.groups == GroupRule::even) {
    const auto groups = detail::EvenGroups(samples, order, rules).groups();
    auto next = groups.begin();
    for (const std::uint32_t sample : order) {
      if (next == groups.end() || next->sample != sample) {
        least.push_back(sample);
        continue;
      }
      share(sample, next->ranks, next->first);
      ++next;
    }
  } else {
    for (const std::uint32_t sample : order) {
      const std::int32_t size = in_cp_group.size_for(sample, samples[sample], total);
      if (size == rules.min_cp) {
        least.push_back(sample);
      } else {
        share(sample, size, in_cp_group.block(size, result.load));
      }
    }
  }
  // Groups of the smallest size are balanced like single ranks, each as loaded as its fullest rank.
  const auto width = static_cast<std::size_t>(rules.min_cp);
  std::vector<std::int64_t> load(ranks / width);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    load[rank / width] = std::max(load[rank / width], result.load[rank]);
  }
  const std::vector<std::int64_t> before = load;
  std::vector<std::int64_t> shared;  // by sample, where no rank has one alone
  if (width > 1) {
    shared.resize(samples.size());
    for (const std::uint32_t sample : least) {
      shared[sample] = in_cp_group.part(sample, samples[sample], rules.min_cp);
    }
  }
  const auto time = [&](std::uint32_t sample) {
    return width > 1 ? shared[sample] : samples[sample].time;
  };
  auto assigned = assign_lpt(least, load, time);
  rebalance(assigned, load, time);

  for (std::size_t rank = 0; rank < ranks; ++rank) {
    result.groups.push_back({static_cast<std::int32_t>(rank)});
    result.load[rank] += load[rank / width] - before[rank / width];
  }
  for (std::size_t group = 0; group < load.size(); ++group) {
    if (width > 1 && !assigned[group].empty()) {
      blocks[{rules.min_cp, static_cast<std::int32_t>(group * width)}] = std::move(assigned[group]);
      continue;
    }
    for (const std::uint32_t sample : assigned[group]) {
      result.sample_group[sample] = static_cast<GroupId>(group);
    }
  }
  for (const auto& [block, members] : blocks) {
    const auto group = static_cast<GroupId>(result.groups.size());
    std::vector<std::int32_t> all(static_cast<std::size_t>(block.first));
    std::iota(all.begin(), all.end(), block.second);
    result.groups.push_back(std::move(all));
    for (const std::uint32_t sample : members) result.sample_group[sample] = group;
  }
  detail::leave_out(rules.besides, result.load);
  return result;
}

}  // namespace slimpack::schedule
