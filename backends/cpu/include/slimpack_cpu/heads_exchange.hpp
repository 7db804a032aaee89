// SPDX-License-Identifier: Apache-2.0
// Attention of one slice in a context-parallel group, each rank of which has a part of the heads.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/attention_runs.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/local_attention.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/workspace.hpp"

namespace slimpack::cpu {

/// One slice in one layer (Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509). What a rank has
/// of the slice's rows passes to the ranks that have their heads, which keep keys and values of the
/// whole sample; each attends with its heads for all rows of the slice, and what comes of it passes
/// home.
template <Mathematics Math>
class HeadsAttention {
 public:
  /// What is computed in.
  using Number = typename Math::Number;
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;
  /// Pieces of the slice that the rank owns, ascending.
  using Pieces = std::span<const PieceRows<Number>>;
  /// One entry a piece, in their order.
  using Scratch = std::span<const PieceGradients<Number>>;

  /// As SliceAttention; `part` says how many heads each rank has.
  HeadsAttention(Math& math, const AttentionShape& part, Tokens page, const runtime::PackCall& call,
                 const runtime::SegmentMemory& segment, const SegmentKeys<Number>& here,
                 std::int64_t layer, std::int64_t layers)
      : math_(math),
        part_(part),
        page_(page),
        call_(call),
        segment_(segment),
        here_(here),
        layer_(layer),
        layers_(layers) {}

  /// Fills attention output and log-sum-exp of the pieces, and stores keys and values of the slice
  /// that are not stored yet.
  template <runtime::Transport<Number> Link>
  void forward(Pieces pieces, Workspace<Number>& workspace, Link& link) const {
    const std::int64_t q = part_.query_width(), k = part_.key_width();
    // B makes outputs again while pages hold the keys.
    const bool stores = call_.recompute != Recompute::full || !segment_.kept.pages;
    const Widths out = stores ? Widths{q, k, k} : Widths{q};
    const Widths home{q, part_.heads};
    const Messages taken = of_all(workspace, out), made = of_all(workspace, home);
    const std::size_t mark = workspace.mark();
    const Messages given = of_own(workspace, out);
    for_each_own(pieces, [&](std::int64_t rank, const PieceRows<Number>& rows, std::size_t) {
      pack(given.rows(rank, 0, place(rows), rows.rows), rows.query, queries_of(rank), q);
      if (!stores) return;
      for (const auto& [column, all] :
           {std::pair{std::size_t{1}, here_.own.key}, {std::size_t{2}, here_.own.value}}) {
        pack(given.rows(rank, column, place(rows), rows.rows),
             detail::rows(all, place(rows), rows.rows, k * segment_.kept.parts), keys_of(rank), k);
      }
    });
    exchange(given, taken, link);

    workspace.rewind(mark);
    KeyRows<Number> kept = here_.by_heads;
    if (!segment_.kept.pages && kept.key.empty()) {  // F without pages
      kept.key = workspace.take(segment_.slice.end.value, k);
      kept.value = workspace.take(segment_.slice.end.value, k);
    }
    const LocalAttention<Math> local = local_of(kept);
    if (stores) {
      for_each_run([&](Tokens first, std::int64_t rank, std::int64_t i, std::int64_t count) {
        local.store(first, taken.rows(rank, 1, i, count), taken.rows(rank, 2, i, count));
      });
    }
    std::vector<QueryRun<Number>> runs;
    for_each_run([&](Tokens first, std::int64_t rank, std::int64_t i, std::int64_t count) {
      QueryRun<Number> run{first, count, taken.rows(rank, 0, i, count)};
      if (!here_.queries.empty()) std::ranges::copy(run.query, queries(first, count).begin());
      run.attention = made.rows(rank, 0, i, count);
      run.log_sum = made.rows(rank, 1, i, count);
      math_.attention_begin(run.attention, run.log_sum);
      runs.push_back(run);
    });
    local.forward(ascending(runs));

    workspace.rewind(mark);
    const Messages come = of_own(workspace, home);
    exchange(made, come, link);
    for_each_own(pieces, [&](std::int64_t rank, const PieceRows<Number>& rows, std::size_t) {
      const PartOfRow part = queries_of(rank);
      unpack(rows.attention, come.rows(rank, 0, place(rows), rows.rows), part, q);
      unpack(rows.log_sum, come.rows(rank, 1, place(rows), rows.rows), part, part_.heads);
    });
  }

  /// Fills `dquery`, `dkey` and `dvalue` of the pieces' scratch, and adds to the gradients of all
  /// keys and values of the rank's heads.
  template <runtime::Transport<Number> Link>
  void backward(Pieces pieces, Scratch scratch, Workspace<Number>& workspace, Link& link) const {
    const std::int64_t q = part_.query_width(), k = part_.key_width(), heads = part_.heads;
    Widths out{q, heads, heads, q};
    if (!here_.queries.empty()) out.pop_back();
    const Widths home{q, k, k};
    const Messages taken = of_all(workspace, out), made = of_all(workspace, home);
    const std::size_t mark = workspace.mark();
    const Messages given = of_own(workspace, out);
    for_each_own(pieces, [&](std::int64_t rank, const PieceRows<Number>& rows, std::size_t piece) {
      const auto part = [&](std::size_t column) {
        return given.rows(rank, column, place(rows), rows.rows);
      };
      pack(part(0), scratch[piece].dattention, queries_of(rank), q);
      pack(part(1), rows.log_sum, queries_of(rank), heads);
      make_delta(part(2), rows, scratch[piece].dattention, rank);
      if (here_.queries.empty()) pack(part(3), rows.query, queries_of(rank), q);
    });
    exchange(given, taken, link);

    const LocalAttention<Math> local = local_of(here_.by_heads);
    local.begin_gradients();
    std::vector<QueryRun<Number>> runs;
    for_each_run([&](Tokens first, std::int64_t rank, std::int64_t i, std::int64_t count) {
      QueryRun<Number> run{first, count};
      run.query = here_.queries.empty() ? taken.rows(rank, 3, i, count) : queries(first, count);
      run.dattention = taken.rows(rank, 0, i, count);
      run.log_sum = taken.rows(rank, 1, i, count);
      run.delta = taken.rows(rank, 2, i, count);
      run.dquery = made.rows(rank, 0, i, count);
      std::ranges::fill(run.dquery, Number{0});
      runs.push_back(run);
    });
    local.backward(ascending(runs));
    for_each_run([&](Tokens first, std::int64_t rank, std::int64_t i, std::int64_t count) {
      const KeyRun<Number> sums = local.gradients(first, count);
      std::ranges::copy(sums.dkey, made.rows(rank, 1, i, count).begin());
      std::ranges::copy(sums.dvalue, made.rows(rank, 2, i, count).begin());
    });

    workspace.rewind(mark);
    const Messages come = of_own(workspace, home);
    exchange(made, come, link);
    for_each_own(pieces, [&](std::int64_t rank, const PieceRows<Number>& rows, std::size_t piece) {
      const auto part = [&](std::size_t column) {
        return come.rows(rank, column, place(rows), rows.rows);
      };
      unpack(scratch[piece].dquery, part(0), queries_of(rank), q);
      // Of ranks with the same keys each has what its queries add.
      const bool adds = rank % copies() > 0;
      unpack(scratch[piece].dkey, part(1), keys_of(rank), k, adds);
      unpack(scratch[piece].dvalue, part(2), keys_of(rank), k, adds);
    });
  }

 private:
  /// Columns of the matrices of a message.
  using Widths = std::vector<std::int64_t>;

  /// A message to or from each rank: matrices of some rows, one behind the other.
  struct Messages {
    Widths widths;
    std::vector<std::int64_t> counts;  ///< rows of each rank's
    std::vector<Out> all;              ///< by rank

    /// Rows [i, i + count) of a matrix.
    [[nodiscard]] Out rows(std::int64_t rank, std::size_t column, std::int64_t i,
                           std::int64_t count) const {
      const auto at = static_cast<std::size_t>(rank);
      std::int64_t before = 0;
      for (std::size_t other = 0; other < column; ++other) before += widths[other];
      const std::int64_t first = before * counts[at] + i * widths[column];
      return all[at].subspan(static_cast<std::size_t>(first),
                             static_cast<std::size_t>(count * widths[column]));
    }
  };

  /// Rows of the slice that a rank owns.
  [[nodiscard]] std::int64_t rows_of(std::int64_t rank) const {
    return segment_.shard.of(rank).between(segment_.slice.begin, segment_.slice.end).value;
  }
  /// The place of a piece among the rank's rows of the slice.
  [[nodiscard]] std::int64_t place(const PieceRows<Number>& rows) const {
    return segment_.shard.between(segment_.slice.begin, rows.begin).value;
  }

  /// Of each rank's rows what this rank's heads have.
  [[nodiscard]] Messages of_all(Workspace<Number>& workspace, const Widths& widths) const {
    return messages(workspace, widths, [this](std::int64_t rank) { return rows_of(rank); });
  }
  /// Of this rank's rows what each rank's heads have.
  [[nodiscard]] Messages of_own(Workspace<Number>& workspace, const Widths& widths) const {
    return messages(workspace, widths,
                    [this](std::int64_t) { return rows_of(segment_.shard.rank); });
  }
  template <std::invocable<std::int64_t> Count>
  [[nodiscard]] Messages messages(Workspace<Number>& workspace, const Widths& widths,
                                  Count count) const {
    Messages made{widths, {}, {}};
    std::int64_t width = 0;
    for (const std::int64_t cols : widths) width += cols;
    for (std::int64_t rank = 0; rank < segment_.shard.ranks; ++rank) {
      made.counts.push_back(count(rank));
      made.all.push_back(workspace.take(made.counts.back(), width));
    }
    return made;
  }
  template <runtime::Transport<Number> Link>
  void exchange(const Messages& from, const Messages& into, Link& link) const {
    std::vector<std::span<const std::byte>> given;
    std::vector<std::span<std::byte>> taken;
    for (const Out message : from.all) given.push_back(std::as_bytes(message));
    for (const Out message : into.all) taken.push_back(std::as_writable_bytes(message));
    link.all_to_all(call_.ring, given, taken);
  }

  /// Queries of this rank's heads that have come before, of `count` tokens from position `first`.
  [[nodiscard]] Out queries(Tokens first, std::int64_t count) const {
    return detail::rows(here_.queries, (first - segment_.slice.begin).value, count,
                        part_.query_width());
  }
  /// Attention with this rank's heads, to keys of all tokens.
  [[nodiscard]] LocalAttention<Math> local_of(const KeyRows<Number>& kept) const {
    return {math_, part_, page_, CpShard{}, segment_, kept, layer_, layers_};
  }
  /// Calls visit(first position, owner, place among the owner's rows, rows) for the slice's rows,
  /// whoever owns them.
  template <std::invocable<Tokens, std::int64_t, std::int64_t, std::int64_t> Visit>
  void for_each_run(Visit visit) const {
    for (std::int64_t rank = 0; rank < segment_.shard.ranks; ++rank) {
      const CpShard owner = segment_.shard.of(rank);
      owner.for_each_run(segment_.slice.begin, segment_.slice.end, [&](Tokens first, Tokens last) {
        visit(first, rank, owner.between(segment_.slice.begin, first).value, (last - first).value);
      });
    }
  }
  /// Runs of all owners by their positions.
  [[nodiscard]] static std::span<const QueryRun<Number>> ascending(
      std::vector<QueryRun<Number>>& runs) {
    std::ranges::sort(runs, {}, &QueryRun<Number>::first);
    return runs;
  }
  /// Calls visit(rank, rows of a piece, its number) for each rank's part of the heads of all
  /// pieces.
  template <std::invocable<std::int64_t, const PieceRows<Number>&, std::size_t> Visit>
  void for_each_own(Pieces pieces, Visit visit) const {
    for (std::int64_t rank = 0; rank < segment_.shard.ranks; ++rank) {
      for (std::size_t i = 0; i < pieces.size(); ++i) visit(rank, pieces[i], i);
    }
  }

  /// Which of so many equal parts of a row of all heads.
  struct PartOfRow {
    std::int64_t part = 0, parts = 1;
  };
  [[nodiscard]] PartOfRow queries_of(std::int64_t rank) const {
    return {rank, segment_.shard.ranks};
  }
  [[nodiscard]] PartOfRow keys_of(std::int64_t rank) const {
    return {rank / copies(), segment_.kept.parts};
  }
  /// Ranks that have the same keys, one behind the other.
  [[nodiscard]] std::int64_t copies() const { return segment_.shard.ranks / segment_.kept.parts; }

  /// A part of a row, `width` numbers.
  template <class Rows>
  [[nodiscard]] static Rows part_of_row(Rows all, std::int64_t row, PartOfRow of,
                                        std::int64_t width) {
    return detail::row(all, row * of.parts + of.part, width);
  }
  /// Copies a part out of rows of all heads.
  static void pack(Out part, In all, PartOfRow of, std::int64_t width) {
    const auto count = static_cast<std::int64_t>(part.size()) / width;
    for (std::int64_t r = 0; r < count; ++r) {
      std::ranges::copy(part_of_row(all, r, of, width), detail::row(part, r, width).begin());
    }
  }
  /// Copies or adds a part into rows of all heads.
  static void unpack(Out all, In part, PartOfRow of, std::int64_t width, bool adds = false) {
    const auto count = static_cast<std::int64_t>(part.size()) / width;
    for (std::int64_t r = 0; r < count; ++r) {
      const In from = detail::row(part, r, width);
      const Out to = part_of_row(all, r, of, width);
      if (adds) {
        std::ranges::transform(to, from, to.begin(), std::plus<Number>{});
      } else {
        std::ranges::copy(from, to.begin());
      }
    }
  }
  /// The sums of output times its gradient of one rank's heads, row by row: they have no place in
  /// memory for all heads.
  void make_delta(Out delta, const PieceRows<Number>& rows, In dattention,
                  std::int64_t rank) const {
    const std::int64_t q = part_.query_width();
    AttentionShape row = part_;
    row.rows = 1;
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      math_.attention_delta(detail::row(delta, r, part_.heads),
                            part_of_row(In(rows.attention), r, queries_of(rank), q),
                            part_of_row(dattention, r, queries_of(rank), q), row);
    }
  }

  Math& math_;
  AttentionShape part_;
  Tokens page_;
  const runtime::PackCall& call_;
  const runtime::SegmentMemory& segment_;
  const SegmentKeys<Number>& here_;
  std::int64_t layer_, layers_;
};

}  // namespace slimpack::cpu
