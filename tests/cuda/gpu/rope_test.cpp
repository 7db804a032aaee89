// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/rope.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cpu/ops.hpp"

namespace rope_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using test::OnDevice;
constexpr double kTheta = 500000;

/// `matrix` with every row turned, each at its own position.
std::vector<double> turned(std::vector<double> matrix, const std::vector<cuda::RopeRow>& rows,
                           std::int64_t heads, std::int64_t head_dim, cpu::Rotation rotation) {
  const std::int64_t width = heads * head_dim;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    cpu::rotate(cpu::detail::row(std::span(matrix), static_cast<std::int64_t>(r), width),
                Tokens{rows[r].position}, {1, heads, head_dim}, kTheta, rotation);
  }
  return matrix;
}

/// Rows of `matrix` in the order of the table.
template <class Element, class Row>
std::vector<Element> gathered(const std::vector<Element>& matrix,
                              const std::vector<cuda::RopeRow>& rows, std::int64_t width,
                              const Row& row_of) {
  std::vector<Element> result;
  for (const cuda::RopeRow& row : rows) {
    const auto at = matrix.begin() + std::int64_t{row_of(row)} * width;
    result.insert(result.end(), at, at + width);
  }
  return result;
}

}  // namespace

TEST_CASE("rope: forward and backward follow fp64 up to positions of a million") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const cuda::RopeShape shape :
       {cuda::RopeShape{301, 32, 8, 128}, cuda::RopeShape{77, 6, 2, 64},
        cuda::RopeShape{9, 5, 5, 48}}) {
    const std::int64_t dim = shape.head_dim, q = shape.heads * dim, k = shape.kv_heads * dim;
    CAPTURE(dim);
    const std::int64_t places = 2 * shape.rows;
    std::vector<cuda::RopeRow> rows;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const auto i = static_cast<std::int32_t>(r);
      const auto last = static_cast<std::int32_t>(places - 1);
      rows.push_back({i % 2 == 0 ? 1'000'000 - i : i, 2 * i, last - i, i});
    }
    const auto query_row = [](const cuda::RopeRow& row) { return row.query_row; };
    const auto key_row = [](const cuda::RopeRow& row) { return row.key_row; };
    const auto value_row = [](const cuda::RopeRow& row) { return row.value_row; };
    const OnDevice table(rows, stream);
    const OnDevice frequencies(cuda::rope_frequencies(shape.head_dim, kTheta), stream);

    const std::int64_t width = q + 2 * k;
    const auto qkv = test::random_bf16(shape.rows * width, 1, 3);
    std::vector<double> parts[3];
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t c = 0; c < width; ++c) {
        parts[c < q       ? 0
              : c < q + k ? 1
                          : 2]
            .push_back(test::as_double(qkv[static_cast<std::size_t>(r * width + c)]));
      }
    }
    const OnDevice projected(qkv, stream);
    const OnDevice query(test::poisoned<Bf16>(places * q), stream);
    const OnDevice key(test::poisoned<Bf16>(places * k), stream);
    const OnDevice value(test::poisoned<Bf16>(places * k), stream);
    cuda::rope_forward(query.span(), key.span(), value.span(), projected.view(), table.view(),
                       frequencies.view(), shape, stream);
    const auto forward = cpu::Rotation::forward, inverse = cpu::Rotation::inverse;
    CHECK(test::difference(gathered(query.read(), rows, q, query_row),
                           turned(parts[0], rows, shape.heads, dim, forward), 3e-6,
                           test::kBf16Rounding) == "");
    CHECK(test::difference(gathered(key.read(), rows, k, key_row),
                           turned(parts[1], rows, shape.kv_heads, dim, forward), 3e-6,
                           test::kBf16Rounding) == "");
    CHECK(test::difference(gathered(value.read(), rows, k, value_row), parts[2], 0, 0) == "");
    const auto keys = key.read();  // the first half belongs to nobody
    CHECK(test::is_poisoned(std::span<const Bf16>(keys).first(keys.size() / 2)));

    const auto dquery = test::random_bf16(places * q, 2, 3);
    const auto dkey = test::random_floats(places * k, 3, 3);
    const auto dvalue = test::random_floats(places * k, 4, 3);
    const OnDevice dq(dquery, stream), dqkv(test::poisoned<Bf16>(shape.rows * width + 16), stream);
    const OnDevice dk(dkey, stream), dv(dvalue, stream);
    cuda::rope_backward(dqkv.first(shape.rows * width), dq.view(), dk.view(), dv.view(),
                        table.view(), frequencies.view(), shape, stream);
    const auto back_q = turned(test::as_doubles(gathered(dquery, rows, q, query_row)), rows,
                               shape.heads, dim, inverse);
    const auto back_k = turned(test::as_doubles(gathered(dkey, rows, k, key_row)), rows,
                               shape.kv_heads, dim, inverse);
    const auto back_v = test::as_doubles(gathered(dvalue, rows, k, value_row));
    std::vector<double> expected;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      expected.insert(expected.end(), back_q.begin() + r * q, back_q.begin() + (r + 1) * q);
      expected.insert(expected.end(), back_k.begin() + r * k, back_k.begin() + (r + 1) * k);
      expected.insert(expected.end(), back_v.begin() + r * k, back_v.begin() + (r + 1) * k);
    }
    const auto result = dqkv.read();
    CHECK(test::difference(result, expected, 3e-6, test::kBf16Rounding) == "");
    CHECK(test::is_poisoned(std::span<const Bf16>(result).last(16)));
  }
}

TEST_CASE("rope: bad shapes are refused") {
  const cuda::DeviceSpan<Bf16> none;
  CHECK_THROWS_WITH_AS(cuda::rope_forward(none, none, none, none, {}, {}, {0, 2, 1, 24}, {}),
                       "rope: head_dim must be a multiple of 16 from 16 to 512, got 24",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::rope_forward(none, none, none, none, {}, {}, {0, 0, 0, 16}, {}),
                       "rope: heads and kv_heads must be >= 0 and not both 0, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::rope_backward(none, none, {}, {}, {}, {}, {0, 2, 1, 16}, {}),
                       "rope: frequencies are not head_dim / 2, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::rope_backward(none, none, {}, {}, {}, {}, {3, 2, 1, 16}, {}),
                       "rope: qkv is not rows * (heads + 2 kv_heads) * head_dim, got 0",
                       InvalidInput);
}

}  // namespace rope_test
