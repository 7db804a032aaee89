// SPDX-License-Identifier: Apache-2.0
// Causal attention in fp32 by tiles of queries and keys, with running softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "slimpack/core/error.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/attention_runs.hpp"
#include "slimpack_cpu/fast/matrix.hpp"
#include "slimpack_cpu/fast/packet.hpp"

namespace slimpack::cpu::fast {

/// Numbers that an operator reads.
using In = std::span<const float>;
/// Numbers that an operator writes.
using Out = std::span<float>;

/// The operators of slimpack_cpu/attention.hpp. Query heads that share a key head lie one below
/// the other in a tile, scores exist for one tile at a time, and the backward pass computes them
/// again from the log-sum-exp. Results of a row do not depend on other rows.
class Attention {
 public:
  /// Most rows of a tile, the heads that share a key head one below the other; more only where one
  /// token has more such heads. With kKeys keys, scores, their gradients and the packed keys stay
  /// in the second-level cache, and most of them in the first.
  static constexpr std::int64_t kRows = 48;
  /// Keys of a tile.
  static constexpr std::int64_t kKeys = 128;

  /// Queries with what is read and written of them.
  using Rows = QueryRun<float>;
  /// Keys and values, and their gradients in backward.
  using Keys = KeyRun<float>;

  /// As cpu::attention_forward for ascending runs of rows: a tile of keys is packed once for all of
  /// them. `heads` has numbers and width of heads. Throws InvalidInput where a span has not the
  /// size that rows, keys and heads say.
  void forward(std::span<const Rows> queries, const Keys& run, const AttentionShape& heads) {
    cpu::detail::check_attention(heads);
    for (const Rows& rows : queries) {
      check(rows.attention.size() == size(rows.rows * heads.query_width()), "out",
            rows.attention.size());
      check(rows.query.size() == size(rows.rows * heads.query_width()), "query", rows.query.size());
      check(rows.log_sum.size() == size(rows.rows * heads.heads), "log_sum", rows.log_sum.size());
    }
    for (const In keys : {In(run.key), In(run.value)}) {
      check(keys.size() == size(run.keys * heads.key_width()), "keys and values", keys.size());
    }
    prepare(heads);
    for_each_key_tile(queries, run,
                      [&](std::int64_t first, std::int64_t keys, std::int64_t kv, auto each_tile) {
                        const std::int64_t from = (first * heads.kv_heads + kv) * dim_;
                        const Panels key_columns{key_columns_.data(), dim_, keys};
                        const Panels value_rows{value_rows_.data(), keys, dim_};
                        pack_transposed(key_columns, run.key.data() + from, heads.key_width());
                        pack(value_rows, run.value.data() + from, heads.key_width());
                        each_tile([&](const Tile& tile) {
                          load(query_.data(), tile.run->query.data(), tile, scale_ * kLog2E);
                          multiply(scores_.data(), kKeys, tile.rows, tile.padded_keys,
                                   {query_.data(), dim_, 1}, key_columns, dim_, false);
                          soften(tile);
                          multiply(result_.data(), padded_dim_, tile.rows, padded_dim_,
                                   {scores_.data(), kKeys, 1}, value_rows, tile.keys, false);
                          combine(tile);
                        });
                      });
  }

  /// As cpu::attention_backward for ascending runs of rows, or cpu::attention_backward_from for
  /// those that have `delta`. Throws InvalidInput where a span has not the size that rows, keys and
  /// heads say.
  void backward(std::span<const Rows> queries, const Keys& run, const AttentionShape& heads) {
    cpu::detail::check_attention(heads);
    for (const Rows& rows : queries) {
      const std::size_t wide = size(rows.rows * heads.query_width());
      check(rows.dquery.size() == wide, "dquery", rows.dquery.size());
      check(rows.query.size() == wide, "query", rows.query.size());
      check(rows.dattention.size() == wide, "dout", rows.dattention.size());
      check(rows.log_sum.size() == size(rows.rows * heads.heads), "log_sum", rows.log_sum.size());
      check(rows.delta.empty() ? rows.attention.size() == wide
                               : rows.delta.size() == rows.log_sum.size(),
            "out or delta", rows.delta.empty() ? rows.attention.size() : rows.delta.size());
    }
    for (const In keys : {In(run.dkey), In(run.dvalue), In(run.key), In(run.value)}) {
      check(keys.size() == size(run.keys * heads.key_width()), "keys and values", keys.size());
    }
    prepare(heads);
    for_each_key_tile(
        queries, run, [&](std::int64_t first, std::int64_t keys, std::int64_t kv, auto each_tile) {
          const std::int64_t from = (first * heads.kv_heads + kv) * dim_;
          const Panels key_columns{key_columns_.data(), dim_, keys};
          const Panels value_columns{value_columns_.data(), dim_, keys};
          const Panels key_rows{key_rows_.data(), keys, dim_};
          pack_transposed(key_columns, run.key.data() + from, heads.key_width());
          pack_transposed(value_columns, run.value.data() + from, heads.key_width());
          pack(key_rows, run.key.data() + from, heads.key_width());
          std::fill_n(key_gradient_.data(), keys * padded_dim_, 0.0F);
          std::fill_n(value_gradient_.data(), keys * padded_dim_, 0.0F);
          each_tile([&](const Tile& tile) {
            load(query_.data(), tile.run->query.data(), tile, scale_ * kLog2E);
            load(dout_.data(), tile.run->dattention.data(), tile, 1.0F);
            load_statistics(tile);
            multiply(scores_.data(), kKeys, tile.rows, tile.padded_keys, {query_.data(), dim_, 1},
                     key_columns, dim_, false);
            multiply(gradient_.data(), kKeys, tile.rows, tile.padded_keys, {dout_.data(), dim_, 1},
                     value_columns, dim_, false);
            differentiate(tile);
            const Panels query_rows{panels_.data(), tile.rows, dim_};
            pack(query_rows, dout_.data(), dim_);
            multiply(value_gradient_.data(), padded_dim_, tile.keys, padded_dim_,
                     {scores_.data(), 1, kKeys}, query_rows, tile.rows, true);
            pack(query_rows, query_.data(), dim_);
            multiply(key_gradient_.data(), padded_dim_, tile.keys, padded_dim_,
                     {gradient_.data(), 1, kKeys}, query_rows, tile.rows, true);
            multiply(result_.data(), padded_dim_, tile.rows, padded_dim_,
                     {gradient_.data(), kKeys, 1}, key_rows, tile.keys, false);
            add_rows(tile, scale_);
          });
          // Queries were scaled by scale / ln 2 for their scores.
          add_keys(run.dkey.data() + from, heads.key_width(), key_gradient_, keys, kLn2);
          add_keys(run.dvalue.data() + from, heads.key_width(), value_gradient_, keys, 1.0F);
        });
  }

 private:
  /// Rows [row, row + positions) of a run, of the query heads of one key head, against keys of one
  /// tile.
  struct Tile {
    const Rows* run = nullptr;
    const Keys* met = nullptr;
    std::int64_t row = 0, positions = 0;
    std::int64_t first_key = 0;  ///< of the tile, in its run
    std::int64_t kv = 0;
    std::int64_t rows = 0;         ///< positions x heads of the group
    std::int64_t keys = 0;         ///< that the last row sees
    std::int64_t padded_keys = 0;  ///< in whole packets
  };

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  static void check(bool condition, const char* what, std::size_t found) {
    if (condition) return;
    require(false, std::string("fast attention: size of ") + what + " must be as the shape says",
            static_cast<std::int64_t>(found));
  }

  /// Makes the scratch as large as heads of this size need.
  void prepare(const AttentionShape& shape) {
    heads_ = shape.heads;
    group_ = shape.heads / shape.kv_heads;
    dim_ = shape.head_dim;
    padded_dim_ = padded(dim_);
    positions_ = std::max<std::int64_t>(1, kRows / group_);
    scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim_)));
    const std::int64_t rows = positions_ * group_;
    if (rows <= ready_rows_ && padded_dim_ <= ready_dim_) return;
    ready_rows_ = std::max(rows, ready_rows_);
    ready_dim_ = std::max(padded_dim_, ready_dim_);
    for (Floats* const floats : {&query_, &dout_, &panels_, &result_}) {
      *floats = Floats(ready_rows_ * ready_dim_);
    }
    for (Floats* const floats : {&scores_, &gradient_}) *floats = Floats(ready_rows_ * kKeys);
    for (Floats* const floats : {&key_columns_, &value_columns_, &key_rows_, &value_rows_,
                                 &key_gradient_, &value_gradient_}) {
      *floats = Floats(ready_dim_ * kKeys);
    }
    for (Floats* const floats : {&log_, &delta_, &old_, &fresh_, &total_}) {
      *floats = Floats(padded(ready_rows_));
    }
  }

  /// Calls visit(first key, keys, key head, each_tile) for tiles of keys that rows see, where
  /// each_tile(use) calls use(tile) for the rows that do.
  template <class Visit>
  void for_each_key_tile(std::span<const Rows> queries, const Keys& run, Visit visit) const {
    for (std::int64_t first = 0; first < run.keys; first += kKeys) {
      const Tokens position = run.position(first);
      if (queries.empty() || position > queries.back().last()) return;
      const std::int64_t keys = std::min(kKeys, run.keys - first);
      for (std::int64_t kv = 0; kv < heads_ / group_; ++kv) {
        visit(first, keys, kv, [&](auto use) {
          for (const Rows& rows : queries) {
            for (std::int64_t row = std::max<std::int64_t>(0, (position - rows.first).value);
                 row < rows.rows; row += positions_) {
              use(tile_of(rows, run, row, first, keys, kv));
            }
          }
        });
      }
    }
  }

  [[nodiscard]] Tile tile_of(const Rows& rows, const Keys& run, std::int64_t row,
                             std::int64_t first_key, std::int64_t keys, std::int64_t kv) const {
    Tile tile;
    tile.run = &rows;
    tile.met = &run;
    tile.row = row;
    tile.positions = std::min(positions_, rows.rows - row);
    tile.first_key = first_key;
    tile.kv = kv;
    tile.rows = tile.positions * group_;
    tile.keys = keys;
    tile.keys = visible(tile, tile.positions - 1);
    tile.padded_keys = padded(tile.keys);
    return tile;
  }

  /// Where the group's heads of a position begin in a matrix of queries.
  [[nodiscard]] std::int64_t at(const Tile& tile, std::int64_t position) const {
    return ((tile.row + position) * heads_ + tile.kv * group_) * dim_;
  }
  [[nodiscard]] std::size_t statistic_at(const Tile& tile, std::int64_t position) const {
    return size((tile.row + position) * heads_ + tile.kv * group_);
  }
  /// Keys of the tile that a position sees, at least one.
  [[nodiscard]] static std::int64_t visible(const Tile& tile, std::int64_t position) {
    return std::min(tile.keys, tile.met->visible(tile.run->first + Tokens{tile.row + position}) -
                                   tile.first_key);
  }

  void load(float* into, const float* from, const Tile& tile, float factor) const {
    const std::int64_t count = group_ * dim_;
    const Packet factors = all(factor);
    for (std::int64_t position = 0; position < tile.positions; ++position, into += count) {
      const float* line = from + at(tile, position);
      for_packets(count, [&](std::int64_t i, auto lanes) {
        lanes.store(into + i, product(lanes.load(line + i), factors));
      });
    }
  }

  /// Scores, to base 2, become exp(score - largest); the row's state is kept for `combine`.
  void soften(const Tile& tile) {
    const Out log_sum = tile.run->log_sum;
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    for (std::int64_t position = 0; position < tile.positions; ++position) {
      const std::int64_t seen = visible(tile, position);
      for (std::int64_t head = 0; head < group_; ++head) {
        const std::int64_t row = position * group_ + head;
        float* line = scores_.data() + row * kKeys;
        std::fill(line + seen, line + tile.padded_keys, kHidden);
        const float before =
            log_sum[statistic_at(tile, position) + size(head)] * kLog2E;  // to base 2
        Packet top = all(before);
        for (std::int64_t i = 0; i < tile.padded_keys; i += kLanes) {
          top = larger(top, fast::load(line + i));
        }
        const float largest = largest_of(top);
        const Packet peak = all(largest);
        Packet weights = all(0.0F);
        for (std::int64_t i = 0; i < tile.padded_keys; i += kLanes) {
          const Packet weight = exp2(difference(fast::load(line + i), peak));
          fast::store(line + i, weight);
          weights = sum(weights, weight);
        }
        old_.data()[row] = before - largest;
        fresh_.data()[row] = largest;
        total_.data()[row] = sum_of(weights);
      }
    }
    for (std::int64_t i = 0; i < tile.rows; i += kLanes) {
      const Packet old = exp2(fast::load(old_.data() + i));
      const Packet total = sum(fast::load(total_.data() + i), old);
      fast::store(old_.data() + i, quotient(old, total));
      fast::store(total_.data() + i, total);
    }
    for (std::int64_t position = 0; position < tile.positions; ++position) {
      for (std::int64_t head = 0; head < group_; ++head) {
        const std::int64_t row = position * group_ + head;
        log_sum[statistic_at(tile, position) + size(head)] =
            fresh_.data()[row] * kLn2 + std::log(total_.data()[row]);
      }
    }
  }

  /// out = out * share of what was seen before + result / total.
  void combine(const Tile& tile) const {
    const Out out = tile.run->attention;
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      float* line = out.data() + at(tile, row / group_) + row % group_ * dim_;
      const float* result = result_.data() + row * padded_dim_;
      const Packet before = all(old_.data()[row]), share = all(1.0F / total_.data()[row]);
      for_packets(dim_, [&](std::int64_t i, auto lanes) {
        lanes.store(line + i, multiply_add(lanes.load(line + i), before,
                                           product(fast::load(result + i), share)));
      });
    }
  }

  /// Log-sum-exp to base 2 and the sums of out * dout, by row of the tile.
  void load_statistics(const Tile& tile) {
    const In out = tile.run->attention, delta = tile.run->delta, log_sum = tile.run->log_sum;
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const std::size_t from = statistic_at(tile, row / group_) + size(row % group_);
      log_.data()[row] = log_sum[from] * kLog2E;
      if (!delta.empty()) {
        delta_.data()[row] = delta[from];
        continue;
      }
      const float* line = out.data() + at(tile, row / group_) + row % group_ * dim_;
      const float* dline = dout_.data() + row * dim_;
      Packet along = all(0.0F);
      for_packets(dim_, [&](std::int64_t i, auto lanes) {
        along = multiply_add(lanes.load(line + i), lanes.load(dline + i), along);
      });
      delta_.data()[row] = sum_of(along);
    }
  }

  /// Scores become weights, gradients of weights those of scores.
  void differentiate(const Tile& tile) const {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      float* line = scores_.data() + row * kKeys;
      float* dline = gradient_.data() + row * kKeys;
      const std::int64_t seen = visible(tile, row / group_);
      std::fill(line + seen, line + tile.padded_keys, kHidden);
      const Packet log = all(log_.data()[row]), along = all(delta_.data()[row]);
      for (std::int64_t i = 0; i < tile.padded_keys; i += kLanes) {
        const Packet weight = exp2(difference(fast::load(line + i), log));
        fast::store(line + i, weight);
        fast::store(dline + i, product(weight, difference(fast::load(dline + i), along)));
      }
    }
  }

  void add_rows(const Tile& tile, float factor) const {
    const Packet factors = all(factor);
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      float* line = tile.run->dquery.data() + at(tile, row / group_) + row % group_ * dim_;
      const float* result = result_.data() + row * padded_dim_;
      for_packets(dim_, [&](std::int64_t i, auto lanes) {
        lanes.store(line + i, multiply_add(fast::load(result + i), factors, lanes.load(line + i)));
      });
    }
  }

  void add_keys(float* into, std::int64_t stride, const Floats& gradient, std::int64_t keys,
                float factor) const {
    const Packet factors = all(factor);
    for (std::int64_t row = 0; row < keys; ++row) {
      float* line = into + row * stride;
      const float* from = gradient.data() + row * padded_dim_;
      for_packets(dim_, [&](std::int64_t i, auto lanes) {
        lanes.store(line + i, multiply_add(fast::load(from + i), factors, lanes.load(line + i)));
      });
    }
  }

  std::int64_t heads_ = 0, group_ = 0, dim_ = 0, padded_dim_ = 0, positions_ = 0;
  float scale_ = 0;
  std::int64_t ready_rows_ = 0, ready_dim_ = 0;
  Floats query_, dout_, panels_, result_;  ///< rows of a tile x a head
  Floats scores_, gradient_;               ///< rows x keys of a tile
  Floats key_columns_, value_columns_, key_rows_, value_rows_;
  Floats key_gradient_, value_gradient_;
  Floats log_, delta_, old_, fresh_, total_;  ///< one a row of a tile
};

}  // namespace slimpack::cpu::fast
