// SPDX-License-Identifier: Apache-2.0
// The tables of an F or B.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/attention_tables.hpp"
#include "slimpack_cuda/cross_entropy.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/by_heads_tables.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/staging.hpp"
#include "slimpack_cuda/rank/token_tables.hpp"
#include "slimpack_cuda/rope_tables.hpp"
#include "slimpack_cuda/row_tables.hpp"

namespace slimpack::cuda {

/// The slices of the pack, each with the keys that the rank has of its sample, of which wanted(i)
/// says yes: they must keep the same. Slices by heads have queries alone.
template <class Wanted>
[[nodiscard]] AttentionPart own_attention(Tables& tables, const PackPlaces& places, Wanted wanted) {
  std::vector<KeyPage> pages;
  std::vector<std::int32_t> first_page;
  for (std::size_t i = 0; i < places.call.segments.size(); ++i) {
    first_page.push_back(to_table(static_cast<std::int64_t>(pages.size())));
    if (!wanted(i) || travels_by_heads(places.segment(i))) continue;
    const CpShard& shard = places.segment(i).shard;
    detail::add_pages(pages, places, shard, shard.before(places.segment(i).slice.end).value,
                      [&](std::int64_t own) { return places.key_row(i, own); });
  }
  return detail::add_attention(tables, places, std::move(pages), [&](std::int64_t layer) {
    std::vector<AttentionSegment> segments;
    for (std::size_t i = 0; i < places.call.segments.size(); ++i) {
      const runtime::SegmentMemory& memory = places.segment(i);
      if (!wanted(i)) continue;
      for (const runtime::PieceMemory& piece : memory.pieces) {
        AttentionSegment& segment = segments.emplace_back(detail::queries_of(places, piece, layer));
        segment.first_page = first_page[i];
        if (travels_by_heads(memory)) continue;
        segment.keys = to_table(memory.shard.before(memory.slice.end).value);
        segment.key_gradient_row = to_table(places.gradient_row(i, layer));
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
                                                      std::size_t i, const CpShard& owner) {
  const runtime::SegmentMemory& memory = places.segment(i);
  const Slice& slice = memory.slice;
  const std::int64_t keys = memory.shard.before(slice.end).value;
  std::vector<KeyPage> pages;
  detail::add_pages(pages, places, memory.shard, keys,
                    [&](std::int64_t own) { return places.key_row(i, own); });
  return detail::add_attention(tables, places, std::move(pages), [&](std::int64_t layer) {
    std::vector<AttentionSegment> segments;
    owner.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
      AttentionSegment& segment = segments.emplace_back();
      segment.rows = to_table((last - first).value);
      segment.position = to_table(first.value);
      segment.keys = to_table(keys);
      segment.query_row = to_table(owner.between(slice.begin, first).value);
      segment.output_row = segment.log_sum_row = segment.gradient_row = segment.query_row;
      segment.key_gradient_row = to_table(places.gradient_row(i, layer));
      segment.value_gradient_row = segment.key_gradient_row + to_table(places.own_tokens(memory));
    });
    return segments;
  });
}

/// Attention on the rank's own keys, by what slices keep.
using OwnParts = std::vector<std::pair<KeptKeys, AttentionPart>>;

/// The slices of which among(segment) says yes.
template <class Among>
[[nodiscard]] OwnParts own_parts(Tables& tables, const PackPlaces& places, Pass pass, Among among) {
  OwnParts parts;
  for (const runtime::SegmentMemory& segment : places.call.segments) {
    const KeptKeys kept = told_apart(segment.kept, pass);
    const auto same = [&](const auto& part) { return part.first == kept; };
    if (!among(segment) || std::ranges::any_of(parts, same)) continue;
    parts.emplace_back(kept, own_attention(tables, places, [&](std::size_t i) {
                         const runtime::SegmentMemory& one = places.segment(i);
                         return among(one) && told_apart(one.kept, pass) == kept;
                       }));
  }
  return parts;
}

/// What a slice of a context-parallel group does in one round of its ring, by the number of the
/// step; nothing where it goes by heads.
struct RingPart {
  std::vector<AttentionPart> forward, backward;
  TablePart<std::int32_t> own_keys;  ///< rows of the rank's keys (PackPlaces::key_row)
};

[[nodiscard]] inline RingPart ring_of(Tables& tables, const PackPlaces& places, std::size_t i,
                                      bool forward, bool backward) {
  const runtime::SegmentMemory& segment = places.segment(i);
  const CpShard& shard = segment.shard;
  RingPart part;
  if (segment.exchange == RingMode::by_heads) return part;
  if (segment.exchange == RingMode::pass_kv) {
    std::vector<std::int32_t> rows;
    for (std::int64_t own = 0; own < shard.before(segment.slice.end).value; ++own) {
      rows.push_back(to_table(places.key_row(i, own)));
    }
    part.own_keys = tables.add(rows);
  }
  for (std::int64_t step = 0; step < shard.ranks; ++step) {
    const CpShard owner = shard.of(places.call.ring.order().owner(shard.rank, step));
    if (segment.exchange == RingMode::pass_q) {
      AttentionPart queries = travelling_queries(tables, places, i, owner);
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

/// The own rows of the pack by the own rows of its blocks.
[[nodiscard]] inline std::vector<std::int32_t> own_pack_rows(
    std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(own_rows(blocks)));
  std::int64_t row = 0;
  for (const runtime::PieceMemory& piece : pieces) {
    const std::int64_t first = blocks[piece.block].first_own + piece.own_row.value;
    for (std::int64_t r = 0; r < piece.own.value; ++r) {
      table[static_cast<std::size_t>(first + r)] = to_table(row++);
    }
  }
  return table;
}
/// The pack's row of each own row of its blocks.
[[nodiscard]] inline std::vector<std::int32_t> pack_rows_of_own(
    std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks,
    const TensorRows& own) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(own_rows(blocks)));
  std::int64_t row = 0;
  for (const runtime::PieceMemory& piece : pieces) {
    auto into = static_cast<std::size_t>(blocks[piece.block].first_own + piece.own_row.value);
    const std::int64_t holder = own.owner(piece.piece.sample, piece.piece.begin);
    for (std::int64_t r = (own.device + own.devices - holder) % own.devices;
         r < piece.piece.length().value; r += own.devices) {
      table[into++] = to_table(row + r);
    }
    row += piece.piece.length().value;
  }
  return table;
}
[[nodiscard]] inline bool is_in_order(std::span<const std::int32_t> rows) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] != static_cast<std::int32_t>(row)) return false;
  }
  return true;
}

/// The rotary table of a layer, by the rows of the blocks. F: queries go to the blocks' rows, keys
/// and values to the pages, or to rows of the arena that are the unit's; by heads to those from
/// which they travel. B: gradients of queries
/// stand in rows counted over all blocks, those of keys and values where they are summed; if some
/// are in the workspace, all are there by then.
[[nodiscard]] inline std::vector<RopeRow> rope_rows(const PackPlaces& places, Pass pass,
                                                    std::int64_t layer) {
  std::vector<RopeRow> rows(static_cast<std::size_t>(places.call.rows.value));
  const std::int64_t page = places.page.value, k = places.model.key_width();
  for (std::size_t i = 0; i < places.call.segments.size(); ++i) {
    const runtime::SegmentMemory& segment = places.segment(i);
    const std::int64_t before = segment.shard.before(segment.slice.begin).value;
    const auto key_and_value = [&](std::int64_t own) -> std::pair<std::int64_t, std::int64_t> {
      if (pass == Pass::forward && travels_by_heads(segment)) {
        const std::int64_t row = places.keys.key_row[i] + own - before;
        return {places.arena.row_of(places.keys.head_key.data, k) + row,
                places.arena.row_of(places.keys.head_value.data, k) + row};
      }
      if (pass == Pass::forward && segment.kept.pages) {
        const std::int64_t key = places.key_row(i, own) + layer * 2 * page;
        return {key, key + page};
      }
      if (pass == Pass::forward) {
        const std::int64_t row = places.key_row(i, own);
        return {places.arena.row_of(places.keys.key.data, k) + row,
                places.arena.row_of(places.keys.value.data, k) + row};
      }
      if (!places.keys.summed) {
        const std::int64_t row = places.keys.gradient_row[i] + own - before;
        return {row, row};
      }
      const std::int64_t row = places.gradient_row(i, layer) + own;
      return {row, row + places.own_tokens(segment)};
    };
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const std::int64_t first = places.row_of(piece);
      const std::int64_t own = segment.shard.before(piece.piece.begin).value;
      const std::int64_t query =
          pass == Pass::forward ? detail::queries_of(places, piece, layer).query_row : first;
      for (std::int64_t r = 0; r < piece.piece.length().value; ++r) {
        const auto [key, value] = key_and_value(own + r);
        rows[static_cast<std::size_t>(first + r)] = {to_table(piece.piece.begin.value + r),
                                                     to_table(query + r), to_table(key),
                                                     to_table(value)};
      }
    }
  }
  return rows;
}

/// Which rows of blocks the keys and values are made of that B makes again, and their rotary table,
/// in the order of their rows.
struct KeysAgain {
  std::vector<RowRun> runs;
  std::vector<RopeRow> rope;
};
[[nodiscard]] inline KeysAgain keys_again(const PackPlaces& places) {
  KeysAgain again;
  for (const runtime::SegmentMemory& segment : places.call.segments) {
    if (segment.kept.pages) continue;
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const std::int64_t rows = piece.piece.length().value, first = places.row_of(piece);
      const auto into = static_cast<std::int64_t>(again.rope.size());
      if (!again.runs.empty() && again.runs.back().first + again.runs.back().rows == first) {
        again.runs.back().rows += rows;
      } else {
        again.runs.push_back({first, into, rows});
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        again.rope.push_back(
            {to_table(piece.piece.begin.value + r), 0, to_table(into + r), to_table(into + r)});
      }
    }
  }
  return again;
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

/// All tables of an F or B.
struct PackTables {
  bool in_order = true;  ///< own rows of the pack are those of its blocks
  TablePart<std::int32_t> rows;
  TablePart<std::int32_t> row_places;    ///< RowGroups::places
  TablePart<std::int32_t> tokens;        ///< F of the first virtual stage
  TokenRowsPart token_rows;              ///< B of the first virtual stage
  std::vector<EmbeddedGroup> embedded;   ///< instead of both where there are several devices
  std::vector<TablePart<RopeRow>> rope;  ///< by layer
  std::vector<RowRun> again;             ///< B: rows whose keys and values it makes again
  TablePart<RopeRow> rope_again;
  OwnParts own;   ///< all slices: of a rank alone, or of B
  OwnParts kept;  ///< in context-parallel groups: slices by heads that stay on one rank
  std::vector<RingPart> ring;           ///< by segment, in context-parallel groups
  std::vector<ByHeadsTables> by_heads;  ///< one a set of slices
};

/// `attends`: B computes attention's output again.
[[nodiscard]] inline PackTables pack_tables(Tables& tables, const PackPlaces& places, Pass pass,
                                            bool attends, std::span<const BlockRows> blocks,
                                            const RowGroups& groups, const TokenTables& tokens) {
  const runtime::PackCall& call = places.call;
  PackTables made;
  const std::vector<runtime::PieceMemory> pieces = pieces_of(call);
  const std::vector<std::int32_t> rows = own_pack_rows(pieces, blocks);
  made.in_order = is_in_order(rows);
  if (!made.in_order) made.rows = tables.add(rows);
  if (groups.devices > 1) made.row_places = tables.add(groups.places);
  if (tokens.data != nullptr) {
    const std::vector<std::int32_t> ids = tokens_of(pieces, blocks, call.rows, *tokens.data);
    for (const RowGroup& group : groups.groups) {
      if (groups.devices == 1) break;
      made.embedded.push_back(embedded_group(tables, pass, ids, groups, group, tokens.table));
    }
    if (groups.devices == 1 && pass == Pass::forward) made.tokens = tables.add(ids);
    if (groups.devices == 1 && pass == Pass::backward) {
      made.token_rows = add_token_rows(tables, token_rows(ids, tokens.table.size()));
    }
  }
  if (places.layer_count() == 0) return made;
  for (std::int64_t layer = 0; layer < places.layer_count(); ++layer) {
    made.rope.push_back(tables.add(rope_rows(places, pass, layer)));
  }
  const bool in_ring = call.in_cp_group();
  if (pass == Pass::backward && !places.keys.paged) {
    KeysAgain again = keys_again(places);
    made.again = std::move(again.runs);
    made.rope_again = tables.add(again.rope);
  }
  if (!in_ring || pass == Pass::backward) {
    made.own = own_parts(tables, places, pass, [](const auto&) { return true; });
  }
  if (!in_ring) return made;
  made.kept = own_parts(tables, places, pass, [](const runtime::SegmentMemory& segment) {
    return segment.exchange == RingMode::by_heads && !travels_by_heads(segment);
  });
  made.by_heads = by_heads_tables(tables, places, pass, attends);
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    made.ring.push_back(
        ring_of(tables, places, i, pass == Pass::forward || attends, pass == Pass::backward));
  }
  return made;
}

}  // namespace slimpack::cuda
