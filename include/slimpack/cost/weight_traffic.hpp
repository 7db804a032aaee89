// SPDX-License-Identifier: Apache-2.0
// What data-parallel ranks that share weights send, layer by layer (ZeRO-3).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/pack_rounds.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The traffic of a stage whose data-parallel ranks share weights and gradients
/// (`WeightState::sharded`; Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
/// Trillion Parameter Models", SC 2020, stage 3): F and B gather the weights of each layer before
/// they run it, B sums the layer's gradients on the ranks that own them behind it. The embedding's
/// table, and the head with the final norm, count as a layer each.
struct WeightTraffic {
  std::int64_t layers = 1;  ///< gathered one after another
  Nanos gather;             ///< of all weights of the stage
  Nanos scatter;            ///< of all their gradients
};

/// The traffic of stage `pp`. A gather takes as long as a reduction that scatters as many bytes.
/// O(ranks + stages).
template <CostModel Model>
[[nodiscard]] WeightTraffic weight_traffic(const Plan& plan, const Links& links, const Model& model,
                                           std::int32_t pp) {
  const Link& link = links.all_ranks(pp);
  const DeviceWeights weights = device_weights(plan, pp);
  WeightTraffic traffic;
  traffic.layers = (weights.embedding > 0 ? 1 : 0) + (weights.head > 0 ? 1 : 0);
  for (const Stage& stage : plan.stages) traffic.layers += stage.pp == pp ? stage.layers() : 0;
  traffic.layers = std::max<std::int64_t>(1, traffic.layers);
  const std::int64_t parts = plan.parallel.tp * traffic.layers;
  const auto time = [&](std::int64_t each) {
    const Bytes layer{(weights.total() * each + parts - 1) / parts};
    return model.reduce(layer, plan.parallel.dp, link) * traffic.layers;
  };
  traffic.gather = time(plan.model.bytes_per_element);
  traffic.scatter = time(plan.memory.gradient_bytes);
  return traffic;
}

/// A unit's time with traffic that hides behind it but for one of `layers` parts of the shorter,
/// and takes `share` of the device while both run.
[[nodiscard]] constexpr Nanos with_traffic(Nanos compute, Nanos traffic, std::int64_t layers,
                                           double share = 0) noexcept {
  const Nanos both = std::min(compute, traffic);
  const Nanos taken{static_cast<std::int64_t>(static_cast<double>(both.value) * share)};
  return std::max(compute, traffic) + Nanos{(both.value + layers - 1) / layers} + taken;
}

namespace detail {

/// Ranks that share weights run the MicroPacks of a round together: each F and B lasts as long as
/// the slowest of its round with the traffic of its pass (`sent`, forward and backward), and B
/// waits besides for the round's longest H. `unit(pack)` is a pack's time, to be changed, of which
/// `alone[pack]` hides no traffic, `head(pack, rank)` that of its H on a rank of its group. O(packs
/// x ranks).
template <class Unit, class Head>
void run_in_rounds(const Plan& plan, std::int64_t layers, std::span<const Nanos> sent,
                   std::span<const Nanos> alone, Unit unit, Head head) {
  struct Round {
    std::array<Nanos, 2> slowest;  // F and B
    Nanos head;
    std::vector<Nanos> heads;  // by rank
  };
  const PackRounds rounds(plan);
  std::vector<Round> found(
      rounds.count(), {{}, {}, std::vector<Nanos>(static_cast<std::size_t>(plan.parallel.dp))});
  const auto for_each = [&](const auto& visit) {
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const MicroPack& pack = plan.micropacks[i];
      if (pack.pass != Pass::weight) {
        visit(i, pack, found[rounds.of(i)], pack.pass == Pass::forward ? 0U : 1U);
      }
    }
  };
  for_each([&](std::size_t i, const MicroPack& pack, Round& round, std::size_t pass) {
    const Nanos time =
        with_traffic(unit(i) - alone[i], sent[pass], layers, plan.cluster.small.collective_compute);
    round.slowest[pass] = std::max(round.slowest[pass], time + alone[i]);
    if (pass == 1) return;
    const std::vector<std::int32_t>& ranks = plan.groups[index(pack.group)];
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      round.heads[static_cast<std::size_t>(ranks[rank])] = head(i, rank);
      round.head = std::max(round.head, head(i, rank));
    }
  });
  for_each([&](std::size_t i, const MicroPack& pack, const Round& round, std::size_t pass) {
    Nanos& time = unit(i);
    time = round.slowest[pass];
    if (pass == 0) return;
    Nanos own;
    for (const std::int32_t dp : plan.groups[index(pack.group)]) {
      own = std::max(own, round.heads[static_cast<std::size_t>(dp)]);
    }
    time += round.head - own;
  });
}

}  // namespace detail

}  // namespace slimpack
