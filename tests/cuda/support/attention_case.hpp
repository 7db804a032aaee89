// SPDX-License-Identifier: Apache-2.0
// A pack's attention with random numbers, scattered rows and NaN in all rows that nobody lists, and
// what the fp64 reference says of it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "slimpack_cpu/attention.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/attention_tables.hpp"

namespace slimpack::test {

struct CaseSegment {
  int position = 0, rows = 0, keys = 0;
};
struct CaseSample {
  std::vector<int> page_positions;
  std::vector<CaseSegment> segments;
};

/// Keys 0.. in pages without gaps.
inline CaseSample plain_sample(int page_tokens, std::vector<CaseSegment> segments) {
  CaseSample sample{{}, std::move(segments)};
  int keys = 0;
  for (const CaseSegment& segment : sample.segments) keys = std::max(keys, segment.keys);
  for (int at = 0; at < keys; at += page_tokens) sample.page_positions.push_back(at);
  return sample;
}

class AttentionCase {
 public:
  cuda::AttentionShape shape;
  std::vector<cuda::AttentionSegment> segments;
  std::vector<cuda::KeyPage> pages;
  std::int64_t query_rows = 0, key_rows = 0, gradient_rows = 0;
  std::vector<cuda::Bf16> query, key, value, dout;
  std::vector<float> log_sum, delta;  ///< of the reference, by log_sum_row and gradient_row
  std::vector<double> expected_out, expected_log_sum, expected_dquery, expected_dkey,
      expected_dvalue;

  AttentionCase(cuda::AttentionShape of, const std::vector<CaseSample>& samples, unsigned seed)
      : shape(of), random_(seed) {
    place(samples);
    const auto query_width = static_cast<std::size_t>(shape.heads * shape.head_dim);
    const auto key_width = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
    const auto q_rows = static_cast<std::size_t>(query_rows);
    const auto k_rows = static_cast<std::size_t>(key_rows);
    const auto g_rows = static_cast<std::size_t>(gradient_rows);
    query.assign(q_rows * query_width, kNan), dout = query;
    key.assign(k_rows * key_width, kNan), value = key;
    for (const auto& segment : segments) {
      fill(query, query_width, segment.query_row, segment.rows);
      fill(dout, query_width, segment.gradient_row, segment.rows);
    }
    for (const auto& segment : segments) {
      for (int at = 0; at < segment.keys; at += shape.page_tokens) {
        const auto& page =
            pages[static_cast<std::size_t>(segment.first_page + at / shape.page_tokens)];
        const int count = std::min(shape.page_tokens, segment.keys - at);
        fill(key, key_width, page.row, count);
        fill(value, key_width, page.row, count);
      }
    }
    const auto heads = static_cast<std::size_t>(shape.heads);
    expected_out.assign(query.size(), 0);
    expected_log_sum.assign(q_rows * heads, -std::numeric_limits<double>::infinity());
    expected_dquery.assign(query.size(), 0);
    expected_dkey.assign(g_rows * key_width, 0), expected_dvalue = expected_dkey;
    log_sum.assign(q_rows * heads, NAN), delta = log_sum;
    for (const auto& segment : segments) expect(segment);
  }

  [[nodiscard]] cuda::AttentionTables tables(int query_tile, int key_tile) const {
    return cuda::attention_tables(segments, pages, shape.page_tokens, query_tile, key_tile);
  }
  /// Whether a row of queries, or of gradients of keys, belongs to some segment.
  [[nodiscard]] bool query_used(std::int64_t row) const {
    return std::ranges::any_of(segments, [&](const auto& segment) {
      return row >= segment.query_row && row < segment.query_row + segment.rows;
    });
  }
  [[nodiscard]] bool gradient_used(std::int64_t row) const {
    return std::ranges::any_of(segments, [&](const auto& segment) {
      return row >= segment.key_gradient_row && row < segment.key_gradient_row + segment.keys;
    });
  }

 private:
  static constexpr cuda::Bf16 kNan{0x7fff};
  std::mt19937 random_;

  void place(const std::vector<CaseSample>& samples) {
    std::size_t count = 0;
    for (const CaseSample& sample : samples) count += sample.page_positions.size();
    std::vector<int> slots(count);
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::shuffle(slots, random_);
    std::size_t slot = 0;
    int row = 3;
    for (const CaseSample& sample : samples) {
      const auto first_page = static_cast<std::int32_t>(pages.size());
      for (const int position : sample.page_positions) {
        pages.push_back({slots[slot++] * shape.page_tokens + 5, position});
      }
      int keys = 0;
      for (const CaseSegment& part : sample.segments) {
        cuda::AttentionSegment segment;
        segment.rows = part.rows, segment.position = part.position, segment.keys = part.keys;
        segment.first_page = first_page;
        segment.key_gradient_row = static_cast<std::int32_t>(gradient_rows) + 2;
        segment.query_row = segment.output_row = segment.log_sum_row = segment.gradient_row = row;
        row += part.rows + 1;
        keys = std::max(keys, part.keys);
        segments.push_back(segment);
      }
      gradient_rows += keys + 3;
    }
    query_rows = row;
    key_rows = static_cast<std::int64_t>(count) * shape.page_tokens + 5;
  }

  void fill(std::vector<cuda::Bf16>& matrix, std::size_t width, int row, int rows) {
    std::normal_distribution<float> normal;
    for (std::size_t at = 0; at < static_cast<std::size_t>(rows) * width; ++at) {
      cuda::Bf16& number = matrix[static_cast<std::size_t>(row) * width + at];
      if (number == kNan) number = cuda::to_bf16(normal(random_));
    }
  }
  [[nodiscard]] static std::vector<double> rows_of(const std::vector<cuda::Bf16>& matrix,
                                                   std::size_t width, int row, int rows) {
    std::vector<double> numbers;
    for (std::size_t at = 0; at < static_cast<std::size_t>(rows) * width; ++at) {
      numbers.push_back(
          static_cast<double>(cuda::to_float(matrix[static_cast<std::size_t>(row) * width + at])));
    }
    return numbers;
  }

  void expect(const cuda::AttentionSegment& segment) {
    const auto heads = static_cast<std::size_t>(shape.heads);
    const std::size_t width = heads * static_cast<std::size_t>(shape.head_dim);
    const auto key_width = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
    const auto rows = static_cast<std::size_t>(segment.rows);
    const auto first = static_cast<std::size_t>(segment.query_row);
    const auto out = std::span(expected_out).subspan(first * width, rows * width);
    const auto sums = std::span(expected_log_sum).subspan(first * heads, rows * heads);
    const auto dquery = std::span(expected_dquery).subspan(first * width, rows * width);
    const auto q = rows_of(query, width, segment.query_row, segment.rows);
    const auto d = rows_of(dout, width, segment.gradient_row, segment.rows);
    cpu::attention_begin(out, sums);
    const auto for_pages = [&](const auto& body) {
      for (int at = 0; at < segment.keys; at += shape.page_tokens) {
        const auto& page =
            pages[static_cast<std::size_t>(segment.first_page + at / shape.page_tokens)];
        const int count = std::min(shape.page_tokens, segment.keys - at);
        const cpu::AttentionShape run{segment.rows,          count,       Tokens{segment.position},
                                      Tokens{page.position}, shape.heads, shape.kv_heads,
                                      shape.head_dim};
        body(run, at, rows_of(key, key_width, page.row, count),
             rows_of(value, key_width, page.row, count));
      }
    };
    for_pages([&](const cpu::AttentionShape& run, int, const auto& k, const auto& v) {
      cpu::attention_forward(out, sums, q, k, v, run);
    });
    std::vector<double> deltas(rows * heads);
    cpu::attention_delta(
        deltas, out, d,
        {segment.rows, 0, Tokens{0}, Tokens{0}, shape.heads, shape.kv_heads, shape.head_dim});
    for (std::size_t at = 0; at < rows * heads; ++at) {
      log_sum[first * heads + at] = static_cast<float>(sums[at]);
      delta[first * heads + at] = static_cast<float>(deltas[at]);
    }
    for_pages([&](const cpu::AttentionShape& run, int at, const auto& k, const auto& v) {
      const std::size_t from = static_cast<std::size_t>(segment.key_gradient_row + at) * key_width;
      const std::size_t count = static_cast<std::size_t>(run.keys) * key_width;
      cpu::attention_backward_from(dquery, std::span(expected_dkey).subspan(from, count),
                                   std::span(expected_dvalue).subspan(from, count), q, k, v, deltas,
                                   sums, d, run);
    });
  }
};

}  // namespace slimpack::test
