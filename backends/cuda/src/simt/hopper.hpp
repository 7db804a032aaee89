// SPDX-License-Identifier: Apache-2.0
// Instructions of Hopper (sm_90a): transaction barriers, tiles copied by TMA, products of a
// warpgroup that read shared memory. Emulated as those of simt.hpp are.
#pragma once

#include <array>
#include <cstdint>

#include "simt/simt.hpp"
#include "slimpack_cuda/bf16.hpp"

#if defined(__CUDACC__)
#include "simt/hopper_device.cuh"
#else
#include "simt/hopper_emulated.hpp"
#endif

namespace slimpack::cuda::simt {

/// Columns of a panel: a matrix lies in shared memory as panels of 64 columns, every row of 128
/// bytes, in which bits 4..6 of an address are those of the plain layout xor its bits 7..9.
inline constexpr int kPanelCols = 64;
inline constexpr std::uint32_t kPanelRowBytes = 128;
/// TMA brings 64 rows of a panel at once.
inline constexpr int kBoxRows = 64;
inline constexpr std::uint32_t kBoxBytes = 64 * kPanelRowBytes;

/// Where a byte of the plain layout lies. Panels begin at multiples of 1024.
[[nodiscard]] SLIMPACK_HOST_DEVICE constexpr std::uint32_t swizzled(std::uint32_t address) {
  return address ^ ((address >> 7U & 7U) << 4U);
}

/// Describes panels to the tensor cores: address, leading and stride offset in units of 16 bytes
/// (bits 0.., 16.., 32..), 1 in bits 62.. for swizzled rows of 128 bytes. Groups of 8 rows follow
/// each other, 1024 bytes apart. `panel_bytes`, from one panel to the next, is looked at only where
/// the columns are those of the product (multiply_registers); elsewhere a product reads 16 columns.
[[nodiscard]] SLIMPACK_HOST_DEVICE constexpr std::uint64_t matrix_descriptor(
    std::uint32_t address, std::uint32_t panel_bytes) {
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 62U | std::uint64_t{1024 >> 4U} << 32U;
  return kHigh | std::uint64_t{panel_bytes >> 4U} << 16U | (address & 0x3ffffU) >> 4U;
}
/// The same matrix `bytes` further on. Only the lower word changes: no address carries out of it.
[[nodiscard]] SLIMPACK_HOST_DEVICE constexpr std::uint64_t further(std::uint64_t descriptor,
                                                                   std::uint32_t bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(descriptor) + (bytes >> 4U);
  return (descriptor >> 32U << 32U) | low;
}

}  // namespace slimpack::cuda::simt
