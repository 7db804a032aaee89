// SPDX-License-Identifier: Apache-2.0
// The prices of a plan with times of one's own for its forward and backward units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Satisfies UnitTimes: F and B take `compute`, everything else what `prices` says. For systems
/// that work a plan's units off in a way that no plan can express.
class UnitTimeOverrides {
 public:
  /// `compute` has one time for each MicroPack of the plan and place of its line, the places of a
  /// pack together. Throws InvalidInput if its size is another or a time is negative.
  UnitTimeOverrides(const Plan& plan, PricedPlan prices, std::vector<Nanos> compute)
      : prices_(std::move(prices)),
        compute_(std::move(compute)),
        lines_(static_cast<std::size_t>(virtual_stages_of(plan).size())) {
    require(compute_.size() == plan.micropacks.size() * lines_,
            "RetimedPlan: there must be a time for each MicroPack and place of the line",
            static_cast<std::int64_t>(compute_.size()));
    for (const Nanos time : compute_) {
      require(time >= Nanos{}, "RetimedPlan: a time must be >= 0", time.value);
    }
  }

  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const noexcept {
    return compute_[index(pack) * lines_ + static_cast<std::size_t>(line)];
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t pp) const noexcept {
    return prices_.head(pack, rank, pp);
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const noexcept {
    return prices_.transfer(pack, line, rank);
  }
  [[nodiscard]] Nanos reduce(std::int32_t pp, std::int32_t chunk) const noexcept {
    return prices_.reduce(pp, chunk);
  }
  [[nodiscard]] Nanos optimizer(std::int32_t dp, std::int32_t pp) const noexcept {
    return prices_.optimizer(dp, pp);
  }

 private:
  PricedPlan prices_;
  std::vector<Nanos> compute_;
  std::size_t lines_;
};
static_assert(UnitTimes<UnitTimeOverrides>);

}  // namespace slimpack
