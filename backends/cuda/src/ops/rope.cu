// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/rope.hpp"

#include <limits>

#include "kernels/rope.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

__global__ void __launch_bounds__(256) forward_kernel(RopeForward work) {
  rope_forward_rows_of_block(work);
}
__global__ void __launch_bounds__(256) backward_kernel(RopeBackward work) {
  rope_backward_rows_of_block(work);
}

/// Checks what both directions have; places are whole matrices of rows.
template <class Qkv, class Query, class Key>
void check(DeviceSpan<Qkv> qkv, DeviceSpan<Query> query, DeviceSpan<Key> key, DeviceSpan<Key> value,
           DeviceSpan<const RopeRow> rows, DeviceSpan<const std::uint64_t> frequencies,
           const RopeShape& shape) {
  require(shape.head_dim > 0 && shape.head_dim % 16 == 0 && shape.head_dim <= kLargestRopeHead,
          "rope: head_dim must be a multiple of 16 from 16 to 512", shape.head_dim);
  require(shape.heads >= 0 && shape.kv_heads >= 0 && shape.heads + shape.kv_heads > 0,
          "rope: heads and kv_heads must be >= 0 and not both 0", shape.heads);
  const std::int64_t dim = shape.head_dim;
  const std::int64_t width = (shape.heads + 2 * std::int64_t{shape.kv_heads}) * dim;
  require(width <= std::numeric_limits<std::int32_t>::max() / 8,
          "rope: a projected row has at most 2^28 numbers", width);
  detail::require_shape(shape.rows, width, "rope: rows must be >= 0");
  detail::require_size(qkv, shape.rows * width,
                       "rope: qkv is not rows * (heads + 2 kv_heads) * head_dim");
  detail::require_size(rows, shape.rows, "rope: the table is not as long as rows");
  detail::require_size(frequencies, dim / 2, "rope: frequencies are not head_dim / 2");
  if (shape.heads > 0) {
    require(query.size % (shape.heads * dim) == 0,
            "rope: query is not whole rows of heads * head_dim", query.size);
  }
  if (shape.kv_heads > 0) {
    require(key.size % (shape.kv_heads * dim) == 0,
            "rope: key is not whole rows of kv_heads * head_dim", key.size);
    require(value.size == key.size, "rope: value is not as large as key", value.size);
  }
  detail::require_aligned(qkv, "rope: qkv is not aligned to 16 bytes");
  detail::require_aligned(query, "rope: query is not aligned to 16 bytes");
  detail::require_aligned(key, "rope: key is not aligned to 16 bytes");
  detail::require_aligned(value, "rope: value is not aligned to 16 bytes");
}

}  // namespace

void rope_forward(DeviceSpan<Bf16> query, DeviceSpan<Bf16> key, DeviceSpan<Bf16> value,
                  DeviceSpan<const Bf16> qkv, DeviceSpan<const RopeRow> rows,
                  DeviceSpan<const std::uint64_t> frequencies, RopeShape shape, StreamView stream) {
  check(qkv, query, key, value, rows, frequencies, shape);
  if (shape.rows == 0) return;
  const Launch launch = rope_launch(shape);
  detail::start(forward_kernel, launch, stream,
                {query.data, key.data, value.data, qkv.data, rows.data, frequencies.data, shape});
}

void rope_backward(DeviceSpan<Bf16> dqkv, DeviceSpan<const Bf16> dquery,
                   DeviceSpan<const float> dkey, DeviceSpan<const float> dvalue,
                   DeviceSpan<const RopeRow> rows, DeviceSpan<const std::uint64_t> frequencies,
                   RopeShape shape, StreamView stream) {
  check(dqkv, dquery, dkey, dvalue, rows, frequencies, shape);
  if (shape.rows == 0) return;
  const Launch launch = rope_launch(shape);
  detail::start(
      backward_kernel, launch, stream,
      {dqkv.data, dquery.data, dkey.data, dvalue.data, rows.data, frequencies.data, shape});
}

}  // namespace slimpack::cuda
