// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/rope.cuh"
#include "slimpack_cpu/ops.hpp"

namespace rope_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::RopeRow;
using cuda::simt::Timing;

constexpr double kTheta = 500000;
constexpr std::int64_t kPlaces = 12;  // rows of the matrices that rows go to

/// Rows at far positions whose places are neither in order nor next to each other.
std::vector<RopeRow> some_rows(std::int64_t count) {
  const std::vector<RopeRow> all{{0, 4, 2, 1},       {1, 5, 3, 8},    {1'000'000, 0, 11, 2},
                                 {131'071, 9, 7, 3}, {17, 11, 0, 11}, {999'999, 2, 10, 0},
                                 {4'096, 7, 5, 6}};
  return {all.begin(), all.begin() + count};
}

std::vector<double> turned(std::vector<double> values, std::int64_t position, std::int64_t heads,
                           std::int64_t head_dim, cpu::Rotation rotation) {
  cpu::rotate(values, Tokens{position}, {1, heads, head_dim}, kTheta, rotation);
  return values;
}

template <class Element>
std::vector<double> part(const std::vector<Element>& matrix, std::int64_t first,
                         std::int64_t count) {
  const auto all = matrix.begin() + first;
  return test::as_doubles(std::vector<Element>(all, all + count));
}

}  // namespace

TEST_CASE("rope forward: queries and keys turn, values stay, each at its place") {
  for (const cuda::RopeShape shape :
       {cuda::RopeShape{7, 3, 2, 16}, cuda::RopeShape{1, 4, 1, 48}, cuda::RopeShape{5, 6, 2, 128},
        cuda::RopeShape{3, 2, 0, 64}, cuda::RopeShape{3, 0, 2, 64}}) {
    const std::int64_t dim = shape.head_dim, q = shape.heads * dim, k = shape.kv_heads * dim;
    CAPTURE(dim);
    const auto rows = some_rows(shape.rows);
    const auto frequencies = cuda::rope_frequencies(shape.head_dim, kTheta);
    const auto qkv = test::random_bf16(shape.rows * (q + 2 * k), 1, 3);
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      auto query = test::poisoned<Bf16>(kPlaces * q), key = test::poisoned<Bf16>(kPlaces * k);
      auto value = test::poisoned<Bf16>(kPlaces * k);
      const auto launch = cuda::kernels::rope_launch(shape);
      const cuda::kernels::RopeForward work{query.data(), key.data(),  value.data(),
                                            qkv.data(),   rows.data(), frequencies.data(),
                                            shape};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::rope_forward_rows_of_block(work); });
      std::int64_t written = 0;
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        const RopeRow& row = rows[static_cast<std::size_t>(r)];
        const std::int64_t i = r * (q + 2 * k);
        const auto forward = cpu::Rotation::forward;
        const auto to_bf16_of = [](const std::vector<double>& values) {
          std::vector<Bf16> result;
          for (const double x : values) result.push_back(cuda::to_bf16(static_cast<float>(x)));
          return result;
        };
        const auto query_row = to_bf16_of(part(query, row.query_row * q, q));
        const auto key_row = to_bf16_of(part(key, row.key_row * k, k));
        const auto value_row = to_bf16_of(part(value, row.value_row * k, k));
        CHECK(test::difference(query_row,
                               turned(part(qkv, i, q), row.position, shape.heads, dim, forward),
                               2e-6, test::kBf16Rounding) == "");
        CHECK(test::difference(
                  key_row, turned(part(qkv, i + q, k), row.position, shape.kv_heads, dim, forward),
                  2e-6, test::kBf16Rounding) == "");
        CHECK(test::difference(value_row, part(qkv, i + q + k, k), 0, 0) == "");
        written += q + 2 * k;
      }
      std::int64_t kept = 0;
      for (const auto* matrix : {&query, &key, &value}) {
        kept += std::ranges::count(*matrix, Bf16{0xffff});
      }
      CHECK(kept == kPlaces * (q + 2 * k) - written);
    }
  }
}

TEST_CASE("rope backward: gradients turn back into one matrix") {
  for (const cuda::RopeShape shape : {cuda::RopeShape{7, 3, 2, 16}, cuda::RopeShape{1, 4, 1, 48},
                                      cuda::RopeShape{6, 4, 2, 128}}) {
    const std::int64_t dim = shape.head_dim, q = shape.heads * dim, k = shape.kv_heads * dim;
    CAPTURE(dim);
    const auto rows = some_rows(shape.rows);
    const auto frequencies = cuda::rope_frequencies(shape.head_dim, kTheta);
    const auto dquery = test::random_bf16(kPlaces * q, 1, 3);
    const auto dkey = test::random_floats(kPlaces * k, 2, 3);
    const auto dvalue = test::random_floats(kPlaces * k, 3, 3);
    std::vector<double> expected;
    for (const RopeRow& row : rows) {
      const auto inverse = cpu::Rotation::inverse;
      for (const auto& piece :
           {turned(part(dquery, row.query_row * q, q), row.position, shape.heads, dim, inverse),
            turned(part(dkey, row.key_row * k, k), row.position, shape.kv_heads, dim, inverse),
            part(dvalue, row.value_row * k, k)}) {
        expected.insert(expected.end(), piece.begin(), piece.end());
      }
    }
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      auto dqkv = test::poisoned<Bf16>(shape.rows * (q + 2 * k) + 16);
      const auto launch = cuda::kernels::rope_launch(shape);
      const cuda::kernels::RopeBackward work{dqkv.data(),   dquery.data(), dkey.data(),
                                             dvalue.data(), rows.data(),   frequencies.data(),
                                             shape};
      cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                          [&] { cuda::kernels::rope_backward_rows_of_block(work); });
      CHECK(test::difference(dqkv, expected, 2e-6, test::kBf16Rounding) == "");
      CHECK(test::is_poisoned(std::span<const Bf16>(dqkv).last(16)));
    }
  }
}

TEST_CASE("rope rows: keys go to the pages, their gradients are numbered as listed") {
  using cuda::AttentionSegment;
  using cuda::KeyPage;
  using cuda::RopeRow;
  // A sample of 7 tokens in pages of 4 at rows 20 and 8, its last 3 here; then one of 2 tokens.
  const std::vector<KeyPage> pages{{20, 0}, {8, 4}, {12, 0}};
  const AttentionSegment late{.rows = 3,
                              .position = 4,
                              .first_page = 0,
                              .keys = 7,
                              .query_row = 1,
                              .output_row = 0,
                              .log_sum_row = 0,
                              .gradient_row = 5,
                              .key_gradient_row = 30,
                              .value_gradient_row = 60};
  const AttentionSegment whole{.rows = 2,
                               .position = 0,
                               .first_page = 2,
                               .keys = 2,
                               .query_row = 10,
                               .output_row = 0,
                               .log_sum_row = 0,
                               .gradient_row = 0,
                               .key_gradient_row = 40,
                               .value_gradient_row = 70};
  const std::vector<AttentionSegment> segments{late, whole};
  CHECK(cuda::rope_forward_rows(segments, pages, 4) ==
        std::vector<RopeRow>{
            {4, 1, 8, 8}, {5, 2, 9, 9}, {6, 3, 10, 10}, {0, 10, 12, 12}, {1, 11, 13, 13}});
  CHECK(cuda::rope_backward_rows(segments, pages, 4) ==
        std::vector<RopeRow>{
            {4, 5, 34, 64}, {5, 6, 35, 65}, {6, 7, 36, 66}, {0, 0, 40, 70}, {1, 1, 41, 71}});
  const std::vector<KeyPage> others{{20, 0}, {8, 16}, {12, 0}};
  CHECK_THROWS_WITH_AS((void)cuda::rope_forward_rows(segments, others, 4),
                       "rope: a segment's pages must list its own positions, got 4", InvalidInput);
  CHECK_THROWS_WITH_AS((void)cuda::rope_forward_rows(segments, std::span(pages).first(2), 4),
                       "rope: a segment's counts, position or pages are out of range, got 2",
                       InvalidInput);
}

}  // namespace rope_test
