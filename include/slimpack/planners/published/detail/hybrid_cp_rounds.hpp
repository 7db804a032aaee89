// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's rule of hybrid context parallelism: samples to rounds of groups of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"

namespace slimpack::planners {

/// Ranks first .. first + ranks - 1 and the samples that they run together, one after another.
struct HybridGroup {
  std::int32_t first = 0, ranks = 1;
  std::vector<std::size_t> samples;
  friend bool operator==(const HybridGroup&, const HybridGroup&) = default;
};
/// Groups that share no rank, in order of their ranks.
using HybridRound = std::vector<HybridGroup>;

/// What bounds groups.
struct HybridRules {
  std::int32_t ranks = 1;  ///< data-parallel, all of them
  Tokens per_rank;         ///< most tokens of a sample on a rank (`max_seqlen_per_dp_cp_rank`)
  std::int32_t most = 1;   ///< ranks that a group may have
};

/// Ranks that a sample needs: the least power of two whose parts of it are no longer than
/// `per_rank`.
[[nodiscard]] constexpr std::int32_t hybrid_ranks(Tokens sample, Tokens per_rank) noexcept {
  std::int32_t ranks = 1;
  while (per_rank.value * ranks < sample.value) ranks *= 2;
  return ranks;
}

namespace detail {

/// Forms one round after another.
class HybridRounds {
 public:
  HybridRounds(std::span<const Tokens> samples, const HybridRules& rules)
      : samples_(samples), rules_(rules), scale_(rules.ranks) {
    std::int32_t power = 1;
    while (power <= rules.ranks / 2) power *= 2;
    if (power != rules.ranks) scale_ *= power;
  }

  [[nodiscard]] std::vector<HybridRound> run() {
    std::vector<std::size_t> left = longest_first(samples_);
    std::vector<HybridRound> rounds;
    while (!left.empty()) {
      left = next(left);
      rounds.push_back(round());
    }
    return rounds;
  }

 private:
  struct Group {
    std::int32_t ranks = 1;
    Int128 time = 0;
    std::vector<std::size_t> samples;
  };
  using Buckets = std::vector<std::deque<std::size_t>>;

  [[nodiscard]] std::int32_t needed(std::size_t sample) const noexcept {
    return hybrid_ranks(samples_[sample], rules_.per_rank);
  }
  /// Square of the length over the ranks that it needs: all powers of two divide the scale.
  [[nodiscard]] Int128 work(std::size_t sample) const noexcept {
    const std::int64_t length = samples_[sample].value;
    return Int128{length} * length * (scale_ / needed(sample));
  }

  /// As many buckets as there are sizes of groups, of nearly equal work.
  [[nodiscard]] Buckets buckets(const std::vector<std::size_t>& left) const {
    std::set<std::int32_t> kinds;
    Int128 total = 0;
    for (const std::size_t sample : left) {
      kinds.insert(needed(sample));
      total += work(sample);
    }
    const auto count = static_cast<std::int64_t>(kinds.size());
    std::int64_t remaining = count;
    Buckets buckets(1);
    Int128 current = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const Int128 each = work(left[i]);
      const auto closed = static_cast<std::int64_t>(buckets.size()) - 1;
      const auto after = static_cast<std::int64_t>(left.size() - i);
      if (!buckets.back().empty() &&
          ((current + each) * count * 10 > total * 11 || after <= remaining - closed)) {
        buckets.emplace_back();
        current = 0;
        --remaining;
      }
      buckets.back().push_back(left[i]);
      current += each;
    }
    return buckets;
  }

  [[nodiscard]] bool balanced(Int128 most, Int128 least) const noexcept {
    return (most - least) * 20 <= most;
  }
  [[nodiscard]] Int128 most() const noexcept {
    Int128 time = 0;
    for (const Group& group : groups_) time = std::max(time, group.time);
    return time;
  }
  [[nodiscard]] Int128 least() const noexcept {
    if (free_ > 0) return 0;
    Int128 time = groups_.front().time;
    for (const Group& group : groups_) time = std::min(time, group.time);
    return time;
  }
  /// The least loaded group of that size, the first of equal ones; null where there is none.
  [[nodiscard]] Group* lightest(std::int32_t ranks) noexcept {
    Group* best = nullptr;
    for (Group& group : groups_) {
      if (group.ranks == ranks && (best == nullptr || group.time < best->time)) best = &group;
    }
    return best;
  }
  [[nodiscard]] bool exists(std::int32_t ranks) const noexcept {
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const Group& group) { return group.ranks == ranks; });
  }

  /// Fills `groups_` from samples in their order and returns those left over.
  std::vector<std::size_t> next(const std::vector<std::size_t>& samples) {
    groups_.clear();
    free_ = rules_.ranks;
    Buckets waiting = buckets(samples);
    const std::int32_t first = needed(waiting.front().front());
    bool check = false;
    while (!waiting.empty()) {
      const auto bucket = std::find_if(waiting.begin(), waiting.end(), [&](const auto& queue) {
        if (queue.empty()) return false;
        const std::int32_t ranks = needed(queue.front());
        return free_ >= ranks || exists(ranks);
      });
      if (bucket == waiting.end()) break;
      const std::size_t sample = bucket->front();
      bucket->pop_front();
      const std::int32_t ranks = needed(sample);
      if (free_ >= ranks) {
        groups_.push_back({ranks, work(sample), {sample}});
        free_ -= ranks;
      } else {
        Group& group = *lightest(ranks);
        group.time += work(sample);
        group.samples.push_back(sample);
      }
      while (!waiting.empty() && waiting.front().empty()) waiting.erase(waiting.begin());
      check = check || ranks < first;
      if (check && !waiting.empty() && balanced(most(), least())) break;
    }
    std::vector<std::size_t> left;
    for (const auto& queue : waiting) left.insert(left.end(), queue.begin(), queue.end());
    trim(left);
    fill();
    return left;
  }

  /// Takes the last sample from the group with most work while that evens loads out.
  void trim(std::vector<std::size_t>& left) {
    while (true) {
      const Int128 top = most(), bottom = least();
      if (balanced(top, bottom) || bottom == 0) return;
      Group& group = *std::find_if(groups_.begin(), groups_.end(),
                                   [&](const Group& each) { return each.time == top; });
      if (group.samples.size() <= 1) return;
      const std::size_t sample = group.samples.back();
      group.time -= work(sample);
      if (most() - least() >= top - bottom) {
        group.time += work(sample);
        return;
      }
      group.samples.pop_back();
      left.push_back(sample);
    }
  }

  /// Doubles the first of the smallest groups while ranks are free.
  void fill() {
    while (free_ > 0) {
      Group& group =
          *std::min_element(groups_.begin(), groups_.end(),
                            [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
      const std::int32_t ranks = std::min(2 * group.ranks, rules_.ranks);
      if (ranks > rules_.most || ranks - group.ranks > free_) return;
      free_ -= ranks - group.ranks;
      group.ranks = ranks;
    }
  }

  [[nodiscard]] HybridRound round() {
    HybridRound round;
    std::int32_t first = 0;
    for (Group& group : groups_) {
      round.push_back({first, group.ranks, std::move(group.samples)});
      first += group.ranks;
    }
    return round;
  }

  std::span<const Tokens> samples_;
  const HybridRules& rules_;
  std::int64_t scale_;
  std::vector<Group> groups_;  // in order of their ranks, which are the first ones
  std::int32_t free_ = 0;      // ranks behind them
};

}  // namespace detail

/// Assigns samples to rounds as `BalancedCPScheduler` of Megatron-Core does it
/// (megatron/core/pipeline_parallel/hybrid_cp_schedule.py of its main branch, 2026), whose work of
/// a sample is the square of its length over its ranks.
///
/// A round: samples, longest first, are put into as many buckets of nearly equal work as there are
/// sizes of groups. The first bucket whose next sample has a group of its size or ranks free for
/// one gives it: to a new group while ranks are free, else to the least loaded. Once a smaller
/// group than the first has been needed, the round ends where loads are within 5 %. Then the last
/// sample of the fullest group is given back while that evens loads out, and groups are doubled,
/// the first of the smallest each time, until no rank is free. Samples left over make the next
/// round.
///
/// Where doubling would need more ranks than are free, or more than a group may have, ranks stay
/// idle; the published code stops with an error. Equal samples keep their order, equal groups go by
/// rank. Throws InvalidInput if a rule or a length is < 1, or a sample needs more ranks than a
/// group may have. O(n groups).
[[nodiscard]] inline std::vector<HybridRound> hybrid_cp_rounds(std::span<const Tokens> samples,
                                                               const HybridRules& rules) {
  require(rules.ranks >= 1, "hybrid_cp_rounds: ranks must be >= 1", rules.ranks);
  require(rules.most >= 1 && rules.most <= rules.ranks,
          "hybrid_cp_rounds: ranks of a group must be 1 .. all", rules.most);
  require(rules.per_rank.value >= 1, "hybrid_cp_rounds: tokens of a rank must be >= 1",
          rules.per_rank.value);
  for (const Tokens length : samples) {
    require(length.value >= 1, "hybrid_cp_rounds: a length must be >= 1", length.value);
    require(hybrid_ranks(length, rules.per_rank) <= rules.most,
            "hybrid_cp_rounds: a sample needs more ranks than a group may have", length.value);
  }
  return detail::HybridRounds(samples, rules).run();
}

}  // namespace slimpack::planners
