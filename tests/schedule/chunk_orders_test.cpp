// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "schedule/order_text.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/schedule/execution.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/orders.hpp"

using namespace slimpack;

namespace {

/// Every item once forward and once backward on every stage; ends with any max_in_flight.
void check_order(std::int32_t stages, const schedule::StageOrders& orders, std::int32_t items,
                 std::int32_t max_in_flight) {
  REQUIRE(orders.size() == static_cast<std::size_t>(stages));
  for (const auto& order : orders) {
    CHECK(order.size() == 2U * static_cast<std::size_t>(items));
    CHECK(std::set<schedule::PipelineOp>(order.begin(), order.end()).size() == order.size());
  }
  const schedule::Pipeline pipeline{stages, 1};
  CHECK_NOTHROW(static_cast<void>(schedule::execute_abstractly(pipeline, orders, max_in_flight)));
  CHECK(test::orders_end(pipeline,
                         schedule::with_heads(pipeline, orders, LmHead::last, max_in_flight),
                         max_in_flight));
}

}  // namespace

TEST_CASE("chunked_one_f_one_b: two stages, three chunks then one and one, by hand") {
  const std::vector<std::int32_t> chunks{3, 1, 1};
  CHECK(test::orders_text(
            schedule::chunked_one_f_one_b(2, chunks, schedule::ChunkLead::just_in_time)) ==
        "F0 F1 F2 F3 B2 B1 B0 F4 B3 B4\n"
        "F0 F1 F2 B2 B1 B0 F3 B3 F4 B4\n");
  CHECK(test::orders_text(schedule::chunked_one_f_one_b(2, chunks, schedule::ChunkLead::steady)) ==
        "F0 F1 F2 F3 B2 F4 B1 B0 B3 B4\n"
        "F0 F1 F2 B2 F3 B1 F4 B0 B3 B4\n");
}

TEST_CASE("chunked_one_f_one_b: the forward units of a later sequence come one by one in time") {
  const std::vector<std::int32_t> chunks{1, 1, 1, 3};
  CHECK(test::orders_text(
            schedule::chunked_one_f_one_b(1, chunks, schedule::ChunkLead::just_in_time)) ==
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B5 B4 B3\n");
}

TEST_CASE("chunked_one_f_one_b: sequences of one chunk are in the order of 1F1B") {
  for (std::int32_t stages = 1; stages <= 5; ++stages) {
    for (std::int32_t items = 0; items <= 9; ++items) {
      const std::vector<std::int32_t> chunks(static_cast<std::size_t>(items), 1);
      for (const schedule::ChunkLead lead :
           {schedule::ChunkLead::steady, schedule::ChunkLead::just_in_time}) {
        CHECK(schedule::chunked_one_f_one_b(stages, chunks, lead) ==
              schedule::one_f_one_b(stages, items));
      }
    }
  }
}

TEST_CASE("chunked_one_f_one_b: complete, in sequence order, free of deadlock, few in flight") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto stages = static_cast<std::int32_t>(random.between(1, 8));
    std::vector<std::int32_t> chunks;
    for (std::int64_t count = random.between(1, 12); count > 0; --count) {
      chunks.push_back(static_cast<std::int32_t>(random.chance(1, 3) ? random.between(1, 9) : 1));
    }
    const std::int32_t items = std::accumulate(chunks.begin(), chunks.end(), 0);
    const std::int32_t most = *std::max_element(chunks.begin(), chunks.end());
    const schedule::StageOrders steady =
        schedule::chunked_one_f_one_b(stages, chunks, schedule::ChunkLead::steady);
    const schedule::StageOrders lean =
        schedule::chunked_one_f_one_b(stages, chunks, schedule::ChunkLead::just_in_time);
    for (const schedule::StageOrders* orders : {&steady, &lean}) {
      for (const std::int32_t max_in_flight : {1, 2})
        check_order(stages, *orders, items, max_in_flight);
      for (const auto& order : *orders) {
        std::vector<std::int32_t> backward;
        std::int32_t forward = 0;
        for (const schedule::PipelineOp& step : order) {
          if (step.kind == UnitKind::forward) CHECK(step.item == forward++);
          if (step.kind == UnitKind::backward) backward.push_back(step.item);
        }
        std::size_t i = 0;
        std::int32_t first = 0;
        for (const std::int32_t count : chunks) {
          for (std::int32_t item = first + count - 1; item >= first; --item) {
            CHECK(backward[i++] == item);
          }
          first += count;
        }
      }
    }
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      const auto i = static_cast<std::size_t>(stage);
      CHECK(schedule::most_in_flight(steady[i]) <= std::min(items, most + stages - 1 - stage));
      CHECK(schedule::most_in_flight(lean[i]) <= schedule::most_in_flight(steady[i]));
    }
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::chunked_one_f_one_b(
                           2, std::vector<std::int32_t>{1, 0}, schedule::ChunkLead::steady)),
                       "chunked_one_f_one_b: chunks of a sequence must be >= 1, got 0",
                       InvalidInput);
}

TEST_CASE("cyclic_order: three stages, by hand") {
  CHECK(test::orders_text(schedule::cyclic_order(3, 6, schedule::kAmpleRoom)) ==
        "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5\n"
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5\n"
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5\n");
}

TEST_CASE("cyclic_order: room for one item runs them one by one") {
  const auto none = [](std::int32_t, std::int32_t, std::int32_t) { return false; };
  CHECK(test::orders_text(schedule::cyclic_order(2, 3, none)) ==
        "F0 B0 F1 B1 F2 B2\n"
        "F0 B0 F1 B1 F2 B2\n");
}

TEST_CASE("cyclic_order: complete, free of deadlock, within the room of every stage") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto stages = static_cast<std::int32_t>(random.between(1, 8));
    const auto items = static_cast<std::int32_t>(random.between(0, 24));
    const auto max_in_flight = static_cast<std::int32_t>(random.between(1, 3));
    std::vector<std::int64_t> bytes, limit;
    for (std::int32_t item = 0; item < items; ++item) bytes.push_back(random.between(1, 20));
    for (std::int32_t stage = 0; stage < stages; ++stage) limit.push_back(random.between(20, 80));
    const auto held = [&](std::int32_t oldest, std::int32_t next) {
      return std::accumulate(bytes.begin() + oldest, bytes.begin() + next + 1, std::int64_t{0});
    };
    const auto room = [&](std::int32_t stage, std::int32_t oldest, std::int32_t next) {
      return held(oldest, next) <= limit[static_cast<std::size_t>(stage)];
    };
    const schedule::StageOrders orders = schedule::cyclic_order(stages, items, room, max_in_flight);
    check_order(stages, orders, items, max_in_flight);
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
      std::int32_t forward = 0, backward = 0;
      for (const schedule::PipelineOp& step : orders[stage]) {
        CHECK(step.item == (step.kind == UnitKind::forward ? forward : backward));
        (step.kind == UnitKind::forward ? forward : backward) += 1;
        if (forward > backward) CHECK(held(backward, forward - 1) <= limit[stage]);
      }
    }
    const schedule::StageOrders ample =
        schedule::cyclic_order(stages, items, schedule::kAmpleRoom, max_in_flight);
    check_order(stages, ample, items, max_in_flight);
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      CHECK(schedule::most_in_flight(ample[static_cast<std::size_t>(stage)]) <=
            2 * (stages - 1 - stage) + 1);
    }
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::cyclic_order(1, -1, schedule::kAmpleRoom)),
                       "cyclic_order: items must be >= 0, got -1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::cyclic_order(1, 1, schedule::kAmpleRoom, 0)),
                       "cyclic_order: max_in_flight must be >= 1, got 0", InvalidInput);
}
