// SPDX-License-Identifier: Apache-2.0
// The tables of slices that a context-parallel group exchanges by heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/head_pieces.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention_tables.hpp"
#include "slimpack_cuda/columns.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"
#include "slimpack_cuda/rank/staging.hpp"

namespace slimpack::cuda {

/// Heads of keys of a rank's part, with those of queries that share them, that travel together.
struct HeadPiece {
  std::int64_t first = 0, heads = 0;
};

/// Of so many heads of keys on a rank, at most kHeadPieces of about equal numbers. O(pieces).
[[nodiscard]] inline std::vector<HeadPiece> head_pieces(std::int64_t heads) {
  const std::int64_t count = std::clamp<std::int64_t>(heads, 1, kHeadPieces);
  std::vector<HeadPiece> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = i * heads / count;
    pieces.push_back({first, (i + 1) * heads / count - first});
  }
  return pieces;
}

/// What a rank owns of all slices by heads of a pack: rows of queries; of these in F the ones whose
/// keys and values go to pages with those who attend, and the ones whose keys and values stay in
/// the unit's workspace there, if these travel. The first of a rank in the order of ranks.
struct ByHeadsRows {
  std::int64_t rows = 0, stored = 0, loose = 0;
  std::int64_t first_row = 0, first_loose = 0;
};

/// A slice by heads: its number in the call, and its first workspace row of gradients by heads.
struct ByHeadsSlice {
  std::size_t segment = 0;
  std::int64_t first_sum = 0;
};

/// Attention of slices that keep the same, piece by piece.
struct ByHeadsPart {
  KeptKeys kept;
  std::vector<AttentionPart> pieces;
};

/// What a set of slices by heads (`head_set`) is worked on with. Rows stand in the order of owners:
/// rank after rank, slice after slice, tokens ascending. Heads stand apart, each with all its rows.
struct ByHeadsTables {
  Pass pass = Pass::forward;
  bool again = false;  ///< B makes attention again
  std::vector<ByHeadsSlice> slices;
  std::vector<HeadPiece> pieces;
  std::int64_t heads = 0;          ///< of keys that the rank attends with
  std::vector<ByHeadsRows> ranks;  ///< by rank of the group
  ByHeadsRows all;                 ///< of all ranks
  /// Workspace rows of a head's gradients of keys, with those of sets before.
  std::int64_t sums = 0;
  std::int64_t first_gradient = 0;  ///< of the own rows of all sets: the first
  std::vector<TablePart<std::int32_t>> query, output,
      log_sum;                               ///< by layer: rows of the arena of the own tokens
  TablePart<std::int32_t> gradient;          ///< the same among the rows of all blocks
  TablePart<std::int32_t> stored, loose;     ///< rows of own keys (UnitKeys::key_row)
  std::vector<TablePart<KeyRow>> pages;      ///< by rank, in F: where its stored keys go
  std::vector<TablePart<KeyRow>> gradients;  ///< by rank, in B: where its tokens' sums are
  std::vector<ByHeadsPart> attention;
};

/// Whether the ranks of a group exchange a slice by heads: one rank's own tokens do not travel.
[[nodiscard]] inline bool travels_by_heads(const runtime::SegmentMemory& segment) noexcept {
  return segment.kept.by_heads;
}

/// What a pass of attention has to tell apart: gradients are nothing to F.
[[nodiscard]] constexpr KeptKeys told_apart(const KeptKeys& kept, Pass pass) noexcept {
  return {kept.pages, kept.gradients || pass == Pass::forward};
}

namespace detail {

/// Makes the tables of a set in a pass. With `again` keys that no page holds travel in B too.
class ByHeadsMaker {
 public:
  /// `sums`: workspace rows of the sets before.
  ByHeadsMaker(Tables& tables, const PackPlaces& places, Pass pass, bool again, std::int64_t sums)
      : tables_(tables),
        places_(places),
        pass_(pass),
        loose_(pass == Pass::forward || again),
        dim_(places.model.head_dim) {
    made_.pass = pass;
    made_.again = again;
    made_.heads = places.by_heads_heads();
    made_.pieces = head_pieces(made_.heads);
    made_.ranks.resize(places.call.ring.members.size());
    made_.sums = sums;
  }

  /// Of these segments of the call, ascending, which must not be none.
  [[nodiscard]] ByHeadsTables make(std::span<const std::size_t> segments) {
    made_.first_gradient = places_.keys.gradient_row[segments.front()];
    count(segments);
    add_own_tables();
    if (pass_ == Pass::forward) add_pages_of_keys();
    if (pass_ == Pass::backward) add_gradients();
    for (const ByHeadsSlice& slice : made_.slices) {
      const KeptKeys kept = told_apart(segment(slice).kept, pass_);
      const auto same = [&](const ByHeadsPart& part) { return part.kept == kept; };
      if (std::ranges::any_of(made_.attention, same)) continue;
      ByHeadsPart& part = made_.attention.emplace_back();
      part.kept = kept;
      for (const HeadPiece& piece : made_.pieces) part.pieces.push_back(attention(kept, piece));
    }
    return std::move(made_);
  }

 private:
  [[nodiscard]] const runtime::SegmentMemory& segment(const ByHeadsSlice& slice) const {
    return places_.segment(slice.segment);
  }
  [[nodiscard]] static CpShard shard_of(const runtime::SegmentMemory& segment, std::size_t rank) {
    return segment.shard.of(static_cast<std::int64_t>(rank));
  }
  /// Tokens of the sample of whose gradients a head has rows, in the arena or the workspace.
  [[nodiscard]] std::int64_t summed_rows(const runtime::SegmentMemory& segment) const {
    return segment.kept.gradients ? places_.own_tokens(segment) : segment.slice.end.value;
  }

  void count(std::span<const std::size_t> segments) {
    for (const std::size_t i : segments) {
      const runtime::SegmentMemory& segment = places_.segment(i);
      made_.slices.push_back({i, made_.sums});
      if (pass_ == Pass::backward && !segment.kept.gradients) {
        made_.sums += segment.slice.end.value;
      }
      for (std::size_t rank = 0; rank < made_.ranks.size(); ++rank) {
        const Slice& slice = segment.slice;
        const std::int64_t rows = shard_of(segment, rank).between(slice.begin, slice.end).value;
        ByHeadsRows& of = made_.ranks[rank];
        of.rows += rows;
        if (segment.kept.pages && pass_ == Pass::forward) of.stored += rows;
        if (!segment.kept.pages && loose_) of.loose += rows;
      }
    }
    for (ByHeadsRows& rank : made_.ranks) {
      rank.first_row = made_.all.rows;
      rank.first_loose = made_.all.loose;
      made_.all.rows += rank.rows;
      made_.all.stored += rank.stored;
      made_.all.loose += rank.loose;
    }
  }

  /// Rows of the rank's own tokens, slice after slice; `row_of(piece)` is the first row of a piece.
  template <class RowOf>
  [[nodiscard]] TablePart<std::int32_t> add_own_rows(RowOf row_of) {
    std::vector<std::int32_t> rows;
    for (const ByHeadsSlice& slice : made_.slices) {
      for (const runtime::PieceMemory& piece : segment(slice).pieces) {
        const std::int64_t first = row_of(piece);
        for (std::int64_t r = 0; r < piece.piece.length().value; ++r) {
          rows.push_back(to_table(first + r));
        }
      }
    }
    return tables_.add(rows);
  }
  void add_own_tables() {
    made_.gradient =
        add_own_rows([&](const runtime::PieceMemory& piece) { return places_.row_of(piece); });
    for (std::int64_t layer = 0; layer < places_.layer_count(); ++layer) {
      const auto add = [&](std::int32_t AttentionSegment::* row) {
        return add_own_rows([&](const runtime::PieceMemory& piece) {
          return queries_of(places_, piece, layer).*row;
        });
      };
      made_.query.push_back(add(&AttentionSegment::query_row));
      made_.output.push_back(add(&AttentionSegment::output_row));
      made_.log_sum.push_back(add(&AttentionSegment::log_sum_row));
    }
    std::vector<std::int32_t> stored, loose;
    for (const ByHeadsSlice& slice : made_.slices) {
      const bool pages = segment(slice).kept.pages;
      if (pages ? pass_ == Pass::backward : !loose_) continue;
      for (std::int64_t r = 0; r < segment(slice).rows.value; ++r) {
        (pages ? stored : loose).push_back(to_table(places_.keys.key_row[slice.segment] + r));
      }
    }
    made_.stored = tables_.add(stored);
    made_.loose = tables_.add(loose);
  }

  /// Calls visit(segment, slice, token) for the tokens of the slices that a rank owns, in order.
  template <class Visit>
  void for_each_token(std::size_t rank, Visit visit) const {
    for (const ByHeadsSlice& slice : made_.slices) {
      const runtime::SegmentMemory& one = segment(slice);
      shard_of(one, rank).for_each_run(one.slice.begin, one.slice.end,
                                       [&](Tokens first, Tokens last) {
                                         for (std::int64_t at = first.value; at < last.value; ++at)
                                           visit(one, slice, at);
                                       });
    }
  }
  void add_pages_of_keys() {
    const std::int64_t page = places_.page.value;
    for (std::size_t rank = 0; rank < made_.ranks.size(); ++rank) {
      std::vector<KeyRow> rows;
      for_each_token(
          rank, [&](const runtime::SegmentMemory& one, const ByHeadsSlice&, std::int64_t at) {
            if (!one.kept.pages) return;
            const auto* there = elements<Bf16>(one.pages[static_cast<std::size_t>(at / page)]).data;
            rows.push_back({places_.arena.offset_of(there) + at % page * dim_, to_table(page),
                            to_table(2 * made_.heads * page)});
          });
      made_.pages.push_back(tables_.add(rows));
    }
  }
  void add_gradients() {
    const std::int64_t workspace =
        places_.exchange.empty() ? 0
                                 : places_.arena.offset_of(elements<float>(places_.exchange).data);
    for (std::size_t rank = 0; rank < made_.ranks.size(); ++rank) {
      std::vector<KeyRow> rows;
      for_each_token(
          rank, [&](const runtime::SegmentMemory& one, const ByHeadsSlice& slice, std::int64_t at) {
            const std::int64_t count = summed_rows(one);
            const std::int64_t first =
                one.kept.gradients ? places_.arena.offset_of(elements<float>(one.gradients).data)
                                   : workspace + slice.first_sum * 2 * made_.heads * dim_;
            rows.push_back({first + at * dim_, to_table(count),
                            to_table(one.kept.gradients ? 2 * made_.heads * count : 0)});
          });
      made_.gradients.push_back(tables_.add(rows));
    }
  }

  /// Tokens of each rank that stand before those of a slice: of all slices, and of those whose
  /// keys no page holds.
  struct Before {
    std::vector<std::int64_t> rows, loose;
  };

  /// Of a piece's heads. Keys in pages have rows of the arena, in the stage's first layer, others
  /// such of the workspace's keys of the piece; rows of queries are of all heads.
  [[nodiscard]] AttentionPart attention(const KeptKeys& kept, const HeadPiece& piece) {
    std::vector<KeyPage> pages;
    std::vector<std::vector<AttentionSegment>> layers(
        static_cast<std::size_t>(places_.layer_count()));
    Before before{std::vector<std::int64_t>(made_.ranks.size()),
                  std::vector<std::int64_t>(made_.ranks.size())};
    for (const ByHeadsSlice& slice : made_.slices) {
      const runtime::SegmentMemory& one = segment(slice);
      if (told_apart(one.kept, pass_) == kept) {
        for (std::int64_t i = 0; i < piece.heads; ++i) {
          const auto first_page = to_table(static_cast<std::int64_t>(pages.size()));
          add_pages(pages, one, piece, i, before.loose);
          for (std::size_t layer = 0; layer < layers.size(); ++layer) {
            add_segments(layers[layer], slice, piece.first + i, before.rows, first_page,
                         static_cast<std::int64_t>(layer));
          }
        }
      }
      for (std::size_t rank = 0; rank < made_.ranks.size(); ++rank) {
        const std::int64_t rows = shard_of(one, rank).between(one.slice.begin, one.slice.end).value;
        before.rows[rank] += rows;
        if (!one.kept.pages) before.loose[rank] += rows;
      }
    }
    return add_attention(tables_, places_.by_heads.shape.page_tokens, places_.by_heads.tiles,
                         places_.layer_count(), std::move(pages), [&](std::int64_t layer) {
                           return layers[static_cast<std::size_t>(layer)];
                         });
  }
  void add_pages(std::vector<KeyPage>& pages, const runtime::SegmentMemory& one,
                 const HeadPiece& piece, std::int64_t i,
                 const std::vector<std::int64_t>& before) const {
    const std::int64_t page = places_.page.value;
    for (std::int64_t at = 0; at < one.slice.end.value; at += places_.by_heads.shape.page_tokens) {
      std::int64_t row = 0;
      if (one.kept.pages) {
        const auto* there = elements<Bf16>(one.pages[static_cast<std::size_t>(at / page)]).data;
        row = places_.arena.row_of(there, dim_) + (piece.first + i) * page + at % page;
      } else {
        std::size_t rank = 0;
        while (!shard_of(one, rank).owns(Tokens{at})) ++rank;
        const ByHeadsRows& owner = made_.ranks[rank];
        row = piece.heads * owner.first_loose + i * owner.loose + before[rank] +
              shard_of(one, rank).before(Tokens{at}).value;
      }
      pages.push_back({to_table(row), to_table(at)});
    }
  }
  void add_segments(std::vector<AttentionSegment>& segments, const ByHeadsSlice& slice,
                    std::int64_t head, const std::vector<std::int64_t>& before,
                    std::int32_t first_page, std::int64_t layer) const {
    const runtime::SegmentMemory& one = segment(slice);
    std::int64_t key = 0, value = 0;
    if (pass_ == Pass::backward) {
      const std::int64_t rows = summed_rows(one);
      const std::int64_t first =
          one.kept.gradients ? places_.arena.row_of(elements<float>(one.gradients).data, dim_) +
                                   layer * 2 * made_.heads * rows
                             : slice.first_sum * 2 * made_.heads;
      key = first + head * rows;
      value = key + made_.heads * rows;
    }
    for (std::size_t rank = 0; rank < made_.ranks.size(); ++rank) {
      const CpShard shard = shard_of(one, rank);
      const std::int64_t rank_row = head * made_.all.rows + made_.ranks[rank].first_row;
      shard.for_each_run(one.slice.begin, one.slice.end, [&](Tokens first, Tokens last) {
        AttentionSegment& made = segments.emplace_back();
        made.rows = to_table((last - first).value);
        made.position = to_table(first.value);
        made.first_page = first_page;
        made.keys = to_table(one.slice.end.value);
        made.query_row =
            to_table(rank_row + before[rank] + shard.between(one.slice.begin, first).value);
        made.output_row = made.log_sum_row = made.gradient_row = made.query_row;
        made.key_gradient_row = to_table(key);
        made.value_gradient_row = to_table(value);
      });
    }
  }

  Tables& tables_;
  const PackPlaces& places_;
  Pass pass_;
  bool loose_;  ///< whether keys that no page holds travel
  std::int64_t dim_;
  ByHeadsTables made_;
};

}  // namespace detail

/// One entry for each set of slices that travels by heads. `again`: B computes attention's output
/// again. O((rows + tokens) x layers x heads).
[[nodiscard]] inline std::vector<ByHeadsTables> by_heads_tables(Tables& tables,
                                                                const PackPlaces& places, Pass pass,
                                                                bool again) {
  std::vector<std::size_t> segments;
  Tokens all, before;
  for (std::size_t i = 0; i < places.call.segments.size(); ++i) {
    if (!travels_by_heads(places.segment(i))) continue;
    segments.push_back(i);
    all += places.segment(i).slice.length();
  }
  std::vector<ByHeadsTables> sets;
  if (segments.empty()) return sets;
  const auto pieces = static_cast<std::int64_t>(head_pieces(places.by_heads_heads()).size());
  const auto set_of_next = [&](std::size_t at) {
    const Tokens length = places.segment(segments[at]).slice.length();
    return head_set(std::exchange(before, before + length), length, all, head_sets(pieces));
  };
  std::int64_t set = set_of_next(0);
  for (std::size_t first = 0, end = 0; first < segments.size(); first = end) {
    const std::int64_t here = set;
    for (++end; end < segments.size(); ++end) {
      set = set_of_next(end);
      if (set != here) break;
    }
    detail::ByHeadsMaker maker(tables, places, pass, again, sets.empty() ? 0 : sets.back().sums);
    sets.push_back(maker.make(std::span(segments).subspan(first, end - first)));
  }
  return sets;
}

}  // namespace slimpack::cuda
