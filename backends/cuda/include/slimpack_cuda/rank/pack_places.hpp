// SPDX-License-Identifier: Apache-2.0
// What the tables of an F or B are made from: where the rows of a pack's blocks, slices and keys
// lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/attention_tables.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/staging.hpp"

namespace slimpack::cuda {

/// The position of a rank's `own`-th token in the sample.
[[nodiscard]] constexpr std::int64_t position_of(const CpShard& shard, std::int64_t own) noexcept {
  if (shard.ranks == 1) return own;
  const std::int64_t block = own / shard.block.value;  // every cycle of 2 x ranks has two of them
  const std::int64_t turn = block % 2 == 0 ? shard.place() : 2 * shard.ranks - 1 - shard.place();
  return (block / 2 * 2 * shard.ranks + turn) * shard.block.value + own % shard.block.value;
}

/// Tokens of a page as attention sees it: its keys stand at consecutive positions, which in a
/// context-parallel group only those of one CP block do.
[[nodiscard]] constexpr std::int32_t attention_page(Tokens page, const CpShard& shard) noexcept {
  return static_cast<std::int32_t>(shard.ranks == 1 ? page.value
                                                    : std::gcd(page.value, shard.block.value));
}

/// Keys, values and gradients of a unit's slices in its workspace, where nothing is kept of them:
/// the rows of a slice are its own tokens, ascending.
struct UnitKeys {
  DeviceSpan<Bf16> key, value;     ///< of slices without pages, one behind the other
  DeviceSpan<float> dkey, dvalue;  ///< in B, of all slices: those by heads, then the others
  /// F: of slices by heads, one behind the other, from where they travel.
  DeviceSpan<Bf16> head_key, head_value;
  std::vector<std::int64_t> key_row, gradient_row;  ///< by segment: its first row
  std::int64_t keys = 0;                            ///< rows of `key`
  std::int64_t head_keys = 0;                       ///< rows of slices by heads
  bool paged = true;                                ///< whether all slices have pages
  bool summed = true;  ///< whether the rank's tokens of all slices have gradients
};

/// Numbers the rows; the matrices are still to be placed.
[[nodiscard]] inline UnitKeys unit_keys(const runtime::PackCall& call, Pass pass) {
  UnitKeys keys;
  for (const runtime::SegmentMemory& segment : call.segments) {
    if (segment.kept.by_heads) keys.head_keys += segment.rows.value;
  }
  std::int64_t by_heads = 0, others = keys.head_keys;
  for (const runtime::SegmentMemory& segment : call.segments) {
    const bool heads = segment.kept.by_heads;
    const bool travels = heads && pass == Pass::forward;
    keys.key_row.push_back(travels ? by_heads : keys.keys);
    std::int64_t& rows = heads ? by_heads : others;
    keys.gradient_row.push_back(std::exchange(rows, rows + segment.rows.value));
    if (!segment.kept.pages && !travels) keys.keys += segment.rows.value;
    keys.paged = keys.paged && segment.kept.pages;
    keys.summed = keys.summed && segment.kept.gradients && !heads;
  }
  return keys;
}

/// One way of computing attention, with how it cuts the work.
struct AttentionWay {
  AttentionShape shape;
  AttentionTiles tiles;
  AttentionPath path = AttentionPath::plain;
};

/// What the tables of a call are made from.
struct PackPlaces {
  const runtime::PackCall& call;
  const UnitKeys& keys;
  std::span<const std::vector<BlockRows>> layers;  ///< of the stage
  const DeviceArena& arena;
  const ModelShape& model;  ///< what the device has of it
  Tokens page;              ///< of memory
  AttentionShape shape;     ///< with attention's page
  AttentionTiles tiles;
  AttentionWay by_heads{};          ///< of one head of keys, where slices go by heads
  std::span<std::byte> exchange{};  ///< the unit's room for what travels between ranks

  [[nodiscard]] std::int64_t layer_count() const {
    return static_cast<std::int64_t>(layers.size());
  }
  [[nodiscard]] const runtime::SegmentMemory& segment(std::size_t i) const {
    return call.segments[i];
  }
  /// The row of an own key of segment `i`: among all of the arena, in the stage's first layer, or
  /// in the unit's workspace.
  [[nodiscard]] std::int64_t key_row(std::size_t i, std::int64_t own) const {
    const runtime::SegmentMemory& segment = this->segment(i);
    if (!segment.kept.pages) return keys.key_row[i] + own;
    const auto* page_at =
        elements<Bf16>(segment.pages[static_cast<std::size_t>(own / page.value)]).data;
    return arena.row_of(page_at, model.key_width()) + own % page.value;
  }
  /// Tokens of the segment's sample whose gradients are held here from unit to unit, or 0: own ones
  /// or, by heads, all.
  [[nodiscard]] std::int64_t own_tokens(const runtime::SegmentMemory& segment) const {
    return elements<float>(segment.gradients).size /
           (layer_count() * 2 * model.key_width() / segment.kept.parts);
  }
  /// Heads of keys of each rank, where slices go by heads.
  [[nodiscard]] std::int64_t by_heads_heads() const { return model.kv_heads / by_heads_parts(); }
  /// The parts that they make: each is on one rank or, of one head, on several, one behind the
  /// other.
  [[nodiscard]] std::int64_t by_heads_parts() const {
    return std::min(model.kv_heads, static_cast<std::int64_t>(call.ring.members.size()));
  }
  /// The row of the gradient of segment `i`'s own key 0 in a layer: among all of the arena, where
  /// that of its value comes own_tokens behind, or in the unit's workspace.
  [[nodiscard]] std::int64_t gradient_row(std::size_t i, std::int64_t layer) const {
    const runtime::SegmentMemory& segment = this->segment(i);
    if (!segment.kept.gradients && keys.dkey.size > 0) return keys.gradient_row[i];
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

/// `segments_of(layer)` gives the same segments in each of `layers` but for their rows.
template <class Segments>
[[nodiscard]] AttentionPart add_attention(Tables& tables, std::int32_t page,
                                          const AttentionTiles& tiles, std::int64_t layers,
                                          std::vector<KeyPage> pages, Segments segments_of) {
  AttentionPart part;
  if (layers == 0) return part;
  const AttentionTables first =
      attention_tables(segments_of(0), std::move(pages), page, tiles.query, tiles.key);
  part.segments.push_back(tables.add(first.segments));
  part.pages = tables.add(first.pages);
  part.query_tiles = tables.add(first.query_tiles);
  part.key_tiles = tables.add(first.key_tiles);
  for (std::int64_t layer = 1; layer < layers; ++layer) {
    part.segments.push_back(tables.add(segments_of(layer)));
  }
  return part;
}
/// The same in all layers of the stage, with all heads of the device.
template <class Segments>
[[nodiscard]] AttentionPart add_attention(Tables& tables, const PackPlaces& places,
                                          std::vector<KeyPage> pages, Segments segments_of) {
  return add_attention(tables, places.shape.page_tokens, places.tiles, places.layer_count(),
                       std::move(pages), segments_of);
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

}  // namespace slimpack::cuda
