// SPDX-License-Identifier: Apache-2.0
// A simulated plan's graph cut into one for each device, joined by messages and collectives.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report::detail {

/// What a node of a device's graph does.
enum class LocalKind : std::uint8_t {
  compute,        ///< a unit, or a part of it
  send,           ///< a message leaves
  receive,        ///< it arrives
  barrier,        ///< several devices begin something together
  exchange,       ///< the ring of a context-parallel group
  heads,          ///< a context-parallel group's exchange by heads
  head,           ///< what the stages of a sharded head tell each other
  tensor_gather,  ///< gathers inside layers
  tensor_reduce,  ///< reductions inside layers
  reduce,         ///< a bucket of gradients, over data-parallel ranks
  table,          ///< a tied table's gradients, over the stages that hold it
  gather,         ///< updated or shared weights, over data-parallel ranks
  scatter         ///< gradients of shared weights, over data-parallel ranks
};

/// Whether nodes of this kind are collectives.
[[nodiscard]] constexpr bool is_collective(LocalKind kind) noexcept {
  return kind > LocalKind::receive;
}

/// A node of a device's graph; its number is its place. Dependencies have lower numbers.
struct LocalNode {
  LocalKind kind = LocalKind::compute;
  sim::NodeId of{};                  ///< the simulated node that it is, or belongs to
  std::uint32_t part = 0;            ///< compute: which part of its unit, from 0
  std::uint32_t parts = 1;           ///< compute: how many there are
  Nanos start, duration;             ///< a collective inside a unit takes no time of its own
  std::vector<std::uint32_t> after;  ///< ascending, without repetition
};

/// The graphs of all devices, in the order of `Plan::schedule`.
///
/// Nodes are numbered in the order in which the simulation ran them, so that all members of a group
/// meet in the same order. A node awaits what its simulated node awaits on the same device; what
/// that awaits elsewhere is enforced by messages, which begin when both ends are ready, and by
/// collectives, which begin when all members are. A B or W whose gradients are reduced bucket by
/// bucket is cut in parts. Throws InvalidInput if the simulation is not of the plan.
[[nodiscard]] std::vector<std::vector<LocalNode>> device_graphs(
    const Plan& plan, const sim::PlanSimulation& simulation);

/// The devices, as (dp, pp) and ascending, of all that a join starts.
[[nodiscard]] std::vector<std::pair<std::int32_t, std::int32_t>> places_that_meet(
    const Plan& plan, const sim::Dag& dag, sim::NodeId join);

}  // namespace slimpack::report::detail
