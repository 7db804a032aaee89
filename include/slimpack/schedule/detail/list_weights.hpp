// SPDX-License-Identifier: Apache-2.0
// W of a rank: when list scheduling may run it, and when it must, so that memory suffices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/detail/list_sequence.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::schedule::detail {

/// W of one rank on all its chunks in the order in which every stage runs them: that in which the
/// backward items end which they await, so that W of later chunks come first, as their R do.
struct RankWeights {
  std::vector<std::uint32_t> pack;
  std::vector<std::int32_t> chunk;
  std::vector<std::uint32_t> place;     ///< of the rank in the pack's group
  std::vector<std::uint32_t> after;     ///< backward items that must have ended before
  std::vector<std::int64_t> freed;      ///< bytes per layer of the item's chunk
  std::vector<std::int64_t> workspace;  ///< bytes
  // Rows of one entry an item for each stage.
  /// Backward items that may have ended before: when so many have, it runs before all else.
  std::vector<std::uint32_t> due;
  std::vector<std::int64_t> time;
  [[nodiscard]] std::size_t size() const noexcept { return pack.size(); }
  [[nodiscard]] bool empty() const noexcept { return pack.empty(); }
};

/// Lays out W of a rank whose backward items are known.
inline void lay_out_weights(RankWeights& weights, const RankPass& backward, std::int32_t dp,
                            const Plan& plan, const ScheduleParts& parts, std::size_t part) {
  weights = {};
  const auto& packs = parts.packs(part, Pass::weight);
  if (packs.empty()) return;
  const auto chunks = static_cast<std::size_t>(plan.parallel.chunks);
  std::vector<std::uint32_t> ended(parts.packs(part, Pass::backward).size() * chunks, 0);
  for (std::size_t item = 0; item < backward.size(); ++item) {
    ended[parts.position(backward.pack[item]) * chunks +
          static_cast<std::size_t>(backward.chunk[item])] = static_cast<std::uint32_t>(item + 1);
  }
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::int32_t>> items;
  for (const std::uint32_t pack : packs) {
    const auto& group = plan.groups[index(plan.micropacks[pack].group)];
    if (!std::binary_search(group.begin(), group.end(), dp)) continue;
    for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
      items.emplace_back(
          ended[parts.last_backward(pack) * chunks + static_cast<std::size_t>(chunk)], pack, chunk);
    }
  }
  std::sort(items.begin(), items.end());
  for (const auto& [after, pack, chunk] : items) {
    weights.after.push_back(after);
    weights.pack.push_back(pack);
    weights.chunk.push_back(chunk);
    weights.place.push_back(
        static_cast<std::uint32_t>(place_in_group(plan, plan.micropacks[pack].group, dp)));
  }
}

/// Sets when W of stage `pp` of a rank is due, where its B may leave `most` bytes to wait: `left`
/// are the bytes per layer of each backward item, `layers_of` the layers of each chunk of the
/// stage. What more is left makes the first of them due.
inline void find_due(RankWeights& weights, const RankPass& backward,
                     const std::vector<std::int64_t>& left,
                     const std::vector<std::int64_t>& layers_of, std::int32_t pp,
                     std::int64_t most) {
  const auto layers = [&](std::int32_t chunk) {
    return layers_of[static_cast<std::size_t>(chunk)];
  };
  std::uint32_t* due = weights.due.data() + static_cast<std::size_t>(pp) * weights.size();
  std::size_t next = 0;
  std::int64_t waiting = 0;
  for (std::size_t item = 0; item < backward.size(); ++item) {
    waiting += layers(backward.chunk[item]) * left[item];
    for (; next < weights.size() && weights.after[next] <= item + 1 && waiting > most; ++next) {
      due[next] = static_cast<std::uint32_t>(item + 1);
      waiting -= layers(weights.chunk[next]) * weights.freed[next];
    }
  }
  std::fill(due + next, due + weights.size(), static_cast<std::uint32_t>(backward.size()));
}

/// Bytes that so many neighbouring backward items of a rank leave to W on a stage, at most.
[[nodiscard]] inline std::int64_t most_left(const RankPass& backward,
                                            const std::vector<std::int64_t>& left,
                                            const std::vector<std::int64_t>& layers_of,
                                            std::size_t items) {
  const auto bytes = [&](std::size_t item) {
    return layers_of[static_cast<std::size_t>(backward.chunk[item])] * left[item];
  };
  std::int64_t sum = 0, most = 0;
  for (std::size_t item = 0; item < backward.size(); ++item) {
    sum += bytes(item);
    if (item >= items) sum -= bytes(item - items);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace slimpack::schedule::detail
