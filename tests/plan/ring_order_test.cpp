// SPDX-License-Identifier: Apache-2.0
#include "slimpack/plan/ring_order.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"

namespace slimpack {
namespace {

/// A plan with one group of these ranks and a device for each (dp, pp, tp), numbered by
/// `device_of`.
template <class DeviceOf>
Plan placed(Parallel parallel, std::vector<std::int32_t> group, DeviceOf device_of) {
  Plan plan;
  plan.cluster.devices_per_node = 8;
  plan.parallel = parallel;
  plan.groups = {std::move(group)};
  for (std::int32_t dp = 0; dp < parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
      for (std::int32_t tp = 0; tp < parallel.tp; ++tp) {
        plan.placement.push_back({dp, pp, tp, device_of(dp, pp, tp)});
      }
    }
  }
  return plan;
}

TEST_CASE("RingOrder: all see what each brings once, and it comes home over links of its own") {
  for (std::int64_t ranks = 1; ranks <= 24; ++ranks) {
    for (std::int64_t per_node = 1; per_node <= ranks; ++per_node) {
      if (ranks % per_node != 0) continue;
      const RingOrder order{ranks, per_node};
      CAPTURE(ranks);
      CAPTURE(per_node);
      std::int64_t between = 0;
      std::vector<std::vector<bool>> seen(static_cast<std::size_t>(ranks),
                                          std::vector<bool>(static_cast<std::size_t>(ranks)));
      for (std::int64_t hop = 0; hop < ranks; ++hop) {
        std::int64_t leaving = 0;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const std::int64_t owner = order.owner(rank, hop), next = order.next(rank, hop);
          REQUIRE(0 <= next);
          REQUIRE(next < ranks);
          CHECK(order.before(next, hop) == rank);
          CHECK(order.owner(next, hop + 1) == owner);
          CHECK_FALSE(seen[static_cast<std::size_t>(rank)][static_cast<std::size_t>(owner)]);
          seen[static_cast<std::size_t>(rank)][static_cast<std::size_t>(owner)] = true;
          leaving += next / per_node != rank / per_node ? 1 : 0;
        }
        // All ranks of a node leave it together, or none.
        CHECK((leaving == 0 || leaving == ranks));
        if (hop + 1 < ranks && leaving > 0) ++between;
      }
      for (std::int64_t rank = 0; rank < ranks; ++rank) CHECK(order.owner(rank, ranks) == rank);
      CHECK(between == order.nodes() - 1);
      CHECK(order.hops_between() == (per_node > 1 ? between : 0));
    }
  }
}

TEST_CASE("ring_orders: node by node where nodes have as many ranks, one after the other") {
  const auto ranks_together = [](std::int32_t dp, std::int32_t pp, std::int32_t tp) {
    return (pp * 16 + dp) * 2 + tp;  // 16 ranks, 2 devices each: 4 ranks of a stage in a node
  };
  const Parallel parallel{.dp = 16, .pp = 2, .tp = 2};
  const auto order = [&](std::vector<std::int32_t> group) {
    const auto orders = ring_orders(placed(parallel, std::move(group), ranks_together));
    REQUIRE(orders.size() == 2);
    CHECK(orders[0] == orders[1]);
    return orders[0];
  };
  CHECK(order({0, 1, 2, 3}) == RingOrder{4, 4});
  CHECK(order({0, 1, 2, 3, 4, 5, 6, 7}) == RingOrder{8, 4});
  CHECK(order({2, 3, 4, 5}) == RingOrder{4, 2});
  CHECK(order({0, 4, 8, 12}) == RingOrder{4, 1});
  CHECK(order({1, 2, 3, 4}) == RingOrder{4, 4});        // three and one
  CHECK(order({0, 4, 1, 5}) == RingOrder{4, 4});        // a node comes twice
  CHECK(order({3, 4, 5, 6, 7, 8}) == RingOrder{6, 6});  // one, four, one
  CHECK(order({7}) == RingOrder{1, 1});
  CHECK(order({0, 1, 2, 3, 4, 5, 6, 7}).hops_between() == 1);
  CHECK(order({0, 4, 8, 12}).hops_between() == 0);
}

TEST_CASE("ring_orders: one ring where tensor-parallel devices lie differently") {
  const auto device = [](std::int32_t dp, std::int32_t, std::int32_t tp) {
    return tp == 0 ? dp * 4 : 100 + dp * 8;  // two ranks of a node, and one
  };
  const Plan plan = placed({.dp = 4, .pp = 1, .tp = 2}, {0, 1, 2, 3}, device);
  CHECK(ring_orders(plan) == std::vector{RingOrder{4, 4}});
}

}  // namespace
}  // namespace slimpack
