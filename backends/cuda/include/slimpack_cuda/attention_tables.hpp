// SPDX-License-Identifier: Apache-2.0
// Where the rows of a pack's attention lie in memory, and the tiles of work that kernels take up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"

namespace slimpack::cuda {

/// `page_tokens` keys of one sample, or fewer in its last page, in consecutive rows of the key and
/// value matrices. Key i of a segment lies in page i / page_tokens of its list. A page's keys stand
/// at consecutive positions of the sample, and pages in rising order of them; a rank of a
/// context-parallel group, which holds some blocks of a sample only, lists these.
struct KeyPage {
  std::int32_t row = 0;
  std::int32_t position = 0;  ///< of its first key in the sample
};

/// Consecutive queries of one sample and the keys they are compared with: query i sees those keys
/// whose position is not above position + i. Rows are those of the matrices named.
struct AttentionSegment {
  std::int32_t rows = 0;
  std::int32_t position = 0;            ///< of the first query in the sample
  std::int32_t first_page = 0;          ///< in the table of pages
  std::int32_t keys = 0;                ///< listed in the pages
  std::int32_t query_row = 0;           ///< of queries
  std::int32_t output_row = 0;          ///< of outputs
  std::int32_t log_sum_row = 0;         ///< of log-sum-exps
  std::int32_t gradient_row = 0;        ///< of delta and of the gradients of outputs and queries
  std::int32_t key_gradient_row = 0;    ///< of the gradients of key 0, the others follow
  std::int32_t value_gradient_row = 0;  ///< the same of values
  friend bool operator==(const AttentionSegment&, const AttentionSegment&) = default;
};

/// Up to `query_tile` queries of one segment.
struct QueryTile {
  std::int32_t segment = 0;
  std::int32_t first = 0;  ///< query of the segment
  friend bool operator==(const QueryTile&, const QueryTile&) = default;
};

/// Up to `key_tile` keys of one sample and all segments of the launch that list them.
struct KeyTile {
  std::int32_t first_segment = 0, last_segment = 0;  ///< one past the last
  std::int32_t first = 0;                            ///< key
  friend bool operator==(const KeyTile&, const KeyTile&) = default;
};

/// Keys of `segment` that its query `at` sees: those listed at positions up to its own. They are
/// the first ones of the list. O(log pages).
[[nodiscard]] inline std::int32_t visible_keys(std::span<const KeyPage> pages,
                                               std::int32_t page_tokens,
                                               const AttentionSegment& segment, std::int32_t i) {
  const std::int32_t position = segment.position + i;
  const std::int32_t count = (segment.keys + page_tokens - 1) / page_tokens;
  const auto list =
      pages.subspan(static_cast<std::size_t>(segment.first_page), static_cast<std::size_t>(count));
  const auto above = std::ranges::upper_bound(list, position, {}, &KeyPage::position);
  if (above == list.begin()) return 0;
  const auto page = static_cast<std::int32_t>(above - list.begin()) - 1;
  const std::int32_t inside =
      std::min(page_tokens, position - list[static_cast<std::size_t>(page)].position + 1);
  return std::min(segment.keys, page * page_tokens + inside);
}

/// Work of one launch. Kernels read these tables in device memory.
struct AttentionTables {
  std::vector<AttentionSegment> segments;
  std::vector<KeyPage> pages;
  std::vector<QueryTile> query_tiles;  ///< by falling number of visible keys, then by segment
  std::vector<KeyTile> key_tiles;      ///< by falling number of queries that see them
};

/// Splits the work of `segments` into tiles. Segments of one sample, that is of one `first_page`
/// and rows of gradients of keys and values, must stand next to each other, and all but the last
/// list whole pages as they are listed by the last: they may list fewer keys. Throws InvalidInput
/// where a count, a position or a page is out of range, or pages do not rise. O(segments + pages +
/// tiles log tiles).
[[nodiscard]] inline AttentionTables attention_tables(std::vector<AttentionSegment> segments,
                                                      std::vector<KeyPage> pages,
                                                      std::int32_t page_tokens,
                                                      std::int32_t query_tile,
                                                      std::int32_t key_tile) {
  require(page_tokens >= 1, "attention_tables: page_tokens must be >= 1", page_tokens);
  require(query_tile >= 1, "attention_tables: query_tile must be >= 1", query_tile);
  require(key_tile >= 1, "attention_tables: key_tile must be >= 1", key_tile);
  AttentionTables tables{std::move(segments), std::move(pages), {}, {}};
  const auto table_pages = static_cast<std::int64_t>(tables.pages.size());
  for (const AttentionSegment& segment : tables.segments) {
    require(segment.rows >= 0, "attention_tables: rows must be >= 0", segment.rows);
    require(segment.keys >= 0, "attention_tables: keys must be >= 0", segment.keys);
    require(segment.position >= 0, "attention_tables: position must be >= 0", segment.position);
    for (const std::int32_t row :
         {segment.query_row, segment.output_row, segment.log_sum_row, segment.gradient_row,
          segment.key_gradient_row, segment.value_gradient_row}) {
      require(row >= 0, "attention_tables: rows of matrices must be >= 0", row);
    }
    const std::int64_t count =
        (static_cast<std::int64_t>(segment.keys) + page_tokens - 1) / page_tokens;
    require(segment.first_page >= 0 && segment.first_page + count <= table_pages,
            "attention_tables: first_page and keys must stay within the table of pages",
            segment.first_page);
    for (std::int64_t i = segment.first_page; i < segment.first_page + count; ++i) {
      const KeyPage& page = tables.pages[static_cast<std::size_t>(i)];
      require(page.row >= 0, "attention_tables: row of a page must be >= 0", page.row);
      require(page.position >= 0, "attention_tables: position of a page must be >= 0",
              page.position);
      require(
          i == segment.first_page ||
              page.position >= tables.pages[static_cast<std::size_t>(i - 1)].position + page_tokens,
          "attention_tables: pages must rise and not overlap", page.position);
    }
  }

  struct Weighed {
    std::int64_t weight;
    std::size_t at;
  };
  const auto heaviest_first = [](auto& tiles, std::vector<Weighed>& weights) {
    std::ranges::stable_sort(weights, std::ranges::greater{}, &Weighed::weight);
    std::remove_reference_t<decltype(tiles)> sorted;
    sorted.reserve(tiles.size());
    for (const Weighed& weighed : weights) sorted.push_back(tiles[weighed.at]);
    tiles = std::move(sorted);
  };
  const auto count = static_cast<std::int32_t>(tables.segments.size());
  std::vector<Weighed> weights;
  for (std::int32_t i = 0; i < count; ++i) {
    const AttentionSegment& segment = tables.segments[static_cast<std::size_t>(i)];
    for (std::int32_t first = 0; first < segment.rows; first += query_tile) {
      const std::int32_t last = std::min(segment.rows, first + query_tile) - 1;
      weights.push_back(
          {visible_keys(tables.pages, page_tokens, segment, last), tables.query_tiles.size()});
      tables.query_tiles.push_back({i, first});
    }
  }
  heaviest_first(tables.query_tiles, weights);

  weights.clear();
  for (std::int32_t begin = 0; begin < count;) {
    const AttentionSegment& sample = tables.segments[static_cast<std::size_t>(begin)];
    std::int32_t end = begin, keys = 0;
    for (; end < count; ++end) {
      const AttentionSegment& next = tables.segments[static_cast<std::size_t>(end)];
      if (next.first_page != sample.first_page ||
          next.key_gradient_row != sample.key_gradient_row ||
          next.value_gradient_row != sample.value_gradient_row) {
        break;
      }
      keys = std::max(keys, next.keys);
    }
    for (std::int32_t first = 0; first < keys; first += key_tile) {
      const std::int32_t page = sample.first_page + first / page_tokens;
      const std::int32_t position =
          tables.pages[static_cast<std::size_t>(page)].position + first % page_tokens;
      std::int64_t queries = 0;
      for (std::int32_t i = begin; i < end; ++i) {
        const AttentionSegment& segment = tables.segments[static_cast<std::size_t>(i)];
        if (segment.keys <= first) continue;
        queries += std::clamp<std::int64_t>(
            static_cast<std::int64_t>(segment.position) + segment.rows - position, 0, segment.rows);
      }
      if (queries == 0) continue;
      weights.push_back({queries, tables.key_tiles.size()});
      tables.key_tiles.push_back({begin, end, first});
    }
    begin = end;
  }
  heaviest_first(tables.key_tiles, weights);
  return tables;
}

/// Pages of a sample whose keys 0.. lie in consecutive rows from `row` on.
inline void add_consecutive_pages(std::vector<KeyPage>& pages, std::int32_t row, std::int32_t keys,
                                  std::int32_t page_tokens) {
  for (std::int32_t first = 0; first < keys; first += page_tokens) {
    pages.push_back({row + first, first});
  }
}

}  // namespace slimpack::cuda
