// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan keeps on a device, per token and per unit (docs/equations.md, "Memory").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Bytes of the activations, keys and values, buffers and workspaces of every unit of a plan, by
/// the formulas of plan/memory.hpp.
///
///     const MemoryModel memory(plan);
///     const Bytes kept = memory.kept(pack, rank, layers);       // from F to B
///     const Bytes work = memory.pack_workspace(pack, rank);     // while F or B runs
///     const Bytes always = static_bytes(plan, pp).total();      // plan/memory.hpp
///
/// It precomputes a few numbers for each pack and rank, so that every question is O(1).
/// `rank` counts inside the pack's group; `layers` are those of the chunk in question.
class MemoryModel {
 public:
  /// O(n log n) in slices times ranks. The plan must outlive the model and obey rules 1 and 2.
  /// Throws InvalidInput if a pack, group or sample does not exist.
  explicit MemoryModel(const Plan& plan);

  /// Bytes of one layer and token, by kind.
  [[nodiscard]] const LayerBytes& layer() const noexcept { return layer_; }

  /// Tokens of a pack that the rank owns.
  [[nodiscard]] Tokens own_tokens(PackId pack, std::size_t rank) const noexcept;
  /// Activations of a pack's tokens on one chunk: allocated when a forward pack starts, freed when
  /// a backward pack ends. Both sum to the same over all packs.
  [[nodiscard]] Bytes kept(PackId pack, std::size_t rank, std::int64_t layers) const noexcept;
  /// Hidden states of a pack's tokens: message, buffer, last layer's output, hidden gradients.
  [[nodiscard]] Bytes boundary(PackId pack, std::size_t rank) const noexcept {
    return Bytes{layer_.boundary * own_tokens(pack, rank).value};
  }
  /// Keys and values of `pages` pages.
  [[nodiscard]] Bytes page_bytes(std::int64_t pages, std::int64_t layers) const noexcept {
    return Bytes{layers * layer_.kv * page_.value * pages};
  }
  /// Pages that hold the owned tokens of [0, end).
  [[nodiscard]] std::int64_t pages(const CpShard& shard, Tokens end) const noexcept {
    return pages_of(shard.before(end), page_);
  }
  /// Gradients of keys and values of a sample of `length` tokens.
  [[nodiscard]] Bytes kv_gradient(const CpShard& shard, Tokens length,
                                  std::int64_t layers) const noexcept {
    return Bytes{layers * layer_.kv_gradient * shard.before(length).value};
  }
  /// Workspace of F or B of a pack, ring buffers included; the same on every stage.
  [[nodiscard]] Bytes pack_workspace(PackId pack, std::size_t rank) const noexcept;
  /// Workspace of any unit of device (dp, pp), 0 of R and O; `rank` is dp's position in the pack's
  /// group.
  [[nodiscard]] Bytes workspace(const Unit& unit, std::int32_t pp, std::size_t rank) const noexcept;

 private:
  struct Entry {
    std::array<Tokens, kRecomputeModes> by_mode{};
  };
  [[nodiscard]] const Entry& entry(PackId pack, std::size_t rank) const noexcept {
    SLIMPACK_ASSERT(first_[index(pack)] + rank < first_[index(pack) + 1]);
    return entries_[first_[index(pack)] + rank];
  }

  const Plan* plan_;
  LayerBytes layer_;
  Tokens page_;
  std::vector<std::size_t> first_;  // of a pack in entries_, and one past the last
  std::vector<Entry> entries_;
  std::vector<Bytes> exchange_;  // ring buffers, one a pack
};

namespace detail {

/// Buffers of a pack's ring: its slices exchange one after another, the largest counts.
[[nodiscard]] inline Bytes exchange_workspace(const Plan& plan, const MicroPack& pack,
                                              const LayerBytes& layer) {
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  if (ranks == 1) return {};
  std::int64_t most = 0;
  for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
    most =
        std::max(most, ring_buffer_bytes(layer, pack.slices[slot], pack.pass, pack.exchange[slot],
                                         ranks, plan.memory.cp_block_tokens));
  }
  return Bytes{most};
}

}  // namespace detail

inline MemoryModel::MemoryModel(const Plan& plan)
    : plan_(&plan),
      layer_(layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp)),
      page_(plan.memory.page_tokens),
      first_(plan.micropacks.size() + 1, 0) {
  require(page_.value > 0, "memory.page_tokens must be > 0", page_.value);
  const SliceIndex backward(plan, Pass::backward);
  exchange_.reserve(plan.micropacks.size());
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    require_pack(plan, static_cast<PackId>(i));
    const MicroPack& pack = plan.micropacks[i];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    first_[i + 1] = first_[i] + ranks;
    entries_.resize(first_[i + 1]);
    const auto add = [&](Recompute mode, const Slice& slice, Tokens begin, Tokens end) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        entries_[first_[i] + rank].by_mode[static_cast<std::size_t>(mode)] +=
            cp_shard_of(plan, pack.group, rank)
                .between(std::max(begin, slice.begin), std::min(end, slice.end));
      }
    };
    for (const Slice& slice : pack.slices) {
      if (pack.pass == Pass::backward) {
        add(pack.recompute, slice, slice.begin, slice.end);
        continue;
      }
      backward.for_each_overlap(
          slice.sample, slice.begin, slice.end, [&](const IndexedSlice& found) {
            add(plan.micropacks[index(found.pack)].recompute, slice, found.begin, found.end);
          });
    }
    exchange_.push_back(detail::exchange_workspace(plan, pack, layer_));
  }
}

inline Tokens MemoryModel::own_tokens(PackId pack, std::size_t rank) const noexcept {
  Tokens sum{0};
  for (const Tokens tokens : entry(pack, rank).by_mode) sum += tokens;
  return sum;
}

inline Bytes MemoryModel::kept(PackId pack, std::size_t rank, std::int64_t layers) const noexcept {
  Bytes sum;
  for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
    sum += Bytes{layers * layer_.kept[mode] * entry(pack, rank).by_mode[mode].value};
  }
  return sum;
}

inline Bytes MemoryModel::pack_workspace(PackId pack, std::size_t rank) const noexcept {
  const bool back = plan_->micropacks[index(pack)].pass == Pass::backward;
  const auto& per_token = back ? layer_.backward_workspace : layer_.forward_workspace;
  Bytes sum = exchange_[index(pack)];
  for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
    sum += Bytes{per_token[mode] * entry(pack, rank).by_mode[mode].value};
  }
  return sum;
}

inline Bytes MemoryModel::workspace(const Unit& unit, std::int32_t pp,
                                    std::size_t rank) const noexcept {
  switch (unit.kind) {
    case UnitKind::forward:
    case UnitKind::backward:
      return pack_workspace(unit.pack, rank);
    case UnitKind::head:
      return head_workspace(*plan_, pp, own_tokens(unit.pack, rank));
    default:
      return {};
  }
}

}  // namespace slimpack
