// SPDX-License-Identifier: Apache-2.0
// Attention of random samples with their fp64 results, laid out so that wrong addressing shows:
// every matrix has its own order of rows, and rows that nobody should read are NaN.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cuda/attention.hpp"

namespace slimpack::cuda::test {

inline constexpr Bf16 kPoison{0x7fff};
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Slices of a sample and the keys that they are compared with.
struct Sample {
  struct Slice {
    std::int32_t position = 0, rows = 0;
    std::int32_t keys = -1;  ///< listed, -1: all of the sample's
  };
  std::vector<Slice> slices;
  std::int32_t keys = 0;
  std::int32_t gap = 0;    ///< pages of other ranks between two of the list
  std::int32_t first = 0;  ///< position of key 0
};

struct Case {
  AttentionShape shape;
  std::vector<AttentionSegment> segments;
  std::vector<KeyPage> pages;
  std::int64_t rows = 0;      ///< of queries, outputs, log-sum-exps and gradients, each
  std::int64_t key_rows = 0;  ///< of keys and of their gradients, each
  std::vector<Bf16> query, key, value, doutput;
  std::vector<float> dkey, dvalue;  ///< what gradients are added to

  [[nodiscard]] std::int64_t width() const { return std::int64_t{shape.heads} * shape.head_dim; }
  [[nodiscard]] std::int64_t key_width() const {
    return std::int64_t{shape.kv_heads} * shape.head_dim;
  }
};

/// In fp64, NaN where nothing should be written.
struct Results {
  std::vector<double> output, log_sum, delta, dquery, dkey, dvalue;
};

/// Fills row `row` with normal numbers.
template <class Number>
void fill_row(std::vector<Number>& matrix, std::int64_t row, std::int64_t width, Random& random) {
  for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
    const auto number = static_cast<float>(random.normal());
    if constexpr (std::is_same_v<Number, Bf16>) {
      matrix[static_cast<std::size_t>(i)] = to_bf16(number);
    } else {
      matrix[static_cast<std::size_t>(i)] = number;
    }
  }
}

inline Case make_case(const AttentionShape& shape, const std::vector<Sample>& samples,
                      std::uint64_t seed) {
  Random random(seed);
  Case made;
  made.shape = shape;
  const std::int32_t page = shape.page_tokens;
  std::vector<std::int32_t> places;  // of pages in the key matrix, shuffled, some unused
  std::int32_t all_pages = 1;
  for (const Sample& sample : samples) all_pages += (sample.keys + page - 1) / page;
  for (std::int32_t i = 0; i < all_pages; ++i) places.push_back(i);
  for (std::size_t i = places.size() - 1; i > 0; --i) {
    std::swap(places[i],
              places[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i)))]);
  }
  // Queries stand in order, outputs in reverse order, the others at other distances.
  std::int32_t total = 0, used = 0, key_gradient = 3;
  for (const Sample& sample : samples) {
    for (const Sample::Slice& slice : sample.slices) total += slice.rows + 1;
  }
  std::size_t place = 0;
  for (const Sample& sample : samples) {
    const auto first_page = static_cast<std::int32_t>(made.pages.size());
    for (std::int32_t key = 0; key < sample.keys; key += page) {
      made.pages.push_back({places[place++] * page, sample.first + key * (1 + sample.gap)});
    }
    for (const Sample::Slice& slice : sample.slices) {
      AttentionSegment segment;
      segment.rows = slice.rows;
      segment.position = slice.position;
      segment.first_page = first_page;
      segment.keys = slice.keys < 0 ? sample.keys : slice.keys;
      segment.query_row = used;
      segment.output_row = total - used - slice.rows;
      segment.log_sum_row = used + 5;
      segment.gradient_row = total - used - slice.rows + 2;
      segment.key_gradient_row = key_gradient;
      segment.value_gradient_row = key_gradient + 4;
      made.segments.push_back(segment);
      used += slice.rows + 1;
    }
    key_gradient += sample.keys + 1;
  }
  made.rows = total + 7;
  made.key_rows = std::max<std::int64_t>(std::int64_t{all_pages} * page, key_gradient + 4);
  const auto size = [](std::int64_t rows, std::int64_t width) {
    return static_cast<std::size_t>(rows * width);
  };
  made.query.assign(size(made.rows, made.width()), kPoison);
  made.doutput.assign(size(made.rows, made.width()), kPoison);
  made.key.assign(size(made.key_rows, made.key_width()), kPoison);
  made.value.assign(size(made.key_rows, made.key_width()), kPoison);
  made.dkey.assign(size(made.key_rows, made.key_width()), kNan);
  made.dvalue.assign(size(made.key_rows, made.key_width()), kNan);
  for (const AttentionSegment& segment : made.segments) {
    for (std::int32_t row = 0; row < segment.rows; ++row) {
      fill_row(made.query, segment.query_row + row, made.width(), random);
      fill_row(made.doutput, segment.gradient_row + row, made.width(), random);
    }
  }
  std::size_t segment_at = 0;
  for (const Sample& sample : samples) {
    if (sample.slices.empty()) continue;
    const AttentionSegment& segment = made.segments[segment_at];
    segment_at += sample.slices.size();
    for (std::int32_t key = 0; key < sample.keys; ++key) {
      const std::int64_t row =
          made.pages[static_cast<std::size_t>(segment.first_page + key / page)].row + key % page;
      fill_row(made.key, row, made.key_width(), random);
      fill_row(made.value, row, made.key_width(), random);
      fill_row(made.dkey, segment.key_gradient_row + key, made.key_width(), random);
      fill_row(made.dvalue, segment.value_gradient_row + key, made.key_width(), random);
    }
  }
  return made;
}

inline std::vector<double> widened(const std::vector<Bf16>& numbers) {
  std::vector<double> wide;
  wide.reserve(numbers.size());
  for (const Bf16 number : numbers) wide.push_back(static_cast<double>(to_float(number)));
  return wide;
}
inline std::vector<double> widened(const std::vector<float>& numbers) {
  return {numbers.begin(), numbers.end()};
}
template <class Number>
std::vector<Number> narrowed(const std::vector<double>& numbers) {
  std::vector<Number> narrow;
  narrow.reserve(numbers.size());
  for (const double number : numbers) {
    if constexpr (std::is_same_v<Number, Bf16>) {
      narrow.push_back(to_bf16(static_cast<float>(number)));
    } else {
      narrow.push_back(static_cast<Number>(number));
    }
  }
  return narrow;
}

/// What `cpu` gives, page by page. Where `given` is not null, its log_sum and delta are those that
/// gradients are computed with: of rows that also see keys which this case does not list.
inline Results reference(const Case& of, const Results* given = nullptr) {
  const auto rows = [](std::vector<double>& matrix, std::int64_t row, std::int64_t count,
                       std::int64_t width) {
    return std::span(matrix).subspan(static_cast<std::size_t>(row * width),
                                     static_cast<std::size_t>(count * width));
  };
  std::vector<double> query = widened(of.query), key = widened(of.key), value = widened(of.value);
  std::vector<double> doutput = widened(of.doutput);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  Results results;
  results.output.assign(query.size(), nan);
  results.dquery.assign(query.size(), nan);
  results.log_sum.assign(static_cast<std::size_t>(of.rows * of.shape.heads), nan);
  results.delta = results.log_sum;
  results.dkey = widened(of.dkey);
  results.dvalue = widened(of.dvalue);
  for (const AttentionSegment& segment : of.segments) {
    const std::int64_t heads = of.shape.heads, width = of.width(), key_width = of.key_width();
    const auto part = [&](std::int32_t first) {
      const KeyPage& page =
          of.pages[static_cast<std::size_t>(segment.first_page + first / of.shape.page_tokens)];
      cpu::AttentionShape shape;
      shape.rows = segment.rows;
      shape.keys = std::min(of.shape.page_tokens, segment.keys - first);
      shape.first_row = Tokens{segment.position};
      shape.first_key = Tokens{page.position};
      shape.heads = heads;
      shape.kv_heads = of.shape.kv_heads;
      shape.head_dim = of.shape.head_dim;
      return std::pair(shape, std::int64_t{page.row});
    };
    const auto q = rows(query, segment.query_row, segment.rows, width);
    const auto out = rows(results.output, segment.output_row, segment.rows, width);
    const auto log_sum = rows(results.log_sum, segment.log_sum_row, segment.rows, heads);
    const auto delta = rows(results.delta, segment.gradient_row, segment.rows, heads);
    const auto dout = rows(doutput, segment.gradient_row, segment.rows, width);
    const auto dquery = rows(results.dquery, segment.gradient_row, segment.rows, width);
    cpu::attention_begin(out, log_sum);
    for (std::int32_t first = 0; first < segment.keys; first += of.shape.page_tokens) {
      const auto [shape, row] = part(first);
      cpu::attention_forward(out, log_sum, q, rows(key, row, shape.keys, key_width),
                             rows(value, row, shape.keys, key_width), shape);
    }
    for (std::size_t i = 0; i < delta.size(); ++i) {
      const auto dim = static_cast<std::size_t>(of.shape.head_dim);
      delta[i] = cpu::detail::dot(out.subspan(i * dim, dim), dout.subspan(i * dim, dim));
    }
    std::vector<double> all_log_sum = given != nullptr ? given->log_sum : results.log_sum;
    std::vector<double> all_delta = given != nullptr ? given->delta : results.delta;
    std::ranges::fill(dquery, 0.0);
    for (std::int32_t first = 0; first < segment.keys; first += of.shape.page_tokens) {
      const auto [shape, row] = part(first);
      cpu::attention_backward_from(
          dquery, rows(results.dkey, segment.key_gradient_row + first, shape.keys, key_width),
          rows(results.dvalue, segment.value_gradient_row + first, shape.keys, key_width), q,
          rows(key, row, shape.keys, key_width), rows(value, row, shape.keys, key_width),
          rows(all_delta, segment.gradient_row, segment.rows, heads),
          rows(all_log_sum, segment.log_sum_row, segment.rows, heads), dout, shape);
    }
  }
  return results;
}

/// The norm of the difference relative to that of what is expected, over all numbers that are
/// expected; infinite where a number is missing, or was written where none is expected.
inline double difference(const std::vector<double>& found, const std::vector<double>& expected) {
  if (found.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) != std::isnan(expected[i])) {
      return std::numeric_limits<double>::infinity();
    }
    if (std::isnan(expected[i])) continue;
    if (std::isinf(expected[i]) && found[i] == expected[i]) continue;
    apart += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return apart == 0 ? 0.0 : std::sqrt(apart / norm);
}
template <class Number>
double difference(const std::vector<Number>& found, const std::vector<double>& expected) {
  return difference(widened(found), expected);
}

/// The largest over rows of `width` numbers, each a head's of a token, of the norm of the row's
/// difference, relative to the row's own norm or a quarter of an average row's, whichever is more:
/// the norm over all rows would hide a few that are wholly wrong.
inline double row_difference(const std::vector<double>& found, const std::vector<double>& expected,
                             std::int64_t width) {
  if (found.size() != expected.size()) return std::numeric_limits<double>::infinity();
  const auto row = static_cast<std::size_t>(width);
  double sum = 0;
  std::int64_t rows = 0;
  std::vector<std::pair<double, double>> squares;  // of each row's difference and of the row
  for (std::size_t begin = 0; begin < found.size(); begin += row) {
    auto& [off, own] = squares.emplace_back();
    for (std::size_t i = begin; i < begin + row; ++i) {
      if (std::isnan(expected[i])) continue;
      off += (found[i] - expected[i]) * (found[i] - expected[i]);
      own += expected[i] * expected[i];
    }
    if (own > 0) sum += own, ++rows;
  }
  const double least = rows == 0 ? 0 : sum / static_cast<double>(rows) / 16;
  double most = 0;
  for (const auto& [off, own] : squares) {
    if (std::isnan(off)) return off;
    if (off > 0) most = std::max(most, std::sqrt(off / std::max(own, least)));
  }
  return most;
}
template <class Number>
double row_difference(const std::vector<Number>& found, const std::vector<double>& expected,
                      std::int64_t width) {
  return row_difference(widened(found), expected, width);
}

/// Bits, so that NaN equals NaN.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, {}, [](float x) { return std::bit_cast<std::uint32_t>(x); },
      [](float x) { return std::bit_cast<std::uint32_t>(x); });
}

}  // namespace slimpack::cuda::test
