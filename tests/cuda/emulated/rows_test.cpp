// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/rows.cuh"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cuda/row_tables.hpp"

namespace rows_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::kernels::RowMove;
using cuda::simt::Timing;

template <RowMove kMove, class Element>
void move(std::vector<Element>& to, const std::vector<Element>& from,
          const std::vector<std::int32_t>& table, std::int64_t cols, Timing timing) {
  const std::int64_t words = cols * static_cast<std::int64_t>(sizeof(Element)) / 16;
  const auto launch =
      cuda::kernels::move_rows_launch(static_cast<std::int64_t>(table.size()), words);
  const cuda::kernels::MoveRows work{to.data(), from.data(), table.data(), words};
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::move_row<kMove>(work); });
}

template <class Element>
void check_moves(const std::vector<Element>& matrix, std::int64_t cols) {
  const std::vector<std::int32_t> table{4, 0, 6, 2};
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    auto gathered = test::poisoned<Element>(4 * cols + 16);
    move<RowMove::gather>(gathered, matrix, table, cols, timing);
    for (std::int64_t r = 0; r < 4; ++r) {
      CHECK(std::equal(gathered.begin() + r * cols, gathered.begin() + (r + 1) * cols,
                       matrix.begin() + table[static_cast<std::size_t>(r)] * cols));
    }
    CHECK(test::is_poisoned(std::span<const Element>(gathered).last(16)));
    auto scattered = test::poisoned<Element>(7 * cols + 16);
    move<RowMove::scatter>(scattered, gathered, table, cols, timing);
    for (std::int64_t r = 0; r < 7; ++r) {
      const auto row = std::span<const Element>(scattered).subspan(
          static_cast<std::size_t>(r * cols), static_cast<std::size_t>(cols));
      if (std::ranges::count(table, r) == 0) {
        CHECK(test::is_poisoned(row));
      } else {
        CHECK(std::equal(row.begin(), row.end(), matrix.begin() + r * cols));
      }
    }
    CHECK(test::is_poisoned(std::span<const Element>(scattered).last(16)));
  }
}

}  // namespace

TEST_CASE("move rows: what is gathered can be scattered back") {
  for (const std::int64_t cols : {8, 200, 1096}) {
    CAPTURE(cols);
    check_moves(test::random_bf16(7 * cols, 1), cols);
    check_moves(test::random_floats(7 * cols, 2), cols);
  }
}

TEST_CASE("move rows: scattering adds in fp32") {
  const std::int64_t cols = 2052;
  const auto before = test::random_floats(5 * cols, 1), more = test::random_floats(2 * cols, 2);
  std::vector<float> expected = before;
  for (std::size_t c = 0; c < 2052; ++c) {
    expected[3 * 2052 + c] += more[c];
    expected[2052 + c] += more[2052 + c];
  }
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    auto sums = before;
    move<RowMove::add>(sums, more, {3, 1}, cols, timing);
    CHECK(test::same_bits(sums, expected));
  }
}

TEST_CASE("largest by row: magnitudes, infinity and NaN") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t cols : {8, 264, 1096}) {
    CAPTURE(cols);
    constexpr std::int64_t kRows = 19;
    auto matrix = test::random_bf16(kRows * cols, 3);
    const auto at = [&](std::int64_t row, std::int64_t col) -> Bf16& {
      return matrix[static_cast<std::size_t>(row * cols + col)];
    };
    at(2, cols - 1) = cuda::to_bf16(-3e38F);
    at(5, 4) = cuda::to_bf16(-kInfinity);
    at(18, 3) = cuda::to_bf16(kInfinity);
    at(18, cols - 2) = Bf16{0xffc0};  // NaN
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      auto largest = test::poisoned<float>(kRows + 1);
      const auto launch = cuda::kernels::largest_by_row_launch(kRows);
      const cuda::kernels::LargestByRow work{largest.data(), matrix.data(), kRows, cols / 8};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::largest_of_rows(work); });
      CHECK(largest[5] == kInfinity);
      CHECK(std::isnan(largest[18]));
      for (std::int64_t row = 0; row < kRows - 1; ++row) {
        float expected = 0;
        for (std::int64_t col = 0; col < cols; ++col) {
          expected = std::max(expected, std::abs(cuda::to_float(at(row, col))));
        }
        CHECK(largest[static_cast<std::size_t>(row)] == expected);
      }
      CHECK(test::is_poisoned(std::span<const float>(largest).last(1)));
    }
  }
}

TEST_CASE("row tables: bad entries are refused") {
  const std::vector<std::int32_t> bad{0, 3, -1}, twice{2, 1, 2};
  CHECK_THROWS_WITH_AS(cuda::check_row_table(bad, 4),
                       "check_row_table: an entry must be a row of the matrix, got -1",
                       InvalidInput);
  CHECK_THROWS_AS(cuda::check_row_table(bad, 3), InvalidInput);
  CHECK_NOTHROW(cuda::check_row_table(twice, 3));
  CHECK_THROWS_WITH_AS(cuda::check_distinct_row_table(twice, 3),
                       "check_distinct_row_table: entries must be distinct, got 2", InvalidInput);
  CHECK_THROWS_WITH_AS((void)cuda::token_rows(bad, 10),
                       "check_tokens: tokens must be below vocab, got -1", InvalidInput);
  CHECK_THROWS_AS((void)cuda::token_rows(twice, 2), InvalidInput);
}

TEST_CASE("token_rows: rows of each token in their order") {
  const std::vector<std::int32_t> tokens{7, 2, 7, 0, 2, 7};
  const cuda::TokenRows rows = cuda::token_rows(tokens, 8);
  CHECK(rows.tokens == std::vector<std::int32_t>{0, 2, 7});
  CHECK(rows.begin == std::vector<std::int32_t>{0, 1, 3, 6});
  CHECK(rows.rows == std::vector<std::int32_t>{3, 1, 4, 0, 2, 5});
  const cuda::TokenRows none = cuda::token_rows({}, 8);
  CHECK(none.tokens.empty());
  CHECK(none.begin == std::vector<std::int32_t>{0});
}

TEST_CASE("embedding backward: sums of few and many rows follow fp64") {
  for (const std::int64_t hidden : {8, 136, 264}) {
    // Token 3 stands in most rows, more than a warp sums alone.
    std::vector<std::int32_t> tokens(75, 3);
    for (const std::size_t i : {0U, 9U, 40U}) tokens[i] = 1;
    tokens[20] = 5;
    for (std::int32_t token = 7; token < 16; ++token) tokens.push_back(token);  // a second block
    constexpr std::int64_t kVocab = 16;
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const auto dout = test::random_bf16(rows * hidden, 1);
    const auto before = test::random_floats(kVocab * hidden, 2);
    std::vector<double> expected = test::as_doubles(before);
    cpu::embedding_backward(expected, test::as_doubles(dout), tokens, kVocab, hidden);
    const cuda::TokenRows order = cuda::token_rows(tokens, kVocab);
    std::vector<std::vector<float>> results;
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      auto dtable = before;
      const auto [launch, parts] = cuda::kernels::embedding_backward_launch(
          static_cast<std::int64_t>(order.tokens.size()), hidden);
      const cuda::kernels::EmbeddingBackward work{dtable.data(),
                                                  dout.data(),
                                                  order.tokens.data(),
                                                  order.begin.data(),
                                                  order.rows.data(),
                                                  hidden,
                                                  static_cast<std::int32_t>(order.tokens.size()),
                                                  parts};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::embedding_backward_tokens(work); });
      CHECK(test::difference(dtable, expected, 1e-5, 0) == "");
      CHECK(std::equal(dtable.begin(), dtable.begin() + hidden, before.begin()));  // no row has it
      results.push_back(dtable);
    }
    CHECK(test::same_bits(results[0], results[1]));
  }
}

}  // namespace rows_test
