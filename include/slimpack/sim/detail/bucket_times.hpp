// SPDX-License-Identifier: Apache-2.0
// How the reduction of a chunk's gradients is cut into buckets, one a layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::sim::detail {

[[nodiscard]] constexpr std::int64_t part_of_time(Nanos time, std::int64_t part,
                                                  std::int64_t whole) noexcept {
  return static_cast<std::int64_t>(static_cast<Int128>(time.value) * part / whole);
}

/// The times of `count` buckets that together take `time`: one a layer, the last with what is
/// outside of layers, reduced with chunk 0; or one for all. Cut from cumulated parts, so that they
/// sum to the whole.
[[nodiscard]] inline std::vector<Nanos> bucket_times(const Plan& plan, std::int32_t pp,
                                                     std::int32_t chunk, Nanos time,
                                                     std::int64_t count) {
  const std::int64_t layers =
      plan.stages[static_cast<std::size_t>(virtual_stages_of(plan).index(pp, chunk))].layers();
  const std::int64_t layer = std::max<std::int64_t>(plan.model.layer_weights(), 1);
  std::int64_t all = layer * layers;
  if (chunk == 0) {
    const DeviceWeights weights = device_weights(plan, pp);
    all += weights.embedding + weights.final_norm + weights.head;
  }
  std::vector<Nanos> times;
  Nanos before;
  for (std::int64_t bucket = 1; bucket <= count; ++bucket) {
    const Nanos until = bucket == count ? time : Nanos{part_of_time(time, layer * bucket, all)};
    times.push_back(until - before);
    before = until;
  }
  return times;
}

}  // namespace slimpack::sim::detail
