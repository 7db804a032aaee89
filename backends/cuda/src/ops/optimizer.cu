// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/optimizer.hpp"

#include "kernels/optimizer.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

__global__ void __launch_bounds__(kSquareThreads) squares_kernel(SquareSums work) {
  square_sum_of_part(work);
}
template <bool kAdd, class Number>
__global__ void __launch_bounds__(512) ordered_sum_kernel(OrderedSum<Number> work) {
  sum_in_order<kAdd>(work);
}
__global__ void __launch_bounds__(32) clipping_kernel(ClipByNorm work) {
  write_clipping(work);
}
__global__ void __launch_bounds__(kAdamWThreads) adamw_kernel(AdamWUpdate work) {
  adamw_part(work);
}

template <bool kAdd, class Number>
void launch_ordered_sum(DeviceSpan<double> total, DeviceSpan<const Number> values,
                        StreamView stream) {
  detail::require_size(total, 1, "ordered_sum: total is not one number");
  const Launch launch = ordered_sum_launch();
  detail::start(ordered_sum_kernel<kAdd, Number>, launch, stream,
                {total.data, values.data, values.size});
}

}  // namespace

std::int64_t square_sums_count(std::int64_t size) {
  require(size >= 0, "square_sums_count: size must be >= 0", size);
  return divide_up(size, kSquarePart);
}

void square_sums(DeviceSpan<double> sums, DeviceSpan<const float> values, StreamView stream) {
  detail::require_size(sums, square_sums_count(values.size),
                       "square_sums: sums are not square_sums_count");
  detail::require_aligned(values, "square_sums: values is not aligned to 16 bytes");
  if (values.size == 0) return;
  const Launch launch = square_sums_launch(values.size);
  detail::start(squares_kernel, launch, stream, {sums.data, values.data, values.size});
}

void ordered_sum(DeviceSpan<double> total, DeviceSpan<const double> values, StreamView stream) {
  launch_ordered_sum<false>(total, values, stream);
}

void add_ordered_sum(DeviceSpan<double> total, DeviceSpan<const float> values, StreamView stream) {
  launch_ordered_sum<true>(total, values, stream);
}

void clip_by_norm(DeviceSpan<Clipping> clipping, DeviceSpan<const double> sum_of_squares,
                  double largest_norm, StreamView stream) {
  detail::require_size(clipping, 1, "clip_by_norm: clipping is not one");
  detail::require_size(sum_of_squares, 1, "clip_by_norm: sum_of_squares is not one number");
  require(largest_norm > 0, "clip_by_norm: largest_norm must be > 0");
  detail::start(clipping_kernel, {1, 32, 0}, stream,
                {clipping.data, sum_of_squares.data, largest_norm});
}

void adamw_step(DeviceSpan<float> weights, DeviceSpan<Bf16> copy, DeviceSpan<float> first_moment,
                DeviceSpan<float> second_moment, DeviceSpan<const float> gradients,
                DeviceSpan<const Clipping> clipping, const AdamW& settings, std::int64_t step,
                StreamView stream) {
  require(step >= 1, "adamw_step: step must be >= 1", step);
  const std::int64_t size = weights.size;
  detail::require_size(copy, size, "adamw_step: copy is not as long as weights");
  detail::require_size(first_moment, size, "adamw_step: first_moment is not as long as weights");
  detail::require_size(second_moment, size, "adamw_step: second_moment is not as long as weights");
  detail::require_size(gradients, size, "adamw_step: gradients is not as long as weights");
  require(clipping.size <= 1, "adamw_step: clipping is neither empty nor one", clipping.size);
  detail::require_aligned(weights, "adamw_step: weights is not aligned to 16 bytes");
  detail::require_aligned(copy, "adamw_step: copy is not aligned to 16 bytes");
  detail::require_aligned(first_moment, "adamw_step: first_moment is not aligned to 16 bytes");
  detail::require_aligned(second_moment, "adamw_step: second_moment is not aligned to 16 bytes");
  detail::require_aligned(gradients, "adamw_step: gradients is not aligned to 16 bytes");
  if (size == 0) return;
  const Launch launch = adamw_launch(size);
  detail::start(
      adamw_kernel, launch, stream,
      {weights.data, copy.data, first_moment.data, second_moment.data, gradients.data,
       clipping.size == 0 ? nullptr : clipping.data, size, adamw_constants(settings, step)});
}

}  // namespace slimpack::cuda
