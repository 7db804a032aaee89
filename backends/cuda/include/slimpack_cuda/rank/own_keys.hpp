// SPDX-License-Identifier: Apache-2.0
// Where a rank's own keys, values and their gradients are in a layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"

namespace slimpack::cuda {

/// Keys and values of slices that keep the same, by the rows of PackPlaces.
struct OwnKeys {
  DeviceSpan<Bf16> key, value;
  DeviceSpan<float> dkey, dvalue;
};

/// Keys of a layer by the rows of the stage's first one.
[[nodiscard]] inline DeviceSpan<Bf16> keys_of_layer(const PackPlaces& places, std::int64_t layer) {
  // Of the matrices of a page a layer has two; values of the last one are as many rows from the end
  // as their keys from theirs.
  const std::int64_t k = places.model.key_width(), page = places.page.value * k;
  const DeviceSpan<Bf16> all = places.arena.rows<Bf16>(k);
  return {all.data + 2 * layer * page,
          std::max<std::int64_t>(0, all.size - (2 * layer + 1) * page)};
}

[[nodiscard]] inline OwnKeys own_keys(const PackPlaces& places, const KeptKeys& kept,
                                      std::int64_t layer) {
  const std::int64_t k = places.model.key_width();
  OwnKeys own;
  own.key = keys_of_layer(places, layer);
  own.value = {own.key.data + places.page.value * k, own.key.size};
  own.dkey = own.dvalue = places.arena.rows<float>(k);
  if (!kept.pages) own.key = places.keys.key, own.value = places.keys.value;
  if (!kept.gradients) own.dkey = places.keys.dkey, own.dvalue = places.keys.dvalue;
  return own;
}

}  // namespace slimpack::cuda
