// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/norm.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cuda/elements.hpp"

namespace norm_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using test::OnDevice;
constexpr std::int64_t kGuard = 16;

}  // namespace

TEST_CASE("rms_norm_forward: follows fp64, with and without residual, twice the same bits") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const std::int64_t cols : {8, 1000, 2048, 4096, 8200, 16384}) {
    CAPTURE(cols);
    const cuda::RowShape shape{test::sized(333, 33), cols};
    const std::int64_t size = shape.rows * cols;
    const auto in = test::random_bf16(size, 1, 2), residual = test::random_bf16(size, 2, 2);
    const auto gain = test::random_bf16(cols, 3);
    const OnDevice in_device(in, stream), more(residual, stream), gains(gain, stream);
    for (const bool fused : {false, true}) {
      auto sum = test::as_doubles(in);
      for (std::size_t i = 0; fused && i < sum.size(); ++i) {
        sum[i] =
            test::as_double(cuda::to_bf16(cuda::to_float(in[i]) + cuda::to_float(residual[i])));
      }
      std::vector<double> out(sum.size()), inverse(static_cast<std::size_t>(shape.rows));
      cpu::rms_norm_forward(out, inverse, sum, test::as_doubles(gain), {shape.rows, cols}, 1e-5);
      std::vector<std::vector<Bf16>> results;
      for (int run = 0; run < 2; ++run) {
        const OnDevice result(test::poisoned<Bf16>(size + kGuard), stream);
        const OnDevice sums(test::poisoned<Bf16>(size + kGuard), stream);
        const OnDevice inverse_rms(test::poisoned<float>(shape.rows), stream);
        if (fused) {
          cuda::rms_norm_forward_residual(result.first(size), inverse_rms.span(), sums.first(size),
                                          in_device.view(), more.view(), gains.view(), shape, 1e-5F,
                                          stream);
          CHECK(test::difference(sums.read(), sum, 0, 0) == "");
        } else {
          cuda::rms_norm_forward(result.first(size), inverse_rms.span(), in_device.view(),
                                 gains.view(), shape, 1e-5F, stream);
        }
        results.push_back(result.read());
        CHECK(test::difference(results.back(), out, 1e-6, test::kBf16Rounding) == "");
        CHECK(test::difference(inverse_rms.read(), inverse, 0, 1e-6) == "");
        CHECK(test::is_poisoned(std::span<const Bf16>(results.back()).last(kGuard)));
      }
      CHECK(test::same_bits(results[0], results[1]));
    }
  }
}

TEST_CASE("rms_norm_forward: a row's bits do not depend on the pack, and the sum may be in place") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kRows = 57, kCols = 4096;
  const auto in = test::random_bf16(kRows * kCols, 1),
             residual = test::random_bf16(kRows * kCols, 2);
  const OnDevice x(in, stream), more(residual, stream), gain(test::random_bf16(kCols, 3), stream);
  const OnDevice out(test::poisoned<Bf16>(kRows * kCols), stream);
  const OnDevice one(test::poisoned<Bf16>(kCols), stream);
  const OnDevice inverse(test::poisoned<float>(kRows), stream);
  cuda::rms_norm_forward(one.span(), inverse.first(1), x.view().subspan(41 * kCols, kCols),
                         gain.view(), {1, kCols}, 1e-5F, stream);
  cuda::rms_norm_forward(out.span(), inverse.span(), x.view(), gain.view(), {kRows, kCols}, 1e-5F,
                         stream);
  const auto all = out.read(), single = one.read();
  CHECK(std::equal(single.begin(), single.end(), all.begin() + 41 * kCols));

  const OnDevice sum(test::poisoned<Bf16>(kRows * kCols), stream);
  cuda::rms_norm_forward_residual(out.span(), inverse.span(), sum.span(), x.view(), more.view(),
                                  gain.view(), {kRows, kCols}, 1e-5F, stream);
  const auto apart = out.read();
  cuda::rms_norm_forward_residual(out.span(), inverse.span(), more.span(), x.view(), more.view(),
                                  gain.view(), {kRows, kCols}, 1e-5F, stream);
  CHECK(test::same_bits(apart, out.read()));
  CHECK(test::same_bits(sum.read(), more.read()));
}

TEST_CASE(
    "rms_norm_forward_residual: has the bits of a sum and a norm behind it, also of no rows") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const std::int64_t cols : {8, 1032, 4096}) {
    for (const std::int64_t rows : {0, 1, 19}) {
      CAPTURE(cols);
      CAPTURE(rows);
      const std::int64_t size = rows * cols;
      const OnDevice x(test::random_bf16(size, 1, 2), stream);
      const OnDevice more(test::random_bf16(size, 2, 2), stream);
      const OnDevice gain(test::random_bf16(cols, 3), stream);
      const auto poison = test::poisoned<Bf16>(size + kGuard);
      const OnDevice sum(poison, stream), out(poison, stream);
      const OnDevice sum_apart(poison, stream), out_apart(poison, stream);
      const OnDevice inverse(test::poisoned<float>(rows + kGuard), stream);
      const OnDevice inverse_apart(test::poisoned<float>(rows + kGuard), stream);
      cuda::rms_norm_forward_residual(out.first(size), inverse.first(rows), sum.first(size),
                                      x.view(), more.view(), gain.view(), {rows, cols}, 1e-5F,
                                      stream);
      cuda::add(sum_apart.first(size), x.view(), more.view(), stream);
      cuda::rms_norm_forward(out_apart.first(size), inverse_apart.first(rows),
                             sum_apart.first(size), gain.view(), {rows, cols}, 1e-5F, stream);
      CHECK(test::same_bits(sum.read(), sum_apart.read()));
      CHECK(test::same_bits(out.read(), out_apart.read()));
      CHECK(test::same_bits(inverse.read(), inverse_apart.read()));
    }
  }
}

TEST_CASE("rms_norm_backward: follows fp64, twice the same bits") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const std::int64_t cols : {8, 1000, 4096, 8200, 16384}) {
    CAPTURE(cols);
    const cuda::RowShape shape{test::sized(1201, 137), cols};
    const std::int64_t size = shape.rows * cols;
    const auto in = test::random_bf16(size, 1, 2), dout = test::random_bf16(size, 2);
    const auto dresidual = test::random_bf16(size, 3), gain = test::random_bf16(cols, 4);
    const auto dgain = test::random_floats(cols, 5);
    std::vector<double> out(in.size()), inverse(static_cast<std::size_t>(shape.rows));
    cpu::rms_norm_forward(out, inverse, test::as_doubles(in), test::as_doubles(gain),
                          {shape.rows, cols}, 1e-5);
    const OnDevice x(in, stream), dy(dout, stream), more(dresidual, stream), g(gain, stream);
    const OnDevice inverse_rms(std::vector<float>(inverse.begin(), inverse.end()), stream);
    for (const bool fused : {false, true}) {
      auto din = fused ? test::as_doubles(dresidual) : std::vector<double>(in.size());
      auto expected = test::as_doubles(dgain);
      cpu::rms_norm_backward(din, expected, test::as_doubles(dout), test::as_doubles(in),
                             test::as_doubles(gain), inverse, {shape.rows, cols});
      std::vector<std::vector<Bf16>> results;
      std::vector<std::vector<float>> gains;
      for (int run = 0; run < 2; ++run) {
        const OnDevice dx(test::poisoned<Bf16>(size + kGuard), stream);
        const OnDevice dg(dgain, stream);
        const OnDevice workspace(test::poisoned<float>(cuda::rms_norm_backward_workspace(shape)),
                                 stream);
        cuda::rms_norm_backward(dx.first(size), dg.span(), workspace.span(), dy.view(),
                                fused ? more.view() : cuda::DeviceSpan<const Bf16>{}, x.view(),
                                g.view(), inverse_rms.view(), shape, stream);
        results.push_back(dx.read());
        gains.push_back(dg.read());
        CHECK(test::difference(results.back(), din, 1e-5, test::kBf16Rounding) == "");
        CHECK(test::difference(gains.back(), expected, 1e-4, 1e-5) == "");
        CHECK(test::is_poisoned(std::span<const Bf16>(results.back()).last(kGuard)));
      }
      CHECK(test::same_bits(results[0], results[1]));
      CHECK(test::same_bits(gains[0], gains[1]));
    }
  }
}

TEST_CASE("rms_norm: bad shapes and spans are refused") {
  const cuda::DeviceSpan<Bf16> none;
  const cuda::DeviceSpan<float> nothing;
  CHECK_THROWS_WITH_AS(cuda::rms_norm_forward(none, nothing, none, none, {0, 12}, 1e-5F, {}),
                       "rms_norm: cols must be a multiple of 8 from 8 to 16384, got 12",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::rms_norm_forward(none, nothing, none, none, {-1, 16}, 1e-5F, {}),
                       "rms_norm: rows and cols must be >= 0, got -1", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::rms_norm_forward(none, nothing, none, none, {2, 16}, 1e-5F, {}),
                       "rms_norm_forward: out is not rows * cols, got 0", InvalidInput);
  alignas(16) static Bf16 numbers[40];
  const cuda::DeviceSpan<Bf16> crooked{numbers + 1, 16}, gain{numbers, 16};
  float inverse = 0;
  CHECK_THROWS_WITH_AS(
      cuda::rms_norm_forward(crooked, {&inverse, 1}, crooked, gain, {1, 16}, 1e-5F, {}),
      "rms_norm_forward: out is not aligned to 16 bytes", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::rms_norm_backward(gain, {&inverse, 1}, nothing, gain, none, gain, gain,
                                               {&inverse, 1}, {1, 16}, {}),
                       "rms_norm_backward: dgain is not one a column, got 1", InvalidInput);
  CHECK(cuda::rms_norm_backward_workspace({0, 4096}) == 0);
  CHECK(cuda::rms_norm_backward_workspace({3, 4096}) == 3 * 4096);
}

}  // namespace norm_test
