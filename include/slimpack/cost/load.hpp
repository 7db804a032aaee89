// SPDX-License-Identifier: Apache-2.0
// Exact work of every MicroPack of a plan on every rank of its group.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Adds a slice to what `shard`'s rank has to do: its own queries against all keys before them
/// (`pass_kv`, and every slice of a group of one), all queries of the slice against its own keys
/// (`pass_q`), or all of them against all keys with its part of the heads (`by_heads`; of each
/// amount that part, rounded up). A query counts half a pair with its own key, so that a slice of s
/// tokens after P others has s (2P + s) / 2 pairs. The last rows of each run of query rows are
/// filled up to `tile` rows, each with the mean keys of those it joins. Sets `ranks`, leaves
/// `runs`. O(blocks of the slice).
inline void add_slice(PackLoad& load, const Slice& slice, RingMode exchange, const CpShard& shard,
                      Tokens tile);

/// The load of a pack on one rank of its group. O(plan) for backward and weight packs, because
/// `runs` asks where the packs before laid the rows; for many packs take PackLoads.
/// Throws InvalidInput if the pack, the rank, its group or a sample does not exist.
[[nodiscard]] inline PackLoad pack_load(const Plan& plan, PackId pack, std::size_t rank);

/// Calls visit(pack, loads) for the packs of a plan as they are listed, with the loads on all ranks
/// of the pack's group, which last as long as the call; they are those of PackLoads. O(n log n) in
/// slices times ranks. Throws InvalidInput if a group or sample does not exist or a pack of a
/// context-parallel group lacks a ring mode for a slice.
template <std::invocable<PackId, std::span<const PackLoad>> Visit>
void for_each_pack_load(const Plan& plan, Visit&& visit);

/// The loads of all packs of a plan on all ranks of their groups.
///
/// `runs` of a backward pack: saved tensors lie forward pack by forward pack, a rank's own tokens
/// in the order of the slices. A run is a maximal stretch of the backward pack's rows that is
/// contiguous inside one forward pack; the order of slices in the backward pack does not matter. Of
/// a weight pack the same, in the backward packs that have left its rows. A weight pack has neither
/// pairs, keys nor exchange.
class PackLoads {
 public:
  /// O(n log n) in slices times ranks. Throws as `for_each_pack_load` does.
  explicit PackLoads(const Plan& plan) : first_{0} {
    first_.reserve(plan.micropacks.size() + 1);
    loads_.reserve(plan.micropacks.size());
    for_each_pack_load(plan, [this](PackId, std::span<const PackLoad> loads) {
      loads_.insert(loads_.end(), loads.begin(), loads.end());
      first_.push_back(loads_.size());
    });
  }

  /// O(1). The pack and the rank must exist.
  [[nodiscard]] const PackLoad& operator()(PackId pack, std::size_t rank) const noexcept {
    SLIMPACK_ASSERT(first_[index(pack)] + rank < first_[index(pack) + 1]);
    return loads_[first_[index(pack)] + rank];
  }
  /// Ranks of the pack's group.
  [[nodiscard]] std::size_t ranks(PackId pack) const noexcept {
    return first_[index(pack) + 1] - first_[index(pack)];
  }
  /// MicroPacks of the plan.
  [[nodiscard]] std::size_t packs() const noexcept { return first_.size() - 1; }

 private:
  std::vector<std::size_t> first_;  // of a pack in loads_, and one past the last
  std::vector<PackLoad> loads_;
};

/// Rows added to a run of `rows` query rows so that they fill tiles; none where `tile` is 0.
[[nodiscard]] constexpr std::int64_t missing_rows(std::int64_t rows, std::int64_t tile) noexcept {
  return tile > 0 ? (tile - rows % tile) % tile : 0;
}

/// The square of a number of tokens, as twice the pairs of that many tokens among themselves.
[[nodiscard]] constexpr std::int64_t square(Tokens tokens) noexcept {
  return tokens.value * tokens.value;
}

/// Adds one run [first, last) of query rows against the keys that `keys(n)` counts in [0, n);
/// `pairs2` is twice the pairs of the run. O(1).
template <std::invocable<Tokens> Keys>
void add_run(PackLoad& load, Tokens first, Tokens last, std::int64_t pairs2, Tokens tile,
             const Keys& keys) {
  const std::int64_t missing = missing_rows((last - first).value, tile.value);
  const std::int64_t partial = missing == 0 ? 0 : tile.value - missing;
  load.pairs2 += pairs2;
  load.own_pairs2 += pairs2 - 2 * keys(first).value * (last - first).value;
  load.filled_pairs2 += pairs2 + missing * (keys(last) + keys(last - Tokens{partial})).value;
  ++load.segments;
}

namespace detail {

/// Twice the pairs of queries [first, last) with own keys: both ends of a pair in [first, last)
/// count it once for the query's own key.
[[nodiscard]] inline std::int64_t own_key_pairs2(Tokens first, Tokens last, const CpShard& shard) {
  std::int64_t pairs2 = 2 * shard.before(first).value * (last - first).value;
  shard.for_each_run(first, last, [&](Tokens begin, Tokens end) {
    pairs2 += square(last - begin) - square(last - end);
  });
  return pairs2;
}

/// The first token after `position` that another rank owns, at most `end`. Neighbouring blocks
/// share an owner where the zigzag turns: turns 2g-1 and 0, turns g-1 and g.
[[nodiscard]] constexpr Tokens owner_run_end(Tokens position, Tokens end,
                                             const CpShard& shard) noexcept {
  const std::int64_t block = position / shard.block;
  const bool turns = (block + 1) % shard.ranks == 0;
  return std::min(shard.block * (block + (turns ? 2 : 1)), end);
}

/// Adds a slice of which each rank attends to all with an equal part of the heads.
inline void add_by_heads(PackLoad& load, const Slice& slice, Tokens own, const CpShard& shard,
                         Tokens tile) {
  PackLoad all;
  add_run(all, slice.begin, slice.end, square(slice.end) - square(slice.begin), tile,
          [](Tokens position) { return position; });
  all.keys = slice.end.value;
  for (const AttentionAmount& amount : kAttentionAmounts) {
    const std::int64_t part = (all.*amount.all + shard.ranks - 1) / shard.ranks;
    load.*amount.all += part;
    load.*amount.alone += part;
  }
  ++load.segments;
  load.heads_sent += own;
}

}  // namespace detail

inline void add_slice(PackLoad& load, const Slice& slice, RingMode exchange, const CpShard& shard,
                      Tokens tile) {
  const Tokens own = shard.between(slice.begin, slice.end);
  load.ranks = shard.ranks;
  load.tokens += own;
  if (shard.ranks == 1 || exchange == RingMode::pass_kv) {
    shard.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
      add_run(load, first, last, square(last) - square(first), tile,
              [](Tokens position) { return position; });
    });
    load.kv_received += slice.end - shard.before(slice.end);
    if (shard.ranks > 1) load.kv_sent += shard.before(slice.end);
    if (own.value > 0) load.keys += slice.end.value;
    return;
  }
  if (exchange == RingMode::by_heads) return detail::add_by_heads(load, slice, own, shard, tile);
  load.q_received += slice.length() - own;
  const Tokens own_keys = shard.before(slice.end);
  if (own_keys.value == 0) return;
  load.keys += own_keys.value;
  for (Tokens first = slice.begin; first < slice.end;) {
    const Tokens last = detail::owner_run_end(first, slice.end, shard);
    const std::int64_t pairs2 = detail::own_key_pairs2(first, last, shard);
    if (pairs2 > 0) {
      add_run(load, first, last, pairs2, tile,
              [&](Tokens position) { return shard.before(position); });
    }
    first = last;
  }
}

/// Adds the `slot`-th slice of a forward or backward pack to what the `rank`-th rank of its group
/// has to do. Since version 3 nothing travels of what one rank owns.
inline void add_slot(PackLoad& load, const Plan& plan, const MicroPack& pack, std::size_t slot,
                     std::size_t rank) {
  const Slice& slice = pack.slices[slot];
  const Tokens tile{plan.cluster.tile_tokens};
  // Of a rank alone nobody has to look samples up, which lie far apart in memory.
  if (plan.groups[index(pack.group)].size() == 1) {
    return add_slice(load, slice, RingMode::pass_kv, CpShard{}, tile);
  }
  const CpShard shard = cp_shard_of(plan, slice.sample, rank);
  if (plan.version < 3 || !shard.undivided(slice.end) ||
      is_by_heads(plan, slice, pack.exchange[slot])) {
    return add_slice(load, slice, pack.exchange[slot], shard, tile);
  }
  load.ranks = shard.ranks;
  if (!shard.owns(slice.begin)) return;
  PackLoad alone;
  add_slice(alone, slice, RingMode::pass_kv, CpShard{}, tile);
  load.tokens += alone.tokens;
  load.segments += alone.segments;
  for (const AttentionAmount& amount : kAttentionAmounts) {
    load.*amount.all += alone.*amount.all;
    load.*amount.alone += alone.*amount.all;
  }
}

namespace detail {

[[nodiscard]] inline PackLoad load_without_runs(const Plan& plan, PackId id, std::size_t rank) {
  const MicroPack& pack = plan.micropacks[index(id)];
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  PackLoad load;
  if (pack.pass == Pass::weight) {
    for (const Slice& slice : pack.slices) {
      load.tokens += ranks == 1
                         ? slice.length()
                         : cp_shard_of(plan, slice.sample, rank).between(slice.begin, slice.end);
    }
    return load;
  }
  load.ranks = ranks;
  for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
    add_slot(load, plan, pack, slot, rank);
  }
  if (load.heads_sent > Tokens{}) load.head_sets = head_sets_of(plan, pack);
  return load;
}

/// A stretch of a backward pack's rows inside one forward slice, or of a weight pack's inside one
/// backward slice.
struct SavedPiece {
  std::size_t pack = 0;
  std::uint32_t slot = 0;
  Tokens begin, end;              // in the sample
  Tokens slice_begin, slice_end;  // of that slice
};

/// Runs of saved rows on one rank; `pieces` are sorted by pack and slot, one a slot.
[[nodiscard]] inline std::int64_t count_runs(const Plan& plan,
                                             const std::vector<SavedPiece>& pieces,
                                             std::size_t rank) {
  std::int64_t runs = 0;
  const SavedPiece* open = nullptr;
  const bool alone =
      pieces.empty() || plan.groups[index(plan.micropacks[pieces.front().pack].group)].size() == 1;
  const auto owns_some = [&](SampleId sample, Tokens begin, Tokens end) {
    const CpShard shard = alone ? CpShard{} : cp_shard_of(plan, sample, rank);
    return shard.between(begin, end).value > 0;
  };
  const auto owns = [&](const SavedPiece& piece, Tokens begin, Tokens end) {
    return owns_some(plan.micropacks[piece.pack].slices[piece.slot].sample, begin, end);
  };
  for (const SavedPiece& piece : pieces) {
    if (!owns(piece, piece.begin, piece.end)) continue;
    bool joined = open != nullptr && open->pack == piece.pack &&
                  !owns(*open, open->end, open->slice_end) &&
                  !owns(piece, piece.slice_begin, piece.begin);
    for (std::size_t slot = joined ? open->slot + 1 : piece.slot; slot < piece.slot; ++slot) {
      const Slice& between = plan.micropacks[piece.pack].slices[slot];
      if (!owns_some(between.sample, between.begin, between.end)) continue;
      joined = false;
      break;
    }
    if (!joined) ++runs;
    open = &piece;
  }
  return runs;
}

/// Fills `pieces` with what packs of the pass before saved for a pack, by pack and slot.
inline void find_saved_pieces(std::vector<SavedPiece>& pieces, const MicroPack& pack,
                              const SliceIndex& before) {
  pieces.clear();
  for (const Slice& slice : pack.slices) {
    before.for_each_overlap(slice.sample, slice.begin, slice.end, [&](const IndexedSlice& found) {
      pieces.push_back({index(found.pack), found.slot, std::max(slice.begin, found.begin),
                        std::min(slice.end, found.end), found.begin, found.end});
    });
  }
  const auto earlier = [](const SavedPiece& a, const SavedPiece& b) {
    return a.pack != b.pack ? a.pack < b.pack : a.slot < b.slot;
  };
  if (!std::is_sorted(pieces.begin(), pieces.end(), earlier)) {
    std::sort(pieces.begin(), pieces.end(), earlier);
  }
}

}  // namespace detail

inline PackLoad pack_load(const Plan& plan, PackId pack, std::size_t rank) {
  require_pack(plan, pack);
  const MicroPack& micropack = plan.micropacks[index(pack)];
  require(rank < plan.groups[index(micropack.group)].size(), "rank of the group does not exist",
          static_cast<std::int64_t>(rank));
  PackLoad load = detail::load_without_runs(plan, pack, rank);
  if (micropack.pass != Pass::forward) {
    std::vector<detail::SavedPiece> pieces;
    const bool back = micropack.pass == Pass::backward;
    detail::find_saved_pieces(pieces, micropack,
                              SliceIndex(plan, back ? Pass::forward : Pass::backward));
    load.runs = detail::count_runs(plan, pieces, rank);
  }
  return load;
}

template <std::invocable<PackId, std::span<const PackLoad>> Visit>
void for_each_pack_load(const Plan& plan, Visit&& visit) {
  PassPacks forward(plan, Pass::forward), backward(plan, Pass::backward);
  std::vector<PackLoad> loads;  // of one pack
  std::vector<detail::SavedPiece> pieces;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const auto id = static_cast<PackId>(i);
    require_pack_of_samples(plan, id);
    const MicroPack& pack = plan.micropacks[i];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    loads.clear();
    PassPacks* before = nullptr;  // of the pass that saved its rows
    if (pack.pass != Pass::forward) before = pack.pass == Pass::weight ? &backward : &forward;
    std::optional<PackId> twin;  // the pack that saved all of its rows
    if (before != nullptr) twin = before->twin(pack);
    if (before != nullptr && !twin) detail::find_saved_pieces(pieces, pack, before->slices());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      PackLoad& load = loads.emplace_back(detail::load_without_runs(plan, id, rank));
      if (before == nullptr) continue;
      if (twin) {
        load.runs = load.tokens.value > 0 ? 1 : 0;
      } else {
        load.runs = detail::count_runs(plan, pieces, rank);
      }
    }
    visit(id, std::span<const PackLoad>(loads));
  }
}

}  // namespace slimpack
