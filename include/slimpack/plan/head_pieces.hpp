// SPDX-License-Identifier: Apache-2.0
// In which pieces an exchange by heads goes, so that one travels while another is attended to.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Most pieces of an exchange by heads.
inline constexpr std::int64_t kHeadPieces = 4;

/// Pieces of the heads of a rank of `ranks`: as many as it has heads of keys, at most kHeadPieces.
[[nodiscard]] constexpr std::int64_t head_pieces(const ModelShape& model,
                                                 std::int64_t tensor_parallel,
                                                 std::int64_t ranks) noexcept {
  return std::clamp<std::int64_t>(model.kv_heads / tensor_parallel / ranks, 1, kHeadPieces);
}

/// Sets of whole slices that travel one after another, where there are slices enough: heads in few
/// pieces make up for it by sets. `pieces` must be > 0.
[[nodiscard]] constexpr std::int64_t head_sets(std::int64_t pieces) noexcept {
  return std::max<std::int64_t>(1, kHeadPieces / pieces);
}

/// The set of a slice of `length` tokens behind `before` others of `all`: that of its middle, where
/// `sets` of equal length stand side by side. Never less than that of a slice before it. `all` must
/// be > 0.
[[nodiscard]] constexpr std::int64_t head_set(Tokens before, Tokens length, Tokens all,
                                              std::int64_t sets) noexcept {
  return (2 * before.value + length.value) * sets / (2 * all.value);
}

/// How much of the slices of a pack that go by heads is in each set, in parts of kWhole.
struct HeadSets {
  static constexpr std::uint32_t kWhole = 1U << 15U;  ///< all of them
  std::array<std::uint16_t, kHeadPieces> tokens{};    ///< of a set
  std::array<std::uint16_t, kHeadPieces> pairs{};     ///< of a set, of (query, key) pairs
  friend bool operator==(const HeadSets&, const HeadSets&) = default;
};

/// As many sets of equal slices as `count` of them make, which must be > 0.
[[nodiscard]] constexpr HeadSets equal_head_sets(std::int64_t count) noexcept {
  HeadSets made;
  const std::int64_t sets = std::min(count, kHeadPieces);
  for (std::int64_t set = 0; set < sets; ++set) {
    const auto part =
        static_cast<std::uint16_t>(HeadSets::kWhole / static_cast<std::uint32_t>(sets));
    made.tokens[static_cast<std::size_t>(set)] = made.pairs[static_cast<std::size_t>(set)] = part;
  }
  return made;
}

/// The sets of a pack; nothing is in any where no slice goes by heads. The samples must exist.
/// O(slices).
[[nodiscard]] inline HeadSets head_sets_of(const Plan& plan, const MicroPack& pack) {
  const auto for_each = [&](const auto& visit) {
    for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
      if (is_by_heads(plan, pack.slices[i], pack.exchange[i])) visit(pack.slices[i]);
    }
  };
  Tokens all;
  for_each([&](const Slice& slice) { all += slice.length(); });
  HeadSets made;
  if (all == Tokens{}) return made;
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  const std::int64_t sets = head_sets(head_pieces(plan.model, plan.parallel.tp, ranks));
  std::array<std::int64_t, kHeadPieces> tokens{}, pairs{};
  Tokens before;
  for_each([&](const Slice& slice) {
    const auto set = static_cast<std::size_t>(head_set(before, slice.length(), all, sets));
    before += slice.length();
    tokens[set] += slice.length().value;
    pairs[set] += (slice.begin + slice.end).value * slice.length().value;
  });
  const auto parts = [](const std::array<std::int64_t, kHeadPieces>& amounts) {
    double whole = 0, below = 0;
    for (const std::int64_t amount : amounts) whole += static_cast<double>(amount);
    std::array<std::uint16_t, kHeadPieces> of_set{};
    const auto part = [&] { return static_cast<std::int64_t>(HeadSets::kWhole * (below / whole)); };
    for (std::size_t set = 0; set < of_set.size(); ++set) {
      const std::int64_t first = part();
      below += static_cast<double>(amounts[set]);
      of_set[set] = static_cast<std::uint16_t>(part() - first);
    }
    return of_set;
  };
  return {parts(tokens), parts(pairs)};
}

}  // namespace slimpack
