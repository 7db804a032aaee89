// SPDX-License-Identifier: Apache-2.0
#include "ops/attention_wgmma.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention_wgmma_backward.cuh"
#include "kernels/attention_wgmma_backward_queries.cuh"
#include "kernels/attention_wgmma_forward.cuh"
#include "ops/capability.hpp"
#include "ops/launch.hpp"
#include "ops/tile_map.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda::detail {
namespace {

namespace wgmma = kernels::wgmma;

// Only sm_90a and the emulator have the instructions; elsewhere the kernels are empty, and
// why_not_wgmma says so.
template <int kHeadDim>
__global__ void __launch_bounds__(wgmma::ForwardSize<kHeadDim>::kThreads, 1)
    forward_kernel(const __grid_constant__ simt::TileMap query,
                   const __grid_constant__ simt::TileMap key,
                   const __grid_constant__ simt::TileMap value,
                   const __grid_constant__ wgmma::ForwardTask task) {
#if defined(SLIMPACK_HAS_WGMMA)
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
#if defined(SLIMPACK_HAS_WGMMA)
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
#if defined(SLIMPACK_HAS_WGMMA)
  wgmma::attention_backward_queries<kHeadDim>(dquery, query, key, value, doutput, task);
#endif
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

template <int kHeadDim>
void forward(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum, DeviceSpan<const Bf16> query,
             DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value, const AttentionWork& work,
             const AttentionShape& shape, StreamView stream) {
  const auto [query_width, key_width] = widths(shape);
  // One block fits on a multiprocessor.
  const unsigned items = block_count(work.query_tiles.size, shape.heads);
  const auto blocks = std::min(items, static_cast<unsigned>(current_multiprocessors()));
  start(forward_kernel<kHeadDim>,
        {blocks, wgmma::ForwardSize<kHeadDim>::kThreads, wgmma::ForwardShared<kHeadDim>::kBytes},
        stream, tile_map(query, query_width), tile_map(key, key_width), tile_map(value, key_width),
        wgmma::ForwardTask{kernel_work(work, shape), output.data, log_sum.data,
                           static_cast<int>(items)});
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
    start(backward_keys_kernel<kHeadDim>,
          {block_count(work.key_tiles.size, shape.kv_heads), wgmma::kThreads,
           wgmma::KeyShared<kHeadDim>::kBytes},
          stream, dkey.data, dvalue.data, query_map, key_map, value_map, doutput_map, task);
  }
  start(
      backward_queries_kernel<kHeadDim, Out>,
      {block_count(work.query_tiles.size, std::int64_t{shape.heads} * wgmma::kQueryParts<kHeadDim>),
       wgmma::kThreads, wgmma::QueryShared<kHeadDim>::kBytes},
      stream, dquery.data, query_map, key_map, value_map, doutput_map, task);
}

template <class Out>
void backward_by_head_dim(DeviceSpan<Out> dquery, DeviceSpan<float> dkey, DeviceSpan<float> dvalue,
                          DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                          DeviceSpan<const Bf16> value, DeviceSpan<const float> log_sum,
                          DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                          const AttentionWork& work, const AttentionShape& shape,
                          StreamView stream) {
  const auto launcher = shape.head_dim == 64 ? backward<64, Out> : backward<128, Out>;
  launcher(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work, shape, stream);
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

AttentionTiles attention_tiles_wgmma(int head_dim) {
  return {head_dim == 64 ? wgmma::ForwardSize<64>::kQueryTile : wgmma::ForwardSize<128>::kQueryTile,
          wgmma::kKeyTile};
}

void attention_forward_wgmma(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                             DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                             DeviceSpan<const Bf16> value, const AttentionWork& work,
                             const AttentionShape& shape, StreamView stream) {
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
  backward_by_head_dim(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work,
                       shape, stream);
}

void attention_backward_partial_wgmma(DeviceSpan<float> dquery, DeviceSpan<float> dkey,
                                      DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                                      DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                                      DeviceSpan<const float> log_sum,
                                      DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                                      const AttentionWork& work, const AttentionShape& shape,
                                      StreamView stream) {
  backward_by_head_dim(dquery, dkey, dvalue, query, key, value, log_sum, delta, doutput, work,
                       shape, stream);
}

}  // namespace slimpack::cuda::detail
