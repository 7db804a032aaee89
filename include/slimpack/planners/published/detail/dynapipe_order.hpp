// SPDX-License-Identifier: Apache-2.0
// DynaPipe's order of a replica's micro-batches: clusters by time, in every permutation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/pipeline.hpp"

namespace slimpack::planners::detail {

/// Times of a replica's micro-batches on each stage, by stage, then micro-batch.
struct ReplicaTimes {
  std::size_t stages = 1;
  std::size_t items = 0;
  std::vector<std::int64_t> forward, backward;       ///< of units
  std::vector<std::int64_t> activations, gradients;  ///< of transfers that leave the stage
  std::vector<std::int64_t> head;                    ///< of H on the last stage, by item
};

/// When the last unit ends if step i of the orders stands for micro-batch `place[i]`, transfers
/// never wait for each other and sends never block. O(steps * stages) at worst.
[[nodiscard]] inline std::int64_t orders_end(const ReplicaTimes& times,
                                             const schedule::StageOrders& orders,
                                             std::span<const std::size_t> place) {
  constexpr std::int64_t kNotYet = -1;
  std::vector<std::int64_t> forward(times.stages * times.items, kNotYet), backward = forward;
  std::vector<std::size_t> next(times.stages);
  std::vector<std::int64_t> free(times.stages);
  std::size_t left = 2 * times.stages * times.items;
  while (left > 0) {
    const std::size_t before = left;
    for (std::size_t stage = 0; stage < times.stages; ++stage) {
      const bool last = stage + 1 == times.stages;
      for (; next[stage] < orders[stage].size(); ++next[stage], --left) {
        const schedule::PipelineOp& step = orders[stage][next[stage]];
        const std::size_t item = place[static_cast<std::size_t>(step.item)];
        const std::size_t here = stage * times.items + item;
        std::int64_t ready = 0;
        if (step.kind == UnitKind::forward) {
          if (stage > 0) {
            const std::size_t from = here - times.items;
            if (forward[from] == kNotYet) break;
            ready = forward[from] + times.activations[from];
          }
          free[stage] = std::max(free[stage], ready) + times.forward[here];
          forward[here] = free[stage];
          // H follows its forward unit.
          if (last) free[stage] += times.head[item];
        } else {
          if (!last) {
            const std::size_t from = here + times.items;
            if (backward[from] == kNotYet) break;
            ready = backward[from] + times.gradients[from];
          }
          free[stage] = std::max(free[stage], ready) + times.backward[here];
          backward[here] = free[stage];
        }
      }
    }
    SLIMPACK_ASSERT(left < before);
    if (left == before) break;
  }
  return *std::max_element(free.begin(), free.end());
}

/// Items in at most `most` clusters of similar time, longest first: k-means on the line from even
/// quantiles, all in integers. Equal times stay together. O(n log n).
[[nodiscard]] inline std::vector<std::vector<std::size_t>> cluster_by_time(
    std::span<const std::int64_t> time, std::size_t most) {
  if (time.empty()) return {};
  std::vector<std::size_t> order(time.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return time[a] > time[b]; });
  const std::size_t count = std::min(most, order.size());
  std::vector<std::size_t> first(count + 1);
  for (std::size_t i = 0; i <= count; ++i) first[i] = i * order.size() / count;
  constexpr int kRounds = 32;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::int64_t> mean(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto size = static_cast<std::int64_t>(first[i + 1] - first[i]);
      std::int64_t sum = 0;
      for (std::size_t item = first[i]; item < first[i + 1]; ++item) sum += time[order[item]];
      mean[i] = size > 0 ? sum / size : (i > 0 ? mean[i - 1] : time[order.front()]);
    }
    std::vector<std::size_t> moved = first;
    for (std::size_t i = 1; i < count; ++i) {
      const std::int64_t border = (mean[i - 1] + mean[i]) / 2;
      moved[i] = static_cast<std::size_t>(
          std::partition_point(order.begin(), order.end(),
                               [&](std::size_t item) { return time[item] > border; }) -
          order.begin());
    }
    if (moved == first) break;
    first = std::move(moved);
  }
  std::vector<std::vector<std::size_t>> clusters;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::size_t> cluster(order.begin() + static_cast<std::ptrdiff_t>(first[i]),
                                     order.begin() + static_cast<std::ptrdiff_t>(first[i + 1]));
    if (!cluster.empty()) clusters.push_back(std::move(cluster));
  }
  return clusters;
}

/// Orders to try: as the items are, and every permutation of the clusters, at most 4 of them, 3 of
/// more than 20 items (each item its own cluster where they are few). Inside a cluster items keep
/// their order.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> cluster_orders(
    std::span<const std::int64_t> time) {
  std::vector<std::vector<std::size_t>> orders(1);
  orders.front().resize(time.size());
  std::iota(orders.front().begin(), orders.front().end(), std::size_t{0});
  if (time.size() < 2) return orders;
  constexpr std::size_t kMany = 20;
  std::vector<std::vector<std::size_t>> clusters =
      cluster_by_time(time, time.size() > kMany ? 3 : 4);
  for (auto& cluster : clusters) std::sort(cluster.begin(), cluster.end());
  std::vector<std::size_t> turn(clusters.size());
  std::iota(turn.begin(), turn.end(), std::size_t{0});
  do {
    std::vector<std::size_t> order;
    for (const std::size_t i : turn) {
      order.insert(order.end(), clusters[i].begin(), clusters[i].end());
    }
    if (order != orders.front()) orders.push_back(std::move(order));
  } while (std::next_permutation(turn.begin(), turn.end()));
  return orders;
}

}  // namespace slimpack::planners::detail
