// SPDX-License-Identifier: Apache-2.0
// Attention of one slice to its sample's keys, alone, round the ring of a context-parallel group or
// by heads.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/attention_runs.hpp"
#include "slimpack_cpu/heads_exchange.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/local_attention.hpp"
#include "slimpack_cpu/mathematics.hpp"

namespace slimpack::cpu {

/// One slice in one layer on one rank. `pieces` are its rows; keys, values and their gradients are
/// in the segment's memory or, where that keeps none, in the workspace.
template <Mathematics Math>
class SliceAttention {
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

  /// The `layer`-th of the stage's `layers`, with keys and values in pages of `page` tokens.
  /// `segment` is the slice in `call`, `here` its rows in the workspace. What is passed by
  /// reference must outlive this.
  SliceAttention(Math& math, const ModelShape& model, Tokens page, const runtime::PackCall& call,
                 const runtime::SegmentMemory& segment, const SegmentKeys<Number>& here,
                 std::int64_t layer, std::int64_t layers)
      : math_(math),
        model_(model),
        call_(call),
        segment_(segment),
        width_(model.key_width()),
        own_(math, heads_of(model), page, segment.shard, segment, here.own, layer, layers),
        heads_(math, part_of_heads(model, segment), page, call, segment, here, layer, layers) {}

  /// Stores keys and values of one piece, if there are pages of own ones.
  void store(const PieceRows<Number>& rows, In key, In value) const {
    if (segment_.kept.pages && !by_heads()) own_.store(rows.begin, key, value);
  }

  /// Fills attention output and log-sum-exp of the pieces; all keys up to the slice's end must be
  /// there on all ranks, by heads those before its begin.
  template <runtime::Transport<Number> Link>
  void forward(Pieces pieces, Workspace<Number>& workspace, Link& link) const {
    if (by_heads()) return heads_.forward(pieces, workspace, link);
    for (const PieceRows<Number>& rows : pieces)
      math_.attention_begin(rows.attention, rows.log_sum);
    if (stays()) {
      own_.forward(runs_of(pieces, {}));
    } else if (segment_.exchange == RingMode::pass_kv) {
      forward_keys(pieces, workspace, link);
    } else {
      forward_queries(pieces, workspace, link);
    }
  }

  /// Adds to `dquery` of the pieces' scratch and to the gradients of keys and values: to the stored
  /// ones, or from zero on to those of the workspace.
  template <runtime::Transport<Number> Link>
  void backward(Pieces pieces, Scratch scratch, Workspace<Number>& workspace, Link& link) const {
    if (by_heads()) return heads_.backward(pieces, scratch, workspace, link);
    own_.begin_gradients();
    if (stays()) {
      own_.backward(runs_of(pieces, scratch));
    } else if (segment_.exchange == RingMode::pass_kv) {
      backward_keys(pieces, scratch, workspace, link);
    } else {
      backward_queries(pieces, scratch, workspace, link);
    }
  }

  /// Reads the stored gradients of a piece's own keys and values, final once its slice is through.
  void gradients(const PieceRows<Number>& rows, Out dkey, Out dvalue) const {
    if (!segment_.kept.gradients || by_heads()) return;
    const Keys run = own_.gradients(rows.begin, rows.rows);
    std::ranges::copy(run.dkey, dkey.begin());
    std::ranges::copy(run.dvalue, dvalue.begin());
  }

 private:
  using Keys = KeyRun<Number>;
  using Queries = QueryRun<Number>;
  using QueryRuns = std::span<const Queries>;

  /// All heads.
  [[nodiscard]] static AttentionShape heads_of(const ModelShape& model) {
    return {0, 0, {}, {}, model.heads, model.kv_heads, model.head_dim};
  }
  /// Those of a rank where the slice goes by heads.
  [[nodiscard]] static AttentionShape part_of_heads(const ModelShape& model,
                                                    const runtime::SegmentMemory& segment) {
    AttentionShape part = heads_of(model);
    if (!segment.kept.by_heads) return part;
    part.heads /= segment.shard.ranks;
    part.kv_heads /= segment.kept.parts;
    return part;
  }

  /// Whether each rank has a part of the heads.
  [[nodiscard]] bool by_heads() const { return segment_.kept.by_heads; }
  /// Whether one rank owns the whole sample up to the slice's end, so that nothing travels: ranks
  /// that wait for each other at every short slice of a pack take longer for that than for its
  /// rows.
  [[nodiscard]] bool stays() const { return segment_.shard.undivided(segment_.slice.end); }
  /// The rank whose rows are here after so many hops.
  [[nodiscard]] std::int64_t owner(std::int64_t hops) const {
    return call_.ring.order().owner(segment_.shard.rank, hops);
  }

  /// The queries of the pieces. `scratch` may be empty.
  [[nodiscard]] static std::vector<Queries> runs_of(Pieces pieces, Scratch scratch) {
    std::vector<Queries> runs;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const PieceRows<Number>& piece = pieces[i];
      Queries run{piece.begin, piece.rows, piece.query, piece.attention, piece.log_sum};
      if (!scratch.empty()) {
        run.dattention = scratch[i].dattention;
        run.dquery = scratch[i].dquery;
      }
      runs.push_back(run);
    }
    return runs;
  }

  // --- keys and values travel ---

  /// The keys of `rank` before the slice's end in `buffer`: keys, values and, if there are, their
  /// gradients, each for all its tokens.
  [[nodiscard]] Keys travelling_keys(Out buffer, std::int64_t rank, bool with_gradients) const {
    Keys run;
    run.shard = segment_.shard.of(rank);
    run.first = run.shard.token(0);
    run.keys = run.shard.before(segment_.slice.end).value;
    const auto part = [&](std::int64_t which) {
      return detail::rows(buffer, which * run.keys, run.keys, width_);
    };
    run.key = part(0);
    run.value = part(1);
    if (with_gradients) {
      run.dkey = part(2);
      run.dvalue = part(3);
    }
    return run;
  }

  void load_own_keys(Out buffer) const {
    const std::int64_t count = segment_.shard.before(segment_.slice.end).value;
    own_.for_each_key(segment_.slice.end, [&](const Keys& run) {
      const std::int64_t i = segment_.shard.before(run.first).value;
      std::ranges::copy(run.key, detail::rows(buffer, i, run.keys, width_).begin());
      std::ranges::copy(run.value, detail::rows(buffer, count + i, run.keys, width_).begin());
    });
  }

  /// Two buffers for the largest part of [begin, end) that a rank owns.
  [[nodiscard]] std::pair<Out, Out> travelling(Workspace<Number>& workspace, Tokens begin,
                                               std::int64_t row) const {
    const Tokens most =
        largest_owned(segment_.shard.ranks, segment_.shard.block, begin, segment_.slice.end);
    const Out current = workspace.take(most.value, row);
    const Out incoming = workspace.take(most.value, row);
    return {current, incoming};
  }

  /// Hands the rows on that are here, and takes the next ones.
  template <runtime::Transport<Number> Link>
  void hand_on(Out& current, Out& incoming, std::int64_t hop, Tokens begin, std::int64_t row,
               Link& link) const {
    const auto part = [&](Out buffer, std::int64_t owner) {
      const Tokens rows = segment_.shard.of(owner).between(begin, segment_.slice.end);
      return buffer.first(static_cast<std::size_t>(rows.value * row));
    };
    link.ring(call_.ring, static_cast<std::size_t>(hop), std::as_bytes(part(current, owner(hop))),
              std::as_writable_bytes(part(incoming, owner(hop + 1))));
    std::swap(current, incoming);
  }

  template <runtime::Transport<Number> Link>
  void forward_keys(Pieces pieces, Workspace<Number>& workspace, Link& link) const {
    const std::int64_t row = 2 * width_;
    auto [current, incoming] = travelling(workspace, Tokens{0}, row);
    load_own_keys(current);
    const std::vector<Queries> queries = runs_of(pieces, {});
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      if (step > 0) hand_on(current, incoming, step - 1, Tokens{0}, row, link);
      const Keys keys = travelling_keys(current, owner(step), false);
      own_.for_each_block(queries, [&](QueryRuns rows) { own_.attend(rows, keys); });
    }
  }

  template <runtime::Transport<Number> Link>
  void backward_keys(Pieces pieces, Scratch scratch, Workspace<Number>& workspace,
                     Link& link) const {
    const std::int64_t row = 4 * width_;
    auto [current, incoming] = travelling(workspace, Tokens{0}, row);
    load_own_keys(current);
    const Keys leaving = travelling_keys(current, segment_.shard.rank, true);
    std::ranges::fill(leaving.dkey, Number{0});
    std::ranges::fill(leaving.dvalue, Number{0});
    const std::vector<Queries> queries = runs_of(pieces, scratch);
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      const Keys keys = travelling_keys(current, owner(step), true);
      own_.for_each_block(queries, [&](QueryRuns rows) { own_.attend_backward(rows, keys); });
      hand_on(current, incoming, step, Tokens{0}, row, link);
    }
    const Keys home = travelling_keys(current, segment_.shard.rank, true);
    const Keys own = own_.gradients(home.first, home.keys);
    math_.add(own.dkey, home.dkey);
    math_.add(own.dvalue, home.dvalue);
  }

  // --- queries travel ---

  [[nodiscard]] std::int64_t forward_row() const { return 2 * model_.query_width() + model_.heads; }
  [[nodiscard]] std::int64_t backward_row() const {
    return 3 * model_.query_width() + 2 * model_.heads;
  }

  /// Rows [at, at + count) of the queries of `rank` in `buffer`.
  [[nodiscard]] Queries queries_at(Out buffer, std::int64_t rank, std::int64_t i,
                                   std::int64_t count, bool backward) const {
    const std::int64_t all =
        segment_.shard.of(rank).between(segment_.slice.begin, segment_.slice.end).value;
    Workspace<Number> rest(buffer);
    const auto part = [&](std::int64_t cols) {
      return detail::rows(rest.take(all, cols), i, count, cols);
    };
    const std::int64_t q = model_.query_width();
    Queries run;
    run.rows = count;
    run.query = part(q);
    (backward ? run.dattention : run.attention) = part(q);
    run.log_sum = part(model_.heads);
    if (backward) {
      run.delta = part(model_.heads);
      run.dquery = part(q);
    }
    return run;
  }

  /// The place of a piece among its rank's rows of the slice.
  [[nodiscard]] std::int64_t place(const PieceRows<Number>& rows) const {
    return segment_.shard.between(segment_.slice.begin, rows.begin).value;
  }

  /// The queries of `rank` in `buffer`.
  [[nodiscard]] std::vector<Queries> travelling_queries(Out buffer, std::int64_t rank,
                                                        bool backward) const {
    std::vector<Queries> runs;
    const CpShard shard = segment_.shard.of(rank);
    shard.for_each_run(segment_.slice.begin, segment_.slice.end, [&](Tokens first, Tokens last) {
      runs.push_back(queries_at(buffer, rank, shard.between(segment_.slice.begin, first).value,
                                (last - first).value, backward));
      runs.back().first = first;
    });
    return runs;
  }

  template <runtime::Transport<Number> Link>
  void forward_queries(Pieces pieces, Workspace<Number>& workspace, Link& link) const {
    auto [current, incoming] = travelling(workspace, segment_.slice.begin, forward_row());
    const std::int64_t own_rank = segment_.shard.rank;
    for (const PieceRows<Number>& rows : pieces) {
      const Queries run = queries_at(current, own_rank, place(rows), rows.rows, false);
      std::ranges::copy(rows.query, run.query.begin());
      math_.attention_begin(run.attention, run.log_sum);
    }
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      own_.forward(travelling_queries(current, owner(step), false));
      hand_on(current, incoming, step, segment_.slice.begin, forward_row(), link);
    }
    for (const PieceRows<Number>& rows : pieces) {
      const Queries run = queries_at(current, own_rank, place(rows), rows.rows, false);
      std::ranges::copy(run.attention, rows.attention.begin());
      std::ranges::copy(run.log_sum, rows.log_sum.begin());
    }
  }

  template <runtime::Transport<Number> Link>
  void backward_queries(Pieces pieces, Scratch scratch, Workspace<Number>& workspace,
                        Link& link) const {
    auto [current, incoming] = travelling(workspace, segment_.slice.begin, backward_row());
    const std::int64_t own_rank = segment_.shard.rank;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const PieceRows<Number>& rows = pieces[i];
      const Queries run = queries_at(current, own_rank, place(rows), rows.rows, true);
      std::ranges::copy(rows.query, run.query.begin());
      std::ranges::copy(scratch[i].dattention, run.dattention.begin());
      std::ranges::copy(rows.log_sum, run.log_sum.begin());
      math_.attention_delta(
          run.delta, rows.attention, scratch[i].dattention,
          {rows.rows, 0, rows.begin, Tokens{0}, model_.heads, model_.kv_heads, model_.head_dim});
      std::ranges::fill(run.dquery, Number{0});
    }
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      own_.backward(travelling_queries(current, owner(step), true));
      hand_on(current, incoming, step, segment_.slice.begin, backward_row(), link);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Queries run = queries_at(current, own_rank, place(pieces[i]), pieces[i].rows, true);
      std::ranges::copy(run.dquery, scratch[i].dquery.begin());
    }
  }

  Math& math_;
  const ModelShape& model_;
  const runtime::PackCall& call_;
  const runtime::SegmentMemory& segment_;
  std::int64_t width_;          ///< of keys
  LocalAttention<Math> own_;    ///< to own keys; without meaning by heads
  HeadsAttention<Math> heads_;  ///< by heads; else without meaning
};

}  // namespace slimpack::cpu
