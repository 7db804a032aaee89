// SPDX-License-Identifier: Apache-2.0
// Times of units that no cost model would give.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

/// Durations drawn at random, equal for the ranks and stages that meet.
struct RandomTimes {
  std::uint64_t seed;
  [[nodiscard]] Nanos draw(std::uint64_t a, std::uint64_t b) const {
    Random random(seed ^ (a << 20U) ^ (b << 44U));
    return {static_cast<std::int64_t>(random.below(random.chance(1, 5) ? 5000 : 50))};
  }
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return draw(index(pack), static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos weight(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(index(pack), 400 + 50 * rank + static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t) const {
    return draw(index(pack), 100 + rank);
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return draw(index(pack), 200 + 50 * rank + static_cast<std::uint64_t>(line));
  }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t chunk) const {
    return draw(0, 900 + static_cast<std::uint64_t>(chunk));
  }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t pp) const {
    return draw(0, 950 + static_cast<std::uint64_t>(pp));
  }
};
static_assert(UnitTimes<RandomTimes>);

}  // namespace slimpack::test
