// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan keeps on a device, per token and per unit (docs/equations.md, "Memory").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"

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

  /// Bytes of one layer and token, by kind; with tensor parallelism a tp-th.
  [[nodiscard]] const LayerBytes& layer() const noexcept { return layer_; }

  /// Tokens of a pack that the rank owns.
  [[nodiscard]] Tokens own_tokens(PackId pack, std::size_t rank) const noexcept;
  /// Rows of these tokens that a tensor-parallel device holds at most: summed over the pack's parts
  /// of one forward, one backward and one weight pack, of each the largest share
  /// (docs/equations.md). All tokens without tensor parallelism.
  [[nodiscard]] Tokens own_share(PackId pack, std::size_t rank) const noexcept;
  /// Rows of a pack that H has in work at a time on the device that has most (`head_tile_rows`).
  [[nodiscard]] std::int64_t head_rows(PackId pack, std::size_t rank) const noexcept {
    return head_tile_rows(*plan_, own_tokens(pack, rank), own_share(pack, rank));
  }
  /// Activations of a pack's tokens on one chunk: allocated when a forward pack starts, freed when
  /// a backward pack ends. Both sum to the same over all packs. Not of weight packs.
  [[nodiscard]] Bytes kept(PackId pack, std::size_t rank, std::int64_t layers) const noexcept;
  /// Hidden states of a pack's tokens: message, buffer, last layer's output, hidden gradients.
  [[nodiscard]] Bytes boundary(PackId pack, std::size_t rank) const noexcept {
    return Bytes{split_.token.boundary * own_tokens(pack, rank).value +
                 split_.row.boundary * own_share(pack, rank).value};
  }
  /// Pages of keys and values on one chunk: F: those that it touches first; B: all of the samples
  /// whose backward ends here. Both sum to the same over all packs.
  [[nodiscard]] Bytes keys_values(PackId pack, std::size_t rank,
                                  std::int64_t layers) const noexcept {
    return key_bytes(layers * split_.token.kv * page_.value, entry(pack, rank), &Keys::pages);
  }
  /// Gradients of keys and values on one chunk, of samples whose backward begins in this B.
  [[nodiscard]] Bytes begun_gradients(PackId pack, std::size_t rank,
                                      std::int64_t layers) const noexcept {
    return key_bytes(layers * split_.token.kv_gradient, entry(pack, rank), &Keys::begun);
  }
  /// The same of samples whose backward ends in this B.
  [[nodiscard]] Bytes ended_gradients(PackId pack, std::size_t rank,
                                      std::int64_t layers) const noexcept {
    return key_bytes(layers * split_.token.kv_gradient, entry(pack, rank), &Keys::ended);
  }
  /// What B of a pack makes for W on one chunk, from its start to its end, if it leaves weights
  /// apart; else nothing.
  [[nodiscard]] Bytes made_apart(PackId pack, std::size_t rank, std::int64_t layers) const noexcept;
  /// What such a B leaves on one chunk at its end, or a weight pack's W frees at its own. Both sum
  /// to the same over all packs; nothing of other packs.
  [[nodiscard]] Bytes left_apart(PackId pack, std::size_t rank, std::int64_t layers) const noexcept;
  /// Workspace of F, B or W of a pack, ring buffers included; the same on every stage.
  [[nodiscard]] Bytes pack_workspace(PackId pack, std::size_t rank) const noexcept;
  /// Workspace of any unit of device (dp, pp), 0 of R and O; `rank` is dp's position in the pack's
  /// group.
  [[nodiscard]] Bytes workspace(const Unit& unit, std::int32_t pp, std::size_t rank) const noexcept;

 private:
  using ByMode = std::array<Tokens, kRecomputeModes>;
  struct Keys {
    std::int64_t pages = 0;  // F: first touched; B: of samples that end here
    std::int64_t begun = 0;  // B: tokens of samples that keep gradients and begin here
    std::int64_t ended = 0;  // the same of samples that end here
  };
  struct Entry {
    ByMode by_mode{};
    Keys own, by_heads;      // of own tokens with all heads, and of all tokens with a part of them
    std::int64_t parts = 1;  // those parts
    Tokens made_again;       // B: whose keys and values no page holds
  };
  [[nodiscard]] static Bytes key_bytes(std::int64_t each, const Entry& entry,
                                       std::int64_t Keys::* keys) noexcept {
    return Bytes{each * (entry.own.*keys) + each / entry.parts * (entry.by_heads.*keys)};
  }
  [[nodiscard]] const Entry& entry(PackId pack, std::size_t rank) const noexcept {
    SLIMPACK_ASSERT(first_[index(pack)] + rank < first_[index(pack) + 1]);
    return entries_[first_[index(pack)] + rank];
  }
  /// The largest share of the rows of the entry's tokens.
  [[nodiscard]] const ByMode& share(const Entry& entry) const noexcept {
    return shares_.empty() ? entry.by_mode
                           : shares_[static_cast<std::size_t>(&entry - entries_.data())];
  }

  void add_keys(Entry& entry, const MicroPack& pack, const Slice& slice, const CpShard& own,
                KeptKeys kept) const;
  void add_shares(const SliceIndex& backward);
  [[nodiscard]] Bytes by_mode(const std::array<std::int64_t, kRecomputeModes>& token,
                              const std::array<std::int64_t, kRecomputeModes>& row,
                              const Entry& entry) const noexcept {
    const ByMode& shares = share(entry);
    Bytes sum;
    for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
      sum += Bytes{token[mode] * entry.by_mode[mode].value + row[mode] * shares[mode].value};
    }
    return sum;
  }

  const Plan* plan_;
  LayerBytes layer_;
  SplitBytes split_;
  Tokens page_;
  std::vector<std::size_t> first_;  // of a pack in entries_, and one past the last
  std::vector<Entry> entries_;
  std::vector<ByMode> shares_;   // of each entry; none where each device has all rows
  std::vector<Bytes> exchange_;  // ring buffers, one a pack
};

namespace detail {

/// Buffers of a pack's exchange: rings of its slices run one after another, the largest counts;
/// slices by heads are exchanged together, on the rank that needs most.
[[nodiscard]] inline Bytes exchange_workspace(const Plan& plan, const MicroPack& pack,
                                              const LayerBytes& layer) {
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  if (ranks == 1 || pack.pass == Pass::weight) return {};
  std::int64_t most = 0;
  for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
    most =
        std::max(most, ring_buffer_bytes(layer, pack.slices[slot], pack.pass, pack.exchange[slot],
                                         ranks, plan.memory.cp_block_tokens));
  }
  return Bytes{most + head_buffer_bytes(plan, pack, layer)};
}

}  // namespace detail

inline MemoryModel::MemoryModel(const Plan& plan)
    : plan_(&plan),
      layer_(layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp)),
      split_(split_bytes(plan, element_bytes_of(plan.model, plan.memory.gradient_bytes))),
      page_(plan.memory.page_tokens),
      first_(plan.micropacks.size() + 1, 0) {
  require(page_.value > 0, "memory.page_tokens must be > 0", page_.value);
  PassPacks backward(plan, Pass::backward);
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    require_pack_of_samples(plan, static_cast<PackId>(i));
    first_[i + 1] = first_[i] + plan.groups[index(plan.micropacks[i].group)].size();
  }
  entries_.resize(first_.back());
  const std::vector<KeptKeys> keys = kept_keys(plan);
  exchange_.reserve(plan.micropacks.size());
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    Entry* entries = entries_.data() + first_[i];
    const auto shard = [&](const Slice& slice, std::size_t rank) {
      return cp_shard_of(plan, slice.sample, rank);
    };
    const CpShard alone;  // of a group of one rank
    const auto add = [&](Recompute mode, const Slice& slice, Tokens begin, Tokens end) {
      const Tokens from = std::max(begin, slice.begin), to = std::min(end, slice.end);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        entries[rank].by_mode[static_cast<std::size_t>(mode)] +=
            ranks == 1 ? to - from : shard(slice, rank).between(from, to);
      }
    };
    // Where both passes have the same packs nobody has to ask where each slice goes.
    std::optional<PackId> twin;
    if (pack.pass == Pass::forward) twin = backward.twin(pack);
    const bool alike = twin.has_value();
    for (const Slice& slice : pack.slices) {
      for (std::size_t rank = 0; rank < ranks && pack.pass != Pass::weight; ++rank) {
        add_keys(entries[rank], pack, slice, ranks == 1 ? alone : shard(slice, rank),
                 keys[index(slice.sample)]);
      }
      if (pack.pass != Pass::forward || alike) {
        add(alike ? plan.micropacks[index(*twin)].recompute : pack.recompute, slice, slice.begin,
            slice.end);
        continue;
      }
      backward.slices().for_each_overlap(
          slice.sample, slice.begin, slice.end, [&](const IndexedSlice& found) {
            add(plan.micropacks[index(found.pack)].recompute, slice, found.begin, found.end);
          });
    }
    exchange_.push_back(detail::exchange_workspace(plan, pack, split_.token));
  }
  if (splits_rows(plan)) add_shares(backward.slices());
}

/// Parts of a pack are found from its forward pack.
inline void MemoryModel::add_shares(const SliceIndex& backward) {
  const Plan& plan = *plan_;
  const SliceIndex weight(plan, Pass::weight);
  shares_.resize(entries_.size());
  using Part = std::pair<PackId, std::optional<PackId>>;  // of its backward and weight pack
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.pass != Pass::forward) continue;
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    std::map<Part, std::vector<TensorShares>> parts;
    for (const Slice& slice : pack.slices) {
      const auto add = [&](const Part& part, Tokens begin, Tokens end) {
        auto& shares = parts.try_emplace(part, ranks, TensorShares(plan.parallel.tp)).first->second;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          cp_shard_of(plan, slice.sample, rank)
              .for_each_run(begin, end, [&](Tokens first, Tokens last) {
                shares[rank].add(slice.sample, first, last);
              });
        }
      };
      backward.for_each_overlap(slice.sample, slice.begin, slice.end, [&](const auto& back) {
        const Tokens begin = std::max(slice.begin, back.begin), end = std::min(slice.end, back.end);
        if (plan.micropacks[index(back.pack)].weights == WeightGradients::with) {
          return add({back.pack, std::nullopt}, begin, end);
        }
        weight.for_each_overlap(slice.sample, begin, end, [&](const auto& left) {
          add({back.pack, left.pack}, std::max(begin, left.begin), std::min(end, left.end));
        });
      });
    }
    for (const auto& [part, shares] : parts) {
      const auto mode = static_cast<std::size_t>(plan.micropacks[index(part.first)].recompute);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Tokens share = shares[rank].largest();
        shares_[first_[i] + rank][mode] += share;
        shares_[first_[index(part.first)] + rank][mode] += share;
        if (part.second) shares_[first_[index(*part.second)] + rank][0] += share;
      }
    }
  }
}

inline void MemoryModel::add_keys(Entry& entry, const MicroPack& pack, const Slice& slice,
                                  const CpShard& own, KeptKeys kept) const {
  const auto pages = [&](Tokens end) {
    return kept.pages ? pages_of(kept.tokens(own, end), page_) : 0;
  };
  Keys& keys = kept.by_heads ? entry.by_heads : entry.own;
  if (kept.by_heads) entry.parts = kept.parts;
  if (pack.pass == Pass::forward) {
    keys.pages += pages(slice.end) - pages(slice.begin);
    return;
  }
  // What keeps no gradients is one backward slice.
  const Tokens length = kept.gradients ? plan_->samples[index(slice.sample)] : slice.end;
  if (slice.begin == Tokens{}) keys.pages += pages(length);
  if (!kept.pages) entry.made_again += own.before(length);
  if (!kept.gradients) return;
  const std::int64_t tokens = kept.tokens(own, length).value;
  if (slice.end == length) keys.begun += tokens;
  if (slice.begin == Tokens{}) keys.ended += tokens;
}

inline Tokens MemoryModel::own_tokens(PackId pack, std::size_t rank) const noexcept {
  Tokens sum{0};
  for (const Tokens tokens : entry(pack, rank).by_mode) sum += tokens;
  return sum;
}

inline Tokens MemoryModel::own_share(PackId pack, std::size_t rank) const noexcept {
  Tokens sum{0};
  for (const Tokens rows : share(entry(pack, rank))) sum += rows;
  return sum;
}

inline Bytes MemoryModel::kept(PackId pack, std::size_t rank, std::int64_t layers) const noexcept {
  return by_mode(split_.token.kept, split_.row.kept, entry(pack, rank)) * layers;
}

inline Bytes MemoryModel::made_apart(PackId pack, std::size_t rank,
                                     std::int64_t layers) const noexcept {
  const MicroPack& facts = plan_->micropacks[index(pack)];
  if (facts.weights == WeightGradients::with) return {};
  return by_mode(split_.token.made_apart, split_.row.made_apart, entry(pack, rank)) * layers;
}

inline Bytes MemoryModel::left_apart(PackId pack, std::size_t rank,
                                     std::int64_t layers) const noexcept {
  const MicroPack& facts = plan_->micropacks[index(pack)];
  if (facts.pass != Pass::weight && facts.weights == WeightGradients::with) return {};
  return Bytes{layers * (split_.token.left_apart * own_tokens(pack, rank).value +
                         split_.row.left_apart * own_share(pack, rank).value)};
}

inline Bytes MemoryModel::pack_workspace(PackId pack, std::size_t rank) const noexcept {
  const Bytes gathered{gathered_bytes(
      *plan_, element_bytes_of(plan_->model, plan_->memory.gradient_bytes), own_share(pack, rank))};
  if (plan_->micropacks[index(pack)].pass == Pass::weight) {
    return left_apart(pack, rank, 1) + gathered;
  }
  const bool back = plan_->micropacks[index(pack)].pass == Pass::backward;
  const auto workspace = [back](const LayerBytes& layer) {
    return back ? layer.backward_workspace : layer.forward_workspace;
  };
  return exchange_[index(pack)] + gathered +
         Bytes{split_.token.kv * entry(pack, rank).made_again.value} +
         by_mode(workspace(split_.token), workspace(split_.row), entry(pack, rank));
}

inline Bytes MemoryModel::workspace(const Unit& unit, std::int32_t pp,
                                    std::size_t rank) const noexcept {
  switch (unit.kind) {
    case UnitKind::forward:
    case UnitKind::backward:
    case UnitKind::weight:
      return pack_workspace(unit.pack, rank);
    case UnitKind::head:
      return head_workspace(*plan_, pp, own_tokens(unit.pack, rank), own_share(unit.pack, rank));
    default:
      return {};
  }
}

}  // namespace slimpack
