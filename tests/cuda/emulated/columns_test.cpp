// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/columns.cuh"

namespace columns_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::simt::Timing;

/// Runs the kernel with words of type Word.
template <bool kSplit, class Word, class Element>
void move(std::vector<Element>& to, const std::vector<Element>& from,
          const std::vector<std::int32_t>& table, std::int64_t rows, std::int64_t cols,
          std::int64_t members, std::int64_t stride, Timing timing) {
  constexpr auto kInWord = static_cast<std::int64_t>(sizeof(Word) / sizeof(Element));
  const cuda::kernels::MoveColumns<Word> work{reinterpret_cast<Word*>(to.data()),
                                              reinterpret_cast<const Word*>(from.data()),
                                              table.empty() ? nullptr : table.data(),
                                              cols / kInWord,
                                              cols / members / kInWord,
                                              stride / kInWord};
  const auto launch = cuda::kernels::columns_launch(rows, work.row_words);
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::move_columns<kSplit>(work); });
}

/// Splits rows of a table and joins them again, by words of type Word.
template <class Word, class Element>
void check_there_and_back(const std::vector<Element>& whole, std::int64_t cols,
                          std::int64_t members, std::int64_t between,
                          const std::vector<std::int32_t>& table) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t rows = table.empty() ? 5 : static_cast<std::int64_t>(table.size());
  const std::int64_t part = cols / members, stride = rows * part + between;
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    auto parts = test::poisoned<Element>(members * stride);
    move<true, Word>(parts, whole, table, rows, cols, members, stride, timing);
    auto expected = test::poisoned<Element>(members * stride);
    auto expected_whole = test::poisoned<Element>(7 * cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t row = table.empty() ? r : table[at(r)];
      for (std::int64_t c = 0; c < cols; ++c) {
        expected[at(c / part * stride + r * part + c % part)] = whole[at(row * cols + c)];
        expected_whole[at(row * cols + c)] = whole[at(row * cols + c)];
      }
    }
    CHECK(test::same_bits(parts, expected));
    auto back = test::poisoned<Element>(7 * cols);
    move<false, Word>(back, parts, table, rows, cols, members, stride, timing);
    CHECK(test::same_bits(back, expected_whole));
  }
}

}  // namespace

TEST_CASE("columns: what is split between members is joined again, by words and by elements") {
  using cuda::kernels::Words;
  const std::vector<std::int32_t> table{4, 0, 6, 2};
  for (const std::int64_t members : {1, 2, 4}) {
    for (const std::int64_t part : {16, 72, 640}) {
      CAPTURE(members);
      CAPTURE(part);
      const std::int64_t cols = members * part;
      const auto bf16 = test::random_bf16(7 * cols, 1);
      const auto fp32 = test::random_floats(7 * cols, 2);
      check_there_and_back<Words>(bf16, cols, members, 8, table);
      check_there_and_back<Bf16>(bf16, cols, members, 3, table);
      check_there_and_back<Words>(fp32, cols, members, 4, {});
      check_there_and_back<float>(fp32, cols, members, 1, {});
    }
    const auto numbers = test::random_floats(7 * members * 3, 3);  // statistics of three heads
    check_there_and_back<float>(numbers, members * 3, members, 5, table);
  }
}

TEST_CASE("columns: parts add to whole rows in fp32") {
  constexpr std::int64_t kRows = 5, kMembers = 2;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (const std::int64_t part : {16, 1096}) {
    const std::int64_t cols = kMembers * part, stride = kRows * part + 8;
    const auto before = test::random_floats(kRows * cols, 1);
    const auto parts = test::random_bf16(kMembers * stride, 2);
    std::vector<float> expected = before;
    for (std::int64_t i = 0; i < kRows * cols; ++i) {
      const std::int64_t r = i / cols, c = i % cols;
      expected[at(i)] += cuda::to_float(parts[at(c / part * stride + r * part + c % part)]);
    }
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      auto sums = before;
      const auto launch = cuda::kernels::add_columns_launch(kRows, cols);
      const cuda::kernels::AddColumns work{sums.data(), parts.data(), cols, part, stride};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::add_columns_of_row(work); });
      CHECK(test::same_bits(sums, expected));
    }
  }
}

TEST_CASE("columns: rows of fp32 are gathered and rounded") {
  const std::vector<std::int32_t> table{3, 0, 6, 3};
  for (const std::int64_t cols : {8, 2056}) {
    const auto from = test::random_floats(7 * cols, 1);
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      auto to = test::poisoned<Bf16>(4 * cols + 8);
      const auto launch = cuda::kernels::add_columns_launch(4, cols);
      const cuda::kernels::GatherConverted work{to.data(), from.data(), table.data(), cols};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::gather_converted_row(work); });
      bool right = true;
      for (std::int64_t i = 0; i < 4 * cols; ++i) {
        const auto row = std::int64_t{table[static_cast<std::size_t>(i / cols)]};
        right &= to[static_cast<std::size_t>(i)].bits ==
                 cuda::to_bf16(from[static_cast<std::size_t>(row * cols + i % cols)]).bits;
      }
      CHECK(right);
      CHECK(test::is_poisoned(std::span<const Bf16>(to).last(8)));
    }
  }
}

}  // namespace columns_test
