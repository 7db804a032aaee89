// SPDX-License-Identifier: Apache-2.0
// Phase 2: queued samples cut into packs of equal time, or a packed sequence into equal slices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::schedule {

/// The time of a slice [a, b) in one pass, in any unit: per_slice + per_token (b - a) + per_pair2
/// (b^2 - a^2), the last two with the pairs of causal attention counted twice; of the first `early`
/// tokens of a sample more. Exact integers, so that cuts are the same on every compiler.
struct SliceCost {
  std::int64_t per_slice = 0;    ///< >= 0
  std::int64_t per_token = 1;    ///< >= 1
  std::int64_t per_pair2 = 0;    ///< >= 0
  Tokens early{0};               ///< >= 0
  std::int64_t early_token = 0;  ///< >= 0, besides per_token
  std::int64_t early_pair2 = 0;  ///< >= 0, besides per_pair2

  /// Time of the first `end` tokens, without per_slice.
  [[nodiscard]] constexpr Int128 upto(Tokens end) const noexcept {
    const Int128 time = end.value * (per_token + Int128{end.value} * per_pair2);
    if (early.value == 0) return time;
    const Int128 first = std::min(end, early).value;
    return time + first * (early_token + first * early_pair2);
  }
  /// Time of a slice [begin, end).
  [[nodiscard]] constexpr Int128 slice(Tokens begin, Tokens end) const noexcept {
    return Int128{per_slice} + upto(end) - upto(begin);
  }
  friend bool operator==(const SliceCost&, const SliceCost&) = default;
};

/// The same by the length of a slice's sample.
struct SliceCosts {
  /// One for all.
  SliceCosts(const SliceCost& all = {}) : costs{all} {}  // NOLINT(google-explicit-constructor)
  /// costs[i] of samples of at most limits[i] tokens, the last of all longer ones; limits rise, and
  /// are one fewer.
  SliceCosts(std::vector<SliceCost> each, std::vector<Tokens> ends)
      : costs(std::move(each)), limits(std::move(ends)) {}

  std::vector<SliceCost> costs;  ///< at least one
  std::vector<Tokens> limits;    ///< of samples that have all but the last of them

  /// That of a sample. O(limits).
  [[nodiscard]] const SliceCost& of(Tokens length) const noexcept {
    std::size_t i = 0;
    while (i < limits.size() && length > limits[i]) ++i;
    return costs[i];
  }
};

/// A sample in a queue of samples that is cut into packs.
struct QueuedSample {
  SampleId id{};  ///< of the sample
  Tokens length;  ///< > 0
};

/// Small packs at one end of a queue: the outermost has `first_permille` thousandths of a full
/// pack, each next one `growth_permille` thousandths more than the one before, up to a full pack.
struct Ramp {
  std::int64_t first_permille = 1000;   ///< 1 .. 1000
  std::int64_t growth_permille = 1000;  ///< >= 1
  friend bool operator==(const Ramp&, const Ramp&) = default;
};

/// How a queue of samples is cut.
struct CutRules {
  std::int64_t units = 1;   ///< full packs that the queue is worth; ramps make more, smaller packs
  Ramp front;               ///< at the first packs
  Ramp back;                ///< at the last packs
  Tokens granularity{128};  ///< inner slice boundaries are multiples of it
  Tokens whole{0};          ///< samples up to so many tokens are not cut
};

/// Packs of one pass in the order of the queue: pack i has slices [first[i], first[i + 1]).
struct PackCuts {
  std::vector<Slice> slices;          ///< of all packs, one behind the other
  std::vector<std::size_t> first{0};  ///< one more than there are packs

  /// The number of packs.
  [[nodiscard]] std::size_t packs() const noexcept { return first.size() - 1; }
  /// The slices of one pack.
  [[nodiscard]] std::span<const Slice> pack(std::size_t i) const noexcept {
    return std::span(slices).subspan(first[i], first[i + 1] - first[i]);
  }
};

/// Sizes of the packs of a queue worth `units` full ones, in 65536ths of a full pack. Ramps that
/// would take more than half of the queue each are cut off. O(packs). Throws InvalidInput if a
/// number is < 1, or first_permille > 1000.
[[nodiscard]] inline std::vector<std::int64_t> pack_weights(std::int64_t units, const Ramp& front,
                                                            const Ramp& back);

/// Cuts a queue of samples into packs of equal time (`pack_weights` where there are ramps). In the
/// backward pass each sample is reversed. A cut lies where the time before it reaches the sum of
/// the packs before it: at the nearest allowed position, the later one of equals. Packs that would
/// be empty are left out. A sample has at most one slice in a pack. Its slices rise (forward) or
/// fall (backward) from pack to pack and partition it.
///
///     const PackCuts cuts = cut_packs(queue, Pass::forward, cost, {.units = 16});
///     for (std::size_t i = 0; i < cuts.packs(); ++i) run(cuts.pack(i));
///
/// Throws InvalidInput if a length, a rule or per_token is < 1, or another cost < 0. O(samples +
/// units).
[[nodiscard]] inline PackCuts cut_packs(std::span<const QueuedSample> samples, Pass pass,
                                        const SliceCosts& costs, const CutRules& rules);

/// The same with packs of these sizes, in any unit; units and ramps of the rules have no meaning.
/// Throws InvalidInput besides if there is no weight, or one < 1.
[[nodiscard]] inline PackCuts cut_packs(std::span<const QueuedSample> samples, Pass pass,
                                        const SliceCosts& costs, const CutRules& rules,
                                        std::span<const std::int64_t> weights);

namespace detail {

inline constexpr std::int64_t kFullWeight = 65536;

inline void check_ramp(const Ramp& ramp) {
  require(ramp.first_permille >= 1 && ramp.first_permille <= 1000,
          "cut_packs: the first of a ramp must be 1 .. 1000 thousandths", ramp.first_permille);
  require(ramp.growth_permille >= 1, "cut_packs: the growth of a ramp must be >= 1",
          ramp.growth_permille);
}

/// Weights of a ramp from the outside inwards, of at most `most` in sum.
[[nodiscard]] inline std::vector<std::int64_t> ramp_weights(const Ramp& ramp, std::int64_t most) {
  std::vector<std::int64_t> weights;
  std::int64_t sum = 0;
  for (std::int64_t weight = std::max<std::int64_t>(1, kFullWeight * ramp.first_permille / 1000);
       weight < kFullWeight && sum + weight <= most;) {
    weights.push_back(weight);
    sum += weight;
    weight += std::max<std::int64_t>(1, weight * ramp.growth_permille / 1000);
  }
  return weights;
}

/// The largest multiple of `granularity`, at most `end`, before which at most `work` lies.
[[nodiscard]] inline Tokens last_within(Int128 work, const SliceCost& cost, Tokens granularity,
                                        Tokens end) {
  // The float only guesses; the integers below decide.
  const bool early = cost.early.value > 0 && work < cost.upto(cost.early);
  const Int128 besides = early ? Int128{0}
                               : Int128{cost.early.value} * cost.early_token +
                                     Int128{cost.early.value} * cost.early.value * cost.early_pair2;
  const auto linear = static_cast<double>(cost.per_token + (early ? cost.early_token : 0));
  const auto square = static_cast<double>(cost.per_pair2 + (early ? cost.early_pair2 : 0));
  const auto target = static_cast<double>(work - besides);
  const double guess =
      2 * target / (linear + std::sqrt(std::fma(4 * square, target, linear * linear)));
  const auto steps = static_cast<std::int64_t>(guess / static_cast<double>(granularity.value));
  Tokens position = granularity * std::clamp<std::int64_t>(steps, 0, end / granularity);
  while (position.value > 0 && cost.upto(position) > work) position -= granularity;
  while (position + granularity <= end && cost.upto(position + granularity) <= work)
    position += granularity;
  return position;
}

/// Where a sample of `length` tokens is cut so that about `work`, without per_slice, lies before
/// the cut: 0, length, or a multiple of the granularity between.
[[nodiscard]] inline Tokens cut_before(Int128 work, Tokens length, const SliceCost& cost,
                                       const CutRules& rules) {
  const Int128 all = cost.upto(length);
  if (length <= rules.whole || length <= rules.granularity) {
    return 2 * work < all ? Tokens{} : length;
  }
  const Tokens low = last_within(work, cost, rules.granularity, length);
  const Tokens high = std::min(low + rules.granularity, length);
  return work - cost.upto(low) < cost.upto(high) - work ? low : high;
}

/// Walks the queue and closes packs.
class PackCutter {
 public:
  PackCutter(std::size_t samples, Pass pass, const SliceCosts& costs, const CutRules& rules,
             std::span<const std::int64_t> weights, Int128 total)
      : back_(pass == Pass::backward), costs_(costs), rules_(rules), weights_(weights) {
    for (const std::int64_t weight : weights) weight_sum_ += weight;
    total_ = total;
    cuts_.slices.reserve(samples + weights.size());
    cuts_.first.reserve(weights.size() + 1);
    next_boundary();
  }

  void add(const QueuedSample& sample) {
    const SliceCost& cost = costs_.of(sample.length);
    const Int128 work = cost.slice(Tokens{}, sample.length);
    Tokens open = back_ ? sample.length : Tokens{};  // the near end of what is left
    while (boundary_ < gone_ + work && pack_ + 1 < weights_.size()) {
      const Int128 before = std::max<Int128>(boundary_ - gone_ - cost.per_slice, 0);
      const Tokens cut = place(before, sample.length, cost);
      take(sample.id, open, cut);
      open = cut;
      close();
    }
    take(sample.id, open, back_ ? Tokens{} : sample.length);
    gone_ += work;
  }

  PackCuts finish() {
    close();
    return std::move(cuts_);
  }

 private:
  [[nodiscard]] Tokens place(Int128 before, Tokens length, const SliceCost& cost) const {
    if (!back_) return cut_before(before, length, cost, rules_);
    return cut_before(std::max<Int128>(cost.upto(length) - before, 0), length, cost, rules_);
  }
  void take(SampleId sample, Tokens open, Tokens cut) {
    const Tokens begin = back_ ? cut : open;
    const Tokens end = back_ ? open : cut;
    if (begin < end) cuts_.slices.push_back({sample, begin, end});
  }
  void close() {
    if (cuts_.slices.size() > cuts_.first.back()) cuts_.first.push_back(cuts_.slices.size());
    ++pack_;
    next_boundary();
  }
  void next_boundary() {
    if (pack_ < weights_.size()) passed_ += weights_[pack_];
    boundary_ = total_ * Int128{passed_} / Int128{weight_sum_};
  }

  bool back_;
  const SliceCosts& costs_;
  const CutRules& rules_;
  std::span<const std::int64_t> weights_;
  Int128 total_ = 0, gone_ = 0, boundary_ = 0;
  std::int64_t weight_sum_ = 0, passed_ = 0;
  std::size_t pack_ = 0;
  PackCuts cuts_;
};

}  // namespace detail

inline std::vector<std::int64_t> pack_weights(std::int64_t units, const Ramp& front,
                                              const Ramp& back) {
  require(units >= 1, "cut_packs: units must be >= 1", units);
  require(units <= std::int64_t{1} << 24U, "cut_packs: units must be <= 2^24", units);
  detail::check_ramp(front);
  detail::check_ramp(back);
  const std::int64_t all = units * detail::kFullWeight;
  std::vector<std::int64_t> weights = detail::ramp_weights(front, all / 2);
  std::vector<std::int64_t> last = detail::ramp_weights(back, all / 2);
  std::int64_t left = all;
  for (const std::int64_t weight : weights) left -= weight;
  for (const std::int64_t weight : last) left -= weight;
  const std::int64_t full =
      std::max<std::int64_t>(weights.empty() && last.empty() ? 1 : 0,
                             (left + detail::kFullWeight / 2) / detail::kFullWeight);
  weights.insert(weights.end(), static_cast<std::size_t>(full), detail::kFullWeight);
  weights.insert(weights.end(), last.rbegin(), last.rend());
  return weights;
}

inline PackCuts cut_packs(std::span<const QueuedSample> samples, Pass pass, const SliceCosts& costs,
                          const CutRules& rules) {
  return cut_packs(samples, pass, costs, rules, pack_weights(rules.units, rules.front, rules.back));
}

inline PackCuts cut_packs(std::span<const QueuedSample> samples, Pass pass, const SliceCosts& costs,
                          const CutRules& rules, std::span<const std::int64_t> weights) {
  require(rules.granularity.value >= 1, "cut_packs: granularity must be >= 1",
          rules.granularity.value);
  for (const SliceCost& cost : costs.costs) {
    require(cost.per_token >= 1 && cost.per_slice >= 0 && cost.per_pair2 >= 0 &&
                cost.early.value >= 0 && cost.early_token >= 0 && cost.early_pair2 >= 0,
            "cut_packs: costs must be >= 0, per token >= 1");
  }
  require(!weights.empty(), "cut_packs: there must be a weight");
  for (const std::int64_t weight : weights) {
    require(weight >= 1, "cut_packs: a weight must be >= 1", weight);
  }
  Int128 total = 0;
  for (const QueuedSample& sample : samples) {
    require(sample.length.value >= 1, "cut_packs: a sample must have >= 1 tokens",
            sample.length.value);
    total += costs.of(sample.length).slice(Tokens{}, sample.length);
  }
  detail::PackCutter cutter(samples.size(), pass, costs, rules, weights, total);
  for (const QueuedSample& sample : samples) cutter.add(sample);
  return cutter.finish();
}

/// A sample of a packed sequence and its length.
struct PackedSample {
  SampleId sample{};  ///< which one
  Tokens length;      ///< > 0
};

/// Cuts samples that lie one behind the other into at most `count` runs of equal length. Cut i of
/// the total T is wished at T i / count and falls on the nearest legal place: the end of a sample,
/// or a multiple of `granularity` inside one (the lower of two equally near). Cuts that fall
/// together are one, so there may be fewer runs than wished, never an empty one. Each run is the
/// slices of one MicroPack, in the sequence's order. Throws InvalidInput if count, granularity or a
/// length is < 1. O(samples + count).
[[nodiscard]] inline std::vector<std::vector<Slice>> cut_uniformly(
    std::span<const PackedSample> sequence, std::int64_t count, Tokens granularity) {
  require(count >= 1, "cut_uniformly: count must be >= 1", count);
  require(granularity.value >= 1, "cut_uniformly: granularity must be >= 1", granularity.value);
  Tokens total;
  for (const PackedSample& packed : sequence) {
    require(packed.length.value >= 1, "cut_uniformly: a length must be >= 1", packed.length.value);
    total += packed.length;
  }
  std::vector<Tokens> cuts;
  std::size_t k = 0;
  Tokens start;  // of sample `k` in the sequence
  for (std::int64_t cut = 1; cut < count; ++cut) {
    // T i / count, without overflow of the product.
    const Tokens wish{total.value / count * cut + total.value % count * cut / count};
    if (wish >= total) break;
    while (wish >= start + sequence[k].length) start += sequence[k++].length;
    const Tokens below = start + granularity * ((wish - start) / granularity);
    const Tokens above = std::min(below + granularity, start + sequence[k].length);
    const Tokens nearest = wish - below <= above - wish ? below : above;
    if (nearest > (cuts.empty() ? Tokens{} : cuts.back()) && nearest < total) {
      cuts.push_back(nearest);
    }
  }
  cuts.push_back(total);

  std::vector<std::vector<Slice>> runs;
  if (sequence.empty()) return runs;
  runs.emplace_back();
  auto cut = cuts.begin();
  start = {};
  for (const PackedSample& packed : sequence) {
    for (Tokens begin; begin < packed.length;) {
      if (start + begin == *cut) {
        runs.emplace_back();
        ++cut;
      }
      const Tokens end = std::min(packed.length, *cut - start);
      runs.back().push_back({packed.sample, begin, end});
      begin = end;
    }
    start += packed.length;
  }
  return runs;
}

}  // namespace slimpack::schedule
