// SPDX-License-Identifier: Apache-2.0
// How the ranks of each context-parallel group exchange the slices of each pack.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::planners {

namespace detail {

/// The ring mode that sends fewer bytes for a slice; `pass_q` where both send as many.
[[nodiscard]] inline RingMode cheaper_exchange(const Slice& slice, Pass pass,
                                               const ModelShape& model,
                                               std::int64_t gradient_bytes) {
  const std::int64_t element = model.bytes_per_element;
  const std::int64_t log_sum = model.heads * model.statistic_bytes();
  std::int64_t keys = 2 * model.key_width() * element;
  std::int64_t queries = 2 * model.query_width() * element + log_sum;
  if (pass == Pass::backward) {
    keys += 2 * model.key_width() * gradient_bytes;
    queries += model.query_width() * gradient_bytes + log_sum;
  }
  const Int128 by_keys = Int128{slice.end.value} * keys;
  return by_keys < Int128{slice.length().value} * queries ? RingMode::pass_kv : RingMode::pass_q;
}

/// That of each slice of a pack whose group has several ranks.
[[nodiscard]] inline std::vector<RingMode> ring_exchange(const Plan& plan, const MicroPack& pack) {
  std::vector<RingMode> modes;
  for (const Slice& slice : pack.slices) {
    modes.push_back(cheaper_exchange(slice, pack.pass, plan.model, plan.memory.gradient_bytes));
  }
  return modes;
}

/// Whether several ranks may exchange by heads (rule 0).
[[nodiscard]] constexpr bool may_divide_heads(const Plan& plan, std::size_t ranks) noexcept {
  return ranks > 1 && divides_heads(plan.model, plan.parallel.tp, static_cast<std::int64_t>(ranks));
}

/// For each of `packs`, the first of them that it is joined to by samples that packs have in
/// common. O(slices), nearly.
[[nodiscard]] inline std::vector<std::size_t> first_with_samples_of(
    const Plan& plan, const std::vector<std::size_t>& packs) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> first(plan.micropacks.size()), holder(plan.samples.size(), kNone);
  std::iota(first.begin(), first.end(), std::size_t{0});
  const auto find = [&](std::size_t pack) {
    while (first[pack] != pack) pack = first[pack] = first[first[pack]];
    return pack;
  };
  for (const std::size_t i : packs) {
    for (const Slice& slice : plan.micropacks[i].slices) {
      std::size_t& other = holder[index(slice.sample)];
      if (other == kNone) other = i;
      const std::size_t a = find(i), b = find(other);
      first[std::max(a, b)] = std::min(a, b);
    }
  }
  for (const std::size_t i : packs) first[i] = find(i);
  return first;
}

}  // namespace detail

/// Lets samples be exchanged by heads where the packs that hold them take less time so than with
/// the exchange they have: packs that have a sample in common change together. Plans before version
/// 3 stay as they are. Two prices of the plan.
inline void exchange_by_heads(Plan& plan) {
  if (plan.version < 3) return;
  std::vector<std::size_t> packs;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.pass != Pass::weight &&
        detail::may_divide_heads(plan, plan.groups[index(pack.group)].size())) {
      packs.push_back(i);
    }
  }
  if (packs.empty()) return;
  // Each pack by itself: ranks that share weights would wait for others.
  Plan rings = plan;
  rings.memory.weights = WeightState::replicated;
  Plan heads = rings;
  for (const std::size_t i : packs) {
    std::ranges::fill(heads.micropacks[i].exchange, RingMode::by_heads);
  }
  const PricedPlan now(rings), then(heads);
  const std::vector<std::size_t> first = detail::first_with_samples_of(plan, packs);
  std::vector<Nanos> gain(plan.micropacks.size());
  for (const std::size_t i : packs) {
    for (std::int32_t line = 0; line < virtual_stages_of(plan).size(); ++line) {
      const auto id = static_cast<PackId>(i);
      gain[first[i]] += now.compute(id, line) - then.compute(id, line);
    }
  }
  for (const std::size_t i : packs) {
    if (gain[first[i]] > Nanos{}) plan.micropacks[i].exchange = heads.micropacks[i].exchange;
  }
}

}  // namespace slimpack::planners
