// SPDX-License-Identifier: Apache-2.0
// Attention of rows to the keys of a sample that a rank has, in pages or in a unit's workspace.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/attention_runs.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/workspace.hpp"

namespace slimpack::cpu {

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
  /// Runs of queries, ascending.
  using QueryRuns = std::span<const QueryRun<Number>>;

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

  /// Calls visit(run) for the keys before `end`, split where pages end or would end, so that sums
  /// are the same in either place.
  template <std::invocable<const KeyRun<Number>&> Visit>
  void for_each_key(Tokens end, Visit visit) const {
    const std::int64_t all = shard_.before(end).value;
    for_each_part(all, page_.value, [&](std::int64_t own, std::int64_t count) {
      KeyRun<Number> run = stored(own, count);
      if (!here_.dkey.empty() || !segment_.gradients.empty()) {
        const KeyRun<Number> sums = stored_gradients(own, count);
        run.dkey = sums.dkey;
        run.dvalue = sums.dvalue;
      }
      visit(run);
    });
  }

  /// Calls visit(runs) for blocks of the rows of ascending runs, each of which meets all its keys
  /// before the next one does.
  template <std::invocable<QueryRuns> Visit>
  void for_each_block(QueryRuns queries, Visit visit) const {
    const std::int64_t most = attention_rows(heads_);
    std::vector<QueryRun<Number>> parts;
    for (const QueryRun<Number>& run : queries) {
      for_each_part(run.rows, most, [&](std::int64_t i, std::int64_t count) {
        parts.push_back(run.part(i, count));
      });
    }
    for_each_group(
        parts.size(), [&](std::size_t i) { return parts[i].rows; }, most,
        [&](std::size_t first, std::size_t count) {
          visit(QueryRuns(parts).subspan(first, count));
        });
  }

  /// Lets rows see a run of keys.
  void attend(QueryRuns queries, const KeyRun<Number>& keys) const {
    math_.attention_forward(queries, keys, heads_);
  }
  /// Adds the gradients of rows and a run of keys that these have seen.
  void attend_backward(QueryRuns queries, const KeyRun<Number>& keys) const {
    math_.attention_backward(queries, keys, heads_);
  }

  /// Lets rows see all keys here that are not behind them.
  void forward(QueryRuns queries) const {
    for_each_pair(queries, [this](const auto&... pair) { attend(pair...); });
  }
  /// Adds the gradients of rows and of all keys here that they have seen.
  void backward(QueryRuns queries) const {
    for_each_pair(queries, [this](const auto&... pair) { attend_backward(pair...); });
  }

 private:
  /// Calls visit(rows, keys) for all that meet here.
  template <std::invocable<QueryRuns, const KeyRun<Number>&> Visit>
  void for_each_pair(QueryRuns queries, Visit visit) const {
    for_each_block(queries, [&](QueryRuns rows) {
      for_each_key(rows.back().last() + Tokens{1},
                   [&](const KeyRun<Number>& keys) { visit(rows, keys); });
    });
  }

  /// Keys [own, own + count) among those here, which lie in one page where there are pages.
  [[nodiscard]] KeyRun<Number> stored(std::int64_t own, std::int64_t count) const {
    const std::int64_t width = heads_.key_width();
    KeyRun<Number> run{shard_.token(own), count};
    run.shard = shard_;
    if (!segment_.kept.pages) {
      run.key = detail::rows(here_.key, own, count, width);
      run.value = detail::rows(here_.value, own, count, width);
      return run;
    }
    const Out page = numbers<Number>(segment_.pages[static_cast<std::size_t>(own / page_.value)]);
    const Out keys = detail::rows(page, layer_ * 2 * page_.value, page_.value, width);
    const Out values = detail::rows(page, (layer_ * 2 + 1) * page_.value, page_.value, width);
    const std::int64_t i = own % page_.value;
    run.key = detail::rows(keys, i, count, width);
    run.value = detail::rows(values, i, count, width);
    return run;
  }

  [[nodiscard]] KeyRun<Number> stored_gradients(std::int64_t own, std::int64_t count) const {
    const std::int64_t width = heads_.key_width();
    KeyRun<Number> run{shard_.token(own), count};
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
