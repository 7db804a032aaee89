// SPDX-License-Identifier: Apache-2.0
// Which rank of a group owns the first block of each sample that its ranks share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

namespace detail {

/// Spreads the samples of one forward pack over the ranks of its group.
class PackSpread {
 public:
  /// `cost` is that of a slice on one rank, in both passes; `chosen` says of which samples the
  /// first rank is known.
  PackSpread(Plan& plan, const MicroPack& pack, const schedule::SliceCost& cost,
             std::vector<bool>& chosen)
      : plan_(plan),
        pack_(pack),
        cost_(cost),
        chosen_(chosen),
        load_(plan.groups[index(pack.group)].size()) {}

  void run() {
    std::vector<std::size_t> order(pack_.slices.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto is_chosen = [&](std::size_t slot) -> bool {
      return chosen_[index(pack_.slices[slot].sample)];
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (is_chosen(a) != is_chosen(b)) return is_chosen(a);
      return pack_.slices[a].length() > pack_.slices[b].length();
    });
    for (const std::size_t slot : order) place(pack_.slices[slot]);
  }

 private:
  void place(const Slice& slice) {
    const std::vector<Int128> parts = parts_of(slice);
    std::int32_t& first = plan_.sample_first[index(slice.sample)];
    if (!chosen_[index(slice.sample)]) {
      first = best_first(parts);
      chosen_[index(slice.sample)] = true;
    }
    for (std::size_t turn = 0; turn < parts.size(); ++turn) {
      load_[(static_cast<std::size_t>(first) + turn) % load_.size()] += parts[turn];
    }
  }
  /// The work of the ranks that own some of a slice, from the one with the first block on.
  [[nodiscard]] std::vector<Int128> parts_of(const Slice& slice) const {
    const auto work = [&](const CpShard& shard) {
      PackLoad load;
      add_slice(load, slice, RingMode::pass_kv, shard, {plan_.cluster.tile_tokens});
      return Int128{load.tokens.value} * cost_.per_token +
             Int128{load.filled_pairs2} * cost_.per_pair2 + Int128{load.segments} * cost_.per_slice;
    };
    const auto ranks = static_cast<std::int64_t>(load_.size());
    const CpShard first{0, ranks, plan_.memory.cp_block_tokens};
    if (first.undivided(slice.end)) return {work(CpShard{})};
    std::vector<Int128> parts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) parts.push_back(work(first.of(rank)));
    return parts;
  }
  /// The rank from which on the fullest has least; of equal ones the first.
  [[nodiscard]] std::int32_t best_first(const std::vector<Int128>& parts) const {
    std::size_t best = 0;
    Int128 least = 0;
    for (std::size_t first = 0; first < load_.size(); ++first) {
      Int128 fullest = 0;
      for (std::size_t turn = 0; turn < parts.size(); ++turn) {
        fullest = std::max(fullest, load_[(first + turn) % load_.size()] + parts[turn]);
      }
      if (first == 0 || fullest < least) {
        least = fullest;
        best = first;
      }
    }
    return static_cast<std::int32_t>(best);
  }

  Plan& plan_;
  const MicroPack& pack_;
  const schedule::SliceCost& cost_;
  std::vector<bool>& chosen_;
  std::vector<Int128> load_;  // by rank of the group
};

}  // namespace detail

/// Lets each sample of groups of several ranks begin on the rank with which the fullest rank of its
/// first forward pack has least, longest samples first. What fits into one CP block then is on one
/// rank. `cost` is that of a slice on one rank, in both passes. O(blocks + slices x ranks, of
/// samples of several blocks x ranks^2).
inline void spread_samples(Plan& plan, const schedule::SliceCost& cost) {
  plan.version = kPlanVersion;
  plan.sample_first.assign(plan.samples.size(), 0);
  std::vector<bool> chosen(plan.samples.size());
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass != Pass::forward || plan.groups[index(pack.group)].size() == 1) continue;
    detail::PackSpread(plan, pack, cost, chosen).run();
  }
}

}  // namespace slimpack::planners
