// SPDX-License-Identifier: Apache-2.0
// The critical path in a few figures.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

/// What the time of a critical path was spent on.
enum class PathWork : std::uint8_t { forward, backward, head, optimizer, transfer, reduce };
inline constexpr int kPathWorks = 6;
[[nodiscard]] constexpr std::string_view to_string(PathWork work) noexcept {
  constexpr std::array<std::string_view, kPathWorks> kNames = {"forward",   "backward", "head",
                                                               "optimizer", "transfer", "reduce"};
  return kNames[static_cast<std::size_t>(work)];
}
/// A release is the part of a B after which a bucket may go, a join takes no time.
[[nodiscard]] constexpr PathWork path_work(sim::NodeKind kind) noexcept {
  if (kind == sim::NodeKind::release || kind == sim::NodeKind::join) return PathWork::backward;
  return static_cast<PathWork>(kind);
}

struct PathSummary {
  std::array<Nanos, kPathWorks> time{};  ///< by work; sums to the makespan
  std::size_t steps = 0;                 ///< of the path that take time
  std::vector<sim::PathStep> shown;      ///< of those, in the order of time
};

/// Sums up a critical path. At most `most` steps are kept, the longest, ties to the earlier.
[[nodiscard]] inline PathSummary summary_of(const sim::Dag& dag,
                                            std::span<const sim::PathStep> path,
                                            std::size_t most = 200) {
  PathSummary summary;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::size_t node = index(path[i].node);
    if (dag.duration[node] == Nanos{}) continue;
    summary.time[static_cast<std::size_t>(path_work(dag.label[node].kind))] += dag.duration[node];
    places.push_back(i);
  }
  summary.steps = places.size();
  if (places.size() > most) {
    std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
      return dag.duration[index(path[a].node)] > dag.duration[index(path[b].node)];
    });
    places.resize(most);
    std::sort(places.begin(), places.end());
  }
  for (const std::size_t i : places) summary.shown.push_back(path[i]);
  return summary;
}

}  // namespace slimpack::report
