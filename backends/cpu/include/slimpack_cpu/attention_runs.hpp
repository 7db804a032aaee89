// SPDX-License-Identifier: Apache-2.0
// Runs of queries and of keys that lie in memory one behind the other.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// Numbers that an operator reads.
template <class Number>
using InOf = std::span<const Number>;
/// Numbers that an operator writes.
template <class Number>
using OutOf = std::span<Number>;

/// Keys and values of tokens of a sample, and their gradients where there are any: of `keys` tokens
/// that `shard` owns, one after the other from position `first` on.
template <std::floating_point Number>
struct KeyRun {
  Tokens first;            ///< position of the first key, a token of `shard`
  std::int64_t keys = 0;   ///< tokens
  OutOf<Number> key{};     ///< rows x key width
  OutOf<Number> value{};   ///< as many
  OutOf<Number> dkey{};    ///< as many, or empty
  OutOf<Number> dvalue{};  ///< as many, or empty
  CpShard shard{};         ///< one rank of one: positions follow each other

  /// The position of the i-th key. O(1).
  [[nodiscard]] Tokens position(std::int64_t i) const {
    return shard.token(shard.before(first).value + i);
  }
  /// Keys that the query at a position sees. O(1).
  [[nodiscard]] std::int64_t visible(Tokens query) const {
    return std::clamp<std::int64_t>(shard.between(first, query + Tokens{1}).value, 0, keys);
  }
  /// Calls visit(keys) for its parts, each of consecutive positions.
  template <std::invocable<const KeyRun&> Visit>
  void for_each_stretch(Visit visit) const {
    if (keys == 0) return;
    shard.for_each_run(first, position(keys - 1) + Tokens{1}, [&](Tokens begin, Tokens end) {
      const std::int64_t i = shard.between(first, begin).value, count = (end - begin).value;
      const auto cut = [&](OutOf<Number> all) {
        if (all.empty()) return all;
        return detail::rows(all, i, count, static_cast<std::int64_t>(all.size()) / keys);
      };
      visit(KeyRun{begin, count, cut(key), cut(value), cut(dkey), cut(dvalue), {}});
    });
  }
};

/// Queries of consecutive positions with what is read and written of them. In backward those that
/// travel bring `delta`, others have `attention`.
template <std::floating_point Number>
struct QueryRun {
  Tokens first;                ///< position of the first row
  std::int64_t rows = 0;       ///< positions
  OutOf<Number> query{};       ///< rows x query width
  OutOf<Number> attention{};   ///< as many, or empty
  OutOf<Number> log_sum{};     ///< rows x heads
  OutOf<Number> dattention{};  ///< rows x query width, or empty
  OutOf<Number> delta{};       ///< rows x heads, or empty
  OutOf<Number> dquery{};      ///< rows x query width, or empty

  /// The position of the last row.
  [[nodiscard]] Tokens last() const { return first + Tokens{rows - 1}; }
  /// Rows [i, i + count) of it.
  [[nodiscard]] QueryRun part(std::int64_t i, std::int64_t count) const {
    const auto cut = [&](OutOf<Number> all) {
      if (all.empty()) return all;
      return detail::rows(all, i, count, static_cast<std::int64_t>(all.size()) / rows);
    };
    return {first + Tokens{i}, count,           cut(query), cut(attention),
            cut(log_sum),      cut(dattention), cut(delta), cut(dquery)};
  }
};

}  // namespace slimpack::cpu
