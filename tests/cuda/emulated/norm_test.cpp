// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/norm.cuh"
#include "slimpack_cpu/ops.hpp"

namespace norm_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::simt::Timing;
constexpr std::int64_t kGuard = 16;

struct Forward {
  std::vector<Bf16> out, sum;
  std::vector<float> inverse_rms;
};
/// Forward as the launcher runs it; of no residual if it is empty.
Forward forward(const std::vector<Bf16>& in, const std::vector<Bf16>& residual,
                const std::vector<Bf16>& gain, cuda::RowShape shape, Timing timing) {
  const std::int64_t size = shape.rows * shape.cols;
  Forward result{test::poisoned<Bf16>(size + kGuard), test::poisoned<Bf16>(size + kGuard),
                 test::poisoned<float>(shape.rows + kGuard)};
  const bool fused = !residual.empty();
  const cuda::kernels::NormForward work{result.out.data(),
                                        result.inverse_rms.data(),
                                        fused ? result.sum.data() : nullptr,
                                        in.data(),
                                        fused ? residual.data() : nullptr,
                                        gain.data(),
                                        shape.cols,
                                        1e-5F};
  cuda::kernels::with_forward_vectors(shape.cols, [&](auto vectors) {
    constexpr unsigned kVectors = decltype(vectors)::value;
    const auto launch = cuda::kernels::norm_forward_launch(shape, kVectors);
    cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                        [&] { cuda::kernels::rms_norm_forward_row<kVectors>(work); });
  });
  return result;
}

struct Backward {
  std::vector<Bf16> din;
  std::vector<float> dgain;
};
/// Both stages; with `blocks` blocks instead of the launcher's if it is not zero.
Backward backward(const std::vector<Bf16>& dout, const std::vector<Bf16>& dresidual,
                  const std::vector<Bf16>& in, const std::vector<Bf16>& gain,
                  const std::vector<float>& inverse_rms, const std::vector<float>& dgain,
                  cuda::RowShape shape, Timing timing, unsigned blocks) {
  const std::int64_t size = shape.rows * shape.cols;
  auto launch = cuda::kernels::norm_backward_launch(shape);
  if (blocks > 0) launch.blocks = blocks;
  Backward result{test::poisoned<Bf16>(size + kGuard), dgain};
  auto parts = test::poisoned<float>(launch.blocks * shape.cols + kGuard);
  const cuda::kernels::NormBackward work{
      result.din.data(),  parts.data(),
      dout.data(),        dresidual.empty() ? nullptr : dresidual.data(),
      in.data(),          gain.data(),
      inverse_rms.data(), shape.rows,
      shape.cols};
  cuda::kernels::with_backward_size(shape.cols, [&](auto sizes) {
    cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                        [&] { cuda::kernels::rms_norm_backward_rows<decltype(sizes)>(work); });
  });
  CHECK(test::is_poisoned(std::span<const float>(parts).last(kGuard)));
  const auto sums = cuda::kernels::column_sums_launch(shape.cols);
  const cuda::kernels::ColumnSums add{result.dgain.data(), parts.data(), launch.blocks, shape.cols};
  cuda::simt::emulate({sums.blocks, sums.threads, sums.shared_bytes}, timing,
                      [&] { cuda::kernels::add_column_sums(add); });
  return result;
}

}  // namespace

TEST_CASE("rms_norm forward: follows fp64, with and without residual") {
  for (const std::int64_t cols : {8, 264, 1032, 2056, 4104}) {
    for (const std::int64_t rows : {1, 3}) {
      CAPTURE(cols);
      const cuda::RowShape shape{rows, cols};
      const auto size = static_cast<std::size_t>(rows * cols);
      const auto in = test::random_bf16(rows * cols, 1, 2), gain = test::random_bf16(cols, 2);
      const auto residual = test::random_bf16(rows * cols, 3, 2);
      for (const bool fused : {false, true}) {
        std::vector<double> sum = test::as_doubles(in);
        if (fused) {
          for (std::size_t i = 0; i < size; ++i) {
            sum[i] =
                test::as_double(cuda::to_bf16(cuda::to_float(in[i]) + cuda::to_float(residual[i])));
          }
        }
        std::vector<double> out(size), inverse(static_cast<std::size_t>(rows));
        cpu::rms_norm_forward(out, inverse, sum, test::as_doubles(gain), {rows, cols}, 1e-5);
        const std::vector<Bf16> none;
        const Forward once = forward(in, fused ? residual : none, gain, shape, Timing::at_once);
        const Forward again = forward(in, fused ? residual : none, gain, shape, Timing::late);
        CHECK(test::difference(once.out, out, 1e-6, test::kBf16Rounding) == "");
        CHECK(test::difference(once.inverse_rms, inverse, 0, 1e-6) == "");
        if (fused) CHECK(test::difference(once.sum, sum, 0, 0) == "");
        CHECK(test::is_poisoned(std::span<const Bf16>(once.out).last(kGuard)));
        CHECK(test::same_bits(once.out, again.out));
        CHECK(test::same_bits(once.sum, again.sum));
        CHECK(test::same_bits(once.inverse_rms, again.inverse_rms));
      }
    }
  }
}

TEST_CASE("rms_norm forward: a row's bits do not depend on its neighbours") {
  constexpr std::int64_t kCols = 1064;
  const auto in = test::random_bf16(3 * kCols, 4), gain = test::random_bf16(kCols, 5);
  const Forward all = forward(in, {}, gain, {3, kCols}, Timing::late);
  const Forward one =
      forward({in.begin() + kCols, in.begin() + 2 * kCols}, {}, gain, {1, kCols}, Timing::late);
  CHECK(std::equal(one.out.begin(), one.out.begin() + kCols, all.out.begin() + kCols));
  CHECK(one.inverse_rms[0] == all.inverse_rms[1]);
}

TEST_CASE("rms_norm backward: follows fp64, dgain is added to") {
  for (const std::int64_t cols : {8, 520, 1032, 4104}) {
    for (const std::int64_t rows : {1, 5}) {
      if (rows == 1 && cols > 1000) continue;
      CAPTURE(cols);
      CAPTURE(rows);
      const auto size = static_cast<std::size_t>(rows * cols);
      const auto in = test::random_bf16(rows * cols, 1, 2), gain = test::random_bf16(cols, 2);
      const auto dout = test::random_bf16(rows * cols, 3);
      const auto dresidual = test::random_bf16(rows * cols, 6);
      const auto dgain = test::random_floats(cols, 7);
      std::vector<double> out(size), inverse(static_cast<std::size_t>(rows));
      cpu::rms_norm_forward(out, inverse, test::as_doubles(in), test::as_doubles(gain),
                            {rows, cols}, 1e-5);
      const std::vector<float> inverse_rms(inverse.begin(), inverse.end());
      for (const bool fused : {false, true}) {
        std::vector<double> din(size), expected = test::as_doubles(dgain);
        if (fused) din = test::as_doubles(dresidual);
        cpu::rms_norm_backward(din, expected, test::as_doubles(dout), test::as_doubles(in),
                               test::as_doubles(gain), inverse, {rows, cols});
        // Fewer blocks than rows: each takes several.
        for (const unsigned blocks : {0U, 2U}) {
          if (blocks > rows || (cols > 4096 && fused != (blocks == 2))) continue;
          const std::vector<Bf16> more = fused ? dresidual : std::vector<Bf16>{};
          const Backward once = backward(dout, more, in, gain, inverse_rms, dgain, {rows, cols},
                                         Timing::at_once, blocks);
          const Backward again = backward(dout, more, in, gain, inverse_rms, dgain, {rows, cols},
                                          Timing::late, blocks);
          CHECK(test::difference(once.din, din, 1e-5, test::kBf16Rounding) == "");
          CHECK(test::difference(once.dgain, expected, 1e-5, 1e-5) == "");
          CHECK(test::is_poisoned(std::span<const Bf16>(once.din).last(kGuard)));
          CHECK(test::same_bits(once.din, again.din));
          CHECK(test::same_bits(once.dgain, again.dgain));
        }
      }
    }
  }
}

TEST_CASE("rms_norm backward: the sum over many blocks is complete") {
  constexpr std::int64_t kRows = 151, kCols = 40;
  const auto parts = test::random_floats(kRows * kCols, 8);
  std::vector<float> into(kCols, 1.0F);
  std::vector<double> expected(kCols, 1.0);
  for (std::size_t i = 0; i < parts.size(); ++i) expected[i % kCols] += test::as_double(parts[i]);
  const auto launch = cuda::kernels::column_sums_launch(kCols);
  cuda::simt::emulate(
      {launch.blocks, launch.threads, launch.shared_bytes}, cuda::simt::Timing::late,
      [&] { cuda::kernels::add_column_sums({into.data(), parts.data(), kRows, kCols}); });
  CHECK(test::difference(into, expected, 1e-5, 0) == "");
}

}  // namespace norm_test
