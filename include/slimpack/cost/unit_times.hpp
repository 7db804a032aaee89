// SPDX-License-Identifier: Apache-2.0
// The durations of everything in a plan, as the DAG builder asks for them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Durations of one plan's units, transfers and collectives, in nanoseconds. A virtual stage is
/// chunk * pp + stage (`VirtualStages`); `rank` counts inside the pack's group. Tests give
/// hand-made times; `PricedPlan` (cost/price.hpp) asks a CostModel.
/// Laws: pure, never negative; `compute` is the same for all ranks of a group, because their ring
/// ends together.
template <class Times>
concept UnitTimes =
    requires(const Times& times, PackId pack, std::int32_t virtual_stage, std::size_t rank,
             std::int32_t dp, std::int32_t pp, std::int32_t chunk) {
      /// F or B of a pack on one virtual stage; of a weight pack W, the longest of its ranks.
      { times.compute(pack, virtual_stage) } -> std::same_as<Nanos>;
      /// H of a forward pack for one rank of its group on stage `pp`; equal on all stages that
      /// share it.
      { times.head(pack, rank, pp) } -> std::same_as<Nanos>;
      /// The transfer of a pack's activations (forward packs) or gradients (backward packs) that
      /// leaves a virtual stage on one rank of its group.
      { times.transfer(pack, virtual_stage, rank) } -> std::same_as<Nanos>;
      /// R of one chunk of one stage.
      { times.reduce(pp, chunk) } -> std::same_as<Nanos>;
      /// O of one device.
      { times.optimizer(dp, pp) } -> std::same_as<Nanos>;
    };

/// Times that tell W of each rank, since ranks of a group run it without each other.
template <class Times>
concept RankedWeightTimes =
    UnitTimes<Times> &&
    requires(const Times& times, PackId pack, std::int32_t virtual_stage, std::size_t rank) {
      /// W of a weight pack on one virtual stage of one rank of its group.
      { times.weight(pack, virtual_stage, rank) } -> std::same_as<Nanos>;
    };

/// Times that tell which virtual stages have those of the one before, so that nobody asks for both.
template <class Times>
concept ComparedTimes =
    UnitTimes<Times> && requires(const Times& times, std::int32_t virtual_stage) {
      /// Whether F, B, W and the transfers that leave the virtual stage take as long as those of
      /// the one before, for all packs and ranks. False may be said of some that do.
      { times.as_before(virtual_stage) } -> std::same_as<bool>;
    };

/// W of a weight pack for one rank of its group, or `compute` where `times` tells no more.
template <UnitTimes Times>
[[nodiscard]] Nanos weight_time(const Times& times, PackId pack, std::int32_t virtual_stage,
                                std::size_t rank) {
  if constexpr (RankedWeightTimes<Times>) {
    return times.weight(pack, virtual_stage, rank);
  } else {
    return times.compute(pack, virtual_stage);
  }
}

}  // namespace slimpack
