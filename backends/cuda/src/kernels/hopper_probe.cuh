// SPDX-License-Identifier: Apache-2.0
// One TMA load and one product of each kind, to see on a device whether it reads panels,
// descriptors and fragments as the emulator does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "simt/hopper.hpp"

namespace slimpack::cuda::kernels {

inline constexpr std::size_t kHopperProbeShared = 5 * simt::kBoxBytes + 1024;

/// One block of 128 threads. From a[64 x 64], b[up to 128 x 64] and v[64 x 128]: `box` gets the
/// bytes of a as they lie in shared memory, `keys`[64 x 128] a * transpose(b) with a in shared
/// memory, `values`[64 x 128] a * v with a in registers.
SLIMPACK_DEVICE void hopper_probe(Bf16* box, float* keys, float* values, const simt::TileMap& a_map,
                                  const simt::TileMap& b_map, const simt::TileMap& v_map,
                                  const Bf16* a) {
  const std::uint32_t base = simt::shared_address(simt::shared_memory());
  const std::uint32_t b = base + simt::kBoxBytes, v = b + 2 * simt::kBoxBytes,
                      barrier = v + 2 * simt::kBoxBytes;
  const unsigned thread = simt::thread_index(), lane = simt::lane_index();
  if (thread == 0) {
    simt::barrier_init(barrier, 1);
    simt::barrier_init_fence();
  }
  simt::sync_block();
  if (thread == 0) {
    simt::barrier_expect(barrier, 5 * simt::kBoxBytes);
    simt::load_tile(base, a_map, barrier, 0, 0);
    simt::load_tile(b, b_map, barrier, 0, 0);
    simt::load_tile(b + simt::kBoxBytes, b_map, barrier, 0, simt::kBoxRows);
    simt::load_tile(v, v_map, barrier, 0, 0);
    simt::load_tile(v + simt::kBoxBytes, v_map, barrier, simt::kPanelCols, 0);
    simt::barrier_arrive(barrier);
  }
  const unsigned row = thread / 32 * 16 + lane / 4, col = 2 * (lane % 4);
  std::array<std::array<std::uint32_t, 4>, 4> left;
  for (unsigned step = 0; step < 4; ++step) {
    for (unsigned i = 0; i < 4; ++i) {
      const Bf16* pair = a + (row + i % 2 * 8) * 64 + step * 16 + col + i / 2 * 8;
      left[step][i] = pair[0].bits | static_cast<std::uint32_t>(pair[1].bits) << 16U;
    }
  }
  simt::barrier_wait(barrier, 0);

  std::array<float, 64> by_keys{}, by_values{};
  simt::product_fence();
  for (std::uint32_t step = 0; step < 4; ++step) {
    simt::multiply_shared<128>(by_keys, simt::further(simt::matrix_descriptor(base, 0), 32 * step),
                               simt::further(simt::matrix_descriptor(b, 0), 32 * step), true);
  }
  for (std::uint32_t step = 0; step < 4; ++step) {
    const std::uint64_t matrix = simt::matrix_descriptor(v, simt::kBoxBytes);
    simt::multiply_registers<128>(by_values, left[step], simt::further(matrix, 2048 * step),
                                  step > 0);
  }
  simt::product_commit();
  simt::product_wait<0>();
  simt::products_arrived(by_keys);
  simt::products_arrived(by_values);
  for (unsigned i = 0; i < 64; ++i) {
    const unsigned to = (row + i % 4 / 2 * 8) * 128 + i / 4 * 8 + col + i % 2;
    keys[to] = by_keys[i];
    values[to] = by_values[i];
  }
  const auto* bytes = reinterpret_cast<const Bf16*>(simt::shared_memory());
  for (unsigned i = thread; i < simt::kBoxBytes / 2; i += 128) box[i] = bytes[i];
}

}  // namespace slimpack::cuda::kernels
