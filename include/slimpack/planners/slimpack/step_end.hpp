// SPDX-License-Identifier: Apache-2.0
// When a step ends: the gradients of a chunk are reduced layer by layer while units still run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/list_schedule.hpp"

namespace slimpack::planners {

/// When the last O ends if the last gradients of stage pp and chunk c are `last[pp * chunks + c]`:
/// the buckets of a stage, one a layer and the last of chunk 0 with what lies outside of layers,
/// are reduced one after the other, those of later chunks first, each when its layer is done.
/// O(layers).
[[nodiscard]] inline Nanos step_end(const Plan& plan, const PricedPlan& times,
                                    std::span<const schedule::LastGradients> last) {
  const auto chunks = static_cast<std::size_t>(plan.parallel.chunks);
  std::int64_t longest = 0;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    std::int64_t reduced = 0, over = 0;
    for (std::int32_t chunk = plan.parallel.chunks - 1; chunk >= 0; --chunk) {
      const schedule::LastGradients& own =
          last[static_cast<std::size_t>(pp) * chunks + static_cast<std::size_t>(chunk)];
      const std::int64_t layers = std::max<std::int64_t>(chunk_layers(plan, pp, chunk), 1);
      const std::int64_t time = times.reduce(pp, chunk).value;
      const std::int64_t weights = std::max<std::int64_t>(reduced_weights(plan, pp, chunk), 1);
      const auto each =
          static_cast<std::int64_t>(Int128{time} * plan.model.layer_weights() / weights);
      over = std::max(over, own.end.value);
      for (std::int64_t layer = 1; layer <= layers; ++layer) {
        const std::int64_t done = own.end.value - own.took.value / layers * (layers - layer);
        reduced = std::max(reduced, done) + (layer < layers ? each : time - (layers - 1) * each);
      }
    }
    longest = std::max(longest, std::max(reduced, over) + times.optimizer(0, pp).value);
  }
  return {longest};
}

}  // namespace slimpack::planners
