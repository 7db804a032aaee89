// SPDX-License-Identifier: Apache-2.0
// Context-parallel groups of phase 1 that make ranks even.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/schedule/assign_rules.hpp"
#include "slimpack/schedule/detail/cp_groups.hpp"

namespace slimpack::schedule::detail {

/// Groups with which no rank has much more than all have on average.
class EvenGroups {
 public:
  /// A sample that more than the fewest ranks share, and its block of ranks.
  struct Group {
    std::uint32_t sample = 0;
    std::int32_t first = 0;
    std::int32_t ranks = 1;
  };

  /// `order` has the samples, longest first. All must outlive it.
  EvenGroups(std::span<const SampleNeed> samples, std::span<const std::uint32_t> order,
             const AssignRules& rules)
      : samples_(samples), rules_(rules), blocks_(rules), node_(node_ranks(rules)) {
    for (std::int32_t size = rules.min_cp; size < blocks_.most(); size = blocks_.larger(size)) {
      sizes_.push_back(size);
    }
    for (std::int32_t size = node_; size < blocks_.most(); size += node_) {
      if (size > rules.min_cp) sizes_.push_back(size);
    }
    sizes_.push_back(blocks_.most());
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
    for (const SampleNeed& need : samples) small_ += need.time;
    const Int128 all = std::accumulate(rules.besides.begin(), rules.besides.end(), small_);
    const auto mean = static_cast<std::int64_t>(all / rules.ranks) + 1;
    std::size_t large = 0;
    for (; large < order.size(); ++large) {
      const std::int64_t time = samples[order[large]].time;
      if (time / rules.min_cp <= mean / kSmall) break;
      small_ -= time;
    }
    large_ = order.first(large);
    lowest_ = std::max(mean, order.empty() ? 0 : least_part(order.front()));
  }

  /// The groups, that of the longest sample first. Longest first each sample goes to the smallest
  /// block of whose ranks none then has more than some limit, or where that is in no block so, to
  /// the one whose fullest rank has least. Of limits from the mean on, or from the least part of
  /// the longest sample, the lowest of those is taken with which the fullest of all ranks has least
  /// when small samples have filled the others. O(s ranks^2) for s samples of more than a small
  /// part of a rank's mean.
  [[nodiscard]] std::vector<Group> groups() const {
    std::vector<Group> best;
    Int128 least = 0;
    for (const std::int64_t permille :
         {1000, 1005, 1010, 1020, 1030, 1040, 1060, 1080, 1120, 1200, 1400, 2000}) {
      const Int128 limit = Int128{lowest_} * permille / 1000;
      std::vector<std::int64_t> load = load_before(rules_);
      std::vector<Group> groups;
      for (const std::uint32_t sample : large_) {
        const Group group = choose(sample, load, limit);
        const std::int64_t each = blocks_.part(sample, samples_[sample], group.ranks);
        for (std::int32_t rank = group.first; rank < group.first + group.ranks; ++rank) {
          load[static_cast<std::size_t>(rank)] += each;
        }
        if (group.ranks > rules_.min_cp) groups.push_back(group);
      }
      const Int128 all = std::accumulate(load.begin(), load.end(), small_);
      const Int128 fullest =
          std::max<Int128>(*std::max_element(load.begin(), load.end()), all / rules_.ranks);
      const bool none = groups.empty();
      if (permille == 1000 || fullest < least) {
        least = fullest;
        best = std::move(groups);
      }
      if (none) break;  // nor has any higher limit
    }
    return best;
  }

 private:
  /// Samples of less than one such part of the mean fill ranks evenly whatever groups there are.
  static constexpr std::int64_t kSmall = 200;

  /// The ranks of each node where all have as many, side by side; otherwise all ranks.
  [[nodiscard]] static std::int32_t node_ranks(const AssignRules& rules) {
    const std::vector<std::int64_t>& node = rules.node;
    const auto other = std::find_if(node.begin(), node.end(),
                                    [&](std::int64_t one) { return one != node.front(); });
    const auto size = static_cast<std::size_t>(other - node.begin());
    for (std::size_t rank = size; rank < node.size(); ++rank) {
      const bool begins = rank % size == 0;
      if (begins != (node[rank] != node[rank - 1])) return rules.ranks;
    }
    return size == 0 || node.size() % size != 0 ? rules.ranks : static_cast<std::int32_t>(size);
  }
  /// What a rank computes of a sample where as many share it as leaves it least.
  [[nodiscard]] std::int64_t least_part(std::uint32_t sample) const {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const std::int32_t size : sizes_) {
      least = std::min(least, blocks_.part(sample, samples_[sample], size));
    }
    return least;
  }

  [[nodiscard]] Group choose(std::uint32_t sample, const std::vector<std::int64_t>& load,
                             Int128 limit) const {
    const SampleNeed& need = samples_[sample];
    Group best;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const std::int32_t size : sizes_) {
      if (size < blocks_.most() && need.bytes.value / size + 1 > rules_.room.value) continue;
      const auto [first, before] = least_loaded(size, load);
      const std::int64_t fullest = before + blocks_.part(sample, need, size);
      if (fullest < least) {
        least = fullest;
        best = {sample, first, size};
      }
      if (fullest <= limit) break;
    }
    return best;
  }
  /// The first block whose fullest rank has least, and what that has. Blocks begin at multiples of
  /// their size, those of whole nodes at nodes.
  [[nodiscard]] std::pair<std::int32_t, std::int64_t> least_loaded(
      std::int32_t size, const std::vector<std::int64_t>& load) const {
    std::pair<std::int32_t, std::int64_t> best{0, std::numeric_limits<std::int64_t>::max()};
    const std::int32_t step = size % node_ == 0 ? node_ : size;
    for (std::int32_t first = 0; first + size <= rules_.ranks; first += step) {
      const auto from = load.begin() + first;
      const std::int64_t most = *std::max_element(from, from + size);
      if (most < best.second) best = {first, most};
    }
    return best;
  }

  std::span<const SampleNeed> samples_;
  const AssignRules& rules_;
  CpGroups blocks_;
  std::int32_t node_;                     // its ranks
  std::vector<std::int32_t> sizes_;       // that groups may have, ascending
  Int128 small_ = 0;                      // the time of all small samples
  std::span<const std::uint32_t> large_;  // all others, longest first
  std::int64_t lowest_ = 1;               // limit
};

}  // namespace slimpack::schedule::detail
