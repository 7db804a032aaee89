// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/swiglu.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cpu/ops.hpp"

namespace swiglu_test {

using namespace slimpack;

TEST_CASE("swiglu: launchers follow fp64, in place the same bits") {
  using cuda::Bf16;
  using test::OnDevice;
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const cuda::RowShape shape : {cuda::RowShape{1, 8}, {77, 1000}, {129, 14336}}) {
    const std::int64_t rows = shape.rows, cols = shape.cols;
    CAPTURE(cols);
    const auto size = static_cast<std::size_t>(rows * cols);
    const auto gate_up = test::random_bf16(2 * rows * cols, 1, 8);
    const auto dproduct = test::random_bf16(rows * cols, 2);
    const auto wide = test::as_doubles(gate_up), narrow = test::as_doubles(dproduct);
    std::vector<double> product(size), gradient(2 * size);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto gate = cpu::detail::row(std::span(wide), 2 * r, cols);
      const auto up = cpu::detail::row(std::span(wide), 2 * r + 1, cols);
      cpu::swiglu_forward(cpu::detail::row(std::span(product), r, cols), gate, up);
      cpu::swiglu_backward(cpu::detail::row(std::span(gradient), 2 * r, cols),
                           cpu::detail::row(std::span(gradient), 2 * r + 1, cols),
                           cpu::detail::row(std::span(narrow), r, cols), gate, up);
    }
    const OnDevice both(gate_up, stream), dy(dproduct, stream);
    const OnDevice out(test::poisoned<Bf16>(rows * cols + 16), stream);
    const OnDevice apart(test::poisoned<Bf16>(2 * rows * cols), stream);
    cuda::swiglu_forward(out.first(rows * cols), both.view(), {rows, cols}, stream);
    const auto result = out.read();
    CHECK(test::difference(result, product, 2e-6, test::kBf16Rounding) == "");
    CHECK(test::is_poisoned(std::span<const Bf16>(result).last(16)));
    cuda::swiglu_backward(apart.span(), dy.view(), both.view(), {rows, cols}, stream);
    const auto gradients = apart.read();
    CHECK(test::difference(gradients, gradient, 1e-5, test::kBf16Rounding) == "");
    cuda::swiglu_backward(both.span(), dy.view(), both.view(), {rows, cols}, stream);
    CHECK(test::same_bits(both.read(), gradients));
  }
}

TEST_CASE("swiglu: bad shapes are refused, no rows are no work") {
  CHECK_THROWS_WITH_AS(cuda::swiglu_forward({}, {}, {1, 12}, {}),
                       "swiglu: cols must be a multiple of 8, got 12", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::swiglu_backward({}, {}, {}, {1, 8}, {}),
                       "swiglu_backward: dgate_up is not rows * 2 cols, got 0", InvalidInput);
  CHECK_NOTHROW(cuda::swiglu_forward({}, {}, {0, 8}, {}));
}

}  // namespace swiglu_test
