// SPDX-License-Identifier: Apache-2.0
// verl's rule: samples to data-parallel ranks, and to the micro-batches of each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners {

/// What a sample weighs where samples are balanced.
enum class KkWork : std::uint8_t {
  verl,  ///< 24576 L + L^2, verl's figure of a 7B model, for every model
  model  ///< matrix products and causal attention of the model at hand
};

/// The choices of verl's rule.
struct KkRules {
  KkWork work = KkWork::verl;  ///< what is balanced
  /// Numbers of samples of ranks; `free` in any case where ranks do not divide the samples.
  schedule::PartSizes sizes = schedule::PartSizes::equal;
  Tokens budget;              ///< tokens of a micro-batch to aim at, at most (`max_token_len`)
  std::int64_t least = 1;     ///< fewest micro-batches of a rank (`min_num_micro_batch`)
  std::int64_t multiple = 1;  ///< the number of micro-batches is a multiple of it
  bool small_at_ends = true;  ///< light micro-batches first and last, else as assigned
};

/// The work of a sample.
[[nodiscard]] constexpr Int128 kk_work(const ModelShape& model, KkWork kind,
                                       Tokens length) noexcept {
  constexpr std::int64_t kOfSeven = 24'576;
  if (kind == KkWork::model) return schedule::sample_work(model, length);
  return Int128{length.value} * (kOfSeven + length.value);
}

namespace detail {

/// The `count` micro-batches of one rank; `own` are its samples in the order in which it holds
/// them.
inline schedule::Bins kk_micro_batches(const std::vector<std::size_t>& own,
                                       std::span<const Int128> work, std::size_t count,
                                       bool small_at_ends) {
  std::vector<Int128> held;
  for (const std::size_t sample : own) held.push_back(work[sample]);
  const schedule::ShardLayout parts =
      schedule::assign_karmarkar_karp(held, count, schedule::PartSizes::free);
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (small_at_ends) {
    const auto weight = [&](std::size_t part) {
      Int128 sum = 0;
      for (const std::size_t i : parts[part]) sum += held[i];
      return std::pair{sum, parts[part].front()};
    };
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return weight(a) > weight(b); });
    std::vector<std::size_t> arranged;
    for (std::size_t i = (order.size() + 1) / 2; i > 0; --i) {
      arranged.push_back(order[2 * (i - 1)]);
    }
    for (std::size_t i = 1; i < order.size(); i += 2) arranged.push_back(order[i]);
    order = std::move(arranged);
  }
  schedule::Bins batches;
  for (const std::size_t part : order) {
    auto& batch = batches.emplace_back();
    for (const std::size_t i : parts[part]) batch.push_back(own[i]);
  }
  return batches;
}

}  // namespace detail

/// Assigns samples to ranks and micro-batches as verl does. Ranks get samples by Karmarkar-Karp
/// over the samples' work. A rank sorts its samples by rising work and holds those at even
/// positions first, then the others backwards. All ranks have as many micro-batches as the rank
/// with most tokens needs for the budget, at least `least`, rounded up to a multiple, and at most
/// one a sample. Each rank cuts its own by Karmarkar-Karp over work; with `small_at_ends` the
/// heaviest micro-batch is in the middle. As published, the budget is kept by the mean micro-batch,
/// not by each. Throws InvalidInput if ranks < 1, the budget < 1 or there is no sample. O(n ranks
/// log n).
[[nodiscard]] inline PackedRanks assign_as_verl(const ModelShape& model,
                                                std::span<const Tokens> samples, std::int32_t ranks,
                                                const KkRules& rules) {
  require(ranks >= 1, "assign_as_verl: ranks must be >= 1", ranks);
  require(rules.budget.value >= 1, "assign_as_verl: the budget must be >= 1", rules.budget.value);
  require(rules.least >= 1 && rules.multiple >= 1, "assign_as_verl: counts must be >= 1");
  require(!samples.empty(), "assign_as_verl: there must be a sample");
  std::vector<Int128> work;
  for (const Tokens length : samples) work.push_back(kk_work(model, rules.work, length));
  const auto parts = static_cast<std::size_t>(ranks);
  const bool divides = samples.size() % parts == 0;
  schedule::ShardLayout shares = schedule::assign_karmarkar_karp(
      work, parts, divides ? rules.sizes : schedule::PartSizes::free);
  std::int64_t count = rules.least;
  for (auto& share : shares) {
    std::sort(share.begin(), share.end(), [&](std::size_t a, std::size_t b) {
      return std::pair{work[a], a} < std::pair{work[b], b};
    });
    std::vector<std::size_t> held;
    for (std::size_t i = 0; i < share.size(); i += 2) held.push_back(share[i]);
    for (std::size_t i = share.size() / 2; i > 0; --i) held.push_back(share[2 * i - 1]);
    share = std::move(held);
    Tokens total;
    for (const std::size_t sample : share) total += samples[sample];
    const std::int64_t full = (total.value + rules.budget.value - 1) / rules.budget.value;
    count = std::max(count, std::min(full, static_cast<std::int64_t>(share.size())));
  }
  count = (count + rules.multiple - 1) / rules.multiple * rules.multiple;
  PackedRanks packed;
  for (const auto& share : shares) {
    auto& own = packed.ranks.emplace_back();
    if (share.empty()) continue;
    const std::size_t batches = std::min(share.size(), static_cast<std::size_t>(count));
    for (auto& batch : detail::kk_micro_batches(share, work, batches, rules.small_at_ends)) {
      own.push_back(packed.sequences.size());
      packed.sequences.push_back(std::move(batch));
    }
  }
  return packed;
}

}  // namespace slimpack::planners
