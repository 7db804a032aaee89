// SPDX-License-Identifier: Apache-2.0
// Attention of rows to the keys of a sample that a rank has, in pages or in a unit's workspace.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/workspace.hpp"

namespace slimpack::cpu {

/// Keys and values of consecutive positions, and their gradients where there are any.
template <std::floating_point Number>
struct KeyRun {
  std::int64_t keys = 0;   ///< positions
  OutOf<Number> key{};     ///< rows x key width
  OutOf<Number> value{};   ///< as many
  OutOf<Number> dkey{};    ///< as many, or empty
  OutOf<Number> dvalue{};  ///< as many, or empty
};

/// Queries of consecutive positions with what is read and written of them. In backward those that
/// travel bring `delta`, others have `attention`.
template <std::floating_point Number>
struct QueryRun {
  std::int64_t rows = 0;       ///< positions
  OutOf<Number> query{};       ///< rows x query width
  OutOf<Number> attention{};   ///< as many, or empty
  OutOf<Number> log_sum{};     ///< rows x heads
  OutOf<Number> dattention{};  ///< rows x query width, or empty
  OutOf<Number> delta{};       ///< rows x heads, or empty
  OutOf<Number> dquery{};      ///< rows x query width, or empty

  /// Rows [i, i + count) of it.
  [[nodiscard]] QueryRun part(std::int64_t i, std::int64_t count) const {
    const auto cut = [&](OutOf<Number> all) {
      if (all.empty()) return all;
      return detail::rows(all, i, count, static_cast<std::int64_t>(all.size()) / rows);
    };
    return {count,           cut(query), cut(attention), cut(log_sum),
            cut(dattention), cut(delta), cut(dquery)};
  }
};

/// One segment in one layer: its keys and values, those that the rank owns or, by heads, all of the
/// rank's part of the heads, and what attends to them.
template <Mathematics Math>
class LocalAttention {
 public:
  /// What is computed in.
  using Number = typename Math::Number;
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;

  /// The `layer`-th of the stage's `layers`, with keys and values in pages of `page` tokens.
  /// `heads` says which heads are here, of the tokens of `shard`. `here` has what the segment's
  /// memory does not keep. What is passed by reference must outlive this.
  LocalAttention(Math& math, const AttentionShape& heads, Tokens page, const CpShard& shard,
                 const runtime::SegmentMemory& segment, const KeyRows<Number>& here,
                 std::int64_t layer, std::int64_t layers)
      : math_(math),
        heads_(heads),
        page_(page),
        shard_(shard),
        segment_(segment),
        here_(here),
        layer_(layer),
        tokens_(static_cast<std::int64_t>(numbers<Number>(segment.gradients).size()) /
                (2 * layers * heads.key_width())) {}

  /// Stores keys and values of consecutive positions, all of them here.
  void store(Tokens first, In key, In value) const {
    const std::int64_t width = heads_.key_width();
    const auto rows = static_cast<std::int64_t>(key.size()) / width;
    for (std::int64_t r = 0; r < rows; ++r) {
      const KeyRun<Number> run = stored(shard_.before(first).value + r, 1);
      std::ranges::copy(detail::row(key, r, width), run.key.begin());
      std::ranges::copy(detail::row(value, r, width), run.value.begin());
    }
  }

  /// Gradients of keys and values of `count` consecutive positions, all of them here.
  [[nodiscard]] KeyRun<Number> gradients(Tokens first, std::int64_t count) const {
    return stored_gradients(shard_.before(first).value, count);
  }

  /// Clears the gradients that only the unit's workspace holds.
  void begin_gradients() const {
    if (segment_.kept.gradients) return;
    std::ranges::fill(here_.dkey, Number{0});
    std::ranges::fill(here_.dvalue, Number{0});
  }

  /// Calls visit(first position, run) for the keys before `end`, split where positions jump and
  /// where pages end or would end, so that sums are the same in either place.
  template <std::invocable<Tokens, const KeyRun<Number>&> Visit>
  void for_each_key(Tokens end, Visit visit) const {
    shard_.for_each_run(Tokens{0}, end, [&](Tokens first, Tokens last) {
      while (first < last) {
        const std::int64_t own = shard_.before(first).value;
        const std::int64_t count = std::min((last - first).value, page_.value - own % page_.value);
        KeyRun<Number> run = stored(own, count);
        if (!here_.dkey.empty() || !segment_.gradients.empty()) {
          const KeyRun<Number> sums = stored_gradients(own, count);
          run.dkey = sums.dkey;
          run.dvalue = sums.dvalue;
        }
        visit(first, run);
        first += Tokens{count};
      }
    });
  }

  /// Calls visit(first position, rows) for blocks of rows, each of which meets all its keys before
  /// the next one does.
  template <std::invocable<Tokens, const QueryRun<Number>&> Visit>
  void for_each_block(Tokens first, const QueryRun<Number>& queries, Visit visit) const {
    for_each_part(queries.rows, attention_rows(heads_), [&](std::int64_t i, std::int64_t count) {
      visit(first + Tokens{i}, queries.part(i, count));
    });
  }

  /// Lets rows see a run of keys.
  void attend(Tokens first_row, const QueryRun<Number>& queries, Tokens first_key,
              const KeyRun<Number>& keys) const {
    math_.attention_forward(queries.attention, queries.log_sum, queries.query, keys.key, keys.value,
                            shape(queries.rows, first_row, keys.keys, first_key));
  }
  /// Adds the gradients of rows and a run of keys that these have seen.
  void attend_backward(Tokens first_row, const QueryRun<Number>& queries, Tokens first_key,
                       const KeyRun<Number>& keys) const {
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

  /// Lets rows from position `first` on see all keys here that are not behind them.
  void forward(Tokens first, const QueryRun<Number>& queries) const {
    for_each_pair(first, queries, [this](const auto&... pair) { attend(pair...); });
  }
  /// Adds the gradients of rows from position `first` on and of all keys that they have seen.
  void backward(Tokens first, const QueryRun<Number>& queries) const {
    for_each_pair(first, queries, [this](const auto&... pair) { attend_backward(pair...); });
  }

 private:
  /// Calls visit(first row, rows, first key, keys) for all that meet here.
  template <std::invocable<Tokens, const QueryRun<Number>&, Tokens, const KeyRun<Number>&> Visit>
  void for_each_pair(Tokens first, const QueryRun<Number>& queries, Visit visit) const {
    for_each_block(first, queries, [&](Tokens first_row, const QueryRun<Number>& rows) {
      for_each_key(first_row + Tokens{rows.rows},
                   [&](Tokens first_key, const KeyRun<Number>& keys) {
                     visit(first_row, rows, first_key, keys);
                   });
    });
  }

  [[nodiscard]] AttentionShape shape(std::int64_t rows, Tokens first_row, std::int64_t keys,
                                     Tokens first_key) const {
    return {rows, keys, first_row, first_key, heads_.heads, heads_.kv_heads, heads_.head_dim};
  }

  /// Keys [own, own + count) among those here, which lie in one page where there are pages.
  [[nodiscard]] KeyRun<Number> stored(std::int64_t own, std::int64_t count) const {
    const std::int64_t width = heads_.key_width();
    if (!segment_.kept.pages) {
      return {count, detail::rows(here_.key, own, count, width),
              detail::rows(here_.value, own, count, width)};
    }
    const Out page = numbers<Number>(segment_.pages[static_cast<std::size_t>(own / page_.value)]);
    const Out keys = detail::rows(page, layer_ * 2 * page_.value, page_.value, width);
    const Out values = detail::rows(page, (layer_ * 2 + 1) * page_.value, page_.value, width);
    const std::int64_t i = own % page_.value;
    return {count, detail::rows(keys, i, count, width), detail::rows(values, i, count, width)};
  }

  [[nodiscard]] KeyRun<Number> stored_gradients(std::int64_t own, std::int64_t count) const {
    const std::int64_t width = heads_.key_width();
    KeyRun<Number> run{count};
    if (!segment_.kept.gradients) {
      run.dkey = detail::rows(here_.dkey, own, count, width);
      run.dvalue = detail::rows(here_.dvalue, own, count, width);
      return run;
    }
    const Out all = numbers<Number>(segment_.gradients);
    const std::int64_t first = layer_ * 2 * tokens_ + own;
    run.dkey = detail::rows(all, first, count, width);
    run.dvalue = detail::rows(all, first + tokens_, count, width);
    return run;
  }

  Math& math_;
  AttentionShape heads_;
  Tokens page_;
  CpShard shard_;
  const runtime::SegmentMemory& segment_;
  const KeyRows<Number>& here_;
  std::int64_t layer_;
  std::int64_t tokens_;  ///< of the sample that are here, where gradients are held
};

}  // namespace slimpack::cpu
