// SPDX-License-Identifier: Apache-2.0
// The tables of an F or B: where the rows of a pack's blocks, slices and keys lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/attention_tables.hpp"
#include "slimpack_cuda/cross_entropy.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/staging.hpp"
#include "slimpack_cuda/rope_tables.hpp"
#include "slimpack_cuda/row_tables.hpp"

namespace slimpack::cuda {

/// The position of a rank's `own`-th token in the sample.
[[nodiscard]] constexpr std::int64_t position_of(const CpShard& shard, std::int64_t own) noexcept {
  if (shard.ranks == 1) return own;
  const std::int64_t block = own / shard.block.value;  // every cycle of 2 x ranks has two of them
  const std::int64_t turn = block % 2 == 0 ? shard.rank : 2 * shard.ranks - 1 - shard.rank;
  return (block / 2 * 2 * shard.ranks + turn) * shard.block.value + own % shard.block.value;
}

/// Tokens of a page as attention sees it: its keys stand at consecutive positions, which in a
/// context-parallel group only those of one CP block do.
[[nodiscard]] constexpr std::int32_t attention_page(Tokens page, const CpShard& shard) noexcept {
  return static_cast<std::int32_t>(shard.ranks == 1 ? page.value
                                                    : std::gcd(page.value, shard.block.value));
}

/// What the tables of a call are made from.
struct PackPlaces {
  const runtime::PackCall& call;
  std::span<const std::vector<BlockRows>> layers;  ///< of the stage
  const DeviceArena& arena;
  const ModelShape& model;
  Tokens page;           ///< of memory
  AttentionShape shape;  ///< with attention's page
  AttentionTiles tiles;

  [[nodiscard]] std::int64_t layer_count() const {
    return static_cast<std::int64_t>(layers.size());
  }
  /// The row of an own key among all of the arena, in the stage's first layer.
  [[nodiscard]] std::int64_t key_row(const runtime::SegmentMemory& segment,
                                     std::int64_t own) const {
    const auto* page_at =
        elements<Bf16>(segment.pages[static_cast<std::size_t>(own / page.value)]).data;
    return arena.row_of(page_at, model.key_width()) + own % page.value;
  }
  /// Own tokens of the segment's sample, where gradients are held.
  [[nodiscard]] std::int64_t own_tokens(const runtime::SegmentMemory& segment) const {
    return elements<float>(segment.gradients).size / (layer_count() * 2 * model.key_width());
  }
  /// The row of the gradient of own key 0 in a layer; that of its value comes own_tokens behind.
  [[nodiscard]] std::int64_t gradient_row(const runtime::SegmentMemory& segment,
                                          std::int64_t layer) const {
    if (segment.gradients.empty()) return 0;
    return arena.row_of(elements<float>(segment.gradients).data, model.key_width()) +
           layer * 2 * own_tokens(segment);
  }
  /// The place of a piece among the rows of all blocks.
  [[nodiscard]] std::int64_t row_of(const runtime::PieceMemory& piece) const {
    return layers.front()[piece.block].first + piece.row.value;
  }
};

/// Attention's work in every layer: rows differ, tiles do not.
struct AttentionPart {
  std::vector<TablePart<AttentionSegment>> segments;  ///< by layer
  TablePart<KeyPage> pages;
  TablePart<QueryTile> query_tiles;
  TablePart<KeyTile> key_tiles;

  [[nodiscard]] AttentionWork work(const TableRing& ring, std::int64_t layer) const {
    return {ring.span(segments[static_cast<std::size_t>(layer)]), ring.span(pages),
            ring.span(query_tiles), ring.span(key_tiles)};
  }
};

namespace detail {

/// `segments_of(layer)` gives the same segments in every layer but for their rows.
template <class Segments>
[[nodiscard]] AttentionPart add_attention(Tables& tables, const PackPlaces& places,
                                          std::vector<KeyPage> pages, Segments segments_of) {
  AttentionPart part;
  for (std::int64_t layer = 0; layer < places.layer_count(); ++layer) {
    if (layer > 0) {
      part.segments.push_back(tables.add(segments_of(layer)));
      continue;
    }
    const AttentionTables first =
        attention_tables(segments_of(layer), std::move(pages), places.shape.page_tokens,
                         places.tiles.query, places.tiles.key);
    part.segments.push_back(tables.add(first.segments));
    part.pages = tables.add(first.pages);
    part.query_tiles = tables.add(first.query_tiles);
    part.key_tiles = tables.add(first.key_tiles);
  }
  return part;
}

/// Pages of the first `keys` tokens of a rank; `row_of(own)` is where the key of one lies.
template <class RowOf>
void add_pages(std::vector<KeyPage>& pages, const PackPlaces& places, const CpShard& shard,
               std::int64_t keys, RowOf row_of) {
  for (std::int64_t own = 0; own < keys; own += places.shape.page_tokens) {
    pages.push_back({to_table(row_of(own)), to_table(position_of(shard, own))});
  }
}

/// The queries of a piece with what attention makes of them, in a layer.
[[nodiscard]] inline AttentionSegment queries_of(const PackPlaces& places,
                                                 const runtime::PieceMemory& piece,
                                                 std::int64_t layer) {
  const BlockRows& block = places.layers[static_cast<std::size_t>(layer)][piece.block];
  const std::int64_t q = places.model.query_width(), row = piece.row.value;
  AttentionSegment segment;
  segment.rows = to_table(piece.piece.length().value);
  segment.position = to_table(piece.piece.begin.value);
  segment.query_row = to_table(places.arena.row_of(block.query.data, q) + row);
  segment.output_row = to_table(places.arena.row_of(block.attention.data, q) + row);
  segment.log_sum_row = to_table(places.arena.row_of(block.log_sum.data, places.model.heads) + row);
  segment.gradient_row = to_table(places.row_of(piece));
  return segment;
}

}  // namespace detail

/// All slices of the pack, each with the keys that the rank has of its sample.
[[nodiscard]] inline AttentionPart own_attention(Tables& tables, const PackPlaces& places) {
  std::vector<KeyPage> pages;
  std::vector<std::int32_t> first_page;
  for (const runtime::SegmentMemory& segment : places.call.segments) {
    first_page.push_back(to_table(static_cast<std::int64_t>(pages.size())));
    detail::add_pages(pages, places, places.call.shard,
                      places.call.shard.before(segment.slice.end).value,
                      [&](std::int64_t own) { return places.key_row(segment, own); });
  }
  return detail::add_attention(tables, places, std::move(pages), [&](std::int64_t layer) {
    std::vector<AttentionSegment> segments;
    for (std::size_t i = 0; i < places.call.segments.size(); ++i) {
      const runtime::SegmentMemory& memory = places.call.segments[i];
      for (const runtime::PieceMemory& piece : memory.pieces) {
        AttentionSegment& segment = segments.emplace_back(detail::queries_of(places, piece, layer));
        segment.first_page = first_page[i];
        segment.keys = to_table(places.call.shard.before(memory.slice.end).value);
        segment.key_gradient_row = to_table(places.gradient_row(memory, layer));
        segment.value_gradient_row = segment.key_gradient_row + to_table(places.own_tokens(memory));
      }
    }
    return segments;
  });
}

/// The queries of a slice with the keys of one owner, which stand in a row of their own. Results go
/// to the rows of the blocks or, with `partial`, to rows counted over all blocks.
[[nodiscard]] inline AttentionPart travelling_keys(Tables& tables, const PackPlaces& places,
                                                   const runtime::SegmentMemory& memory,
                                                   const CpShard& owner, bool partial) {
  const std::int64_t keys = owner.before(memory.slice.end).value;
  std::vector<KeyPage> pages;
  detail::add_pages(pages, places, owner, keys, [](std::int64_t own) { return own; });
  return detail::add_attention(tables, places, std::move(pages), [&](std::int64_t layer) {
    std::vector<AttentionSegment> segments;
    for (const runtime::PieceMemory& piece : memory.pieces) {
      AttentionSegment& segment = segments.emplace_back(detail::queries_of(places, piece, layer));
      segment.keys = to_table(keys);
      if (partial) segment.output_row = segment.log_sum_row = segment.gradient_row;
    }
    return segments;
  });
}

/// The queries of one owner of a slice, which stand in a row of their own, with the keys that the
/// rank has of its sample.
[[nodiscard]] inline AttentionPart travelling_queries(Tables& tables, const PackPlaces& places,
                                                      const runtime::SegmentMemory& memory,
                                                      const CpShard& owner) {
  const Slice& slice = memory.slice;
  const std::int64_t keys = places.call.shard.before(slice.end).value;
  std::vector<KeyPage> pages;
  detail::add_pages(pages, places, places.call.shard, keys,
                    [&](std::int64_t own) { return places.key_row(memory, own); });
  return detail::add_attention(tables, places, std::move(pages), [&](std::int64_t layer) {
    std::vector<AttentionSegment> segments;
    owner.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
      AttentionSegment& segment = segments.emplace_back();
      segment.rows = to_table((last - first).value);
      segment.position = to_table(first.value);
      segment.keys = to_table(keys);
      segment.query_row = to_table(owner.between(slice.begin, first).value);
      segment.output_row = segment.log_sum_row = segment.gradient_row = segment.query_row;
      segment.key_gradient_row = to_table(places.gradient_row(memory, layer));
      segment.value_gradient_row = segment.key_gradient_row;
      if (!memory.gradients.empty()) {
        segment.value_gradient_row += to_table(places.own_tokens(memory));
      }
    });
    return segments;
  });
}

/// What a slice of a context-parallel group does in one round of its ring, by the number of the
/// step.
struct RingPart {
  std::vector<AttentionPart> forward, backward;
  TablePart<std::int32_t> own_keys;  ///< rows of the rank's keys, in the stage's first layer
};

[[nodiscard]] inline RingPart ring_of(Tables& tables, const PackPlaces& places,
                                      const runtime::SegmentMemory& segment, bool forward,
                                      bool backward) {
  const CpShard& shard = places.call.shard;
  RingPart part;
  if (segment.exchange == RingMode::pass_kv) {
    std::vector<std::int32_t> rows;
    for (std::int64_t own = 0; own < shard.before(segment.slice.end).value; ++own) {
      rows.push_back(to_table(places.key_row(segment, own)));
    }
    part.own_keys = tables.add(rows);
  }
  for (std::int64_t step = 0; step < shard.ranks; ++step) {
    const CpShard owner{(shard.rank + shard.ranks - step) % shard.ranks, shard.ranks, shard.block};
    if (segment.exchange == RingMode::pass_q) {
      AttentionPart queries = travelling_queries(tables, places, segment, owner);
      if (forward) part.forward.push_back(queries);
      if (backward) part.backward.push_back(std::move(queries));
      continue;
    }
    if (forward) {
      part.forward.push_back(travelling_keys(tables, places, segment, owner, step > 0));
    }
    if (backward) {
      part.backward.push_back(travelling_keys(tables, places, segment, owner, false));
    }
  }
  return part;
}

/// The pieces of a call in the order of its rows.
[[nodiscard]] inline std::vector<runtime::PieceMemory> pieces_of(const runtime::PackCall& call) {
  std::vector<runtime::PieceMemory> pieces;
  for (const runtime::SegmentMemory& segment : call.segments) {
    pieces.insert(pieces.end(), segment.pieces.begin(), segment.pieces.end());
  }
  return pieces;
}

/// Calls visit(piece, its first row among those of all blocks, its first row in the pack).
template <class Visit>
void for_each_piece(std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks,
                    Visit visit) {
  std::int64_t row = 0;
  for (const runtime::PieceMemory& piece : pieces) {
    visit(piece.piece, blocks[piece.block].first + piece.row.value, row);
    row += piece.piece.length().value;
  }
}

/// Rows of the pack by the rows of its blocks.
[[nodiscard]] inline std::vector<std::int32_t> pack_rows(
    std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks, Tokens rows) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(rows.value));
  for_each_piece(pieces, blocks,
                 [&](const runtime::Piece& piece, std::int64_t first, std::int64_t row) {
                   for (std::int64_t r = 0; r < piece.length().value; ++r) {
                     table[static_cast<std::size_t>(first + r)] = to_table(row + r);
                   }
                 });
  return table;
}
[[nodiscard]] inline bool is_in_order(std::span<const std::int32_t> rows) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] != static_cast<std::int32_t>(row)) return false;
  }
  return true;
}

/// The rotary table of a layer, by the rows of the blocks. F: queries go to the blocks' rows, keys
/// and values to the pages. B: gradients of queries stand in rows counted over all blocks, those of
/// keys and values where they are summed.
[[nodiscard]] inline std::vector<RopeRow> rope_rows(const PackPlaces& places, Pass pass,
                                                    std::int64_t layer) {
  std::vector<RopeRow> rows(static_cast<std::size_t>(places.call.rows.value));
  const std::int64_t page = places.page.value;
  for (const runtime::SegmentMemory& segment : places.call.segments) {
    const std::int64_t own_tokens = places.own_tokens(segment);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const std::int64_t first = places.row_of(piece);
      const std::int64_t own = places.call.shard.before(piece.piece.begin).value;
      const std::int64_t query =
          pass == Pass::forward ? detail::queries_of(places, piece, layer).query_row : first;
      for (std::int64_t r = 0; r < piece.piece.length().value; ++r) {
        const std::int64_t key = pass == Pass::forward
                                     ? places.key_row(segment, own + r) + layer * 2 * page
                                     : places.gradient_row(segment, layer) + own + r;
        rows[static_cast<std::size_t>(first + r)] = {
            to_table(piece.piece.begin.value + r), to_table(query + r), to_table(key),
            to_table(key + (pass == Pass::forward ? page : own_tokens))};
      }
    }
  }
  return rows;
}

/// The tokens of a call by the rows of its blocks.
[[nodiscard]] inline std::vector<std::int32_t> tokens_of(
    std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks, Tokens rows,
    const runtime::StepData& data) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows.value));
  for_each_piece(pieces, blocks,
                 [&](const runtime::Piece& piece, std::int64_t first, std::int64_t) {
                   const auto& sample = data.tokens[index(piece.sample)];
                   std::copy(sample.begin() + piece.begin.value, sample.begin() + piece.end.value,
                             tokens.begin() + first);
                 });
  return tokens;
}

/// The targets of a call by the rows of its blocks.
[[nodiscard]] inline std::vector<std::int32_t> targets_of(
    std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks, Tokens rows,
    const runtime::StepData& data) {
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows.value));
  for_each_piece(
      pieces, blocks, [&](const runtime::Piece& piece, std::int64_t first, std::int64_t) {
        const auto& sample = data.targets[index(piece.sample)];
        std::transform(sample.begin() + piece.begin.value, sample.begin() + piece.end.value,
                       targets.begin() + first, [](const std::optional<std::int32_t>& target) {
                         return target.value_or(kNoTarget);
                       });
      });
  return targets;
}

/// TokenRows among the tables of a unit.
struct TokenRowsPart {
  TablePart<std::int32_t> tokens, begin, rows;
  [[nodiscard]] DeviceTokenRows on(const TableRing& ring) const {
    return {ring.span(tokens), ring.span(begin), ring.span(rows)};
  }
};

/// All tables of an F or B.
struct PackTables {
  bool in_order = true;  ///< rows of the pack are those of its blocks
  TablePart<std::int32_t> rows;
  TablePart<std::int32_t> tokens;        ///< F of the first virtual stage
  TokenRowsPart token_rows;              ///< B of the first virtual stage
  std::vector<TablePart<RopeRow>> rope;  ///< by layer
  AttentionPart own;
  std::vector<RingPart> ring;  ///< by segment, in context-parallel groups
};

/// `attends`: B computes attention's output again.
[[nodiscard]] inline PackTables pack_tables(Tables& tables, const PackPlaces& places, Pass pass,
                                            bool attends, std::span<const BlockRows> blocks,
                                            const runtime::StepData* tokens) {
  const runtime::PackCall& call = places.call;
  PackTables made;
  const std::vector<runtime::PieceMemory> pieces = pieces_of(call);
  const std::vector<std::int32_t> rows = pack_rows(pieces, blocks, call.rows);
  made.in_order = is_in_order(rows);
  if (!made.in_order) made.rows = tables.add(rows);
  if (tokens != nullptr && pass == Pass::forward) {
    made.tokens = tables.add(tokens_of(pieces, blocks, call.rows, *tokens));
  }
  if (tokens != nullptr && pass == Pass::backward) {
    const TokenRows order =
        token_rows(tokens_of(pieces, blocks, call.rows, *tokens), places.model.vocab);
    made.token_rows = {tables.add(order.tokens), tables.add(order.begin), tables.add(order.rows)};
  }
  if (places.layer_count() == 0) return made;
  for (std::int64_t layer = 0; layer < places.layer_count(); ++layer) {
    made.rope.push_back(tables.add(rope_rows(places, pass, layer)));
  }
  const bool in_ring = call.shard.ranks > 1;
  if (!in_ring || pass == Pass::backward) made.own = own_attention(tables, places);
  if (!in_ring) return made;
  for (const runtime::SegmentMemory& segment : call.segments) {
    made.ring.push_back(
        ring_of(tables, places, segment, pass == Pass::forward || attends, pass == Pass::backward));
  }
  return made;
}

}  // namespace slimpack::cuda
