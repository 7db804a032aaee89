// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack_cuda/attention_tables.hpp"

namespace attention_tables_test {

using namespace slimpack;
using namespace slimpack::cuda;

namespace {

/// Some samples, each with keys in pages here and there and a few segments of queries.
std::pair<std::vector<AttentionSegment>, std::vector<KeyPage>> draw(Random& random,
                                                                    std::int32_t page) {
  std::vector<AttentionSegment> segments;
  std::vector<KeyPage> pages;
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return static_cast<std::int32_t>(random.between(low, high));
  };
  std::int32_t row = 0;
  for (std::int32_t sample = number(1, 5); sample > 0; --sample) {
    const auto first_page = static_cast<std::int32_t>(pages.size());
    const std::int32_t gap = number(0, 1) * page;  // blocks of another rank between the pages
    const std::int32_t count = number(1, 4);
    for (std::int32_t i = 0; i < count; ++i) pages.push_back({number(0, 100), i * (page + gap)});
    const std::int32_t keys = count * page - number(0, page - 1);
    const std::int32_t gradient_row = number(0, 1000);
    std::int32_t position = number(0, page);
    for (std::int32_t left = number(1, 3); left > 0; --left) {
      const std::int32_t rows = number(0, 3 * page);
      segments.push_back(
          {rows, position, first_page, keys, row, row, row, row, gradient_row, gradient_row + 7});
      position += rows;
      row += rows;
    }
  }
  return {segments, pages};
}

}  // namespace

TEST_CASE("attention_tables: every query is in one tile, every pair seen in one key tile") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto page = static_cast<std::int32_t>(random.between(2, 9));
    const auto query_tile = static_cast<std::int32_t>(random.between(1, 8));
    const auto key_tile = static_cast<std::int32_t>(random.between(1, 8));
    const auto [segments, pages] = draw(random, page);
    const AttentionTables tables = attention_tables(segments, pages, page, query_tile, key_tile);
    std::set<std::pair<std::int32_t, std::int32_t>> queries;
    std::int32_t last = INT32_MAX;
    for (const QueryTile& tile : tables.query_tiles) {
      const AttentionSegment& segment = segments[static_cast<std::size_t>(tile.segment)];
      const std::int32_t end = std::min(segment.rows, tile.first + query_tile);
      for (std::int32_t i = tile.first; i < end; ++i) {
        CHECK(queries.insert({tile.segment, i}).second);
      }
      const std::int32_t keys = visible_keys(pages, page, segment, end - 1);
      CHECK(keys <= last);
      last = keys;
    }
    std::size_t rows = 0, pairs = 0;
    for (const AttentionSegment& segment : segments) {
      rows += static_cast<std::size_t>(segment.rows);
      for (std::int32_t i = 0; i < segment.rows; ++i) {
        std::int32_t seen = 0;
        for (std::int32_t key = 0; key < segment.keys; ++key) {
          const KeyPage& in = pages[static_cast<std::size_t>(segment.first_page + key / page)];
          if (in.position + key % page <= segment.position + i) ++seen;
        }
        CHECK(seen == visible_keys(pages, page, segment, i));
        pairs += static_cast<std::size_t>(seen);
      }
    }
    CHECK(queries.size() == rows);
    std::size_t in_tiles = 0;
    for (const KeyTile& tile : tables.key_tiles) {
      for (std::int32_t i = tile.first_segment; i < tile.last_segment; ++i) {
        const AttentionSegment& segment = segments[static_cast<std::size_t>(i)];
        for (std::int32_t query = 0; query < segment.rows; ++query) {
          in_tiles += static_cast<std::size_t>(
              std::clamp(visible_keys(pages, page, segment, query) - tile.first, 0, key_tile));
        }
      }
    }
    CHECK(in_tiles == pairs);
  }
}

TEST_CASE("attention_tables: bad input names the rule") {
  const auto refused = [](AttentionSegment segment, std::vector<KeyPage> pages) {
    CHECK_THROWS_AS((void)attention_tables({segment}, std::move(pages), 4, 4, 4), InvalidInput);
  };
  refused({-1, 0, 0, 4}, {{0, 0}});
  refused({4, 0, 0, 5}, {{0, 0}});
  refused({4, 0, 1, 4}, {{0, 0}});
  refused({4, -2, 0, 4}, {{0, 0}});
  refused({4, 0, 0, 8}, {{0, 0}, {4, 3}});
  refused({4, 0, 0, 4}, {{-4, 0}});
  refused({4, 0, 0, 4, -1}, {{0, 0}});
}

}  // namespace attention_tables_test
