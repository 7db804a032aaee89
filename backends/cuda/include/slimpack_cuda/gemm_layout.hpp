// SPDX-License-Identifier: Apache-2.0
// How the matrix products of a linear layer, row by row, are put to a BLAS that stores column by
// column, and what the choice of an algorithm depends on. Plain C++.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

namespace slimpack::cuda {

/// A linear layer on `rows` tokens: out[rows, outputs] = in[rows, inputs] * transpose(weight), with
/// weight[outputs, inputs]. All matrices are row by row without gaps.
struct LinearShape {
  std::int64_t rows = 0, inputs = 0, outputs = 0;
  friend auto operator<=>(const LinearShape&, const LinearShape&) = default;
};

enum class LinearProduct : std::uint8_t {
  forward,          ///< out = in * transpose(weight)
  input_gradient,   ///< din = dout * weight
  weight_gradient,  ///< dweight = transpose(dout) * in
};

/// D[m, n] = op(A)[m, k] * op(B)[k, n] with all matrices column by column; `ld` is the distance of
/// two columns. A matrix that is row by row is, read column by column, its transpose: hence D is
/// the transpose of the product, and A is its right factor: weight, weight, in. B is the left one:
/// in, dout, dout.
struct ColumnProduct {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  friend bool operator==(const ColumnProduct&, const ColumnProduct&) = default;

  /// Rows and columns of A and B as they are stored.
  [[nodiscard]] constexpr std::int64_t a_rows() const { return transpose_a ? k : m; }
  [[nodiscard]] constexpr std::int64_t a_columns() const { return transpose_a ? m : k; }
  [[nodiscard]] constexpr std::int64_t b_rows() const { return transpose_b ? n : k; }
  [[nodiscard]] constexpr std::int64_t b_columns() const { return transpose_b ? k : n; }
};

[[nodiscard]] constexpr ColumnProduct column_product(LinearProduct product,
                                                     const LinearShape& shape) {
  const auto [rows, inputs, outputs] = shape;
  switch (product) {
    case LinearProduct::forward:
      return {true, false, outputs, rows, inputs, inputs, inputs, outputs};
    case LinearProduct::input_gradient:
      return {false, false, inputs, rows, outputs, inputs, outputs, inputs};
    case LinearProduct::weight_gradient:
      return {false, true, inputs, outputs, rows, inputs, outputs, inputs};
  }
  return {};
}

/// Floating-point operations of each of the three products.
[[nodiscard]] constexpr double linear_flop(const LinearShape& shape) {
  return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.inputs) *
         static_cast<double>(shape.outputs);
}

/// All that an algorithm is chosen by, with rows as key_of_choice has them: products for which
/// these are equal run the same one.
struct GemmKey {
  LinearProduct product = LinearProduct::forward;
  LinearShape shape;
  bool single = false;       ///< the result is fp32, not bf16
  bool adds = false;         ///< to what is there
  std::int32_t aligned = 0;  ///< bytes, common_alignment of the matrices
  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

/// `rows` rounded up to one of eight numbers an octave: 1, 2 .. 16, 18 .. 32, 36 .. 64, 72 ...
[[nodiscard]] constexpr std::int64_t rounded_rows(std::int64_t rows) {
  if (rows <= 8) return rows;
  const std::int64_t step = std::int64_t{1}
                            << (std::bit_width(static_cast<std::uint64_t>(rows - 1)) - 4);
  return (rows + step - 1) / step * step;
}

/// The product whose algorithm a product runs: packs have ever new numbers of rows, and looking for
/// an algorithm takes longer than a small product.
[[nodiscard]] constexpr GemmKey key_of_choice(GemmKey key) {
  key.shape.rows = rounded_rows(key.shape.rows);
  return key;
}

/// Algorithms ask for no more.
inline constexpr std::int32_t kGemmAlignment = 16;

/// The largest power of two up to kGemmAlignment that divides all addresses.
[[nodiscard]] constexpr std::int32_t common_alignment(
    std::initializer_list<std::uintptr_t> addresses) {
  std::uintptr_t all = kGemmAlignment;
  for (const std::uintptr_t address : addresses) all |= address;
  return static_cast<std::int32_t>(std::uintptr_t{1} << std::countr_zero(all));
}

/// Why a product cannot be computed on a device of this compute capability, one sentence; nothing
/// where it can. Widths that are no multiple of 8 are computed, at a fraction of the speed.
[[nodiscard]] inline std::optional<std::string> why_not(const LinearShape& shape, int major,
                                                        int minor) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (shape.rows < 0 || shape.rows > kMost) {
    return "gemm: rows must be within 0 and 2^31 - 1, got " + std::to_string(shape.rows);
  }
  for (const std::int64_t width : {shape.inputs, shape.outputs}) {
    if (width < 1 || width > kMost) {
      return "gemm: inputs and outputs must be within 1 and 2^31 - 1, got " + std::to_string(width);
    }
  }
  if (major < 8) {
    return "gemm: bf16 needs a device of compute capability 8.0 or newer, got " +
           std::to_string(major) + "." + std::to_string(minor);
  }
  return std::nullopt;
}

}  // namespace slimpack::cuda
