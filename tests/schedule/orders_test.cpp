// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "schedule/order_text.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/schedule/execution.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/orders.hpp"

using namespace slimpack;

namespace {

/// Every item once forward and once backward on every chunk of every stage.
void check_complete(const schedule::StageOrders& orders, const schedule::Pipeline& pipeline,
                    std::int32_t items) {
  REQUIRE(orders.size() == static_cast<std::size_t>(pipeline.stages));
  for (const auto& order : orders) {
    const std::set<schedule::PipelineOp> distinct(order.begin(), order.end());
    CHECK(distinct.size() == order.size());
    CHECK(order.size() == 2U * static_cast<std::size_t>(pipeline.chunks * items));
    CHECK(std::all_of(order.begin(), order.end(), [&](const schedule::PipelineOp& step) {
      return (step.kind == UnitKind::forward || step.kind == UnitKind::backward) &&
             step.item >= 0 && step.item < items && step.chunk >= 0 && step.chunk < pipeline.chunks;
    }));
  }
}

/// The abstract makespan with F of one slot and B of two.
std::int64_t makespan(const schedule::Pipeline& pipeline, const schedule::StageOrders& orders,
                      std::int32_t max_in_flight) {
  const auto begin = schedule::execute_abstractly(pipeline, orders, max_in_flight);
  std::int64_t end = 0;
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    for (std::size_t i = 0; i < orders[stage].size(); ++i) {
      end = std::max(end, begin[stage][i] + (orders[stage][i].kind == UnitKind::forward ? 1 : 2));
    }
  }
  return end;
}

void check_ends(const schedule::Pipeline& pipeline, const schedule::StageOrders& orders,
                std::int32_t max_in_flight) {
  CHECK(test::orders_end(pipeline, orders, max_in_flight));
  CHECK_NOTHROW(static_cast<void>(schedule::execute_abstractly(pipeline, orders, max_in_flight)));
  CHECK(test::orders_end(pipeline,
                         schedule::with_heads(pipeline, orders, LmHead::last, max_in_flight),
                         max_in_flight));
  const auto sharded = schedule::with_heads(pipeline, orders, LmHead::shard, max_in_flight);
  CHECK(test::orders_end(pipeline, sharded, max_in_flight));
  CHECK(test::orders_end(pipeline, sharded, max_in_flight + 1));
}

}  // namespace

TEST_CASE("one_f_one_b: four stages, four micro-batches") {
  CHECK(test::orders_text(schedule::one_f_one_b(4, 4)) ==
        "F0 F1 F2 F3 B0 B1 B2 B3\n"
        "F0 F1 F2 B0 F3 B1 B2 B3\n"
        "F0 F1 B0 F2 B1 F3 B2 B3\n"
        "F0 B0 F1 B1 F2 B2 F3 B3\n");
}

TEST_CASE("one_f_one_b: fewer micro-batches than stages, and none") {
  CHECK(test::orders_text(schedule::one_f_one_b(3, 1)) == "F0 B0\nF0 B0\nF0 B0\n");
  CHECK(test::orders_text(schedule::one_f_one_b(2, 0)) == "\n\n");
}

TEST_CASE("one_f_one_b: complete, free of deadlock, p - r in flight, (p-1)/m idle") {
  for (std::int32_t p = 1; p <= 8; ++p) {
    for (std::int32_t m = 1; m <= 20; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const schedule::Pipeline pipeline{p, 1};
      const auto orders = schedule::one_f_one_b(p, m);
      check_complete(orders, pipeline, m);
      for (std::int32_t r = 0; r < p; ++r) {
        CHECK(schedule::most_in_flight(orders[static_cast<std::size_t>(r)]) == std::min(m, p - r));
      }
      check_ends(pipeline, orders, 1);
      check_ends(pipeline, orders, 2);
      CHECK(makespan(pipeline, orders, 2) == 3 * (m + p - 1));
    }
  }
}

TEST_CASE("interleaved: two stages, two chunks, four micro-batches") {
  CHECK(test::orders_text(schedule::interleaved({2, 2}, 4), 2) ==
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0\n"
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0\n");
}

TEST_CASE("interleaved: three stages, two chunks, two micro-batches") {
  CHECK(test::orders_text(schedule::interleaved({3, 2}, 2), 2) ==
        "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0\n"
        "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0\n"
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0\n");
}

TEST_CASE("interleaved: groups are as equal as can be and hold p to 2p-1 micro-batches") {
  for (std::int32_t p = 1; p <= 9; ++p) {
    for (std::int32_t m = 1; m <= 60; ++m) {
      const auto groups = schedule::interleaved_groups(p, m);
      std::int32_t sum = 0;
      for (const std::int32_t size : groups) sum += size;
      CHECK(sum == m);
      CHECK(groups.front() - groups.back() <= 1);
      if (m >= p) {
        CHECK(groups.back() >= p);
        CHECK(groups.front() <= 2 * p - 1);
      } else {
        CHECK(groups.size() == 1);
      }
    }
  }
}

TEST_CASE("interleaved: complete and free of deadlock for any number of micro-batches") {
  for (std::int32_t p = 1; p <= 8; ++p) {
    for (std::int32_t v = 2; v <= 3; ++v) {
      for (std::int32_t m = 1; m <= 3 * p + 1; ++m) {
        CAPTURE(p);
        CAPTURE(v);
        CAPTURE(m);
        const schedule::Pipeline pipeline{p, v};
        for (const std::int32_t max_in_flight : {1, 2}) {
          const auto orders = schedule::interleaved(pipeline, m, max_in_flight);
          check_complete(orders, pipeline, m);
          check_ends(pipeline, orders, max_in_flight);
        }
      }
    }
  }
}

TEST_CASE("interleaved: (p-1)/(v m) idle with a multiple of p micro-batches") {
  for (std::int32_t p = 2; p <= 8; ++p) {
    for (std::int32_t v = 1; v <= 4; ++v) {
      for (std::int32_t m = p; m <= 4 * p; m += p) {
        CAPTURE(p);
        CAPTURE(v);
        CAPTURE(m);
        const schedule::Pipeline pipeline{p, v};
        const auto orders = schedule::interleaved(pipeline, m);
        CHECK(makespan(pipeline, orders, 2) == 3 * (v * m + p - 1));
        for (std::int32_t r = 0; v > 1 && r < p; ++r) {
          CHECK(schedule::most_in_flight(orders[static_cast<std::size_t>(r)]) ==
                std::min(v * m, 2 * (p - 1 - r) + (v - 1) * p + 1));
        }
      }
    }
  }
}

TEST_CASE("slimpipe: two stages, one chunk, two sequences of four slices") {
  const std::array<std::int32_t, 2> slices{4, 4};
  CHECK(test::orders_text(schedule::slimpipe({2, 1}, slices)) ==
        "F0 F1 F2 F3 F4 F5 B3 F6 B2 F7 B1 B0 B7 B6 B5 B4\n"
        "F0 F1 F2 F3 B3 F4 B2 F5 B1 F6 B0 F7 B7 B6 B5 B4\n");
}

TEST_CASE("slimpipe: two stages, two chunks, one sequence of four slices, one of one") {
  const std::array<std::int32_t, 2> slices{4, 1};
  CHECK(test::orders_text(schedule::slimpipe({2, 2}, slices), 2) ==
        "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F2.1 F3.1 F4.0 B3.1 F4.1 B2.1 B3.0 B2.0 B1.1 B0.1 B1.0 B0.0 "
        "B4.1 B4.0\n"
        "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F2.1 F3.1 B3.1 F4.0 B2.1 B3.0 F4.1 B2.0 B1.1 B0.1 B1.0 B0.0 "
        "B4.1 B4.0\n");
}

TEST_CASE("slimpipe: n v + 2(p-1-r) in flight and (p-1)/(n v m) idle") {
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t v = 1; v <= 4; ++v) {
      for (std::int32_t n = p; n <= 4 * p; n += p) {
        for (std::int32_t m = 1; m <= 4; ++m) {
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(n);
          CAPTURE(m);
          const schedule::Pipeline pipeline{p, v};
          const std::vector<std::int32_t> slices(static_cast<std::size_t>(m), n);
          const auto orders = schedule::slimpipe(pipeline, slices);
          check_complete(orders, pipeline, n * m);
          for (std::int32_t r = 0; r < p; ++r) {
            CHECK(schedule::most_in_flight(orders[static_cast<std::size_t>(r)]) ==
                  std::min(n * v * m, n * v + 2 * (p - 1 - r)));
          }
          CHECK(makespan(pipeline, orders, 2) == 3 * (n * v * m + p - 1));
        }
      }
    }
  }
}

TEST_CASE("slimpipe: any numbers of slices are complete, ordered and free of deadlock") {
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const schedule::Pipeline pipeline{static_cast<std::int32_t>(random.between(1, 8)),
                                      static_cast<std::int32_t>(random.between(1, 4))};
    std::vector<std::int32_t> slices(static_cast<std::size_t>(random.between(0, 6)));
    std::int32_t items = 0;
    std::int32_t longest = 0;
    for (std::int32_t& count : slices) {
      count = static_cast<std::int32_t>(random.between(1, 3 * pipeline.stages));
      items += count;
      longest = std::max(longest, count);
    }
    const auto orders = schedule::slimpipe(pipeline, slices);
    check_complete(orders, pipeline, items);
    check_ends(pipeline, orders, 1);
    check_ends(pipeline, orders, 2);
    for (std::int32_t r = 0; r < pipeline.stages; ++r) {
      const auto& order = orders[static_cast<std::size_t>(r)];
      const std::int32_t filled = pipeline.chunks == 1 ? longest
                                                       : (longest + pipeline.stages - 1) /
                                                             pipeline.stages * pipeline.stages;
      CHECK(schedule::most_in_flight(order) <=
            filled * pipeline.chunks + 2 * (pipeline.stages - 1 - r));
      std::int32_t first = 0;
      for (const std::int32_t count : slices) {
        for (std::int32_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
          std::vector<std::int32_t> forward;
          std::vector<std::int32_t> backward;
          for (const schedule::PipelineOp& step : order) {
            if (step.chunk != chunk || step.item < first || step.item >= first + count) continue;
            (step.kind == UnitKind::forward ? forward : backward).push_back(step.item);
          }
          CHECK(std::is_sorted(forward.begin(), forward.end()));
          CHECK(std::is_sorted(backward.rbegin(), backward.rend()));
        }
        first += count;
      }
    }
  }
}

TEST_CASE("with_heads: right behind the last forward, or at the same instant on every stage") {
  const auto orders = schedule::one_f_one_b(3, 3);
  CHECK(test::orders_text(schedule::with_heads({3, 1}, orders, LmHead::last)) ==
        "F0 F1 F2 B0 B1 B2\n"
        "F0 F1 B0 F2 B1 B2\n"
        "F0 H0 B0 F1 H1 B1 F2 H2 B2\n");
  CHECK(test::orders_text(schedule::with_heads({3, 1}, orders, LmHead::shard)) ==
        "F0 F1 F2 H0 H1 B0 H2 B1 B2\n"
        "F0 F1 H0 B0 H1 F2 B1 H2 B2\n"
        "F0 H0 B0 F1 H1 B1 F2 H2 B2\n");
}

TEST_CASE("with_heads: the last chunk's forward unit alone has a head behind it") {
  const auto orders = schedule::with_heads({1, 2}, schedule::interleaved({1, 2}, 2), LmHead::shard);
  CHECK(test::orders_text(orders, 2) == "F0.0 F0.1 H0 B0.1 F1.0 B0.0 F1.1 H1 B1.1 B1.0\n");
}

TEST_CASE("with_updates: R behind a chunk's last backward unit, O at the end") {
  const std::array<std::int32_t, 1> slices{2};
  CHECK(test::orders_text(schedule::with_updates({2, 2}, schedule::slimpipe({2, 2}, slices)), 2) ==
        "F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 R.1 B1.0 B0.0 R.0 O\n"
        "F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 R.1 B1.0 B0.0 R.0 O\n");
  CHECK(test::orders_text(schedule::with_updates({1, 3}, {{}}), 3) == "R.2 R.1 R.0 O\n");
}

TEST_CASE("name_units: items become packs") {
  const std::array<PackId, 2> forward{PackId{4}, PackId{7}};
  const std::array<PackId, 2> backward{PackId{5}, PackId{8}};
  const std::vector<schedule::PipelineOp> order{{UnitKind::forward, 1, 2},
                                                {UnitKind::head, 1, 0},
                                                {UnitKind::backward, 0, 1},
                                                {UnitKind::reduce, 0, 1},
                                                {UnitKind::optimizer, 0, 0}};
  const std::vector<Unit> units{{UnitKind::forward, PackId{7}, 2},
                                {UnitKind::head, PackId{7}, 0},
                                {UnitKind::backward, PackId{5}, 1},
                                {UnitKind::reduce, PackId{0}, 1},
                                {UnitKind::optimizer, PackId{0}, 0}};
  CHECK(schedule::name_units(order, forward, backward) == units);
  const std::vector<schedule::PipelineOp> unknown{{UnitKind::forward, 2, 0}};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::name_units(unknown, forward, backward)),
                       "name_units: an item must have a pack, got 2", InvalidInput);
}

TEST_CASE("execute_abstractly: begins by hand") {
  const std::vector<std::vector<std::int64_t>> expected{{0, 1, 4, 7}, {1, 2, 4, 5}};
  CHECK(schedule::execute_abstractly({2, 1}, schedule::one_f_one_b(2, 2), 1) == expected);
}

TEST_CASE("execute_abstractly: units that wait for each other are named") {
  const schedule::StageOrders crossed{{{UnitKind::forward, 0, 0}, {UnitKind::backward, 0, 0}},
                                      {{UnitKind::backward, 0, 0}, {UnitKind::forward, 0, 0}}};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::execute_abstractly({2, 1}, crossed, 2)),
                       "these units wait for each other: stage 0 at B 0 of chunk 0; stage 1 at B 0 "
                       "of chunk 0",
                       Deadlock);
  const schedule::StageOrders swapped{{{UnitKind::forward, 0, 0}, {UnitKind::forward, 1, 0}},
                                      {{UnitKind::forward, 1, 0}, {UnitKind::forward, 0, 0}}};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::execute_abstractly({2, 1}, swapped, 2)),
                       "stage 1 consumes item 1 of chunk 0 in another order than it is sent",
                       Deadlock);
}

TEST_CASE("execute_abstractly: a full channel blocks its sender") {
  // Five sends before the first is consumed need a max_in_flight of three: two times as many may be
  // on the way.
  std::vector<schedule::PipelineOp> ahead;
  std::vector<schedule::PipelineOp> behind{{UnitKind::forward, 0, 0}};
  for (std::int32_t item = 0; item < 5; ++item) ahead.push_back({UnitKind::forward, item, 0});
  ahead.push_back({UnitKind::backward, 0, 0});
  behind.push_back({UnitKind::backward, 0, 0});
  const schedule::StageOrders orders{ahead, behind};
  CHECK_NOTHROW(static_cast<void>(schedule::execute_abstractly({2, 1}, orders, 3)));
  CHECK_NOTHROW(static_cast<void>(schedule::execute_abstractly({2, 1}, orders, 2)));
  CHECK(test::orders_end({2, 1}, orders, 2));
  const schedule::StageOrders never{ahead, {}};
  CHECK(!test::orders_end({2, 1}, never, 2));
  CHECK_THROWS_AS(static_cast<void>(schedule::execute_abstractly({2, 1}, never, 2)), Deadlock);
}

TEST_CASE("orders: nonsense is refused") {
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::one_f_one_b(0, 1)),
                       "pipeline: stages must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::one_f_one_b(1, -1)),
                       "one_f_one_b: items must be >= 0, got -1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::interleaved({1, 0}, 1)),
                       "pipeline: chunks must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::interleaved({1, 2}, -3)),
                       "interleaved: items must be >= 0, got -3", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::interleaved({1, 2}, 1, 0)),
                       "interleaved: max_in_flight must be >= 1, got 0", InvalidInput);
  const std::array<std::int32_t, 2> slices{2, 0};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::slimpipe({2, 1}, slices)),
                       "slimpipe: slices of a sequence must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::execute_abstractly({2, 1}, {{}}, 2)),
                       "execute_abstractly: there must be one order a stage, got 1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::execute_abstractly({1, 1}, {{}}, 0)),
                       "execute_abstractly: max_in_flight must be >= 1, got 0", InvalidInput);
  const std::vector<schedule::PipelineOp> one{{UnitKind::forward, 0, 0}};
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::one_backward_one_forward(one, {}, 1)),
                       "one_backward_one_forward: there must be as many backward as forward units, "
                       "got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::one_backward_one_forward(one, one, 0)),
                       "one_backward_one_forward: lead must be >= 1, got 0", InvalidInput);
}
