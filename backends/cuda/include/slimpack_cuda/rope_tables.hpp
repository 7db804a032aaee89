// SPDX-License-Identifier: Apache-2.0
// The frequencies of rotary positions, and which rows a pack's queries and keys go to.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack_cuda/attention_tables.hpp"

namespace slimpack::cuda {

/// Where a row of the pack stands in its sample, and which rows of the query, key and value
/// matrices (or of their gradients) belong to it.
struct RopeRow {
  std::int32_t position = 0;
  std::int32_t query_row = 0;
  std::int32_t key_row = 0;
  std::int32_t value_row = 0;
  friend bool operator==(const RopeRow&, const RopeRow&) = default;
};

/// Turns a position, in units of 2^-64, one for each i < head_dim / 2. Throws InvalidInput unless
/// head_dim is a positive even number and theta >= 1.
[[nodiscard]] inline std::vector<std::uint64_t> rope_frequencies(std::int32_t head_dim,
                                                                 double theta) {
  require(head_dim > 0 && head_dim % 2 == 0, "rope_frequencies: head_dim must be even", head_dim);
  require(theta >= 1, "rope_frequencies: theta must be >= 1");
  std::vector<std::uint64_t> frequencies;
  for (std::int32_t i = 0; i < head_dim / 2; ++i) {
    const double radians =
        1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim));
    // At most 1 / (2 pi) turns: far from the end of the type.
    const double turns = radians / (2.0 * std::numbers::pi);
    frequencies.push_back(static_cast<std::uint64_t>(std::ldexp(turns, 64)));
  }
  return frequencies;
}

namespace detail {

/// Calls `take` with each row's segment, number in it and key in the segment's list.
template <class Take>
void for_each_rope_row(std::span<const AttentionSegment> segments, std::span<const KeyPage> pages,
                       std::int32_t page_tokens, const Take& take) {
  require(page_tokens >= 1, "rope: page_tokens must be >= 1", page_tokens);
  for (const AttentionSegment& segment : segments) {
    const std::int64_t count =
        (static_cast<std::int64_t>(segment.keys) + page_tokens - 1) / page_tokens;
    require(segment.rows >= 0 && segment.keys >= 0 && segment.position >= 0 &&
                segment.first_page >= 0 &&
                segment.first_page + count <= static_cast<std::int64_t>(pages.size()),
            "rope: a segment's counts, position or pages are out of range", segment.first_page);
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      const std::int32_t position = segment.position + i;
      const std::int32_t key = visible_keys(pages, page_tokens, segment, i) - 1;
      const bool listed =
          key >= 0 &&
          pages[static_cast<std::size_t>(segment.first_page + key / page_tokens)].position +
                  key % page_tokens ==
              position;
      require(listed, "rope: a segment's pages must list its own positions", position);
      take(segment, i, key);
    }
  }
}

}  // namespace detail

/// The rows of a pack whose slices are `segments`, in this order: queries go to query_row, keys to
/// the pages. Throws InvalidInput where a segment's pages do not list its own positions. O(rows log
/// pages).
[[nodiscard]] inline std::vector<RopeRow> rope_forward_rows(
    std::span<const AttentionSegment> segments, std::span<const KeyPage> pages,
    std::int32_t page_tokens) {
  std::vector<RopeRow> rows;
  detail::for_each_rope_row(
      segments, pages, page_tokens,
      [&](const AttentionSegment& segment, std::int32_t i, std::int32_t key) {
        const KeyPage& page =
            pages[static_cast<std::size_t>(segment.first_page + key / page_tokens)];
        const std::int32_t row = page.row + key % page_tokens;
        rows.push_back({segment.position + i, segment.query_row + i, row, row});
      });
  return rows;
}

/// The same for gradients: queries' come from gradient_row, keys' and values' from key_gradient_row
/// and value_gradient_row on, one row a listed key.
[[nodiscard]] inline std::vector<RopeRow> rope_backward_rows(
    std::span<const AttentionSegment> segments, std::span<const KeyPage> pages,
    std::int32_t page_tokens) {
  std::vector<RopeRow> rows;
  detail::for_each_rope_row(
      segments, pages, page_tokens,
      [&](const AttentionSegment& segment, std::int32_t i, std::int32_t key) {
        rows.push_back({segment.position + i, segment.gradient_row + i,
                        segment.key_gradient_row + key, segment.value_gradient_row + key});
      });
  return rows;
}

}  // namespace slimpack::cuda
