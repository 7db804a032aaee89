// SPDX-License-Identifier: Apache-2.0
// The prices of a plan with other times for its forward and backward units.
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
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// Satisfies UnitTimes: F, B and W take the times of `compute`, R those of `reduce` where there are
/// any, everything else what `prices` says.
/// For systems that run the units of a plan in a way that no plan can express. Answers are O(1).
class UnitTimeOverrides {
 public:
  /// `compute` has one time for each MicroPack and virtual stage, those of a MicroPack together.
  /// `reduce` has one a chunk and stage, those of a chunk together, or none.
  /// Throws InvalidInput if a size is another or a time is negative. O(times).
  UnitTimeOverrides(const Plan& plan, PricedPlan prices, std::vector<Nanos> compute,
                    std::vector<Nanos> reduce = {})
      : prices_(std::move(prices)),
        compute_(std::move(compute)),
        reduce_(std::move(reduce)),
        stages_(static_cast<std::size_t>(plan.parallel.pp)),
        virtual_stages_(static_cast<std::size_t>(virtual_stages_of(plan).size())) {
    require(compute_.size() == plan.micropacks.size() * virtual_stages_,
            "UnitTimeOverrides: there must be a time for each MicroPack and virtual stage",
            static_cast<std::int64_t>(compute_.size()));
    require(reduce_.empty() || reduce_.size() == virtual_stages_,
            "UnitTimeOverrides: there must be a time for each chunk and stage",
            static_cast<std::int64_t>(reduce_.size()));
    for (const std::vector<Nanos>* times : {&compute_, &reduce_}) {
      for (const Nanos time : *times) {
        require(time >= Nanos{}, "UnitTimeOverrides: a time must be >= 0", time.value);
      }
    }
  }

  /// F, B or W of a pack on a virtual stage: the time given.
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t virtual_stage) const noexcept {
    return compute_[index(pack) * virtual_stages_ + static_cast<std::size_t>(virtual_stage)];
  }
  /// As the prices say.
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t pp) const noexcept {
    return prices_.head(pack, rank, pp);
  }
  /// As the prices say.
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t virtual_stage,
                               std::size_t rank) const noexcept {
    return prices_.transfer(pack, virtual_stage, rank);
  }
  /// The time given, or as the prices say.
  [[nodiscard]] Nanos reduce(std::int32_t pp, std::int32_t chunk) const noexcept {
    if (reduce_.empty()) return prices_.reduce(pp, chunk);
    return reduce_[static_cast<std::size_t>(chunk) * stages_ + static_cast<std::size_t>(pp)];
  }
  /// As the prices say.
  [[nodiscard]] Nanos optimizer(std::int32_t dp, std::int32_t pp) const noexcept {
    return prices_.optimizer(dp, pp);
  }

 private:
  PricedPlan prices_;
  std::vector<Nanos> compute_;
  std::vector<Nanos> reduce_;
  std::size_t stages_, virtual_stages_;
};
static_assert(UnitTimes<UnitTimeOverrides>);

}  // namespace slimpack
