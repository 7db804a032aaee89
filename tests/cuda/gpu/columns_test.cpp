// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/columns.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"

namespace columns_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using test::OnDevice;

constexpr std::int64_t kWhole = 131;  ///< rows of the whole matrix

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Splits every second row, in an order of its own, and joins them again.
template <class Element>
void check_there_and_back(const std::vector<Element>& whole, std::int64_t cols,
                          std::int64_t members, std::int64_t between) {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kRows = kWhole / 2;
  std::vector<std::int32_t> table;
  for (std::int64_t r = 0; r < kRows; ++r) {
    table.push_back(static_cast<std::int32_t>(2 * (r * 37 % kRows)));
  }
  const std::int64_t part = cols / members;
  const cuda::ColumnShape shape{kRows, cols, members, kRows * part + between};
  auto expected = test::poisoned<Element>(members * shape.stride);
  auto expected_whole = test::poisoned<Element>(kWhole * cols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::size_t from = at(table[at(r)] * cols + c);
      expected[at(c / part * shape.stride + r * part + c % part)] = whole[from];
      expected_whole[from] = whole[from];
    }
  }
  const OnDevice from(whole, stream);
  const OnDevice names(table, stream);
  const OnDevice parts(test::poisoned<Element>(members * shape.stride), stream);
  const OnDevice back(test::poisoned<Element>(kWhole * cols), stream);
  cuda::split_columns(parts.span(), from.view(), names.view(), shape, stream);
  cuda::join_columns(back.span(), parts.view(), names.view(), shape, stream);
  CHECK(test::same_bits(parts.read(), expected));
  CHECK(test::same_bits(back.read(), expected_whole));
}

}  // namespace

TEST_CASE("split_columns, join_columns: members' columns come back to their rows") {
  for (const std::int64_t members : {1, 2, 4, 8}) {
    for (const std::int64_t part : {16, 264, 1024}) {
      CAPTURE(members);
      CAPTURE(part);
      const std::int64_t cols = members * part;
      const auto whole = test::random_bf16(kWhole * cols, 1);
      check_there_and_back(whole, cols, members, 16);
      check_there_and_back(whole, cols, members, 1);  // not aligned to 16 bytes
    }
    check_there_and_back(test::random_floats(kWhole * members * 3, 2), members * 3, members, 5);
    check_there_and_back(test::random_floats(kWhole * members * 4, 2), members * 4, members, 4);
  }
}

TEST_CASE("add_columns: adds in fp32") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kRows = 61, kMembers = 4, kPart = 128, kCols = kMembers * kPart;
  const cuda::ColumnShape shape{kRows, kCols, kMembers, kRows * kPart + 24};
  const auto before = test::random_floats(kWhole * kCols, 1);
  const auto more = test::random_bf16(kMembers * shape.stride, 2);
  auto expected = before;
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const std::int64_t r = i / kCols, c = i % kCols;
    expected[at(i)] += cuda::to_float(more[at(c / kPart * shape.stride + r * kPart + c % kPart)]);
  }
  const OnDevice whole(before, stream);
  const OnDevice parts(more, stream);
  cuda::add_columns(whole.span(), parts.view(), shape, stream);
  CHECK(test::same_bits(whole.read(), expected));
}

TEST_CASE("gather_converted: rows of a table, rounded") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const std::int64_t cols : {8, 1000, 4096}) {
    CAPTURE(cols);
    const auto from = test::random_floats(kWhole * cols, 1);
    std::vector<std::int32_t> table;
    std::vector<Bf16> expected;
    for (std::int32_t r = 0; r < 50; ++r) {
      table.push_back(r * 37 % static_cast<std::int32_t>(kWhole));
      for (std::int64_t c = 0; c < cols; ++c) {
        expected.push_back(cuda::to_bf16(from[at(table.back() * cols + c)]));
      }
    }
    const OnDevice rows(from, stream);
    const OnDevice names(table, stream);
    const OnDevice to(test::poisoned<Bf16>(50 * cols), stream);
    cuda::gather_converted(to.span(), rows.view(), names.view(), {50, cols}, stream);
    CHECK(test::same_bits(to.read(), expected));
  }
}

TEST_CASE("columns: bad shapes are refused") {
  const cuda::DeviceSpan<Bf16> none;
  CHECK_THROWS_WITH_AS(cuda::split_columns(none, none, {}, {0, 24, 5, 0}, {}),
                       "columns: members must divide cols, got 5", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::split_columns(none, none, {}, {2, 24, 3, 15}, {}),
                       "columns: the parts of members must not overlap, got 15", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::join_columns(none, none, {}, {2, 24, 3, 16}, {}),
                       "columns: parts is too short for all members, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::add_columns({}, none, {0, 24, 2, 0}, {}),
                       "add_columns: a member's columns and the stride must be multiples of 8, "
                       "got 12",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::gather_converted(none, {}, {}, {0, 12}, {}),
                       "gather_converted: cols must be a positive multiple of 8, got 12",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::gather_converted(none, {}, {}, {1, 16}, {}),
                       "gather_converted: to is not rows * cols, got 0", InvalidInput);
  CHECK_NOTHROW(cuda::join_columns(none, none, {}, {0, 16, 2, 0}, {}));
}

}  // namespace columns_test
