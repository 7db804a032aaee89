// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/search/layout.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <set>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/orders.hpp"

using namespace slimpack;

namespace {
std::vector<std::int64_t> layers_of(const std::vector<Stage>& stages) {
  std::vector<std::int64_t> layers;
  for (const Stage& stage : stages) layers.push_back(stage.layers());
  return layers;
}
using Counts = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("spread_layers: by hand") {
  CHECK(layers_of(planners::spread_layers(8, {4, 1})) == Counts{2, 2, 2, 2});
  CHECK(layers_of(planners::spread_layers(10, {4, 1})) == Counts{2, 2, 3, 3});
  CHECK(layers_of(planners::spread_layers(10, {4, 1}, 0, true)) == Counts{2, 3, 3, 2});
  CHECK(layers_of(planners::spread_layers(11, {4, 1}, 0, true)) == Counts{3, 3, 3, 2});
  CHECK(layers_of(planners::spread_layers(11, {4, 1}, 1)) == Counts{3, 3, 3, 2});
  CHECK(layers_of(planners::spread_layers(8, {4, 1}, 1)) == Counts{2, 2, 3, 1});
  CHECK(layers_of(planners::spread_layers(126, {16, 1}, 2))[15] == 6);
  const std::vector<Stage> chunked = planners::spread_layers(5, {2, 2});
  const std::vector<Stage> expected{
      {0, 0, 0, 1, true}, {1, 0, 1, 2, false}, {0, 1, 2, 3, false}, {1, 1, 3, 5, false}};
  CHECK(chunked == expected);
}

TEST_CASE("spread_layers: all layers once, in order, none empty, even but for one and the last") {
  for (std::int32_t pp = 1; pp <= 9; ++pp) {
    for (std::int32_t chunks = 1; chunks <= 4; ++chunks) {
      for (std::int64_t layers = pp * chunks; layers <= 50; ++layers) {
        for (std::int32_t fewer_last_layers = 0; fewer_last_layers <= 2; ++fewer_last_layers) {
          for (const bool spare : {false, true}) {
            if ((layers + fewer_last_layers) / (pp * chunks) <= fewer_last_layers) {
              CHECK_THROWS_AS(static_cast<void>(planners::spread_layers(layers, {pp, chunks},
                                                                        fewer_last_layers, spare)),
                              InvalidInput);
              continue;
            }
            const auto stages =
                planners::spread_layers(layers, {pp, chunks}, fewer_last_layers, spare);
            REQUIRE(stages.size() == static_cast<std::size_t>(pp * chunks));
            std::int64_t next = 0;
            Counts counts = layers_of(stages);
            for (const Stage& stage : stages) {
              CHECK(stage.first_layer == next);
              CHECK(stage.layers() >= 1);
              next = stage.end_layer;
            }
            CHECK(next == layers);
            counts.back() += fewer_last_layers;
            const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end());
            CHECK(*most - *fewest <= 1);
            if (spare) CHECK(counts.back() == *fewest);
          }
        }
      }
    }
  }
}

TEST_CASE("spread_layers: nonsense is refused") {
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::spread_layers(3, {2, 2})),
                       "there must be a layer for every stage and chunk, got 3", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::spread_layers(3, {0, 2})),
                       "stages and chunks must be >= 1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::spread_layers(4, {4, 1}, 1)),
                       "fewer_last_layers must leave the last stage a layer, got 1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::spread_layers(4, {4, 1}, -1)),
                       "fewer_last_layers must be >= 0, got -1", InvalidInput);
}

TEST_CASE("place_devices: tensor-parallel devices innermost, then ranks, then stages") {
  Parallel parallel;
  parallel.dp = 3;
  parallel.pp = 2;
  parallel.tp = 4;
  const auto placement = planners::place_devices(parallel);
  CHECK(placement.size() == 24);
  std::set<std::int64_t> devices;
  for (const Placement& place : placement) {
    CHECK(place.device == (place.pp * 3 + place.dp) * 4 + place.tp);
    devices.insert(place.device);
  }
  CHECK(devices.size() == 24);
  CHECK(*devices.rbegin() == 23);
}

TEST_CASE("memory_of: the cluster's figures unless overridden") {
  planners::PlanRequest request = test::request_of({5});
  const MemorySpec from_cluster = planners::memory_of(request);
  CHECK(from_cluster.capacity == request.cluster.memory);
  CHECK(from_cluster.reserved == request.cluster.reserved);
  CHECK(from_cluster.page_tokens == Tokens{128});
  request.memory = {Bytes{7}, Bytes{3}, 8, Tokens{16}, Tokens{32}, Tokens{64}};
  request.optimizer = OptimizerState::replicated;
  const MemorySpec expected{{7}, {3}, OptimizerState::replicated, 8, {16}, {32}, {64}};
  CHECK(planners::memory_of(request) == expected);
}

TEST_CASE("plan_frame: what the request says") {
  planners::PlanRequest request = test::request_of({5, 6}, 8);
  request.dp = 2;
  request.pp = 4;
  request.batch.step = 9;
  request.granularity = {64};
  const Plan plan = planners::plan_frame(request, "name");
  CHECK(plan.planner == "name");
  CHECK(plan.step_index == 9);
  CHECK(plan.target_tokens == 11);
  CHECK(plan.samples == request.batch.samples);
  CHECK(plan.origin == request.batch.origin);
  CHECK(plan.sources == request.sources);
  CHECK(plan.groups == std::vector<std::vector<std::int32_t>>{{0}, {1}});
  CHECK(plan.parallel.max_cp == 1);
  CHECK(plan.parallel.granularity == Tokens{64});
  CHECK(layers_of(plan.stages) == Counts{2, 2, 2, 2});
  CHECK(plan.max_in_flight == 2);
}

TEST_CASE("heads: those of a batch run back to back, in one order on all stages") {
  std::int64_t batched = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto stages = static_cast<std::int32_t>(random.between(1, 6));
    const auto items = static_cast<std::int32_t>(random.between(1, 20));
    const auto batch = static_cast<std::int32_t>(random.between(1, 6));
    const schedule::Pipeline pipeline{stages, 1};
    const schedule::StageOrders given = schedule::one_f_one_b(stages, items);
    const schedule::StageOrders ahead =
        schedule::run_ahead(given, static_cast<std::size_t>(batch) - 1);
    const schedule::StageOrders orders =
        schedule::with_heads(pipeline, ahead, LmHead::shard, 2, batch);
    std::vector<std::int32_t> first;
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
      // F and B stay in the order of their kind.
      const auto of = [&](const schedule::StageOrders& from, UnitKind kind) {
        std::vector<std::int32_t> list;
        for (const schedule::PipelineOp& step : from[stage]) {
          if (step.kind == kind) list.push_back(step.item);
        }
        return list;
      };
      CHECK(of(orders, UnitKind::forward) == of(given, UnitKind::forward));
      CHECK(of(orders, UnitKind::backward) == of(given, UnitKind::backward));
      const std::vector<std::int32_t> heads = of(orders, UnitKind::head);
      if (stage == 0) first = heads;
      CHECK(heads == first);
      CHECK(heads.size() == static_cast<std::size_t>(items));
    }
    std::vector<int> state(static_cast<std::size_t>(items));
    std::int32_t run = 0, longest = 0;
    for (const schedule::PipelineOp& step : orders.back()) {
      int& at = state[static_cast<std::size_t>(step.item)];
      CHECK(at == (step.kind == UnitKind::forward ? 0 : step.kind == UnitKind::head ? 1 : 2));
      ++at;
      run = step.kind == UnitKind::head ? run + 1 : 0;
      longest = std::max(longest, run);
    }
    CHECK(longest == std::min(batch, items));
    batched += longest > 1 ? 1 : 0;
  }
  CHECK(batched > 100);
}
