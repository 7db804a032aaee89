// SPDX-License-Identifier: Apache-2.0
// How the ranks of a context-parallel group hand things on: round a ring, or node by node.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The hops by which what each rank of a context-parallel group brings visits all of them, and
/// comes home with the last. With hop h, from 0 on, a rank hands what it holds to `next(rank, h)`
/// and takes what `before(rank, h)` held; after h hops it holds what `owner(rank, h)` brought.
///
/// Where the group lies on several nodes with `per_node` ranks each, in the order of the group, all
/// of a node's ranks see what the node holds before it goes to the next node, each part over a link
/// of its own: `hops_between` of the `ranks` - 1 hops after which everybody has seen everything
/// leave the node, all others stay inside (the two rings of LoongTrain, arXiv:2406.18485, of which
/// what is handed on takes the place of what is kept). Otherwise it is one ring. All functions are
/// O(1).
struct RingOrder {
  std::int64_t ranks = 1;     ///< of the group, at least 1
  std::int64_t per_node = 1;  ///< a divisor of `ranks`; all of them: one ring

  /// One ring of so many ranks.
  [[nodiscard]] static constexpr RingOrder one(std::int64_t ranks) noexcept {
    return {ranks, ranks};
  }
  /// How many nodes the group lies on; 1: one ring.
  [[nodiscard]] constexpr std::int64_t nodes() const noexcept { return ranks / per_node; }
  /// Of the first `ranks` - 1 hops, those from node to node where others stay inside one; 0: all
  /// are alike.
  [[nodiscard]] constexpr std::int64_t hops_between() const noexcept {
    return per_node > 1 ? nodes() - 1 : 0;
  }

  /// Who takes what `rank` hands on with a hop.
  [[nodiscard]] constexpr std::int64_t next(std::int64_t rank, std::int64_t hop) const noexcept {
    return at(rank / per_node + (leaves(hop) ? 1 : 0), rank % per_node + 1);
  }
  /// Who hands something to `rank` with a hop.
  [[nodiscard]] constexpr std::int64_t before(std::int64_t rank, std::int64_t hop) const noexcept {
    return at(rank / per_node - (leaves(hop) ? 1 : 0), rank % per_node - 1);
  }
  /// Who brought what `rank` holds after so many hops.
  [[nodiscard]] constexpr std::int64_t owner(std::int64_t rank, std::int64_t hops) const noexcept {
    return at(rank / per_node - hops / per_node, rank % per_node - hops % per_node);
  }
  friend bool operator==(const RingOrder&, const RingOrder&) = default;

 private:
  [[nodiscard]] constexpr bool leaves(std::int64_t hop) const noexcept {
    return (hop + 1) % per_node == 0;
  }
  /// The rank at a node and a place of it, both counted round.
  [[nodiscard]] constexpr std::int64_t at(std::int64_t node, std::int64_t place) const noexcept {
    const auto round = [](std::int64_t value, std::int64_t size) {
      return (value % size + size) % size;
    };
    return round(node, nodes()) * per_node + round(place, per_node);
  }
};

/// The order of so many ranks, of which `node_of(rank, tp)` gives the node of each of `tp` devices:
/// node by node where each node has as many of them, one after the other, and all tensor-parallel
/// devices alike. O(ranks x tp log ranks).
template <std::invocable<std::int64_t, std::int32_t> NodeOf>
[[nodiscard]] RingOrder ring_order(std::int64_t ranks, std::int32_t tp, NodeOf node_of) {
  if (ranks == 1) return RingOrder::one(1);
  std::optional<std::int64_t> per_node;
  for (std::int32_t part = 0; part < tp; ++part) {
    std::int64_t first = 1;
    while (first < ranks && node_of(first, part) == node_of(0, part)) ++first;
    if (ranks % first != 0 || per_node.value_or(first) != first) return RingOrder::one(ranks);
    per_node = first;
    std::vector<std::int64_t> nodes;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t node = node_of(rank, part);
      if (rank % first == 0) nodes.push_back(node);
      if (node != nodes.back()) return RingOrder::one(ranks);
    }
    std::sort(nodes.begin(), nodes.end());
    if (std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end()) return RingOrder::one(ranks);
  }
  return {ranks, per_node.value_or(ranks)};
}

/// The orders of all groups of a plan whose placement is whole, by group, then stage. O(placement +
/// ranks of groups x pp x tp log ranks).
[[nodiscard]] inline std::vector<RingOrder> ring_orders(const Plan& plan) {
  const Parallel& parallel = plan.parallel;
  const auto slot = [&](std::int32_t dp, std::int32_t pp, std::int32_t tp) {
    return (static_cast<std::size_t>(dp) * static_cast<std::size_t>(parallel.pp) +
            static_cast<std::size_t>(pp)) *
               static_cast<std::size_t>(parallel.tp) +
           static_cast<std::size_t>(tp);
  };
  std::vector<std::int64_t> node(slot(parallel.dp, 0, 0));
  for (const Placement& place : plan.placement) {
    node[slot(place.dp, place.pp, place.tp)] = place.device / plan.cluster.devices_per_node;
  }
  std::vector<RingOrder> orders;
  for (const std::vector<std::int32_t>& group : plan.groups) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
      orders.push_back(
          ring_order(static_cast<std::int64_t>(group.size()), parallel.tp,
                     [&](std::int64_t rank, std::int32_t tp) {
                       return node[slot(group[static_cast<std::size_t>(rank)], pp, tp)];
                     }));
    }
  }
  return orders;
}

}  // namespace slimpack
