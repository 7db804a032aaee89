// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/rows.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cuda/embedding.hpp"

namespace rows_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using test::OnDevice;

template <class Element>
void check_moves(const std::vector<Element>& matrix, std::int64_t rows, std::int64_t cols) {
  const cuda::Stream owner;
  const auto stream = owner.view();
  // Every second row, in an order of its own.
  std::vector<std::int32_t> table;
  for (std::int64_t r = 0; r < rows / 2; ++r) {
    table.push_back(static_cast<std::int32_t>(2 * (r * 37 % (rows / 2))));
  }
  cuda::check_distinct_row_table(table, rows);
  const cuda::RowShape shape{static_cast<std::int64_t>(table.size()), cols};
  const OnDevice from(matrix, stream);
  const OnDevice names(table, stream);
  const OnDevice taken(test::poisoned<Element>(shape.rows * cols + 16), stream);
  const OnDevice back(test::poisoned<Element>(rows * cols), stream);
  cuda::gather_rows(taken.first(shape.rows * cols), from.view(), names.view(), shape, stream);
  const cuda::DeviceSpan<const Element> moved = taken.first(shape.rows * cols);
  cuda::scatter_rows(back.span(), moved, names.view(), shape, stream);
  const auto gathered = taken.read(), scattered = back.read();
  CHECK(test::is_poisoned(std::span<const Element>(gathered).last(16)));
  bool all_right = true;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const auto source = matrix.begin() + table[static_cast<std::size_t>(r)] * cols;
    all_right &= std::equal(source, source + cols, gathered.begin() + r * cols);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = std::span<const Element>(scattered).subspan(static_cast<std::size_t>(r * cols),
                                                                 static_cast<std::size_t>(cols));
    all_right &= r % 2 == 0 && r / 2 < rows / 2
                     ? std::equal(row.begin(), row.end(), matrix.begin() + r * cols)
                     : test::is_poisoned(row);
  }
  CHECK(all_right);
}

}  // namespace

TEST_CASE("gather_rows, scatter_rows: rows come back to their places") {
  for (const std::int64_t cols : {8, 1000, 4096, 14336}) {
    CAPTURE(cols);
    check_moves(test::random_bf16(203 * cols, 1), 203, cols);
    check_moves(test::random_floats(203 * cols, 2), 203, cols);
  }
}

TEST_CASE("scatter_add_rows: adds in fp32") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kRows = 101, kCols = 2052;
  const auto before = test::random_floats(kRows * kCols, 1);
  const auto more = test::random_floats(50 * kCols, 2);
  std::vector<std::int32_t> table;
  auto expected = before;
  for (std::int32_t r = 0; r < 50; ++r) {
    table.push_back(100 - 2 * r);
    for (std::size_t c = 0; c < kCols; ++c) {
      expected[static_cast<std::size_t>(100 - 2 * r) * kCols + c] +=
          more[static_cast<std::size_t>(r) * kCols + c];
    }
  }
  const OnDevice into(before, stream), from(more, stream);
  const OnDevice names(table, stream);
  cuda::scatter_add_rows(into.span(), from.view(), names.view(), {50, kCols}, stream);
  CHECK(test::same_bits(into.read(), expected));
}

TEST_CASE("embedding: forward gathers, backward follows fp64, twice the same bits") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kVocab = 1000, kRows = test::sized(2051, 203);
  for (const std::int64_t hidden : {8, 1000, 4096}) {
    CAPTURE(hidden);
    std::vector<std::int32_t> tokens;
    for (std::int32_t r = 0; r < kRows; ++r) tokens.push_back(r % 3 == 0 ? 17 : r * 7919 % 1000);
    const auto table = test::random_bf16(kVocab * hidden, 1);
    const auto dout = test::random_bf16(kRows * hidden, 2);
    const auto before = test::random_floats(kVocab * hidden, 3);
    std::vector<double> out(dout.size()), expected = test::as_doubles(before);
    cpu::embedding_forward(out, test::as_doubles(table), tokens, kVocab, hidden);
    cpu::embedding_backward(expected, test::as_doubles(dout), tokens, kVocab, hidden);

    const OnDevice weights(table, stream), dy(dout, stream);
    const OnDevice names(tokens, stream);
    const OnDevice result(test::poisoned<Bf16>(kRows * hidden), stream);
    cuda::embedding_forward(result.span(), weights.view(), names.view(), kVocab, hidden, stream);
    CHECK(test::difference(result.read(), out, 0, 0) == "");

    const cuda::TokenRows order = cuda::token_rows(tokens, kVocab);
    const OnDevice distinct(order.tokens, stream), begin(order.begin, stream),
        rows(order.rows, stream);
    std::vector<std::vector<float>> results;
    for (int run = 0; run < 2; ++run) {
      const OnDevice dtable(before, stream);
      cuda::embedding_backward(dtable.span(), dy.view(),
                               {distinct.view(), begin.view(), rows.view()}, kVocab, hidden,
                               stream);
      results.push_back(dtable.read());
      CHECK(test::difference(results.back(), expected, 1e-4, 1e-5) == "");
    }
    CHECK(test::same_bits(results[0], results[1]));
  }
}

TEST_CASE("largest_by_row: magnitudes, infinity and NaN") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::int64_t kRows = 203;
  for (const std::int64_t cols : {8, 1000, 4096}) {
    CAPTURE(cols);
    auto matrix = test::random_bf16(kRows * cols, 1);
    matrix[static_cast<std::size_t>(7 * cols + 5)] = cuda::to_bf16(-kInfinity);
    matrix[static_cast<std::size_t>(202 * cols + cols - 1)] = Bf16{0x7fc0};  // NaN
    std::vector<float> expected(kRows, 0.0F);
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      float& largest = expected[i / static_cast<std::size_t>(cols)];
      largest = std::max(largest, std::abs(cuda::to_float(matrix[i])));
    }
    const OnDevice rows(matrix, stream);
    const OnDevice result(test::poisoned<float>(kRows + 1), stream);
    cuda::largest_by_row(result.first(kRows), rows.view(), {kRows, cols}, stream);
    auto largest = result.read();
    CHECK(test::is_poisoned(std::span<const float>(largest).last(1)));
    CHECK(std::isnan(largest[202]));
    largest.resize(202);
    expected.resize(202);
    CHECK(test::same_bits(largest, expected));
  }
}

TEST_CASE("rows: bad shapes are refused") {
  const cuda::DeviceSpan<Bf16> none;
  CHECK_THROWS_WITH_AS(cuda::gather_rows(none, none, {}, {0, 12}, {}),
                       "move_rows: a row must be a positive multiple of 16 bytes, got 12",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::scatter_rows(none, none, {}, {1, 16}, {}),
                       "move_rows: what is moved is not rows * cols, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::embedding_forward(none, none, {}, 3, 16, {}),
                       "embedding_forward: table is not vocab * hidden, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::embedding_backward({}, none, {}, 0, 16, {}),
                       "embedding_backward: begin is not one longer than tokens, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::largest_by_row({}, none, {0, 12}, {}),
                       "largest_by_row: cols must be a multiple of 8, got 12", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::largest_by_row({}, none, {2, 16}, {}),
                       "largest_by_row: rows is not rows * cols, got 0", InvalidInput);
  CHECK_NOTHROW(cuda::gather_rows(none, none, {}, {0, 16}, {}));
}

}  // namespace rows_test
