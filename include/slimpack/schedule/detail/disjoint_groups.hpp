// SPDX-License-Identifier: Apache-2.0
// Context-parallel groups of phase 1 of any size, none of which has a rank of another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/schedule/assign_rules.hpp"
#include "slimpack/schedule/detail/cp_groups.hpp"

namespace slimpack::schedule::detail {

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

}  // namespace slimpack::schedule::detail
