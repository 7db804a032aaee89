// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/swiglu.cuh"
#include "slimpack_cpu/ops.hpp"

namespace swiglu_test {

using namespace slimpack;

TEST_CASE("swiglu: forward and backward follow fp64, also in place") {
  using cuda::Bf16;
  using cuda::simt::Timing;
  for (const cuda::RowShape shape : {cuda::RowShape{1, 8}, {5, 264}, {2, 2120}}) {
    const std::int64_t rows = shape.rows, cols = shape.cols;
    CAPTURE(cols);
    const auto size = static_cast<std::size_t>(rows * cols);
    const auto gate_up = test::random_bf16(2 * rows * cols, 1, 8);
    const auto dproduct = test::random_bf16(rows * cols, 2);
    std::vector<double> product(size), gradient(2 * size);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto wide = test::as_doubles(gate_up);
      const auto narrow = test::as_doubles(dproduct);
      const auto gate = cpu::detail::row(std::span(wide), 2 * r, cols);
      const auto up = cpu::detail::row(std::span(wide), 2 * r + 1, cols);
      cpu::swiglu_forward(cpu::detail::row(std::span(product), r, cols), gate, up);
      cpu::swiglu_backward(cpu::detail::row(std::span(gradient), 2 * r, cols),
                           cpu::detail::row(std::span(gradient), 2 * r + 1, cols),
                           cpu::detail::row(std::span(narrow), r, cols), gate, up);
    }
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      const auto [launch, parts] = cuda::kernels::swiglu_launch({rows, cols});
      const cuda::simt::Grid grid{launch.blocks, launch.threads, launch.shared_bytes};
      auto out = test::poisoned<Bf16>(rows * cols + 16);
      const cuda::kernels::SwigluForward forward{out.data(), gate_up.data(), cols, parts};
      cuda::simt::emulate(grid, timing, [&] { cuda::kernels::swiglu_forward_part(forward); });
      CHECK(test::difference(out, product, 1e-6, test::kBf16Rounding) == "");
      CHECK(test::is_poisoned(std::span<const Bf16>(out).last(16)));

      auto apart = test::poisoned<Bf16>(2 * rows * cols + 16);
      const cuda::kernels::SwigluBackward backward{apart.data(), dproduct.data(), gate_up.data(),
                                                   cols, parts};
      cuda::simt::emulate(grid, timing, [&] { cuda::kernels::swiglu_backward_part(backward); });
      CHECK(test::difference(apart, gradient, 1e-5, test::kBf16Rounding) == "");
      CHECK(test::is_poisoned(std::span<const Bf16>(apart).last(16)));

      auto in_place = gate_up;
      const cuda::kernels::SwigluBackward same{in_place.data(), dproduct.data(), in_place.data(),
                                               cols, parts};
      cuda::simt::emulate(grid, timing, [&] { cuda::kernels::swiglu_backward_part(same); });
      apart.resize(2 * size);
      CHECK(test::same_bits(in_place, apart));
    }
  }
}

}  // namespace swiglu_test
