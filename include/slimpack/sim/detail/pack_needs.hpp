// SPDX-License-Identifier: Apache-2.0
// Rows of packs by rank, and which forward packs a backward pack awaits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

/// Numbers of packs on the ranks of their groups, and which forward packs hold tokens of each
/// backward pack.
class PackNeeds {
 public:
  /// The slices must partition their samples, the packs name samples and groups that exist.
  /// O(n log n) in slices.
  explicit PackNeeds(const Plan& plan) {
    const SliceIndex forward(plan, Pass::forward);
    first_.reserve(plan.micropacks.size() + 1);
    for (const MicroPack& pack : plan.micropacks) {
      first_.push_back(first_.back() + plan.groups[index(pack.group)].size());
    }
    heads_offset_.reserve(plan.micropacks.size() + 1);
    for (const MicroPack& pack : plan.micropacks) {
      if (pack.pass == Pass::backward) add_heads(pack, forward);
      heads_offset_.push_back(heads_.size());
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
  /// The forward packs whose H the last stage's B of a pack awaits, ascending.
  [[nodiscard]] std::span<const PackId> heads(PackId backward) const noexcept {
    return {heads_.data() + heads_offset_[index(backward)],
            heads_.data() + heads_offset_[index(backward) + 1]};
  }

 private:
  void add_heads(const MicroPack& pack, const SliceIndex& forward) {
    const auto first = static_cast<std::ptrdiff_t>(heads_.size());
    for (const Slice& slice : pack.slices) {
      forward.for_each_overlap(slice.sample, slice.begin, slice.end,
                               [&](const IndexedSlice& piece) { heads_.push_back(piece.pack); });
    }
    std::sort(heads_.begin() + first, heads_.end());
    heads_.erase(std::unique(heads_.begin() + first, heads_.end()), heads_.end());
  }

  std::vector<std::size_t> first_{0};
  std::vector<std::size_t> heads_offset_{0};
  std::vector<PackId> heads_;
};

}  // namespace slimpack::sim::detail
