// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/search/degrees.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/planners/published/megatron.hpp"

using namespace slimpack;

namespace {

ModelShape shape_of(std::int64_t layers, std::int64_t heads, std::int64_t kv_heads) {
  ModelShape model = test::request_of({1}, layers).model;
  model.heads = heads;
  model.kv_heads = kv_heads;
  return model;
}

}  // namespace

TEST_CASE("degree_choices: every legal triple once, by rising tp, then rising pp") {
  const Cluster cluster = cluster_preset("h100").value();
  using Choices = std::vector<planners::Degrees>;
  CHECK(planners::degree_choices(shape_of(4, 8, 2), cluster, 8) ==
        Choices{{8, 1, 1}, {4, 2, 1}, {2, 4, 1}, {4, 1, 2}, {2, 2, 2}, {1, 4, 2}});
  CHECK(planners::degree_choices(shape_of(8, 8, 4), cluster, 7) == Choices{{7, 1, 1}, {1, 7, 1}});
  CHECK(planners::degree_choices(shape_of(1, 8, 4), cluster, 1) == Choices{{1, 1, 1}});
}

TEST_CASE("degree_choices: equals trying every triple") {
  for (const std::int64_t devices : {1, 2, 6, 12, 16, 24, 64}) {
    for (const std::int64_t node : {1, 4, 8}) {
      Cluster cluster = cluster_preset("h100").value();
      cluster.devices_per_node = node;
      const ModelShape model = shape_of(12, 16, 8);
      std::vector<planners::Degrees> all;
      for (std::int32_t tp = 1; tp <= devices; ++tp) {
        const bool power = (tp & (tp - 1)) == 0;
        if (!power || tp > node || model.kv_heads % tp != 0) continue;
        for (std::int32_t pp = 1; pp <= 12; ++pp) {
          for (std::int32_t dp = 1; dp <= devices; ++dp) {
            if (std::int64_t{dp} * pp * tp == devices) all.push_back({dp, pp, tp});
          }
        }
      }
      CHECK(planners::degree_choices(model, cluster, devices) == all);
    }
  }
}

TEST_CASE("degree_choices: bounds fix a degree, and keep a layer for every place") {
  const Cluster cluster = cluster_preset("h100").value();
  const ModelShape model = shape_of(8, 8, 8);
  using Choices = std::vector<planners::Degrees>;
  planners::DegreeBounds bounds;
  bounds.tp = 1;
  bounds.chunks = 2;
  CHECK(planners::degree_choices(model, cluster, 8, bounds) ==
        Choices{{8, 1, 1}, {4, 2, 1}, {2, 4, 1}});
  bounds.fewer_last_layers = 1;  // (8 + 1) / 8 places leave the last none
  CHECK(planners::degree_choices(model, cluster, 8, bounds) == Choices{{4, 2, 1}});
  bounds = {};
  bounds.dp = 2;
  CHECK(planners::degree_choices(model, cluster, 8, bounds) ==
        Choices{{2, 4, 1}, {2, 2, 2}, {2, 1, 4}});
  bounds.pp = 3;
  CHECK(planners::degree_choices(model, cluster, 8, bounds).empty());
}

TEST_CASE("degree_choices: every choice is one that a request may have") {
  planners::PlanRequest request = test::request_of({100, 50}, 6);
  request.fewer_last_layers = 1;
  planners::DegreeBounds bounds;
  bounds.fewer_last_layers = 1;
  const auto choices = planners::degree_choices(request.model, request.cluster, 24, bounds);
  CHECK_FALSE(choices.empty());
  for (const planners::Degrees& degrees : choices)
    CHECK_NOTHROW(planners::check_request(planners::at_degrees(request, degrees)));
}

TEST_CASE("degree_choices: bad bounds are refused by name") {
  const Cluster cluster = cluster_preset("h100").value();
  const ModelShape model = shape_of(8, 8, 8);
  const auto choices = [&](std::int64_t devices, const planners::DegreeBounds& bounds) {
    return planners::degree_choices(model, cluster, devices, bounds);
  };
  CHECK_THROWS_WITH_AS(static_cast<void>(choices(0, {})), "devices must be >= 1, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(choices(1 << 21, {})),
                       "devices must be <= 1048576, got 2097152", InvalidInput);
  planners::DegreeBounds bounds;
  bounds.pp = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(choices(8, bounds)), "pp must be >= 1, got 0",
                       InvalidInput);
  bounds = {};
  bounds.chunks = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(choices(8, bounds)), "chunks must be >= 1, got 0",
                       InvalidInput);
}

TEST_CASE("least_static_bytes: no plan's fullest device holds less") {
  for (const bool tied : {false, true}) {
    for (const planners::Degrees degrees :
         {planners::Degrees{1, 1, 1}, {2, 3, 1}, {1, 4, 2}, {4, 2, 4}, {3, 7, 1}, {1, 8, 1}}) {
      planners::PlanRequest request = test::request_of({64, 64, 64, 64}, 8);
      request.model.tied = tied;
      request.model.vocab = 100'000;
      request = planners::at_degrees(request, degrees);
      for (const LmHead head : {LmHead::last, LmHead::shard}) {
        Plan plan = planners::plan_frame(request, "any");
        plan.parallel.head = head;
        Bytes most;
        for (std::int32_t pp = 0; pp < degrees.pp; ++pp) {
          most = std::max(most, static_bytes(plan, pp).total());
        }
        CHECK(planners::least_static_bytes(request, degrees) <= most);
        request.memory.capacity = most;
        request.memory.reserved = Bytes{0};
        CHECK_FALSE(planners::lacks_static_memory(request, degrees).has_value());
      }
    }
  }
}

TEST_CASE("lacks_static_memory: says what is needed and what there is") {
  planners::PlanRequest request = test::request_of({64}, 8);
  request.memory.reserved = Bytes{10};
  request.memory.capacity = Bytes{1010};
  const auto none = planners::lacks_static_memory(request, {1, 2, 1});
  REQUIRE(none.has_value());
  CHECK(none->constraint ==
        "bytes of weights, gradients and optimizer state on the fullest device");
  CHECK(none->needed == planners::least_static_bytes(request, {1, 2, 1}).value);
  CHECK(none->available == 1000);
}
