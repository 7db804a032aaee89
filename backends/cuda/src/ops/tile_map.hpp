// SPDX-License-Identifier: Apache-2.0
// Makes the descriptions of matrices that TMA reads by. For .cu files.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "simt/hopper.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cuda/device.hpp"

#if defined(__CUDACC__)
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "check.hpp"
#endif

namespace slimpack::cuda::detail {

#if defined(__CUDACC__)
static_assert(sizeof(CUtensorMap) == sizeof(simt::TileMap) &&
              alignof(CUtensorMap) <= alignof(simt::TileMap));

/// The driver's function, found at run time: a program must start without a driver too.
inline PFN_cuTensorMapEncodeTiled_v12000 tile_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  SLIMPACK_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                       cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw CudaError("the driver has no cuTensorMapEncodeTiled; it must be of CUDA 12 or newer");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}
#endif

/// How TMA reads a matrix of `cols` columns, a multiple of 64, by boxes of 64 rows and 64 columns.
/// Throws InvalidInput where the matrix does not begin at a multiple of 16 bytes, CudaError where
/// the driver refuses it.
inline simt::TileMap tile_map(DeviceSpan<const Bf16> matrix, std::int64_t cols) {
  simt::TileMap map{};
  const std::int64_t rows = matrix.size / cols;
  if (rows == 0) return map;  // nobody reads it
  require(std::bit_cast<std::uintptr_t>(matrix.data) % 16 == 0,
          "attention: matrices must begin at multiples of 16 bytes",
          static_cast<std::int64_t>(std::bit_cast<std::uintptr_t>(matrix.data) % 16));
#if !defined(__CUDACC__)
  map = {matrix.data, rows, cols};
#else
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(cols) * sizeof(Bf16)};
  const cuuint32_t box[2] = {simt::kPanelCols, simt::kBoxRows};
  const cuuint32_t steps[2] = {1, 1};
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = tile_map_encoder();
  const CUresult result =
      encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
             const_cast<Bf16*>(matrix.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError("cuTensorMapEncodeTiled failed with error " +
                    std::to_string(static_cast<int>(result)));
  }
#endif
  return map;
}

}  // namespace slimpack::cuda::detail
