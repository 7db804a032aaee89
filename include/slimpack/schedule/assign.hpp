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
#include "slimpack/schedule/longest_first.hpp"

namespace slimpack::schedule {

/// What a sample costs the rank that holds it alone.
struct SampleNeed {
  std::int64_t time = 0;  ///< forward and backward on one rank, in any unit, > 0
  Bytes bytes;            ///< at its most, on the fullest stage
};

/// Which samples go to a context-parallel group, and how large groups may be.
struct AssignRules {
  std::int32_t ranks = 1;   ///< data-parallel ranks, >= 1
  std::int32_t min_cp = 1;  ///< the ranks that share the smallest sample; a divisor of `ranks`
  std::int32_t max_cp = 1;  ///< the most ranks of a group, >= min_cp
  /// A sample goes to a group if its time exceeds so many thousandths of a rank's mean load, >= 1.
  std::int64_t threshold_permille = 1000;
  Bytes room = Bytes::max();       ///< a sample that needs more bytes on a rank goes to a group
  std::vector<std::int64_t> node;  ///< the node of each rank; empty: all ranks are in one node
  /// Groups have any size, and none has a rank of another; min_cp is 1, and the threshold has no
  /// meaning.
  bool disjoint = false;
  /// Time of each rank of a group that has so many and shares the sample with this index; an even
  /// part where absent.
  std::function<std::int64_t(std::size_t, std::int32_t)> part = {};
};

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
/// With `disjoint` the largest load T is sought at which each sample has a smallest number of ranks
/// whose parts exceed neither T nor the room, those that need more than one find as many as they
/// need together, and all parts are at most T on all ranks. These samples have a group each, the
/// largest first on the node that it fills best, or else on those with most free ranks; the others
/// follow as before.
///     const Assignment assigned = assign_samples(needs, {.ranks = 8, .max_cp = 4});
///     const auto& ranks = assigned.groups[index(assigned.sample_group[0])];  // of sample 0
///
/// Throws InvalidInput if a rule is < 1, min_cp does not divide the ranks or is above max_cp, a
/// time is < 1 or `node` does not name every rank.
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
  require(!rules.disjoint || rules.min_cp == 1,
          "assign_samples: groups that share no rank have a min_cp of 1", rules.min_cp);
  require(rules.node.empty() || rules.node.size() == static_cast<std::size_t>(rules.ranks),
          "assign_samples: there must be a node for every rank",
          static_cast<std::int64_t>(rules.node.size()));
  for (const SampleNeed& need : samples) {
    require(need.time >= 1, "assign_samples: a sample's time must be >= 1", need.time);
  }
}

/// Chooses context-parallel groups.
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

 private:
  /// The least multiple of a size that divides all ranks, or the largest size: so that groups lie
  /// inside one another, and few ranks wait for each other.
  [[nodiscard]] std::int32_t larger(std::int32_t size) const {
    std::int32_t next = 2 * size;
    while (next < most_ && rules_.ranks % next != 0) next += size;
    return std::min(next, most_);
  }
  [[nodiscard]] bool crosses(std::int32_t first, std::int32_t size) const {
    if (rules_.node.empty()) return false;
    const auto from = rules_.node.begin() + first;
    return std::any_of(from, from + size, [&](std::int64_t node) { return node != *from; });
  }

  const AssignRules& rules_;
  std::int32_t most_;
};

/// Groups of any size, none of which has a rank of another.
class DisjointGroups {
 public:
  /// A sample and the ranks that share it.
  struct Group {
    std::uint32_t sample = 0;
    std::vector<std::int32_t> ranks;
  };

  /// `order` has the samples, longest first. All must outlive it.
  DisjointGroups(std::span<const SampleNeed> samples, std::span<const std::uint32_t> order,
                 const AssignRules& rules)
      : samples_(samples), rules_(rules), sizes_(rules) {
    for (const SampleNeed& need : samples) total_ += need.time;
    mean_ = std::max<std::int64_t>(
        1, static_cast<std::int64_t>((total_ + rules.ranks - 1) / rules.ranks));
    std::copy_if(order.begin(), order.end(), std::back_inserter(large_), [&](std::uint32_t sample) {
      return samples[sample].time > mean_ || samples[sample].bytes >= rules.room;
    });
  }

  /// The groups, largest first, of equal ones that of the longer sample. O((n + s ranks) log T), s
  /// samples being shared.
  [[nodiscard]] std::vector<Group> groups() {
    std::int64_t low = mean_, high = mean_;
    for (const std::uint32_t sample : large_) high = std::max(high, samples_[sample].time);
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (choose(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    static_cast<void>(choose(high));
    std::stable_sort(chosen_.begin(), chosen_.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::vector<std::vector<std::int32_t>> free(1);  // ranks of each node, descending
    for (std::int32_t rank = rules_.ranks - 1; rank >= 0; --rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (!free.back().empty() && !rules_.node.empty() &&
          rules_.node[at] != rules_.node[static_cast<std::size_t>(free.back().back())]) {
        free.emplace_back();
      }
      free.back().push_back(rank);
    }
    std::vector<Group> groups;
    for (const auto& [sample, size] : chosen_) groups.push_back({sample, take(free, size)});
    return groups;
  }

 private:
  /// Chooses sizes for a largest load; false if that is too little. Sizes that ranks do not suffice
  /// for are cut off, so that there always is a choice.
  [[nodiscard]] bool choose(std::int64_t most) {
    chosen_.clear();
    Int128 work = total_;
    std::int32_t left = rules_.ranks;
    bool enough = true;
    for (const std::uint32_t sample : large_) {
      const SampleNeed& need = samples_[sample];
      const auto within = [&](std::int32_t size) {
        return sizes_.part(sample, need, size) <= most &&
               need.bytes.value / size + 1 <= rules_.room.value;
      };
      if (within(1)) continue;
      const std::int32_t widest = std::min({rules_.max_cp, rules_.ranks, left});
      std::int32_t size = 2;
      while (size < widest && !within(size)) ++size;
      if (size > widest || !within(size)) enough = false;
      size = std::min(size, widest);
      if (size < 2) continue;
      work += Int128{sizes_.part(sample, need, size)} * size - need.time;
      left -= size;
      chosen_.emplace_back(sample, size);
    }
    return enough && work <= Int128{most} * rules_.ranks;
  }

  /// Takes ranks from the node with fewest free ones that has as many, or from those with most.
  [[nodiscard]] static std::vector<std::int32_t> take(std::vector<std::vector<std::int32_t>>& free,
                                                      std::int32_t size) {
    std::vector<std::int32_t> ranks;
    const auto wanted = static_cast<std::size_t>(size);
    while (ranks.size() < wanted) {
      // Nodes stand with the highest ranks first: of equal ones the last has the lowest.
      std::size_t best = free.size() - 1;
      for (std::size_t node = free.size(); node-- > 0;) {
        const std::size_t here = free[node].size(), there = free[best].size();
        const bool whole = here >= wanted - ranks.size(), other = there >= wanted - ranks.size();
        if (whole != other ? whole : whole ? here < there : here > there) best = node;
      }
      while (!free[best].empty() && ranks.size() < wanted) {
        ranks.push_back(free[best].back());
        free[best].pop_back();
      }
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  std::span<const SampleNeed> samples_;
  const AssignRules& rules_;
  CpGroups sizes_;
  Int128 total_ = 0;
  std::int64_t mean_ = 1;             // load of a rank, nothing shared: no largest load is less
  std::vector<std::uint32_t> large_;  // samples that may not fit on one rank, longest first
  std::vector<std::pair<std::uint32_t, std::int32_t>> chosen_;  // samples and sizes
};

/// Where samples of groups of any size go, and all others.
[[nodiscard]] inline Assignment assign_disjoint(std::span<const SampleNeed> samples,
                                                std::span<const std::uint32_t> order,
                                                const AssignRules& rules) {
  Assignment result;
  const auto ranks = static_cast<std::size_t>(rules.ranks);
  result.load.assign(ranks, 0);
  result.sample_group.resize(samples.size());
  std::vector<DisjointGroups::Group> groups = DisjointGroups(samples, order, rules).groups();
  const CpGroups sizes(rules);
  std::vector<bool> shared(samples.size());
  for (const DisjointGroups::Group& group : groups) {
    shared[group.sample] = true;
    const auto size = static_cast<std::int32_t>(group.ranks.size());
    for (const std::int32_t rank : group.ranks) {
      result.load[static_cast<std::size_t>(rank)] =
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
  if (rules.disjoint) return detail::assign_disjoint(samples, order, rules);

  Assignment result;
  result.load.assign(ranks, 0);
  result.sample_group.resize(samples.size());
  const detail::CpGroups in_cp_group(rules);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::uint32_t>> blocks;
  std::vector<std::uint32_t> least;  // samples of the smallest groups
  least.reserve(order.size());
  for (const std::uint32_t sample : order) {
    const std::int32_t size = rules.max_cp == rules.min_cp
                                  ? rules.min_cp
                                  : in_cp_group.size_for(sample, samples[sample], total);
    if (size == rules.min_cp) {
      least.push_back(sample);
      continue;
    }
    const std::int32_t first = in_cp_group.block(size, result.load);
    blocks[{size, first}].push_back(sample);
    const std::int64_t each = in_cp_group.part(sample, samples[sample], size);
    for (std::int32_t rank = first; rank < first + size; ++rank) {
      result.load[static_cast<std::size_t>(rank)] += each;
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
  return result;
}

}  // namespace slimpack::schedule
