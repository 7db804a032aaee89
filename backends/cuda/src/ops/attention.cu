// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "kernels/attention_mma_backward_keys.cuh"
#include "kernels/attention_mma_backward_queries.cuh"
#include "kernels/attention_mma_forward.cuh"
#include "kernels/attention_plain.cuh"
#include "kernels/attention_rows.cuh"
#include "ops/attention_wgmma.hpp"
#include "ops/capability.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

// Registers let two blocks share a multiprocessor: with the limit of three at head_dim 64, some
// would spill.
[[maybe_unused]] constexpr unsigned kMmaBlocks = 2;

__global__ void __launch_bounds__(kernels::kPlainTile)
    forward_plain_kernel(kernels::AttentionForward at) {
  kernels::attention_forward_plain(at);
}
__global__ void __launch_bounds__(kernels::kPlainTile)
    backward_queries_plain_kernel(kernels::AttentionBackward at) {
  kernels::attention_backward_queries_plain(at);
}
__global__ void __launch_bounds__(kernels::kPlainTile)
    backward_keys_plain_kernel(kernels::AttentionBackward at) {
  kernels::attention_backward_keys_plain(at);
}
template <int kDim>
__global__ void __launch_bounds__(kernels::kMmaThreads, kMmaBlocks)
    forward_mma_kernel(kernels::AttentionForward at) {
  kernels::attention_forward_mma<kDim>(at);
}
template <int kDim>
__global__ void __launch_bounds__(kernels::kMmaThreads, kMmaBlocks)
    backward_queries_mma_kernel(kernels::AttentionBackward at) {
  kernels::attention_backward_queries_mma<kDim>(at);
}
template <int kDim>
__global__ void __launch_bounds__(kernels::kMmaThreads, kMmaBlocks)
    backward_keys_mma_kernel(kernels::AttentionBackward at) {
  kernels::attention_backward_keys_mma<kDim>(at);
}
template <int kLanes>
__global__ void __launch_bounds__(kernels::kRowThreads) delta_kernel(kernels::AttentionDelta at) {
  kernels::attention_delta<kLanes>(at);
}
template <int kLanes>
__global__ void __launch_bounds__(kernels::kRowThreads)
    merge_kernel(Bf16* output, float* log_sum, const Bf16* more, const float* more_log_sum,
                 std::int64_t items, int dim) {
  kernels::attention_merge<kLanes>(output, log_sum, more, more_log_sum, items, dim);
}

/// Blocks for `tiles` of `each`; nothing where there is no work.
unsigned blocks(std::int64_t tiles, std::int64_t each) {
  require(tiles * each <= INT32_MAX, "attention: there are more blocks than a grid may have",
          tiles * each);
  return static_cast<unsigned>(tiles * each);
}

template <class Argument>
void launch(void (*kernel)(Argument), unsigned grid, unsigned threads, std::uint32_t shared_bytes,
            const Argument& argument, StreamView stream) {
  detail::start(kernel, {grid, threads, shared_bytes}, stream, argument);
}

void check_shape(const AttentionShape& shape) {
  require(shape.head_dim >= 1, "attention: head_dim must be >= 1", shape.head_dim);
  require(shape.kv_heads >= 1, "attention: kv_heads must be >= 1", shape.kv_heads);
  require(shape.heads >= 1 && shape.heads % shape.kv_heads == 0,
          "attention: kv_heads must divide heads", shape.heads);
  require(shape.page_tokens >= 1, "attention: page_tokens must be >= 1", shape.page_tokens);
}
void check_path(const AttentionShape& shape, AttentionPath path) {
  check_shape(shape);
  // What no device could do, whatever the current one can.
  const auto why = why_not(shape, path, 9, 0);
  require(!why, why ? std::string_view(*why) : std::string_view());
}
/// Throws InvalidInput where the current device cannot compute this shape by this path.
void check_device(const AttentionShape& shape, AttentionPath path) {
  const auto [major, minor] = detail::current_capability();
  const auto why = why_not(shape, path, major, minor);
  require(!why, why ? std::string_view(*why) : std::string_view());
}
std::int64_t query_width(const AttentionShape& shape) {
  return std::int64_t{shape.heads} * shape.head_dim;
}
std::int64_t key_width(const AttentionShape& shape) {
  return std::int64_t{shape.kv_heads} * shape.head_dim;
}
template <class Element>
void check_rows(DeviceSpan<Element> matrix, std::int64_t width, std::string_view rule) {
  require(matrix.size % width == 0, rule, matrix.size);
}
/// Sizes must be whole rows; how many, only the tables in device memory know.
void check_inputs(DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                  DeviceSpan<const Bf16> value, const AttentionShape& shape) {
  check_rows(query, query_width(shape), "attention: query is not rows * heads * head_dim");
  check_rows(key, key_width(shape), "attention: key is not rows * kv_heads * head_dim");
  require(value.size == key.size, "attention: value is not as large as key", value.size);
}

/// The fast kernels move 16 bytes at a time.
void check_aligned(std::initializer_list<const void*> matrices) {
  for (const void* matrix : matrices) {
    const auto rest = static_cast<std::int64_t>(std::bit_cast<std::uintptr_t>(matrix) % 16);
    require(rest == 0, "attention: matrices must begin at multiples of 16 bytes", rest);
  }
}

kernels::AttentionInputs inputs(DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                                DeviceSpan<const Bf16> value, const AttentionWork& work,
                                const AttentionShape& shape) {
  return {query.data, key.data, value.data,
          work,       shape,    1.0F / std::sqrt(static_cast<float>(shape.head_dim))};
}

template <class Dquery>
void check_backward(DeviceSpan<Dquery> dquery, DeviceSpan<float> dkey, DeviceSpan<float> dvalue,
                    DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                    DeviceSpan<const Bf16> value, DeviceSpan<const float> log_sum,
                    DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                    const AttentionShape& shape, AttentionPath path) {
  check_path(shape, path);
  check_inputs(query, key, value, shape);
  check_rows(dkey, key_width(shape), "attention_backward: dkey is not rows * kv_heads * head_dim");
  require(dvalue.size == dkey.size, "attention_backward: dvalue is not as large as dkey",
          dvalue.size);
  check_rows(log_sum, shape.heads, "attention_backward: log_sum is not rows * heads");
  check_rows(delta, shape.heads, "attention_backward: delta is not rows * heads");
  check_rows(doutput, query_width(shape),
             "attention_backward: doutput is not rows * heads * head_dim");
  require(dquery.size == doutput.size, "attention_backward: dquery is not as large as doutput",
          dquery.size);
  if (path != AttentionPath::plain) {
    check_aligned(
        {dquery.data, dkey.data, dvalue.data, query.data, key.data, value.data, doutput.data});
  }
}

template <int kDim>
void launch_backward_mma(const kernels::AttentionBackward& at, StreamView stream) {
  const AttentionWork& work = at.in.work;
  const AttentionShape& shape = at.in.shape;
  launch(backward_keys_mma_kernel<kDim>, blocks(work.key_tiles.size, shape.kv_heads),
         kernels::kMmaThreads, kernels::MmaBackwardKeys<kDim>::kShared, at, stream);
  launch(backward_queries_mma_kernel<kDim>, blocks(work.query_tiles.size, shape.heads),
         kernels::kMmaThreads, kernels::MmaBackwardQueries<kDim>::kShared, at, stream);
}

/// Paths plain and mma.
void launch_backward(const kernels::AttentionBackward& at, AttentionPath path, StreamView stream) {
  const AttentionWork& work = at.in.work;
  const AttentionShape& shape = at.in.shape;
  if (path == AttentionPath::plain) {
    const int parts = kernels::plain_parts(shape.head_dim);
    launch(backward_keys_plain_kernel,
           blocks(work.key_tiles.size, std::int64_t{shape.kv_heads} * parts), kernels::kPlainTile,
           0, at, stream);
    launch(backward_queries_plain_kernel,
           blocks(work.query_tiles.size, std::int64_t{shape.heads} * parts), kernels::kPlainTile, 0,
           at, stream);
  } else if (shape.head_dim == 64) {
    launch_backward_mma<64>(at, stream);
  } else {
    launch_backward_mma<128>(at, stream);
  }
}

}  // namespace

AttentionTiles attention_tiles(const AttentionShape& shape, AttentionPath path) {
  check_shape(shape);
  switch (path) {
    case AttentionPath::plain:
      return {kernels::kPlainTile, kernels::kPlainTile};
    case AttentionPath::mma:
      return shape.head_dim <= 64 ? AttentionTiles{kernels::MmaForward<64>::kRows,
                                                   kernels::MmaBackwardKeys<64>::kKeys}
                                  : AttentionTiles{kernels::MmaForward<128>::kRows,
                                                   kernels::MmaBackwardKeys<128>::kKeys};
    case AttentionPath::wgmma:
      return detail::attention_tiles_wgmma(shape.head_dim);
  }
  return {};
}

std::optional<std::string> why_not(const AttentionShape& shape, AttentionPath path, int major,
                                   int minor) {
  if (major < 8) {
    return "attention needs compute capability 8.0 or newer, the device has " +
           std::to_string(major) + "." + std::to_string(minor);
  }
  if (path == AttentionPath::plain) return std::nullopt;
  if (path == AttentionPath::wgmma) return detail::why_not_wgmma(shape, major, minor);
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    return "attention: the path mma needs head_dim 64 or 128, not " +
           std::to_string(shape.head_dim);
  }
  // Tiles must not cross pages.
  const int tile = attention_tiles(shape, path).key;
  if (shape.page_tokens % tile != 0) {
    return "attention: the path mma needs page_tokens in multiples of " + std::to_string(tile) +
           " at this head_dim, not " + std::to_string(shape.page_tokens);
  }
  return std::nullopt;
}

AttentionPath best_path(const AttentionShape& shape, int major, int minor) {
  for (const AttentionPath path : {AttentionPath::wgmma, AttentionPath::mma}) {
    if (supports(shape, path, major, minor)) return path;
  }
  return AttentionPath::plain;
}

void attention_forward(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                       DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                       DeviceSpan<const Bf16> value, const AttentionWork& work,
                       const AttentionShape& shape, AttentionPath path, StreamView stream) {
  check_path(shape, path);
  check_inputs(query, key, value, shape);
  check_rows(output, query_width(shape),
             "attention_forward: output is not rows * heads * head_dim");
  check_rows(log_sum, shape.heads, "attention_forward: log_sum is not rows * heads");
  if (path != AttentionPath::plain) check_aligned({output.data, query.data, key.data, value.data});
  if (work.query_tiles.size == 0) return;
  check_device(shape, path);
  if (path == AttentionPath::wgmma) {
    detail::attention_forward_wgmma(output, log_sum, query, key, value, work, shape, stream);
    return;
  }
  const kernels::AttentionForward at{inputs(query, key, value, work, shape), output.data,
                                     log_sum.data};
  if (path == AttentionPath::plain) {
    launch(forward_plain_kernel,
           blocks(work.query_tiles.size,
                  std::int64_t{shape.heads} * kernels::plain_parts(shape.head_dim)),
           kernels::kPlainTile, 0, at, stream);
  } else if (shape.head_dim == 64) {
    launch(forward_mma_kernel<64>, blocks(work.query_tiles.size, shape.heads), kernels::kMmaThreads,
           kernels::MmaForward<64>::kShared, at, stream);
  } else {
    launch(forward_mma_kernel<128>, blocks(work.query_tiles.size, shape.heads),
           kernels::kMmaThreads, kernels::MmaForward<128>::kShared, at, stream);
  }
}

void attention_delta(DeviceSpan<float> delta, DeviceSpan<const Bf16> output,
                     DeviceSpan<const Bf16> doutput, const AttentionWork& work,
                     const AttentionShape& shape, AttentionPath path, StreamView stream) {
  check_shape(shape);
  check_rows(delta, shape.heads, "attention_delta: delta is not rows * heads");
  check_rows(output, query_width(shape), "attention_delta: output is not rows * heads * head_dim");
  check_rows(doutput, query_width(shape),
             "attention_delta: doutput is not rows * heads * head_dim");
  check_aligned({output.data, doutput.data});
  const kernels::AttentionDelta at{delta.data, output.data, doutput.data,
                                   work,       shape,       attention_tiles(shape, path).query};
  const auto kernel = shape.head_dim == 64    ? delta_kernel<8>
                      : shape.head_dim == 128 ? delta_kernel<16>
                                              : delta_kernel<1>;
  launch(kernel, blocks(work.query_tiles.size, shape.heads), kernels::kRowThreads, 0, at, stream);
}

void attention_backward(DeviceSpan<Bf16> dquery, DeviceSpan<float> dkey, DeviceSpan<float> dvalue,
                        DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                        DeviceSpan<const Bf16> value, DeviceSpan<const float> log_sum,
                        DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                        const AttentionWork& work, const AttentionShape& shape, AttentionPath path,
                        StreamView stream) {
  check_backward(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, shape, path);
  if (work.query_tiles.size == 0) return;
  check_device(shape, path);
  if (path == AttentionPath::wgmma) {
    detail::attention_backward_wgmma(dquery, dkey, dvalue, query, key, value, log_sum, delta,
                                     doutput, work, shape, stream);
    return;
  }
  launch_backward({inputs(query, key, value, work, shape), log_sum.data, delta.data, doutput.data,
                   dquery.data, nullptr, dkey.data, dvalue.data},
                  path, stream);
}

void attention_backward_partial(DeviceSpan<float> dquery, DeviceSpan<float> dkey,
                                DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                                DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                                DeviceSpan<const float> log_sum, DeviceSpan<const float> delta,
                                DeviceSpan<const Bf16> doutput, const AttentionWork& work,
                                const AttentionShape& shape, AttentionPath path,
                                StreamView stream) {
  check_backward(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, shape, path);
  if (work.query_tiles.size == 0) return;
  check_device(shape, path);
  if (path == AttentionPath::wgmma) {
    detail::attention_backward_partial_wgmma(dquery, dkey, dvalue, query, key, value, log_sum,
                                             delta, doutput, work, shape, stream);
    return;
  }
  launch_backward({inputs(query, key, value, work, shape), log_sum.data, delta.data, doutput.data,
                   nullptr, dquery.data, dkey.data, dvalue.data},
                  path, stream);
}

void attention_merge(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                     DeviceSpan<const Bf16> more, DeviceSpan<const float> more_log_sum,
                     std::int64_t rows, const AttentionShape& shape, StreamView stream) {
  check_shape(shape);
  require(rows >= 0, "attention_merge: rows must be >= 0", rows);
  require(output.size == rows * query_width(shape),
          "attention_merge: output is not rows * heads * head_dim", output.size);
  require(more.size == output.size, "attention_merge: more is not as large as output", more.size);
  require(log_sum.size == rows * shape.heads, "attention_merge: log_sum is not rows * heads",
          log_sum.size);
  require(more_log_sum.size == log_sum.size,
          "attention_merge: more_log_sum is not as large as log_sum", more_log_sum.size);
  check_aligned({output.data, more.data});
  if (rows == 0) return;
  const std::int64_t items = rows * shape.heads;
  const int lanes = shape.head_dim == 64 ? 8 : shape.head_dim == 128 ? 16 : 1;
  const auto kernel = lanes == 8    ? merge_kernel<8>
                      : lanes == 16 ? merge_kernel<16>
                                    : merge_kernel<1>;
  const std::int64_t at_once = static_cast<int>(kernels::kRowThreads) / lanes;
  constexpr std::int64_t kMostBlocks = 1 << 20;
  const auto grid = static_cast<unsigned>(std::min((items + at_once - 1) / at_once, kMostBlocks));
  detail::start(kernel, {grid, kernels::kRowThreads, 0}, stream, output.data, log_sum.data,
                more.data, more_log_sum.data, items, shape.head_dim);
}

}  // namespace slimpack::cuda
