// SPDX-License-Identifier: Apache-2.0
// Where the tokens of a sample are computed: the slices of one pass, by sample and position.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/structure.hpp"

namespace slimpack {

/// Where a slice of a sample is computed in one pass.
struct IndexedSlice {
  Tokens begin;            ///< first token of the slice in its sample
  Tokens end;              ///< one past its last token
  PackId pack{};           ///< the MicroPack that holds it
  std::uint32_t slot = 0;  ///< index in `MicroPack::slices`
  friend bool operator==(const IndexedSlice&, const IndexedSlice&) = default;
};

/// The slices of one pass of a plan whose slices partition every sample (rule 1); with others the
/// answers mean nothing but nothing breaks. Linear space.
class SliceIndex {
 public:
  /// O(n log n) in the slices, of which there may be 2^32 - 1. Throws InvalidInput if a slice names
  /// a sample that is not there.
  SliceIndex(const Plan& plan, Pass pass) : first_(plan.samples.size() + 1, 0) {
    for_each_slice(plan, pass, [&](const Slice& slice, PackId, std::uint32_t) {
      require(index(slice.sample) < plan.samples.size(), "slice: sample does not exist",
              static_cast<std::int64_t>(index(slice.sample)));
      ++first_[index(slice.sample) + 1];
    });
    for (std::size_t sample = 1; sample < first_.size(); ++sample) {
      first_[sample] += first_[sample - 1];
    }
    slices_.resize(first_.back());
    // Each place moves on to the next sample's while its own slices come.
    for_each_slice(plan, pass, [&](const Slice& slice, PackId pack, std::uint32_t slot) {
      slices_[first_[index(slice.sample)]++] = {slice.begin, slice.end, pack, slot};
    });
    std::copy_backward(first_.begin(), first_.end() - 1, first_.end());
    first_.front() = 0;
    for (std::size_t sample = 0; sample + 1 < first_.size(); ++sample) {
      if (first_[sample + 1] - first_[sample] > 1) sort(first_[sample], first_[sample + 1]);
    }
  }

  /// Calls visit(slice) for each slice of `sample` that shares a token with [begin, end), rising.
  /// O(log n + visits).
  template <class Visit>
  void for_each_overlap(SampleId sample, Tokens begin, Tokens end, Visit&& visit) const {
    const std::size_t first = first_[index(sample)], past = first_[index(sample) + 1];
    if (past - first == 1) {  // as of nearly all samples
      const IndexedSlice& only = slices_[first];
      if (only.end > begin && only.begin < end) visit(only);
      return;
    }
    const auto last = slices_.begin() + static_cast<std::ptrdiff_t>(past);
    auto found =
        std::partition_point(slices_.begin() + static_cast<std::ptrdiff_t>(first), last,
                             [&](const IndexedSlice& slice) { return slice.end <= begin; });
    for (; found != last && found->begin < end; ++found) visit(*found);
  }

 private:
  /// By begin, equal ones as they came. Plans list a sample's slices rising or falling, which
  /// spares the sorting and its allocation.
  void sort(std::size_t from, std::size_t to) {
    const auto first = slices_.begin() + static_cast<std::ptrdiff_t>(from);
    const auto last = slices_.begin() + static_cast<std::ptrdiff_t>(to);
    const auto rises = [](const auto& a, const auto& b) { return a.begin < b.begin; };
    if (std::is_sorted(first, last, rises)) return;
    const auto falls = [](const auto& a, const auto& b) { return a.begin > b.begin; };
    if (std::adjacent_find(first, last, std::not_fn(falls)) == last) {
      std::reverse(first, last);
    } else {
      std::stable_sort(first, last, rises);
    }
  }

  template <class Visit>
  static void for_each_slice(const Plan& plan, Pass pass, Visit&& visit) {
    for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
      if (plan.micropacks[pack].pass != pass) continue;
      const auto& slices = plan.micropacks[pack].slices;
      for (std::size_t slot = 0; slot < slices.size(); ++slot) {
        visit(slices[slot], static_cast<PackId>(pack), static_cast<std::uint32_t>(slot));
      }
    }
  }

  std::vector<std::uint32_t> first_;  // of a sample in slices_, and one past the last
  std::vector<IndexedSlice> slices_;
};

/// The packs of one pass for those of another, which are asked for as they are listed. Where both
/// passes have the same packs they are listed alike, but for runs of packs that share cut samples,
/// which one of the passes has backwards. So slices are indexed only where that does not hold.
class PassPacks {
 public:
  /// The plan must outlive it. O(packs).
  PassPacks(const Plan& plan, Pass pass) : plan_(plan), pass_(pass) {
    for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
      if (plan.micropacks[pack].pass == pass) packs_.push_back(static_cast<PackId>(pack));
    }
  }

  /// The pack of this pass that has the same slices as a pack of another one, in the same order;
  /// absent if there is none. O(slices) on average over packs that are listed alike, else
  /// O(slices + log n) once all slices are indexed. Throws as SliceIndex does.
  [[nodiscard]] std::optional<PackId> twin(const MicroPack& pack) {
    if (pack.slices.empty()) return std::nullopt;
    const auto at = [&](std::size_t place) {
      return place < packs_.size() && plan_.micropacks[index(packs_[place])].slices == pack.slices;
    };
    if (alike_) {
      if (at(last_ + 1)) return found(last_ + 1);
      if (at(last_ - 1)) return found(last_ - 1);
      for (std::size_t place = ahead_; place < packs_.size(); ++place) {
        if (at(place)) return found(place);
      }
      alike_ = false;
    }
    std::optional<PackId> twin;
    const Slice& slice = pack.slices.front();
    slices().for_each_overlap(slice.sample, slice.begin, slice.begin + Tokens{1},
                              [&](const IndexedSlice& there) { twin = there.pack; });
    if (twin && plan_.micropacks[index(*twin)].slices == pack.slices) return twin;
    return std::nullopt;
  }
  /// All slices of this pass.
  [[nodiscard]] const SliceIndex& slices() {
    if (!slices_) slices_.emplace(plan_, pass_);
    return *slices_;
  }

 private:
  PackId found(std::size_t place) {
    last_ = place;
    ahead_ = std::max(ahead_, place + 1);
    return packs_[place];
  }

  const Plan& plan_;
  Pass pass_;
  std::vector<PackId> packs_;
  std::size_t last_ = 0;   // the place of the last twin
  std::size_t ahead_ = 0;  // behind all twins so far
  bool alike_ = true;      // all packs so far have been found without the index
  std::optional<SliceIndex> slices_;
};

/// Bound on the sum of the ends of a MicroPack's slices: its square is what pairs need.
inline constexpr std::int64_t kMostReach = std::int64_t{1} << 31;

/// Throws InvalidInput unless the MicroPack exists and is one that loads and memory can be counted
/// of: its group has ranks, its slices are not empty and end within `kMostReach`. O(slices).
inline void require_pack(const Plan& plan, PackId id) {
  require(index(id) < plan.micropacks.size(), "MicroPack does not exist",
          static_cast<std::int64_t>(index(id)));
  require_group_of(plan, id, "cost");
  const auto fail = [id](const char* rule, std::int64_t value) {
    throw InvalidInput("cost: micropacks[" + std::to_string(index(id)) + "]: " + rule + ", got " +
                       std::to_string(value));
  };
  std::int64_t reach = 0;
  for (const Slice& slice : plan.micropacks[index(id)].slices) {
    if (slice.begin.value < 0 || slice.begin >= slice.end) {
      fail("a slice must not be empty or begin before 0", slice.begin.value);
    }
    if (slice.end.value > kMostReach - reach) {
      fail("the ends of its slices sum to more than 2^31", slice.end.value);
    }
    reach += slice.end.value;
  }
  require(plan.memory.cp_block_tokens.value > 0, "memory.share_tokens must be > 0",
          plan.memory.cp_block_tokens.value);
}

/// The same, and that the samples of its slices exist.
inline void require_pack_of_samples(const Plan& plan, PackId id) {
  require_pack(plan, id);
  for (const Slice& slice : plan.micropacks[index(id)].slices) {
    require(index(slice.sample) < plan.samples.size(), "slice: sample does not exist",
            static_cast<std::int64_t>(index(slice.sample)));
  }
}

}  // namespace slimpack
