// SPDX-License-Identifier: Apache-2.0
// Random plans whose context-parallel groups exchange samples by heads, in a model that has heads
// for all of their ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

struct ByHeadsOptions {
  std::int32_t ranks = 2;          ///< of the largest group, one of which is in use
  std::int64_t queries_a_key = 1;  ///< heads of queries that share a head of keys
  bool mixed = false;              ///< some samples go round a ring
  std::int64_t heads = 1;          ///< of keys of a rank of the largest group
  std::int64_t ranks_a_key = 1;    ///< of the largest group, that have the same head of keys
  RandomPlanOptions plans = small_plans();
};

/// How many slices of a plan there are of each kind, F and B alike.
struct ByHeadsFeatures {
  std::int64_t travelling = 0;    ///< by heads, on several ranks
  std::int64_t with_prefix = 0;   ///< of these: behind the sample's first token
  std::int64_t within_block = 0;  ///< of these: up to an end that one rank's first tokens reach
  std::int64_t undivided = 0;     ///< by heads, on one rank
  std::int64_t rings = 0;         ///< not by heads, in packs where others are
  std::int64_t full = 0;          ///< travelling ones of B that makes attention again
  ByHeadsFeatures& operator+=(const ByHeadsFeatures& other) {
    travelling += other.travelling;
    with_prefix += other.with_prefix;
    within_block += other.within_block;
    undivided += other.undivided;
    rings += other.rings;
    full += other.full;
    return *this;
  }
};

inline ByHeadsFeatures by_heads_features(const Plan& plan) {
  ByHeadsFeatures found;
  for (const MicroPack& pack : plan.micropacks) {
    const bool some = std::ranges::count(pack.exchange, RingMode::by_heads) > 0;
    for (std::size_t i = 0; some && i < pack.slices.size(); ++i) {
      const Slice& slice = pack.slices[i];
      if (pack.exchange[i] != RingMode::by_heads) {
        ++found.rings;
      } else if (!is_by_heads(plan, slice, pack.exchange[i])) {
        ++found.undivided;
      } else {
        ++found.travelling;
        if (slice.begin > Tokens{}) ++found.with_prefix;
        if (slice.end <= plan.memory.cp_block_tokens) ++found.within_block;
        if (pack.pass == Pass::backward && pack.recompute == Recompute::full) ++found.full;
      }
    }
  }
  return found;
}

/// A model in which each of `ranks` gets so many heads of the keys of each of `tp` devices, every
/// `ranks_a_key` of them the same.
inline void give_heads(ModelShape& model, std::int64_t ranks, std::int64_t tp,
                       std::int64_t queries_a_key, std::int64_t heads = 1,
                       std::int64_t ranks_a_key = 1) {
  model.kv_heads = heads * ranks * tp / ranks_a_key;
  model.heads = heads * ranks * tp * queries_a_key;
  model.hidden = std::max<std::int64_t>(32, 8 * model.heads);
  model.ffn = std::max<std::int64_t>(48, 16 * model.heads);
}

/// A valid plan with a slice that travels by heads.
inline Plan by_heads_plan(std::uint64_t seed, const ByHeadsOptions& options) {
  RandomPlanOptions drawn = options.plans;
  drawn.version = 3;
  drawn.cp_groups = true;
  drawn.dp = drawn.max_merge = options.ranks;
  for (std::uint64_t attempt = 0;; ++attempt) {
    Plan plan = rank_plan(seed + 1'000 * attempt, drawn);
    give_heads(plan.model, options.ranks, plan.parallel.tp, options.queries_a_key, options.heads,
               options.ranks_a_key);
    exchange_by_heads(plan, seed + 1'000 * attempt, options.mixed);
    const bool largest = std::ranges::any_of(plan.sample_group, [&](GroupId group) {
      return static_cast<std::int32_t>(plan.groups[index(group)].size()) == options.ranks;
    });
    const ByHeadsFeatures found = by_heads_features(plan);
    if (largest && found.travelling > 0 && (!options.mixed || found.rings > 0)) return plan;
  }
}

}  // namespace slimpack::test
