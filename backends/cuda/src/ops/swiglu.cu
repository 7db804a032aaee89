// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/swiglu.hpp"

#include "kernels/swiglu.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

__global__ void __launch_bounds__(256) forward_kernel(SwigluForward work) {
  swiglu_forward_part(work);
}
__global__ void __launch_bounds__(256) backward_kernel(SwigluBackward work) {
  swiglu_backward_part(work);
}

void check_shape(RowShape shape) {
  detail::require_shape(shape.rows, shape.cols, "swiglu: rows and cols must be >= 0");
  require(shape.cols % 8 == 0, "swiglu: cols must be a multiple of 8", shape.cols);
}

}  // namespace

void swiglu_forward(DeviceSpan<Bf16> product, DeviceSpan<const Bf16> gate_up, RowShape shape,
                    StreamView stream) {
  check_shape(shape);
  const std::int64_t size = shape.rows * shape.cols;
  detail::require_size(product, size, "swiglu_forward: product is not rows * cols");
  detail::require_size(gate_up, 2 * size, "swiglu_forward: gate_up is not rows * 2 cols");
  detail::require_aligned(product, "swiglu_forward: product is not aligned to 16 bytes");
  detail::require_aligned(gate_up, "swiglu_forward: gate_up is not aligned to 16 bytes");
  if (size == 0) return;
  const auto [launch, parts] = swiglu_launch(shape);
  detail::start(forward_kernel, launch, stream, {product.data, gate_up.data, shape.cols, parts});
}

void swiglu_backward(DeviceSpan<Bf16> dgate_up, DeviceSpan<const Bf16> dproduct,
                     DeviceSpan<const Bf16> gate_up, RowShape shape, StreamView stream) {
  check_shape(shape);
  const std::int64_t size = shape.rows * shape.cols;
  detail::require_size(dgate_up, 2 * size, "swiglu_backward: dgate_up is not rows * 2 cols");
  detail::require_size(dproduct, size, "swiglu_backward: dproduct is not rows * cols");
  detail::require_size(gate_up, 2 * size, "swiglu_backward: gate_up is not rows * 2 cols");
  detail::require_aligned(dgate_up, "swiglu_backward: dgate_up is not aligned to 16 bytes");
  detail::require_aligned(dproduct, "swiglu_backward: dproduct is not aligned to 16 bytes");
  detail::require_aligned(gate_up, "swiglu_backward: gate_up is not aligned to 16 bytes");
  if (size == 0) return;
  const auto [launch, parts] = swiglu_launch(shape);
  detail::start(backward_kernel, launch, stream,
                {dgate_up.data, dproduct.data, gate_up.data, shape.cols, parts});
}

}  // namespace slimpack::cuda
