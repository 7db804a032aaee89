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
  const std::int64_t words = cols / kInWord, member = words / members;
  const cuda::kernels::MoveColumns<Word> work{reinterpret_cast<Word*>(to.data()),
                                              reinterpret_cast<const Word*>(from.data()),
                                              table.empty() ? nullptr : table.data(),
                                              words,
                                              member,
                                              member,
                                              0,
                                              1,
                                              stride / kInWord,
                                              0,
                                              words};
  const auto launch = cuda::kernels::columns_launch(rows, work.moved_words);
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
      const cuda::kernels::AddColumns work{sums.data(), parts.data(), cols, part, part, 0,
                                           1,           stride,       0,    cols};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::add_columns_of_row(work); });
      CHECK(test::same_bits(sums, expected));
    }
  }
}

TEST_CASE("columns: some heads of each member go and come back, and add") {
  // Of five heads of two members those from the second to the fourth.
  constexpr std::int64_t kRows = 6, kMembers = 2, kHeads = 5, kFirst = 1, kCount = 3;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::vector<std::int32_t> table{4, 0, 6, 2, 3, 5};
  for (const std::int64_t width : {8, 136}) {
    const std::int64_t head = kRows * width + 8, member = kCount * head + 16;
    const std::int64_t cols = kMembers * kHeads * width, moved = kMembers * kCount * width;
    const auto whole = test::random_bf16(7 * cols, 1);
    const auto before = test::random_floats(7 * cols, 2);
    auto expected = test::poisoned<Bf16>(kMembers * member);
    auto expected_whole = test::poisoned<Bf16>(7 * cols);
    auto expected_sums = before;
    for (std::int64_t i = 0; i < kRows * moved; ++i) {
      const std::int64_t r = i / moved, c = i % moved % width, h = i % moved / width;
      const std::int64_t col = (h / kCount * kHeads + kFirst + h % kCount) * width + c;
      const std::size_t part = at(h / kCount * member + h % kCount * head + r * width + c);
      const std::size_t from = at(table[at(r)] * cols + col);
      expected[part] = whole[from];
      expected_whole[from] = whole[from];
      expected_sums[at(r * cols + col)] += cuda::to_float(whole[from]);
    }
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      const auto run = [&](const auto& launch, const auto& kernel) {
        cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing, kernel);
      };
      auto parts = test::poisoned<Bf16>(kMembers * member);
      auto back = test::poisoned<Bf16>(7 * cols);
      auto sums = before;
      const cuda::kernels::MoveColumns<Bf16> there{
          parts.data(),   whole.data(), table.data(), cols, kHeads * width, width,
          kFirst * width, kCount,       member,       head, moved};
      run(cuda::kernels::columns_launch(kRows, moved),
          [&] { cuda::kernels::move_columns<true>(there); });
      CHECK(test::same_bits(parts, expected));
      cuda::kernels::MoveColumns<Bf16> home = there;
      home.to = back.data();
      home.from = parts.data();
      run(cuda::kernels::columns_launch(kRows, moved),
          [&] { cuda::kernels::move_columns<false>(home); });
      CHECK(test::same_bits(back, expected_whole));
      const cuda::kernels::AddColumns more{sums.data(), parts.data(),   cols,   kHeads * width,
                                           width,       kFirst * width, kCount, member,
                                           head,        moved};
      run(cuda::kernels::add_columns_launch(kRows, moved),
          [&] { cuda::kernels::add_columns_of_row(more); });
      CHECK(test::same_bits(sums, expected_sums));
    }
  }
}

TEST_CASE("columns: keys of messages go to memory by heads, and gradients come from it rounded") {
  // Heads 1 and 2 of three, in layer 1 of two; the second row has no place.
  constexpr std::int64_t kHeads = 3, kFirst = 1, kCount = 2, kLayer = 1;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (const std::int64_t dim : {8, 264}) {
    const std::vector<cuda::KeyRow> table{
        {3 * dim, 5, 2 * kHeads * 5}, {}, {dim, 5, 2 * kHeads * 5}, {64 * dim + 8, 2, 0}};
    const auto rows = static_cast<std::int64_t>(table.size());
    const std::int64_t head = rows * dim + 8, value = 2 * head + 16, memory = 80 * dim;
    const auto message = test::random_bf16(value + 2 * head, 1);
    const auto sums = test::random_floats(memory, 2);
    auto expected = test::poisoned<Bf16>(memory);
    auto expected_message = test::poisoned<Bf16>(value + 2 * head);
    for (std::int64_t i = 0; i < rows * 2 * kCount * dim; ++i) {
      const std::int64_t c = i % dim, h = i / dim % kCount, v = i / dim / kCount % 2;
      const std::int64_t r = i / dim / kCount / 2;
      const cuda::KeyRow& place = table[at(r)];
      if (place.at < 0) continue;
      const std::size_t there =
          at(place.at + c +
             (kLayer * place.layer_rows + (v * kHeads + kFirst + h) * place.head_rows) * dim);
      const std::size_t here = at(v * value + h * head + r * dim + c);
      expected[there] = message[here];
      expected_message[here] = cuda::to_bf16(sums[there]);
    }
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      const auto launch = cuda::kernels::add_columns_launch(rows, 2 * kCount * dim);
      auto stored = test::poisoned<Bf16>(memory);
      const cuda::kernels::MoveKeys<Bf16, Bf16> store{
          stored.data(), message.data(), table.data(), dim,   kHeads,
          kFirst,        kCount,         head,         value, kLayer};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::move_keys_of_row<true>(store); });
      CHECK(test::same_bits(stored, expected));
      auto loaded = test::poisoned<Bf16>(value + 2 * head);
      const cuda::kernels::MoveKeys<Bf16, float> load{
          loaded.data(), sums.data(), table.data(), dim,   kHeads,
          kFirst,        kCount,      head,         value, kLayer};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::move_keys_of_row<false>(load); });
      CHECK(test::same_bits(loaded, expected_message));
    }
  }
}

}  // namespace columns_test
