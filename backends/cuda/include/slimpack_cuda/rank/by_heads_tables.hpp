// SPDX-License-Identifier: Apache-2.0
// The tables of slices that a context-parallel group exchanges by heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention_tables.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"
#include "slimpack_cuda/rank/staging.hpp"

namespace slimpack::cuda {

/// Tokens of all slices by heads of a pack that a rank owns: of the slices, and of their samples up
/// to the slices' ends. The first token of either that a rank brings in the order of owners.
struct ByHeadsRows {
  std::int64_t rows = 0, keys = 0;
  std::int64_t first_row = 0, first_key = 0;
};

/// A slice by heads: its number in the call, and its first own key among those of the rank.
struct ByHeadsSlice {
  std::size_t segment = 0;
  std::int64_t first_key = 0;
};

/// What slices by heads are worked on with. Rows and keys stand in the order of owners: rank after
/// rank, slice after slice, tokens ascending.
struct ByHeadsTables {
  std::vector<ByHeadsSlice> slices;
  std::vector<ByHeadsRows> ranks;  ///< by rank of the group
  ByHeadsRows all;                 ///< of all ranks
  std::vector<TablePart<std::int32_t>> query, output,
      log_sum;                        ///< by layer: rows of the arena of the rank's own tokens
  TablePart<std::int32_t> gradient;   ///< the same among the rows of all blocks
  TablePart<std::int32_t> keys;       ///< rows of own keys (PackPlaces::key_row)
  TablePart<std::int32_t> key_order;  ///< of each key: its row where slices stand one by one
  AttentionPart attention;            ///< of a part of the heads, the same in all layers

  [[nodiscard]] bool empty() const noexcept { return slices.empty(); }
};

/// Whether the ranks of a group exchange a slice by heads: one rank's own tokens do not travel.
[[nodiscard]] inline bool travels_by_heads(const runtime::SegmentMemory& segment) {
  return segment.exchange == RingMode::by_heads && !segment.shard.undivided(segment.slice.end);
}

namespace detail {

/// Rows of the rank's own tokens, slice after slice; `row_of(piece)` is the first row of a piece.
template <class RowOf>
[[nodiscard]] TablePart<std::int32_t> add_own_rows(Tables& tables, const PackPlaces& places,
                                                   const ByHeadsTables& made, RowOf row_of) {
  std::vector<std::int32_t> rows;
  for (const ByHeadsSlice& slice : made.slices) {
    for (const runtime::PieceMemory& piece : places.segment(slice.segment).pieces) {
      const std::int64_t first = row_of(piece);
      for (std::int64_t r = 0; r < piece.piece.length().value; ++r) {
        rows.push_back(to_table(first + r));
      }
    }
  }
  return tables.add(rows);
}

/// Attention of all rows and keys in the order of owners. Gradients of keys stand slice after slice
/// instead, tokens ascending, as attention makes them.
[[nodiscard]] inline AttentionPart add_by_heads_attention(Tables& tables, const PackPlaces& places,
                                                          const ByHeadsTables& made) {
  std::vector<ByHeadsRows> next = made.ranks;  // of each rank, behind the slices before
  std::vector<KeyPage> pages;
  std::vector<AttentionSegment> segments;
  std::int64_t gradient = 0;
  const std::int64_t page = places.by_heads.shape.page_tokens;
  for (const ByHeadsSlice& one : made.slices) {
    const runtime::SegmentMemory& memory = places.segment(one.segment);
    const Slice& slice = memory.slice;
    const auto first_page = to_table(static_cast<std::int64_t>(pages.size()));
    for (std::int64_t at = 0; at < slice.end.value; at += page) {
      const auto owner = std::ranges::find_if(next, [&](const ByHeadsRows& rank) {
        return memory.shard.of(&rank - next.data()).owns(Tokens{at});
      });
      const Tokens before = memory.shard.of(owner - next.begin()).before(Tokens{at});
      pages.push_back({to_table(owner->first_key + before.value), to_table(at)});
    }
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      const CpShard shard = memory.shard.of(static_cast<std::int64_t>(rank));
      shard.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
        AttentionSegment& segment = segments.emplace_back();
        segment.rows = to_table((last - first).value);
        segment.position = to_table(first.value);
        segment.first_page = first_page;
        segment.keys = to_table(slice.end.value);
        segment.query_row =
            to_table(next[rank].first_row + shard.between(slice.begin, first).value);
        segment.output_row = segment.log_sum_row = segment.gradient_row = segment.query_row;
        segment.key_gradient_row = segment.value_gradient_row = to_table(gradient);
      });
      next[rank].first_row += shard.between(slice.begin, slice.end).value;
      next[rank].first_key += shard.before(slice.end).value;
    }
    gradient += slice.end.value;
  }
  return add_attention(tables, places.by_heads.shape.page_tokens, places.by_heads.tiles, 1,
                       std::move(pages), [&](std::int64_t) { return segments; });
}

}  // namespace detail

/// Nothing where no slice travels by heads. O(rows x layers + tokens x ranks / page).
[[nodiscard]] inline ByHeadsTables by_heads_tables(Tables& tables, const PackPlaces& places) {
  ByHeadsTables made;
  const runtime::PackCall& call = places.call;
  made.ranks.resize(call.ring.members.size());
  std::vector<std::int32_t> keys;
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    const runtime::SegmentMemory& segment = places.segment(i);
    if (!travels_by_heads(segment)) continue;
    made.slices.push_back({i, static_cast<std::int64_t>(keys.size())});
    for (std::int64_t own = 0; own < segment.shard.before(segment.slice.end).value; ++own) {
      keys.push_back(to_table(places.key_row(i, own)));
    }
    for (std::size_t rank = 0; rank < made.ranks.size(); ++rank) {
      const CpShard shard = segment.shard.of(static_cast<std::int64_t>(rank));
      made.ranks[rank].rows += shard.between(segment.slice.begin, segment.slice.end).value;
      made.ranks[rank].keys += shard.before(segment.slice.end).value;
    }
  }
  if (made.empty()) return made;
  for (ByHeadsRows& rank : made.ranks) {
    rank.first_row = made.all.rows;
    rank.first_key = made.all.keys;
    made.all.rows += rank.rows;
    made.all.keys += rank.keys;
  }
  made.keys = tables.add(keys);
  std::vector<std::int32_t> order;
  for (std::size_t rank = 0; rank < made.ranks.size(); ++rank) {
    std::int64_t first = 0;
    for (const ByHeadsSlice& slice : made.slices) {
      const runtime::SegmentMemory& segment = places.segment(slice.segment);
      const CpShard shard = segment.shard.of(static_cast<std::int64_t>(rank));
      for (std::int64_t own = 0; own < shard.before(segment.slice.end).value; ++own) {
        order.push_back(to_table(first + position_of(shard, own)));
      }
      first += segment.slice.end.value;
    }
  }
  made.key_order = tables.add(order);
  made.gradient =
      detail::add_own_rows(tables, places, made,
                           [&](const runtime::PieceMemory& piece) { return places.row_of(piece); });
  for (std::int64_t layer = 0; layer < places.layer_count(); ++layer) {
    const auto add = [&](std::int32_t AttentionSegment::* row) {
      return detail::add_own_rows(tables, places, made, [&](const runtime::PieceMemory& piece) {
        return detail::queries_of(places, piece, layer).*row;
      });
    };
    made.query.push_back(add(&AttentionSegment::query_row));
    made.output.push_back(add(&AttentionSegment::output_row));
    made.log_sum.push_back(add(&AttentionSegment::log_sum_row));
  }
  made.attention = detail::add_by_heads_attention(tables, places, made);
  return made;
}

}  // namespace slimpack::cuda
