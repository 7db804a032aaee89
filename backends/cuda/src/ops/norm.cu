// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/norm.hpp"

#include "kernels/norm.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

template <unsigned kVectors>
__global__ void __launch_bounds__(kNormThreads) forward_kernel(NormForward work) {
  rms_norm_forward_row<kVectors>(work);
}
template <class Size>
__global__ void __launch_bounds__(Size::kThreads, Size::kBlocks)
    backward_kernel(NormBackward work) {
  rms_norm_backward_rows<Size>(work);
}
__global__ void __launch_bounds__(512) column_sums_kernel(ColumnSums work) {
  add_column_sums(work);
}

void check_shape(RowShape shape) {
  detail::require_shape(shape.rows, shape.cols, "rms_norm: rows and cols must be >= 0");
  require(shape.cols > 0 && shape.cols % 8 == 0 && shape.cols <= kLargestNormCols,
          "rms_norm: cols must be a multiple of 8 from 8 to 16384", shape.cols);
}

/// Checks what both forward operators have.
void check_forward(DeviceSpan<Bf16> out, DeviceSpan<float> inverse_rms, DeviceSpan<const Bf16> in,
                   DeviceSpan<const Bf16> gain, RowShape shape, float epsilon) {
  check_shape(shape);
  require(epsilon >= 0, "rms_norm_forward: epsilon must be >= 0");
  const std::int64_t size = shape.rows * shape.cols;
  detail::require_size(out, size, "rms_norm_forward: out is not rows * cols");
  detail::require_size(in, size, "rms_norm_forward: in is not rows * cols");
  detail::require_size(inverse_rms, shape.rows, "rms_norm_forward: inverse_rms is not one a row");
  detail::require_size(gain, shape.cols, "rms_norm_forward: gain is not one a column");
  detail::require_aligned(out, "rms_norm_forward: out is not aligned to 16 bytes");
  detail::require_aligned(in, "rms_norm_forward: in is not aligned to 16 bytes");
  detail::require_aligned(gain, "rms_norm_forward: gain is not aligned to 16 bytes");
}

void launch_forward(const NormForward& work, RowShape shape, StreamView stream) {
  if (shape.rows == 0) return;
  with_forward_vectors(shape.cols, [&](auto vectors) {
    constexpr unsigned kVectors = decltype(vectors)::value;
    const Launch launch = norm_forward_launch(shape, kVectors);
    detail::start(forward_kernel<kVectors>, launch, stream, work);
  });
}

}  // namespace

void rms_norm_forward(DeviceSpan<Bf16> out, DeviceSpan<float> inverse_rms,
                      DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> gain, RowShape shape,
                      float epsilon, StreamView stream) {
  check_forward(out, inverse_rms, in, gain, shape, epsilon);
  launch_forward(
      {out.data, inverse_rms.data, nullptr, in.data, nullptr, gain.data, shape.cols, epsilon},
      shape, stream);
}

void rms_norm_forward_residual(DeviceSpan<Bf16> out, DeviceSpan<float> inverse_rms,
                               DeviceSpan<Bf16> sum, DeviceSpan<const Bf16> in,
                               DeviceSpan<const Bf16> residual, DeviceSpan<const Bf16> gain,
                               RowShape shape, float epsilon, StreamView stream) {
  check_forward(out, inverse_rms, in, gain, shape, epsilon);
  const std::int64_t size = shape.rows * shape.cols;
  detail::require_size(sum, size, "rms_norm_forward: sum is not rows * cols");
  detail::require_size(residual, size, "rms_norm_forward: residual is not rows * cols");
  detail::require_aligned(sum, "rms_norm_forward: sum is not aligned to 16 bytes");
  detail::require_aligned(residual, "rms_norm_forward: residual is not aligned to 16 bytes");
  launch_forward({out.data, inverse_rms.data, sum.data, in.data, residual.data, gain.data,
                  shape.cols, epsilon},
                 shape, stream);
}

std::int64_t rms_norm_backward_workspace(RowShape shape) {
  check_shape(shape);
  return norm_backward_launch(shape).blocks * shape.cols;
}

void rms_norm_backward(DeviceSpan<Bf16> din, DeviceSpan<float> dgain, DeviceSpan<float> workspace,
                       DeviceSpan<const Bf16> dout, DeviceSpan<const Bf16> dresidual,
                       DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> gain,
                       DeviceSpan<const float> inverse_rms, RowShape shape, StreamView stream) {
  check_shape(shape);
  const std::int64_t size = shape.rows * shape.cols;
  detail::require_size(din, size, "rms_norm_backward: din is not rows * cols");
  detail::require_size(dout, size, "rms_norm_backward: dout is not rows * cols");
  detail::require_size(in, size, "rms_norm_backward: in is not rows * cols");
  require(dresidual.size == 0 || dresidual.size == size,
          "rms_norm_backward: dresidual is neither empty nor rows * cols", dresidual.size);
  detail::require_size(inverse_rms, shape.rows, "rms_norm_backward: inverse_rms is not one a row");
  detail::require_size(gain, shape.cols, "rms_norm_backward: gain is not one a column");
  detail::require_size(dgain, shape.cols, "rms_norm_backward: dgain is not one a column");
  require(workspace.size >= rms_norm_backward_workspace(shape),
          "rms_norm_backward: workspace is smaller than rms_norm_backward_workspace",
          workspace.size);
  detail::require_aligned(din, "rms_norm_backward: din is not aligned to 16 bytes");
  detail::require_aligned(dout, "rms_norm_backward: dout is not aligned to 16 bytes");
  detail::require_aligned(dresidual, "rms_norm_backward: dresidual is not aligned to 16 bytes");
  detail::require_aligned(in, "rms_norm_backward: in is not aligned to 16 bytes");
  detail::require_aligned(gain, "rms_norm_backward: gain is not aligned to 16 bytes");
  detail::require_aligned(workspace, "rms_norm_backward: workspace is not aligned to 16 bytes");
  if (shape.rows == 0) return;
  const NormBackward work{
      din.data,  workspace.data, dout.data,        dresidual.size == 0 ? nullptr : dresidual.data,
      in.data,   gain.data,      inverse_rms.data, shape.rows,
      shape.cols};
  const Launch launch = norm_backward_launch(shape);
  with_backward_size(shape.cols, [&](auto sizes) {
    detail::start(backward_kernel<decltype(sizes)>, launch, stream, work);
  });
  const Launch sums = column_sums_launch(shape.cols);
  detail::start(column_sums_kernel, sums, stream,
                {dgain.data, workspace.data, launch.blocks, shape.cols});
}

}  // namespace slimpack::cuda
