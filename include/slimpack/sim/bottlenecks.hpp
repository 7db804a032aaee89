// SPDX-License-Identifier: Apache-2.0
// Why each device's compute was idle, and which chain of nodes made the step as long as it is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/gap_finder.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// The idle intervals of all devices between 0 and the makespan, each with its cause.
struct Gaps {
  std::vector<Gap> gaps;                              ///< by device, then time
  std::vector<std::array<Nanos, kGapCauses>> device;  ///< sums, one entry a device
  std::array<Nanos, kGapCauses> sum{};                ///< over all devices
};

/// Partitions the idle time of every device by cause. `limit` is what a device may hold, capacity
/// less what is reserved. F, B and H count as work. Before a device's first work it is `fill`;
/// after its last, `drain` while its own data-parallel rank works, then `imbalance` while another
/// does, then `reduce`. In between the device waits for its next unit. From the instant at which
/// another of its units could have gone first, the cause is `order`, or `memory` where starting
/// that unit would have exceeded `limit`. Before that it is `collective` once everything of its own
/// is there, else `max_in_flight` or `peer` by what came last, `peer` on a tie. Units that could
/// have gone first are, per channel and kind of unit, the next in the schedule that are in no
/// collective.
///
///     const Gaps gaps = find_gaps(dag, timeline, plan.memory.capacity - plan.memory.reserved);
///     const Nanos filled = gaps.sum[static_cast<std::size_t>(GapCause::fill)];
///
/// O(nodes + events log events + gaps x channels of the device).
[[nodiscard]] inline Gaps find_gaps(const Dag& dag, const Timeline& timeline, Bytes limit) {
  Gaps found;
  found.gaps = detail::GapFinder(dag, timeline, limit).find();
  found.device.resize(dag.devices.size());
  for (const Gap& gap : found.gaps) {
    const auto cause = static_cast<std::size_t>(gap.cause);
    found.device[index(gap.device)][cause] += gap.end - gap.begin;
    found.sum[cause] += gap.end - gap.begin;
  }
  return found;
}

/// Why a node of the critical path could not start earlier.
enum class PathReason : std::uint8_t {
  start,          ///< it is the first
  resource,       ///< its resource ran the node before it
  data,           ///< it needs the output of the node before it
  max_in_flight,  ///< the node before it is a send, or a consumer, that had to free a buffer
  collective      ///< it is in a collective, which the node before it reached last
};

}  // namespace slimpack::sim

namespace slimpack {
// The words of `sim::PathReason`.
template <>
inline constexpr std::array<std::string_view, 5> kWords<sim::PathReason>{
    "start", "resource", "data", "window", "meeting"};
}  // namespace slimpack

namespace slimpack::sim {

/// A node of the critical path.
struct PathStep {
  NodeId node{};        ///< of the path
  PathReason reason{};  ///< why it started no earlier than the step before it ended
  friend bool operator==(const PathStep&, const PathStep&) = default;
};

namespace detail {

[[nodiscard]] inline PathReason path_reason(const Dag& dag, NodeId before, NodeId node) {
  const NodeLabel& from = dag.label[index(before)];
  const NodeLabel& to = dag.label[index(node)];
  const ResourceId resource = dag.resource[index(node)];
  if (resource != kNoResource && resource == dag.resource[index(before)]) {
    return PathReason::resource;
  }
  if (from.kind == NodeKind::join || to.kind == NodeKind::join) return PathReason::collective;
  if (from.kind == NodeKind::transfer && is_compute(to.kind)) {
    return from.dp == to.dp && from.pp == to.pp ? PathReason::max_in_flight : PathReason::data;
  }
  if (to.kind == NodeKind::transfer && is_compute(from.kind)) {
    return from.dp == to.dp && from.pp == to.pp ? PathReason::data : PathReason::max_in_flight;
  }
  return PathReason::data;
}

}  // namespace detail

/// A path whose durations sum to the makespan: each node starts when the one before it ends. The
/// walk goes back from the node that ends last; on ties the lower id, and a node of the same
/// resource before all others. O(nodes + edges).
[[nodiscard]] inline std::vector<PathStep> critical_path(const Dag& dag, const Timeline& timeline) {
  if (dag.size() == 0) return {};
  const NodeLists before = predecessors(dag);
  std::vector<std::optional<NodeId>> turn(dag.size());
  for (std::size_t row = 0; row < timeline.turns.rows(); ++row) {
    const auto nodes = timeline.turns[row];
    for (std::size_t i = 1; i < nodes.size(); ++i) turn[index(nodes[i])] = nodes[i - 1];
  }
  std::vector<PathStep> path;
  NodeId node{};
  for (std::size_t i = 0; i < dag.size(); ++i) {
    if (timeline.end[i] != timeline.makespan) continue;
    node = NodeId{static_cast<std::uint32_t>(i)};
    break;
  }
  for (;;) {
    const Nanos start = timeline.start[index(node)];
    NodeId next{};
    bool found = false;
    const auto consider = [&](NodeId candidate) {
      if (timeline.end[index(candidate)] != start) return;
      const bool same = dag.resource[index(candidate)] == dag.resource[index(node)] &&
                        dag.resource[index(node)] != kNoResource;
      if (found && !same) return;
      next = candidate;
      found = true;
    };
    for (const NodeId candidate : before[index(node)]) consider(candidate);
    if (turn[index(node)]) consider(*turn[index(node)]);
    if (start == Nanos{}) found = false;
    path.push_back({node, found ? detail::path_reason(dag, next, node) : PathReason::start});
    if (!found) break;
    node = next;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace slimpack::sim
