// SPDX-License-Identifier: Apache-2.0
// Rows of packs by rank, and which forward packs a backward pack awaits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::sim::detail {

/// Throws InvalidInput unless the slices of `pass` partition every sample.
inline void require_partition(const Plan& plan, Pass pass) {
  const SliceIndex slices(plan, pass);
  std::vector<std::size_t> count(plan.samples.size(), 0);
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass != pass) continue;
    for (const Slice& slice : pack.slices) ++count[index(slice.sample)];
  }
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    Tokens position;
    std::size_t visited = 0;
    slices.for_each_overlap(SampleId{static_cast<std::uint32_t>(sample)}, Tokens{},
                            plan.samples[sample], [&](const IndexedSlice& slice) {
                              if (slice.begin == position && slice.end > position) {
                                position = slice.end;
                                ++visited;
                              }
                            });
    if (position == plan.samples[sample] && visited == count[sample]) continue;
    throw InvalidInput(std::string("build_dag: the ") +
                       (pass == Pass::forward ? "forward" : "backward") + " slices of sample " +
                       std::to_string(sample) + " do not partition its " +
                       std::to_string(plan.samples[sample].value) + " tokens");
  }
}

/// Throws InvalidInput unless the slices of weight packs hold, each once, the tokens of backward
/// slices that leave weights apart. O(n log n) in slices.
inline void require_weight_partition(const Plan& plan) {
  struct Stretch {
    std::size_t sample;
    Tokens begin, end;
    auto operator<=>(const Stretch&) const = default;
  };
  // Those that touch are joined; those that overlap are not, and so differ from any that are apart.
  const auto stretches = [&](const auto& holds) {
    std::vector<Stretch> all, joined;
    for (const MicroPack& pack : plan.micropacks) {
      if (!holds(pack)) continue;
      for (const Slice& slice : pack.slices) {
        all.push_back({index(slice.sample), slice.begin, slice.end});
      }
    }
    std::sort(all.begin(), all.end());
    for (const Stretch& next : all) {
      if (!joined.empty() && joined.back().sample == next.sample &&
          joined.back().end == next.begin) {
        joined.back().end = next.end;
      } else {
        joined.push_back(next);
      }
    }
    return joined;
  };
  const auto apart =
      stretches([](const MicroPack& pack) { return pack.weights == WeightGradients::apart; });
  const auto held = stretches([](const MicroPack& pack) { return pack.pass == Pass::weight; });
  if (apart == held) return;
  const auto [a, b] = std::mismatch(apart.begin(), apart.end(), held.begin(), held.end());
  const std::size_t sample = a == apart.end()  ? b->sample
                             : b == held.end() ? a->sample
                                               : std::min(a->sample, b->sample);
  throw InvalidInput("build_dag: the weight slices of sample " + std::to_string(sample) +
                     " do not hold what its backward slices leave apart, each token once");
}

/// Numbers of packs on the ranks of their groups, which forward packs hold tokens of each backward
/// pack, and which backward packs those of each weight pack.
class PackNeeds {
 public:
  /// The slices must partition their samples, the packs name samples and groups that exist.
  /// O(n log n) in slices.
  explicit PackNeeds(const Plan& plan) {
    const SliceIndex forward(plan, Pass::forward);
    std::optional<SliceIndex> backward;  // where a pack is a weight pack
    first_.reserve(plan.micropacks.size() + 1);
    for (const MicroPack& pack : plan.micropacks) {
      first_.push_back(first_.back() + plan.groups[index(pack.group)].size());
    }
    needs_offset_.reserve(plan.micropacks.size() + 1);
    for (const MicroPack& pack : plan.micropacks) {
      if (pack.pass == Pass::backward) add_needs(pack, forward);
      if (pack.pass == Pass::weight) {
        if (!backward) backward.emplace(plan, Pass::backward);
        add_needs(pack, *backward);
      }
      needs_offset_.push_back(needs_.size());
    }
  }

  /// First row of a pack in tables of one row a pack and rank.
  [[nodiscard]] std::size_t row(PackId pack, std::size_t rank) const noexcept {
    return first_[index(pack)] + rank;
  }
  [[nodiscard]] std::size_t rows() const noexcept { return first_.back(); }
  [[nodiscard]] std::size_t ranks(PackId pack) const noexcept {
    return first_[index(pack) + 1] - first_[index(pack)];
  }
  /// The backward packs whose B a weight pack's W awaits, ascending.
  [[nodiscard]] std::span<const PackId> backwards(PackId weight) const noexcept {
    return heads(weight);
  }
  /// The forward packs whose H the last stage's B of a pack awaits, ascending.
  [[nodiscard]] std::span<const PackId> heads(PackId backward) const noexcept {
    return {needs_.data() + needs_offset_[index(backward)],
            needs_.data() + needs_offset_[index(backward) + 1]};
  }

 private:
  void add_needs(const MicroPack& pack, const SliceIndex& before) {
    const auto first = static_cast<std::ptrdiff_t>(needs_.size());
    for (const Slice& slice : pack.slices) {
      before.for_each_overlap(slice.sample, slice.begin, slice.end,
                              [&](const IndexedSlice& piece) { needs_.push_back(piece.pack); });
    }
    std::sort(needs_.begin() + first, needs_.end());
    needs_.erase(std::unique(needs_.begin() + first, needs_.end()), needs_.end());
  }

  std::vector<std::size_t> first_{0};
  std::vector<std::size_t> needs_offset_{0};
  std::vector<PackId> needs_;
};

}  // namespace slimpack::sim::detail
