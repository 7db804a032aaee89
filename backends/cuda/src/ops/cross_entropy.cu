// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/cross_entropy.hpp"

#include "kernels/cross_entropy.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

__global__ void __launch_bounds__(kLogitThreads) sums_kernel(LogitSums work) {
  logit_sum_of_row(work);
}
__global__ void __launch_bounds__(kLogitThreads) gradients_kernel(LogitGradients work) {
  logit_gradients_of_row(work);
}
__global__ void __launch_bounds__(256) merge_kernel(MergeLogitSums work) {
  merge_logit_sum(work);
}
__global__ void __launch_bounds__(256) losses_kernel(CrossEntropyLosses work) {
  cross_entropy_loss(work);
}

constexpr std::int64_t kLargestShard = std::int64_t{1} << 30U;  // columns are counted in 32 bits

template <class Logits, class Sums>
void check(DeviceSpan<Logits> logits, DeviceSpan<Sums> sums, DeviceSpan<const std::int32_t> targets,
           const LogitShape& shape) {
  require(shape.first >= 0, "cross_entropy: first must be >= 0", shape.first);
  require(shape.size >= 0 && shape.size <= kLargestShard,
          "cross_entropy: size must be >= 0 and at most 2^30", shape.size);
  require(shape.stride >= shape.size && shape.stride % 8 == 0,
          "cross_entropy: stride must be a multiple of 8 and >= size", shape.stride);
  detail::require_shape(shape.rows, shape.stride, "cross_entropy: rows must be >= 0");
  // The last row of a part of a wider matrix ends with its columns.
  const std::int64_t least = shape.rows == 0 ? 0 : (shape.rows - 1) * shape.stride + shape.size;
  require(logits.size >= least, "cross_entropy: logits is smaller than rows * stride", logits.size);
  detail::require_size(sums, shape.rows, "cross_entropy: sums are not one a row");
  detail::require_size(targets, shape.rows, "cross_entropy: targets are not one a row");
  detail::require_aligned(logits, "cross_entropy: logits is not aligned to 16 bytes");
}

}  // namespace

void logit_sums(DeviceSpan<LogitSum> sums, DeviceSpan<const Bf16> logits,
                DeviceSpan<const std::int32_t> targets, LogitShape shape, StreamView stream) {
  check(logits, sums, targets, shape);
  if (shape.rows == 0) return;
  const Launch launch = logit_launch(shape);
  detail::start(sums_kernel, launch, stream, {sums.data, logits.data, targets.data, shape});
}

void merge_logit_sums(DeviceSpan<LogitSum> sums, DeviceSpan<const LogitSum> more,
                      StreamView stream) {
  detail::require_size(more, sums.size, "merge_logit_sums: more is not as long as sums");
  if (sums.size == 0) return;
  const Launch launch = row_by_row_launch(sums.size);
  detail::start(merge_kernel, launch, stream, {sums.data, more.data, sums.size});
}

void cross_entropy_losses(DeviceSpan<float> losses, DeviceSpan<const LogitSum> sums,
                          DeviceSpan<const std::int32_t> targets, StreamView stream) {
  detail::require_size(sums, losses.size, "cross_entropy_losses: sums are not one a loss");
  detail::require_size(targets, losses.size, "cross_entropy_losses: targets are not one a loss");
  if (losses.size == 0) return;
  const Launch launch = row_by_row_launch(losses.size);
  detail::start(losses_kernel, launch, stream, {losses.data, sums.data, targets.data, losses.size});
}

void logit_gradients(DeviceSpan<Bf16> logits, DeviceSpan<const LogitSum> sums,
                     DeviceSpan<const std::int32_t> targets, LogitShape shape, float scale,
                     StreamView stream) {
  check(logits, sums, targets, shape);
  if (shape.rows == 0 || shape.size == 0) return;
  const Launch launch = logit_launch(shape);
  detail::start(gradients_kernel, launch, stream,
                {logits.data, sums.data, targets.data, shape, scale});
}

}  // namespace slimpack::cuda
