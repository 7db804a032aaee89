// SPDX-License-Identifier: Apache-2.0
// Tables of tokens and of rows, checked and ordered on the host before they are uploaded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"

namespace slimpack::cuda {

/// Throws InvalidInput where a token is not below the vocabulary.
inline void check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocab) {
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < vocab, "check_tokens: tokens must be below vocab", token);
  }
}

/// The rows of each distinct token: those of tokens[i], rising in i, are rows[begin[i]] to
/// rows[begin[i + 1]], rising too.
struct TokenRows {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> begin;  ///< one more than tokens
  std::vector<std::int32_t> rows;
};

/// Throws InvalidInput as check_tokens does. O(n log n).
[[nodiscard]] inline TokenRows token_rows(std::span<const std::int32_t> tokens,
                                          std::int64_t vocab) {
  check_tokens(tokens, vocab);
  require(tokens.size() <= std::size_t{std::numeric_limits<std::int32_t>::max()},
          "token_rows: there are at most 2147483647 rows",
          static_cast<std::int64_t>(tokens.size()));
  const auto token_of = [&](std::int32_t row) { return tokens[static_cast<std::size_t>(row)]; };
  TokenRows result;
  result.rows.resize(tokens.size());
  std::iota(result.rows.begin(), result.rows.end(), 0);
  std::ranges::stable_sort(result.rows, {}, token_of);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const std::int32_t token = token_of(result.rows[i]);
    if (!result.tokens.empty() && result.tokens.back() == token) continue;
    result.tokens.push_back(token);
    result.begin.push_back(static_cast<std::int32_t>(i));
  }
  result.begin.push_back(static_cast<std::int32_t>(result.rows.size()));
  return result;
}

/// Throws InvalidInput unless each entry is a row of a matrix of `rows`.
inline void check_row_table(std::span<const std::int32_t> table, std::int64_t rows) {
  for (const std::int32_t row : table) {
    require(row >= 0 && row < rows, "check_row_table: an entry must be a row of the matrix", row);
  }
}

/// The same, also unless all entries are distinct, as scattering wants them. O(n + rows).
inline void check_distinct_row_table(std::span<const std::int32_t> table, std::int64_t rows) {
  check_row_table(table, rows);
  std::vector<bool> seen(static_cast<std::size_t>(std::max<std::int64_t>(rows, 0)));
  for (const std::int32_t row : table) {
    auto there = seen[static_cast<std::size_t>(row)];
    require(!there, "check_distinct_row_table: entries must be distinct", row);
    there = true;
  }
}

}  // namespace slimpack::cuda
