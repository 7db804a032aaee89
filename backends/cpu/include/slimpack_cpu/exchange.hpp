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
#include "slimpack_cpu/heads_exchange.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/mathematics.hpp"

namespace slimpack::cpu {

/// One slice in one layer on one rank. `pieces` are its rows; own keys, values and their gradients
/// are in the segment's memory or, where that keeps none, in the workspace.
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
                 const runtime::SegmentMemory& segment, const KeyRows<Number>& here,
                 std::int64_t layer, std::int64_t layers)
      : math_(math),
        model_(model),
        page_(page),
        call_(call),
        segment_(segment),
        here_(here),
        layer_(layer),
        width_(model.key_width()),
        own_tokens_(static_cast<std::int64_t>(numbers<Number>(segment.gradients).size()) /
                    (2 * layers * model.key_width())) {}

  /// Stores keys and values of one piece, if there are pages.
  void store(const PieceRows<Number>& rows, In key, In value) const {
    if (!segment_.kept.pages) return;
    const Tokens own = segment_.shard.before(rows.begin);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const KeyRun run = stored(own.value + r, 1);
      std::ranges::copy(detail::row(key, r, width_), run.key.begin());
      std::ranges::copy(detail::row(value, r, width_), run.value.begin());
    }
  }

  /// Fills attention output and log-sum-exp of the pieces; all keys up to the slice's end must be
  /// there on all ranks.
  template <runtime::Transport<Number> Link>
  void forward(Pieces pieces, Workspace<Number>& workspace, Link& link) const {
    for (const PieceRows<Number>& rows : pieces)
      math_.attention_begin(rows.attention, rows.log_sum);
    if (stays()) {
      for_each_block(pieces, {}, [&](Tokens first_row, const QueryRun& queries) {
        for_each_own_run(first_row + Tokens{queries.rows}, [&](Tokens first, const KeyRun& keys) {
          attend(first_row, queries, first, keys);
        });
      });
    } else if (segment_.exchange == RingMode::pass_kv) {
      forward_keys(pieces, workspace, link);
    } else if (segment_.exchange == RingMode::by_heads) {
      by_heads().forward(pieces, each_key(), workspace, link);
    } else {
      forward_queries(pieces, workspace, link);
    }
  }

  /// Adds to `dquery` of the pieces' scratch and to the gradients of keys and values: to the stored
  /// ones, or from zero on to those of the workspace.
  template <runtime::Transport<Number> Link>
  void backward(Pieces pieces, Scratch scratch, Workspace<Number>& workspace, Link& link) const {
    if (!segment_.kept.gradients) {
      std::ranges::fill(here_.dkey, Number{0});
      std::ranges::fill(here_.dvalue, Number{0});
    }
    if (stays()) {
      for_each_block(pieces, scratch, [&](Tokens first_row, const QueryRun& queries) {
        for_each_own_run(first_row + Tokens{queries.rows}, [&](Tokens first, const KeyRun& keys) {
          attend_backward(first_row, queries, first, keys);
        });
      });
    } else if (segment_.exchange == RingMode::pass_kv) {
      backward_keys(pieces, scratch, workspace, link);
    } else if (segment_.exchange == RingMode::by_heads) {
      const KeyRun sums = stored_gradients(0, segment_.shard.before(segment_.slice.end).value);
      by_heads().backward(pieces, scratch, each_key(), sums.dkey, sums.dvalue, workspace, link);
    } else {
      backward_queries(pieces, scratch, workspace, link);
    }
  }

  /// Reads the stored gradients of a piece's own keys and values, final once its slice is through.
  void gradients(const PieceRows<Number>& rows, Out dkey, Out dvalue) const {
    if (!segment_.kept.gradients) return;
    const KeyRun run = stored_gradients(segment_.shard.before(rows.begin).value, rows.rows);
    std::ranges::copy(run.dkey, dkey.begin());
    std::ranges::copy(run.dvalue, dvalue.begin());
  }

 private:
  /// Keys and values of consecutive positions, and their gradients where there are any.
  struct KeyRun {
    std::int64_t keys = 0;
    Out key, value, dkey, dvalue;
  };
  /// Queries of consecutive positions. Those that travel bring `delta`, others have `attention`.
  struct QueryRun {
    std::int64_t rows = 0;
    Out query, attention, log_sum, dattention, delta, dquery;
  };

  /// Whether one rank owns the whole sample up to the slice's end, so that nothing travels: ranks
  /// that wait for each other at every short slice of a pack take longer for that than for its
  /// rows.
  [[nodiscard]] bool stays() const { return segment_.shard.undivided(segment_.slice.end); }
  /// The rank whose rows are here after so many hops.
  [[nodiscard]] std::int64_t owner(std::int64_t hops) const {
    return call_.ring.order().owner(segment_.shard.rank, hops);
  }

  [[nodiscard]] AttentionShape shape(std::int64_t rows, Tokens first_row, std::int64_t keys,
                                     Tokens first_key) const {
    return {rows, keys, first_row, first_key, model_.heads, model_.kv_heads, model_.head_dim};
  }

  /// Own keys [own, own + count), which lie in one page where there are pages.
  [[nodiscard]] KeyRun stored(std::int64_t own, std::int64_t count) const {
    if (!segment_.kept.pages) {
      return {count,
              detail::rows(here_.key, own, count, width_),
              detail::rows(here_.value, own, count, width_),
              {},
              {}};
    }
    const Out page = numbers<Number>(segment_.pages[static_cast<std::size_t>(own / page_.value)]);
    const Out keys = detail::rows(page, layer_ * 2 * page_.value, page_.value, width_);
    const Out values = detail::rows(page, (layer_ * 2 + 1) * page_.value, page_.value, width_);
    const std::int64_t i = own % page_.value;
    return {count,
            detail::rows(keys, i, count, width_),
            detail::rows(values, i, count, width_),
            {},
            {}};
  }

  [[nodiscard]] KeyRun stored_gradients(std::int64_t own, std::int64_t count) const {
    if (!segment_.kept.gradients) {
      return {count,
              {},
              {},
              detail::rows(here_.dkey, own, count, width_),
              detail::rows(here_.dvalue, own, count, width_)};
    }
    const Out all = numbers<Number>(segment_.gradients);
    const std::int64_t first = layer_ * 2 * own_tokens_ + own;
    return {count,
            {},
            {},
            detail::rows(all, first, count, width_),
            detail::rows(all, first + own_tokens_, count, width_)};
  }

  /// Calls visit(first position, run) for own keys before `end`, split where positions jump and
  /// where pages end or would end, so that sums are the same in either place.
  template <std::invocable<Tokens, const KeyRun&> Visit>
  void for_each_own_run(Tokens end, Visit visit) const {
    segment_.shard.for_each_run(Tokens{0}, end, [&](Tokens first, Tokens last) {
      while (first < last) {
        const std::int64_t own = segment_.shard.before(first).value;
        const std::int64_t count = std::min((last - first).value, page_.value - own % page_.value);
        KeyRun run = stored(own, count);
        if (!here_.dkey.empty() || !segment_.gradients.empty()) {
          const KeyRun gradients = stored_gradients(own, count);
          run.dkey = gradients.dkey;
          run.dvalue = gradients.dvalue;
        }
        visit(first, run);
        first += Tokens{count};
      }
    });
  }

  /// Calls visit(first position, queries) for blocks of the pieces' rows. `scratch` may be empty.
  template <std::invocable<Tokens, const QueryRun&> Visit>
  void for_each_block(Pieces pieces, Scratch scratch, Visit visit) const {
    const std::int64_t q = model_.query_width();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const PieceRows<Number>& piece = pieces[i];
      for_each_part(piece.rows, attention_rows(model_), [&](std::int64_t k, std::int64_t count) {
        QueryRun run{count, {}, {}, {}, {}, {}, {}};
        run.query = detail::rows(piece.query, k, count, q);
        run.attention = detail::rows(piece.attention, k, count, q);
        run.log_sum = detail::rows(piece.log_sum, k, count, model_.heads);
        if (!scratch.empty()) {
          run.dattention = detail::rows(scratch[i].dattention, k, count, q);
          run.dquery = detail::rows(scratch[i].dquery, k, count, q);
        }
        visit(piece.begin + Tokens{k}, run);
      });
    }
  }

  void attend(Tokens first_row, const QueryRun& queries, Tokens first_key,
              const KeyRun& keys) const {
    math_.attention_forward(queries.attention, queries.log_sum, queries.query, keys.key, keys.value,
                            shape(queries.rows, first_row, keys.keys, first_key));
  }

  void attend_backward(Tokens first_row, const QueryRun& queries, Tokens first_key,
                       const KeyRun& keys) const {
    const AttentionShape met = shape(queries.rows, first_row, keys.keys, first_key);
    if (queries.delta.empty()) {
      math_.attention_backward(queries.dquery, keys.dkey, keys.dvalue, queries.query, keys.key,
                               keys.value, queries.attention, queries.log_sum, queries.dattention,
                               met);
    } else {
      math_.attention_backward_from(queries.dquery, keys.dkey, keys.dvalue, queries.query, keys.key,
                                    keys.value, queries.delta, queries.log_sum, queries.dattention,
                                    met);
    }
  }

  // --- all pass to parts of heads ---

  [[nodiscard]] HeadsAttention<Math> by_heads() const {
    return {math_, model_, segment_.shard, segment_.slice, call_.ring};
  }
  /// What calls its argument with the number of the first key, keys and values of runs of own ones.
  [[nodiscard]] auto each_key() const {
    return [this](auto visit) {
      for_each_own_run(segment_.slice.end, [&](Tokens first, const KeyRun& run) {
        visit(segment_.shard.before(first).value, In(run.key), In(run.value));
      });
    };
  }

  // --- keys and values travel ---

  /// Calls visit(first position, run) for the keys of `rank` before the slice's end in `buffer`:
  /// keys, values and, if there are, their gradients, each for all its tokens.
  template <std::invocable<Tokens, const KeyRun&> Visit>
  void for_each_travelling_key(Out buffer, std::int64_t rank, bool with_gradients,
                               Visit visit) const {
    const CpShard shard = segment_.shard.of(rank);
    const std::int64_t count = shard.before(segment_.slice.end).value;
    shard.for_each_run(Tokens{0}, segment_.slice.end, [&](Tokens first, Tokens last) {
      const std::int64_t i = shard.before(first).value;
      const std::int64_t keys = (last - first).value;
      const auto part = [&](std::int64_t which) {
        return detail::rows(buffer, which * count + i, keys, width_);
      };
      visit(first, with_gradients ? KeyRun{keys, part(0), part(1), part(2), part(3)}
                                  : KeyRun{keys, part(0), part(1), {}, {}});
    });
  }

  void load_own_keys(Out buffer) const {
    const std::int64_t count = segment_.shard.before(segment_.slice.end).value;
    for_each_own_run(segment_.slice.end, [&](Tokens first, const KeyRun& run) {
      const std::int64_t i = segment_.shard.before(first).value;
      std::ranges::copy(run.key, detail::rows(buffer, i, run.keys, width_).begin());
      std::ranges::copy(run.value, detail::rows(buffer, count + i, run.keys, width_).begin());
    });
  }

  /// Two buffers for the largest part of [begin, end) that a rank owns.
  [[nodiscard]] std::pair<Out, Out> travelling(Workspace<Number>& workspace, Tokens begin,
                                               std::int64_t row) const {
    const Tokens most =
        largest_owned(segment_.shard.ranks, segment_.shard.block, begin, segment_.slice.end);
    const Out current = workspace.take_zeros(most.value, row);
    const Out incoming = workspace.take_zeros(most.value, row);
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
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      if (step > 0) hand_on(current, incoming, step - 1, Tokens{0}, row, link);
      const std::int64_t rank = owner(step);
      for_each_block(pieces, {}, [&, here = current](Tokens first_row, const QueryRun& queries) {
        for_each_travelling_key(here, rank, false, [&](Tokens first, const KeyRun& keys) {
          attend(first_row, queries, first, keys);
        });
      });
    }
  }

  template <runtime::Transport<Number> Link>
  void backward_keys(Pieces pieces, Scratch scratch, Workspace<Number>& workspace,
                     Link& link) const {
    const std::int64_t row = 4 * width_;
    auto [current, incoming] = travelling(workspace, Tokens{0}, row);
    load_own_keys(current);
    const std::int64_t own_rank = segment_.shard.rank;
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      const std::int64_t rank = owner(step);
      for_each_block(
          pieces, scratch, [&, here = current](Tokens first_row, const QueryRun& queries) {
            for_each_travelling_key(here, rank, true, [&](Tokens first, const KeyRun& keys) {
              attend_backward(first_row, queries, first, keys);
            });
          });
      hand_on(current, incoming, step, Tokens{0}, row, link);
    }
    for_each_travelling_key(current, own_rank, true, [&](Tokens first, const KeyRun& run) {
      const KeyRun own = stored_gradients(segment_.shard.before(first).value, run.keys);
      math_.add(own.dkey, run.dkey);
      math_.add(own.dvalue, run.dvalue);
    });
  }

  // --- queries travel ---

  [[nodiscard]] std::int64_t forward_row() const { return 2 * model_.query_width() + model_.heads; }
  [[nodiscard]] std::int64_t backward_row() const {
    return 3 * model_.query_width() + 2 * model_.heads;
  }

  /// Rows [at, at + count) of the queries of `rank` in `buffer`.
  [[nodiscard]] QueryRun queries_at(Out buffer, std::int64_t rank, std::int64_t i,
                                    std::int64_t count, bool backward) const {
    const std::int64_t all =
        segment_.shard.of(rank).between(segment_.slice.begin, segment_.slice.end).value;
    Workspace<Number> rest(buffer);
    const auto part = [&](std::int64_t cols) {
      return detail::rows(rest.take(all, cols), i, count, cols);
    };
    const std::int64_t q = model_.query_width();
    QueryRun run{count, {}, {}, {}, {}, {}, {}};
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

  /// Calls visit(first row, queries, first key, keys) for what `rank`'s queries in `buffer` meet
  /// here.
  template <std::invocable<Tokens, const QueryRun&, Tokens, const KeyRun&> Visit>
  void for_each_process_group(Out buffer, std::int64_t rank, bool backward, Visit visit) const {
    const CpShard shard = segment_.shard.of(rank);
    shard.for_each_run(
        segment_.slice.begin, segment_.slice.end, [&](Tokens first_row, Tokens last_row) {
          const std::int64_t i = shard.between(segment_.slice.begin, first_row).value;
          for_each_part(
              (last_row - first_row).value, attention_rows(model_),
              [&](std::int64_t done, std::int64_t count) {
                const QueryRun queries = queries_at(buffer, rank, i + done, count, backward);
                const Tokens first = first_row + Tokens{done};
                for_each_own_run(first + Tokens{count}, [&](Tokens first_key, const KeyRun& keys) {
                  visit(first, queries, first_key, keys);
                });
              });
        });
  }

  template <runtime::Transport<Number> Link>
  void forward_queries(Pieces pieces, Workspace<Number>& workspace, Link& link) const {
    auto [current, incoming] = travelling(workspace, segment_.slice.begin, forward_row());
    const std::int64_t own_rank = segment_.shard.rank;
    for (const PieceRows<Number>& rows : pieces) {
      const QueryRun run = queries_at(current, own_rank, place(rows), rows.rows, false);
      std::ranges::copy(rows.query, run.query.begin());
      math_.attention_begin(run.attention, run.log_sum);
    }
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      for_each_process_group(
          current, owner(step), false,
          [&](Tokens first_row, const QueryRun& queries, Tokens first_key, const KeyRun& keys) {
            attend(first_row, queries, first_key, keys);
          });
      hand_on(current, incoming, step, segment_.slice.begin, forward_row(), link);
    }
    for (const PieceRows<Number>& rows : pieces) {
      const QueryRun run = queries_at(current, own_rank, place(rows), rows.rows, false);
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
      const QueryRun run = queries_at(current, own_rank, place(rows), rows.rows, true);
      std::ranges::copy(rows.query, run.query.begin());
      std::ranges::copy(scratch[i].dattention, run.dattention.begin());
      std::ranges::copy(rows.log_sum, run.log_sum.begin());
      math_.attention_delta(run.delta, rows.attention, scratch[i].dattention,
                            shape(rows.rows, rows.begin, 0, Tokens{0}));
      std::ranges::fill(run.dquery, Number{0});
    }
    for (std::int64_t step = 0; step < segment_.shard.ranks; ++step) {
      for_each_process_group(
          current, owner(step), true,
          [&](Tokens first_row, const QueryRun& queries, Tokens first_key, const KeyRun& keys) {
            attend_backward(first_row, queries, first_key, keys);
          });
      hand_on(current, incoming, step, segment_.slice.begin, backward_row(), link);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const QueryRun run = queries_at(current, own_rank, place(pieces[i]), pieces[i].rows, true);
      std::ranges::copy(run.dquery, scratch[i].dquery.begin());
    }
  }

  Math& math_;
  const ModelShape& model_;
  Tokens page_;
  const runtime::PackCall& call_;
  const runtime::SegmentMemory& segment_;
  const KeyRows<Number>& here_;
  std::int64_t layer_;
  std::int64_t width_;       ///< of keys
  std::int64_t own_tokens_;  ///< of the sample, where gradients are held
};

}  // namespace slimpack::cpu
