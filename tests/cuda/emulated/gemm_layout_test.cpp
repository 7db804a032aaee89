// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack_cuda/gemm_layout.hpp"

namespace slimpack::cuda::gemm_layout_test {
namespace {

using Matrix = std::vector<double>;

std::size_t at(std::int64_t row, std::int64_t column, std::int64_t width) {
  return static_cast<std::size_t>(row * width + column);
}

Matrix random_matrix(std::int64_t rows, std::int64_t columns, slimpack::Random& random) {
  Matrix matrix;
  for (std::int64_t i = 0; i < rows * columns; ++i) matrix.push_back(random.normal());
  return matrix;
}

/// What a BLAS computes, read off its definition.
Matrix blas(const ColumnProduct& product, const Matrix& a, const Matrix& b) {
  Matrix d(static_cast<std::size_t>(product.m * product.n));
  const auto element = [](const Matrix& matrix, bool transpose, std::int64_t row,
                          std::int64_t column, std::int64_t distance) {
    return transpose ? matrix[at(row, column, distance)] : matrix[at(column, row, distance)];
  };
  for (std::int64_t i = 0; i < product.m; ++i) {
    for (std::int64_t j = 0; j < product.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < product.k; ++k) {
        sum += element(a, product.transpose_a, i, k, product.lda) *
               element(b, product.transpose_b, k, j, product.ldb);
      }
      d[at(j, i, product.ldd)] = sum;
    }
  }
  return d;
}

}  // namespace

TEST_CASE("column_product: a BLAS that stores columns computes the products of rows") {
  for (const LinearShape shape : {LinearShape{3, 5, 7}, {1, 4, 2}, {6, 1, 3}, {2, 8, 1}}) {
    CAPTURE(shape.rows);
    slimpack::Random random(1);
    const Matrix in = random_matrix(shape.rows, shape.inputs, random);
    const Matrix weight = random_matrix(shape.outputs, shape.inputs, random);
    const Matrix dout = random_matrix(shape.rows, shape.outputs, random);
    Matrix out(dout.size()), din(in.size()), dweight(weight.size());
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      for (std::int64_t o = 0; o < shape.outputs; ++o) {
        for (std::int64_t i = 0; i < shape.inputs; ++i) {
          out[at(row, o, shape.outputs)] +=
              in[at(row, i, shape.inputs)] * weight[at(o, i, shape.inputs)];
          din[at(row, i, shape.inputs)] +=
              dout[at(row, o, shape.outputs)] * weight[at(o, i, shape.inputs)];
          dweight[at(o, i, shape.inputs)] +=
              dout[at(row, o, shape.outputs)] * in[at(row, i, shape.inputs)];
        }
      }
    }
    const auto check = [&](LinearProduct product, const Matrix& right, const Matrix& left,
                           const Matrix& expected) {
      const ColumnProduct call = column_product(product, shape);
      CHECK(call.a_rows() == call.lda);  // without gaps
      CHECK(call.b_rows() == call.ldb);
      CHECK(call.m == call.ldd);
      CHECK(call.a_rows() * call.a_columns() == static_cast<std::int64_t>(right.size()));
      CHECK(call.b_rows() * call.b_columns() == static_cast<std::int64_t>(left.size()));
      const Matrix found = blas(call, right, left);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-12));
      }
      CHECK(2.0 * static_cast<double>(call.m * call.n * call.k) == linear_flop(shape));
    };
    check(LinearProduct::forward, weight, in, out);
    check(LinearProduct::input_gradient, weight, dout, din);
    check(LinearProduct::weight_gradient, in, dout, dweight);
  }
}

TEST_CASE("GemmKey: each of its parts tells products apart") {
  const GemmKey key{LinearProduct::forward, {4, 8, 16}, false, false, 16};
  std::set<GemmKey> keys{key};
  for (GemmKey other : {GemmKey{LinearProduct::input_gradient, {4, 8, 16}, false, false, 16},
                        GemmKey{LinearProduct::forward, {5, 8, 16}, false, false, 16},
                        GemmKey{LinearProduct::forward, {4, 16, 8}, false, false, 16},
                        GemmKey{LinearProduct::forward, {4, 8, 24}, false, false, 16},
                        GemmKey{LinearProduct::forward, {4, 8, 16}, true, false, 16},
                        GemmKey{LinearProduct::forward, {4, 8, 16}, false, true, 16},
                        GemmKey{LinearProduct::forward, {4, 8, 16}, false, false, 8}}) {
    CHECK(keys.insert(other).second);
  }
  CHECK_FALSE(keys.insert(key).second);
}

TEST_CASE("common_alignment: the least aligned address decides, up to 16 bytes") {
  CHECK(common_alignment({}) == 16);
  CHECK(common_alignment({0x1000, 0x40}) == 16);
  CHECK(common_alignment({0x1000, 0x48}) == 8);
  CHECK(common_alignment({0x1004, 0x48}) == 4);
  CHECK(common_alignment({0x1004, 0x42}) == 2);
}

TEST_CASE("why_not: names the rule that a product breaks") {
  CHECK_FALSE(why_not({0, 8, 8}, 9, 0));
  CHECK_FALSE(why_not({7, 3, 5}, 8, 0));
  CHECK(why_not({-1, 8, 8}, 9, 0) == "gemm: rows must be within 0 and 2^31 - 1, got -1");
  CHECK(why_not({std::int64_t{1} << 31U, 8, 8}, 9, 0) ==
        "gemm: rows must be within 0 and 2^31 - 1, got 2147483648");
  CHECK(why_not({1, 0, 8}, 9, 0) ==
        "gemm: inputs and outputs must be within 1 and 2^31 - 1, got 0");
  CHECK(why_not({1, 8, -2}, 9, 0) ==
        "gemm: inputs and outputs must be within 1 and 2^31 - 1, got -2");
  CHECK(why_not({1, 8, 8}, 7, 5) ==
        "gemm: bf16 needs a device of compute capability 8.0 or newer, got 7.5");
}

}  // namespace slimpack::cuda::gemm_layout_test
