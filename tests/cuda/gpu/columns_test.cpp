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

TEST_CASE("split_columns, join_columns: some heads of each member") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kMembers = 2, kHeads = 5, kFirst = 1, kCount = 3, kWidth = 128;
  constexpr std::int64_t kCols = kMembers * kHeads * kWidth, kMoved = kMembers * kCount * kWidth;
  const std::int64_t head = kWhole * kWidth, member = kCount * head + 64;
  const cuda::ColumnShape shape{kWhole, kCols, kMembers, member, kHeads, kFirst, kCount, head};
  const auto whole = test::random_bf16(kWhole * kCols, 1);
  auto expected = test::poisoned<Bf16>(kMembers * member);
  auto expected_whole = test::poisoned<Bf16>(kWhole * kCols);
  for (std::int64_t i = 0; i < kWhole * kMoved; ++i) {
    const std::int64_t r = i / kMoved, c = i % kMoved % kWidth, h = i % kMoved / kWidth;
    const std::size_t from =
        at(r * kCols + (h / kCount * kHeads + kFirst + h % kCount) * kWidth + c);
    expected[at(h / kCount * member + h % kCount * head + r * kWidth + c)] = whole[from];
    expected_whole[from] = whole[from];
  }
  const OnDevice from(whole, stream);
  const OnDevice parts(test::poisoned<Bf16>(kMembers * member), stream);
  const OnDevice back(test::poisoned<Bf16>(kWhole * kCols), stream);
  cuda::split_columns(parts.span(), from.view(), {}, shape, stream);
  cuda::join_columns(back.span(), parts.view(), {}, shape, stream);
  CHECK(test::same_bits(parts.read(), expected));
  CHECK(test::same_bits(back.read(), expected_whole));
}

TEST_CASE("store_keys, load_key_gradients: rows of memory by heads") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kRows = 50, kHeads = 3, kFirst = 1, kCount = 2, kDim = 128, kLayer = 1;
  constexpr std::int64_t kHead = kRows * kDim, kValue = kCount * kHead;
  constexpr std::int64_t kMemory = 4 * kHeads * kRows * kDim;
  std::vector<cuda::KeyRow> table;
  for (std::int64_t r = 0; r < kRows; ++r) {
    table.push_back({r * 37 % kRows * kDim, static_cast<std::int32_t>(kRows),
                     static_cast<std::int32_t>(2 * kHeads * kRows)});
  }
  const auto message = test::random_bf16(2 * kValue, 1);
  const auto sums = test::random_floats(kMemory, 2);
  auto expected = test::poisoned<Bf16>(kMemory);
  auto expected_message = message;
  for (std::int64_t i = 0; i < 2 * kValue; ++i) {
    const std::int64_t v = i / kValue, h = i % kValue / kHead, r = i % kHead / kDim;
    const std::size_t there = at(table[at(r)].at + i % kDim +
                                 (kLayer * 2 * kHeads + v * kHeads + kFirst + h) * kRows * kDim);
    expected[there] = message[at(i)];
    expected_message[at(i)] = cuda::to_bf16(sums[there]);
  }
  const cuda::KeyRowShape shape{kRows, kDim, kHeads, kFirst, kCount, kHead, kValue, kLayer};
  const OnDevice places(table, stream);
  const OnDevice given(message, stream);
  const OnDevice memory(test::poisoned<Bf16>(kMemory), stream);
  cuda::store_keys(memory.span(), given.view(), places.view(), shape, stream);
  CHECK(test::same_bits(memory.read(), expected));
  const OnDevice gradients(sums, stream);
  cuda::load_key_gradients(given.span(), gradients.view(), places.view(), shape, stream);
  CHECK(test::same_bits(given.read(), expected_message));
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
                       "add_columns: a head's columns and the strides must be multiples of 8, "
                       "got 12",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::store_keys(none, none, {}, {0, 12}, {}),
                       "keys: head_dim must be a positive multiple of 8, got 12", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::load_key_gradients(none, {}, {}, {1, 16}, {}),
                       "keys: the message is too short for all heads, got 0", InvalidInput);
  CHECK_NOTHROW(cuda::join_columns(none, none, {}, {0, 16, 2, 0}, {}));
}

}  // namespace columns_test
