// SPDX-License-Identifier: Apache-2.0
#include "ops/attention_wgmma.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include "check.hpp"
#include "kernels/attention_wgmma_backward.cuh"
#include "kernels/attention_wgmma_backward_queries.cuh"
#include "kernels/attention_wgmma_forward.cuh"
#include "ops/tile_map.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda::detail {
namespace {

namespace wgmma = kernels::wgmma;

// Only sm_90a has the instructions; elsewhere the kernels are empty, and why_not_wgmma says so.
template <int kHeadDim>
__global__ void __launch_bounds__(wgmma::kThreads, 1)
    forward_kernel(const __grid_constant__ simt::TileMap query,
                   const __grid_constant__ simt::TileMap key,
                   const __grid_constant__ simt::TileMap value,
                   const __grid_constant__ wgmma::ForwardTask task) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma::attention_forward<kHeadDim>(query, key, value, task);
#endif
}

template <int kHeadDim>
__global__ void __launch_bounds__(wgmma::kThreads, 1)
    backward_keys_kernel(float* dkey, float* dvalue, const __grid_constant__ simt::TileMap query,
                         const __grid_constant__ simt::TileMap key,
                         const __grid_constant__ simt::TileMap value,
                         const __grid_constant__ simt::TileMap doutput,
                         const __grid_constant__ wgmma::BackwardTask task) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma::attention_backward_keys<kHeadDim>(dkey, dvalue, query, key, value, doutput, task);
#endif
}

template <int kHeadDim, class Out>
__global__ void __launch_bounds__(wgmma::kThreads, 1)
    backward_queries_kernel(Out* dquery, const __grid_constant__ simt::TileMap query,
                            const __grid_constant__ simt::TileMap key,
                            const __grid_constant__ simt::TileMap value,
                            const __grid_constant__ simt::TileMap doutput,
                            const __grid_constant__ wgmma::BackwardTask task) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wgmma::attention_backward_queries<kHeadDim>(dquery, query, key, value, doutput, task);
#endif
}

void check_shape(const AttentionShape& shape) {
  require(shape.heads > 0, "attention: heads must be > 0", shape.heads);
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
          "attention: kv_heads must divide heads", shape.kv_heads);
  require(shape.head_dim == 64 || shape.head_dim == 128,
          "attention: head_dim must be 64 or 128 for wgmma", shape.head_dim);
  require(shape.page_tokens > 0 && shape.page_tokens % wgmma::kRows == 0,
          "attention: page_tokens must be a multiple of 64 for wgmma", shape.page_tokens);
}

void check_rows(std::int64_t size, std::int64_t cols, const char* rule) {
  require(size >= 0 && size % cols == 0 && size / cols <= std::numeric_limits<std::int32_t>::max(),
          rule, size);
}

struct Widths {
  std::int64_t query, key;
};
Widths widths(const AttentionShape& shape) {
  return {static_cast<std::int64_t>(shape.heads) * shape.head_dim,
          static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim};
}

wgmma::Work kernel_work(const AttentionWork& work, const AttentionShape& shape) {
  wgmma::Work result;
  result.segments = work.segments.data, result.pages = work.pages.data;
  result.query_tiles = work.query_tiles.data, result.key_tiles = work.key_tiles.data;
  result.heads = shape.heads, result.kv_heads = shape.kv_heads;
  result.page_tokens = shape.page_tokens;
  result.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  return result;
}

unsigned block_count(std::int64_t tiles, std::int64_t heads) {
  const std::int64_t blocks = tiles * heads;
  require(blocks <= std::numeric_limits<std::int32_t>::max(), "attention: too many blocks", blocks);
  return static_cast<unsigned>(blocks);
}

template <class Kernel, class... Arguments>
void launch(Kernel kernel, unsigned blocks, std::uint32_t shared_bytes, StreamView stream,
            const Arguments&... arguments) {
  SLIMPACK_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes)));
  kernel<<<blocks, wgmma::kThreads, shared_bytes, stream.get()>>>(arguments...);
  SLIMPACK_CUDA_CHECK(cudaGetLastError());
}

template <int kHeadDim>
void forward(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum, DeviceSpan<const Bf16> query,
             DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value, const AttentionWork& work,
             const AttentionShape& shape, StreamView stream) {
  const auto [query_width, key_width] = widths(shape);
  launch(forward_kernel<kHeadDim>, block_count(work.query_tiles.size, shape.heads),
         wgmma::ForwardShared<kHeadDim>::kBytes, stream, tile_map(query, query_width),
         tile_map(key, key_width), tile_map(value, key_width),
         wgmma::ForwardTask{kernel_work(work, shape), output.data, log_sum.data});
}

template <int kHeadDim, class Out>
void backward(DeviceSpan<Out> dquery, DeviceSpan<float> dkey, DeviceSpan<float> dvalue,
              DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
              DeviceSpan<const Bf16> value, DeviceSpan<const float> log_sum,
              DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
              const AttentionWork& work, const AttentionShape& shape, StreamView stream) {
  const auto [query_width, key_width] = widths(shape);
  const simt::TileMap query_map = tile_map(query, query_width), key_map = tile_map(key, key_width),
                      value_map = tile_map(value, key_width),
                      doutput_map = tile_map(doutput, query_width);
  const wgmma::BackwardTask task{kernel_work(work, shape), log_sum.data, delta.data};
  if (work.key_tiles.size > 0) {
    launch(backward_keys_kernel<kHeadDim>, block_count(work.key_tiles.size, shape.kv_heads),
           wgmma::KeyShared<kHeadDim>::kBytes, stream, dkey.data, dvalue.data, query_map, key_map,
           value_map, doutput_map, task);
  }
  launch(backward_queries_kernel<kHeadDim, Out>, block_count(work.query_tiles.size, shape.heads),
         wgmma::QueryShared<kHeadDim>::kBytes, stream, dquery.data, query_map, key_map, value_map,
         doutput_map, task);
}

template <class Out>
void checked_backward(DeviceSpan<Out> dquery, DeviceSpan<float> dkey, DeviceSpan<float> dvalue,
                      DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                      DeviceSpan<const Bf16> value, DeviceSpan<const float> log_sum,
                      DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                      const AttentionWork& work, const AttentionShape& shape, StreamView stream) {
  check_shape(shape);
  const auto [query_width, key_width] = widths(shape);
  check_rows(query.size, query_width, "attention_backward: query is not rows * heads * head_dim");
  check_rows(doutput.size, query_width,
             "attention_backward: doutput is not rows * heads * head_dim");
  check_rows(key.size, key_width, "attention_backward: key is not rows * kv_heads * head_dim");
  check_rows(log_sum.size, shape.heads, "attention_backward: log_sum is not rows * heads");
  check_rows(dkey.size, key_width, "attention_backward: dkey is not rows * kv_heads * head_dim");
  require(value.size == key.size, "attention_backward: value is not as long as key", value.size);
  require(dvalue.size == dkey.size, "attention_backward: dvalue is not as long as dkey",
          dvalue.size);
  require(dquery.size == doutput.size, "attention_backward: dquery is not as long as doutput",
          dquery.size);
  require(delta.size == doutput.size / shape.head_dim,
          "attention_backward: delta is not rows * heads", delta.size);
  if (work.query_tiles.size == 0) return;
  if (shape.head_dim == 64) {
    backward<64>(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work, shape,
                 stream);
  } else {
    backward<128>(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work, shape,
                  stream);
  }
}

}  // namespace

std::optional<std::string> why_not_wgmma(const AttentionShape& shape, int major, int minor) {
  if (major != 9 || minor != 0) {
    return "wgmma needs compute capability 9.0, not " + std::to_string(major) + "." +
           std::to_string(minor);
  }
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    return "wgmma needs head_dim 64 or 128, not " + std::to_string(shape.head_dim);
  }
  if (shape.kv_heads < 1 || shape.heads < 1 || shape.heads % shape.kv_heads != 0) {
    return "kv_heads must divide heads";
  }
  if (shape.page_tokens < 1 || shape.page_tokens % wgmma::kRows != 0) {
    return "wgmma needs page_tokens to be a multiple of 64, not " +
           std::to_string(shape.page_tokens);
  }
  return std::nullopt;
}

AttentionTiles attention_tiles_wgmma() {
  return {wgmma::kQueryTile, wgmma::kKeyTile};
}

void attention_forward_wgmma(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                             DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                             DeviceSpan<const Bf16> value, const AttentionWork& work,
                             const AttentionShape& shape, StreamView stream) {
  check_shape(shape);
  const auto [query_width, key_width] = widths(shape);
  check_rows(output.size, query_width, "attention_forward: output is not rows * heads * head_dim");
  check_rows(query.size, query_width, "attention_forward: query is not rows * heads * head_dim");
  check_rows(log_sum.size, shape.heads, "attention_forward: log_sum is not rows * heads");
  check_rows(key.size, key_width, "attention_forward: key is not rows * kv_heads * head_dim");
  require(value.size == key.size, "attention_forward: value is not as long as key", value.size);
  if (work.query_tiles.size == 0) return;
  if (shape.head_dim == 64) {
    forward<64>(output, log_sum, query, key, value, work, shape, stream);
  } else {
    forward<128>(output, log_sum, query, key, value, work, shape, stream);
  }
}

void attention_backward_wgmma(DeviceSpan<Bf16> dquery, DeviceSpan<float> dkey,
                              DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                              DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                              DeviceSpan<const float> log_sum, DeviceSpan<const float> delta,
                              DeviceSpan<const Bf16> doutput, const AttentionWork& work,
                              const AttentionShape& shape, StreamView stream) {
  checked_backward(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work, shape,
                   stream);
}

void attention_backward_partial_wgmma(DeviceSpan<float> dquery, DeviceSpan<float> dkey,
                                      DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                                      DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                                      DeviceSpan<const float> log_sum,
                                      DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                                      const AttentionWork& work, const AttentionShape& shape,
                                      StreamView stream) {
  checked_backward(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work, shape,
                   stream);
}

}  // namespace slimpack::cuda::detail
