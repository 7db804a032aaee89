// SPDX-License-Identifier: Apache-2.0
// TRL's rule: samples to packs, packs to data-parallel ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/bins.hpp"

namespace slimpack::planners {

/// The choices of TRL's rule.
struct BfdRules {
  Tokens length;               ///< of a pack (`max_length`)
  std::size_t batch = 1;       ///< packs of a micro-batch (`per_device_train_batch_size`)
  std::uint64_t shuffled = 0;  ///< seed of the sampler that draws packs; 0: as packed
};

/// Best fit decreasing as TRL has it: samples go, longest first, equal ones in input order, into
/// the pack with the least room that takes them; of equally full packs into the one that has been
/// so full for longest. Packs stand in the order in which they were opened, their samples in the
/// order in which they came. Throws InvalidInput if a sample is < 1 or exceeds the length. O(n log
/// n).
[[nodiscard]] inline schedule::Bins pack_as_trl(std::span<const Tokens> samples, Tokens length) {
  schedule::check_items(samples, length);
  const std::vector<std::size_t> order = longest_first(samples);
  schedule::Bins packs;
  std::set<std::tuple<Tokens, std::size_t, std::size_t>> open;  // room, since when, pack
  for (std::size_t turn = 0; turn < order.size(); ++turn) {
    const std::size_t sample = order[turn];
    Tokens room = length;
    std::size_t pack = packs.size();
    if (const auto tightest = open.lower_bound({samples[sample], 0, 0}); tightest != open.end()) {
      room = std::get<0>(*tightest);
      pack = std::get<2>(*tightest);
      open.erase(tightest);
    } else {
      packs.emplace_back();
    }
    packs[pack].push_back(sample);
    open.emplace(room - samples[sample], turn, pack);
  }
  return packs;
}

/// Assigns packs of samples to ranks as TRL's trainer does: packs are drawn in order or shuffled,
/// `rules.batch` consecutive ones form a micro-batch, and micro-batch i goes to rank i mod `ranks`.
/// Throws as `pack_as_trl`, and if
/// ranks or the rules' batch is < 1. O(n log n).
[[nodiscard]] inline PackedRanks assign_as_trl(std::span<const Tokens> samples, std::int32_t ranks,
                                               const BfdRules& rules) {
  require(rules.batch >= 1, "assign_as_trl: packs of a micro-batch must be >= 1");
  schedule::Bins packs = pack_as_trl(samples, rules.length);
  if (rules.shuffled != 0) {
    Random random(rules.shuffled);
    for (std::size_t left = packs.size(); left > 1; --left) {
      std::swap(packs[left - 1], packs[random.below(left)]);
    }
  }
  PackedRanks assigned;
  for (std::size_t i = 0; i < packs.size(); ++i) {
    if (i % rules.batch == 0) assigned.sequences.emplace_back();
    auto& batch = assigned.sequences.back();
    batch.insert(batch.end(), packs[i].begin(), packs[i].end());
  }
  assigned.ranks = schedule::assign_round_robin(assigned.sequences.size(), ranks);
  return assigned;
}

}  // namespace slimpack::planners
