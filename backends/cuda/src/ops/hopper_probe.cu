// SPDX-License-Identifier: Apache-2.0
#include "ops/hopper_probe.hpp"

#include "kernels/hopper_probe.cuh"
#include "ops/launch.hpp"
#include "ops/tile_map.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda::detail {
namespace {

__global__ void __launch_bounds__(128)
    probe_kernel(Bf16* box, float* keys, float* values, const __grid_constant__ simt::TileMap a_map,
                 const __grid_constant__ simt::TileMap b_map,
                 const __grid_constant__ simt::TileMap v_map, const Bf16* a) {
#if defined(SLIMPACK_HAS_WGMMA)
  kernels::hopper_probe(box, keys, values, a_map, b_map, v_map, a);
#endif
}

}  // namespace

void hopper_probe(DeviceSpan<Bf16> box, DeviceSpan<float> keys, DeviceSpan<float> values,
                  DeviceSpan<const Bf16> a, DeviceSpan<const Bf16> b, DeviceSpan<const Bf16> v,
                  StreamView stream) {
  require(box.size == 64 * 64 && a.size == 64 * 64, "hopper_probe: box and a must be 64 * 64",
          a.size);
  require(b.size > 0 && b.size % 64 == 0 && b.size <= 128 * 64,
          "hopper_probe: b must be up to 128 rows of 64", b.size);
  require(v.size == 64 * 128, "hopper_probe: v must be 64 * 128", v.size);
  require(keys.size == 64 * 128 && values.size == 64 * 128,
          "hopper_probe: keys and values must be 64 * 128", keys.size);
  start(probe_kernel, {1, 128, kernels::kHopperProbeShared}, stream, box.data, keys.data,
        values.data, tile_map(a, 64), tile_map(b, 64), tile_map(v, 128), a.data);
}

}  // namespace slimpack::cuda::detail
