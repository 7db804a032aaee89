// SPDX-License-Identifier: Apache-2.0
// Which MicroPacks data-parallel ranks run at the same time where they share weights.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Ranks that share weights gather each layer together, so the i-th forward MicroPack of each rank,
/// in the order of their ids, runs at the same time on all of them, and so does the i-th backward
/// one: they are a round. Groups that a plan does not have are passed over.
class PackRounds {
 public:
  /// O(packs x ranks).
  explicit PackRounds(const Plan& plan) {
    std::array<std::vector<std::size_t>, 3> next;  // by pass and rank
    for (auto& of_rank : next) {
      of_rank.resize(static_cast<std::size_t>(std::max(plan.parallel.dp, 0)));
    }
    round_.reserve(plan.micropacks.size());
    for (const MicroPack& pack : plan.micropacks) {
      std::size_t round = 0;
      auto& of_rank = next[static_cast<std::size_t>(pack.pass)];
      const auto for_each_rank = [&](const auto& visit) {
        if (index(pack.group) >= plan.groups.size()) return;
        for (const std::int32_t dp : plan.groups[index(pack.group)]) {
          if (dp >= 0 && dp < plan.parallel.dp) visit(of_rank[static_cast<std::size_t>(dp)]);
        }
      };
      for_each_rank([&](std::size_t& of) { round = std::max(round, of); });
      for_each_rank([&](std::size_t& of) { of = round + 1; });
      round_.push_back(round);
      count_ = std::max(count_, round + 1);
    }
  }

  /// The round of a MicroPack among those of its pass.
  [[nodiscard]] std::size_t of(std::size_t pack) const noexcept { return round_[pack]; }
  /// Rounds of the pass that has most.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  std::vector<std::size_t> round_;
  std::size_t count_ = 0;
};

}  // namespace slimpack
