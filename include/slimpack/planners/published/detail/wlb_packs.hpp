// SPDX-License-Identifier: Apache-2.0
// WLB-LLM's packs: as many as there are micro-batches, equal in predicted work, not in tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners::detail {

/// What each sample's layers take forward and backward at the rates of the request's cost, in
/// picoseconds.
[[nodiscard]] inline std::vector<Int128> sample_works(const PlanRequest& request,
                                                      std::span<const Tokens> samples) {
  const AnyModel any = make_model(request.cost, request.model, request.cluster, MemorySpec{});
  const WorkRates rates = std::visit([](const auto& model) { return model.rates(); }, any);
  std::vector<Int128> works;
  works.reserve(samples.size());
  for (const Tokens length : samples) {
    works.push_back(layer_work(rates, length, request.model.layers, false) +
                    layer_work(rates, length, request.model.layers, true));
  }
  return works;
}

/// Packs `samples` into at most `count` packs: longest first, each goes to the pack with least
/// work. Where that would exceed `most` tokens, it goes to the pack with fewest tokens, even if
/// this exceeds `most` as well. Ties go to the lowest position or pack. Empty packs are left out;
/// samples rise inside a pack. Throws InvalidInput if count < 1. O(n log n).
[[nodiscard]] inline schedule::Bins pack_by_work(std::span<const Tokens> samples,
                                                 std::span<const Int128> works, std::int64_t count,
                                                 Tokens most) {
  require(count >= 1, "pack_by_work: count must be >= 1", count);
  schedule::Bins packs(std::min(static_cast<std::size_t>(count), samples.size()));
  std::vector<Int128> work(packs.size());
  std::vector<Tokens> tokens(packs.size());
  std::set<std::pair<Int128, std::size_t>> by_work;
  std::set<std::pair<Tokens, std::size_t>> by_tokens;
  for (std::size_t pack = 0; pack < packs.size(); ++pack) {
    by_work.insert({Int128{0}, pack});
    by_tokens.insert({Tokens{}, pack});
  }
  for (const std::size_t sample : longest_first(samples)) {
    std::size_t pack = by_work.begin()->second;
    if (tokens[pack] + samples[sample] > most) pack = by_tokens.begin()->second;
    by_work.erase({work[pack], pack});
    by_tokens.erase({tokens[pack], pack});
    work[pack] += works[sample];
    tokens[pack] += samples[sample];
    by_work.insert({work[pack], pack});
    by_tokens.insert({tokens[pack], pack});
    packs[pack].push_back(sample);
  }
  for (auto& pack : packs) std::sort(pack.begin(), pack.end());
  return packs;
}

/// The work of each pack.
[[nodiscard]] inline std::vector<Int128> pack_works(const schedule::Bins& packs,
                                                    std::span<const Int128> works) {
  std::vector<Int128> sums(packs.size());
  for (std::size_t pack = 0; pack < packs.size(); ++pack) {
    for (const std::size_t sample : packs[pack]) sums[pack] += works[sample];
  }
  return sums;
}

/// Micro-batches of a step that `groups` groups of ranks run: as many as full contexts, the same
/// number for every group.
[[nodiscard]] inline std::int64_t nominal_packs(std::span<const Tokens> samples, Tokens context,
                                                std::int64_t groups) {
  const Tokens total = total_tokens(samples);
  const std::int64_t each = context.value * groups;
  return groups * std::max<std::int64_t>(1, (total.value + each - 1) / each);
}

/// Most ranks that share a micro-batch in planners of systems that were published for hundreds of
/// devices: with more ranks, few documents are long enough for a tile of the kernel on each.
inline constexpr std::int32_t kMostSharing = 256;

/// Lets the ranks of a group own even parts of documents, short ones too, in a step that is only
/// simulated: CP blocks so small that a document of mean length has a few for every rank, and pages
/// of one token, so that none is filled in part. What the request says of either stays.
inline void share_evenly(PlanRequest& request, std::int64_t ranks) {
  const Tokens total = total_tokens(request.batch.samples);
  const std::int64_t parts = 4 * ranks * static_cast<std::int64_t>(request.batch.samples.size());
  if (!request.memory.cp_block_tokens) {
    request.memory.cp_block_tokens = Tokens{std::clamp<std::int64_t>(total.value / parts, 1, 64)};
  }
  if (!request.memory.page_tokens) request.memory.page_tokens = Tokens{1};
}

}  // namespace slimpack::planners::detail
