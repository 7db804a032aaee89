// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/zeppelin.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/analytic.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

const std::vector<std::int64_t> kTwoNodes{7, 7, 9, 9};

std::vector<std::int64_t> tokens_by_rank(const planners::detail::Zones& zones) {
  std::vector<std::int64_t> tokens;
  for (const planners::detail::ZoneLoad& rank : zones.ranks)
    tokens.push_back(rank.load.tokens.value);
  return tokens;
}

}  // namespace

TEST_CASE("rank_nodes: nodes count from zero in the order of the ranks") {
  const planners::detail::RankNodes nodes = planners::detail::rank_nodes(kTwoNodes);
  CHECK(nodes.node == std::vector<std::size_t>{0, 0, 1, 1});
  CHECK(nodes.ranks == std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3}});
}

TEST_CASE("partition: three zones, by hand") {
  const std::vector<Tokens> documents{{3}, {16}, {8}, {2}, {3}};
  const planners::detail::Zones zones = planners::detail::partition(
      documents, planners::detail::rank_nodes(kTwoNodes), {{4}, {10}}, {});
  CHECK(zones.cluster == 1);
  CHECK(zones.node == 1);
  CHECK(zones.local == 3);
  // 16 over all: chunks of 2, pairs2 4 + 256 - 196 = 64 on each rank. 8 on node 0: 4 tokens each.
  // Then 3 and 3 on ranks 2 and 3; 2 on rank 2, which has as many pairs and tokens as rank 3.
  CHECK(tokens_by_rank(zones) == std::vector<std::int64_t>{8, 8, 9, 7});
  for (const planners::detail::ZoneLoad& rank : zones.ranks) CHECK(rank.load.pairs2 >= 64);
  CHECK(zones.ranks[0].load.pairs2 == 64 + 4 + 64 - 36);
  CHECK(zones.ranks[1].load.pairs2 == 64 + 36 - 4);
  CHECK(zones.ranks[2].load.pairs2 == 64 + 9 + 4);
  // Each rank receives 12 of the 16 tokens, 6 over each of its node's two interfaces; the other 6
  // are handed over inside. Ranks 0 and 1 receive 4 of the 8 besides.
  for (const planners::detail::ZoneLoad& rank : zones.ranks) CHECK(rank.between == Tokens{6});
  CHECK(zones.ranks[0].inside == Tokens{12 + 6 + 4});
  CHECK(zones.ranks[3].inside == Tokens{12 + 6});
}

TEST_CASE("partition: all local, all in a node, all over nodes") {
  const std::vector<Tokens> documents{{100}, {40}, {10}, {10}};
  const planners::detail::RankNodes nodes = planners::detail::rank_nodes(kTwoNodes);
  const planners::detail::Zones local =
      planners::detail::partition(documents, nodes, {{100}, {100}}, {});
  CHECK(local.local == 4);
  CHECK(tokens_by_rank(local) == std::vector<std::int64_t>{100, 40, 10, 10});
  for (const planners::detail::ZoneLoad& rank : local.ranks)
    CHECK(rank.inside + rank.between == Tokens{});
  const planners::detail::Zones node =
      planners::detail::partition(documents, nodes, {{0}, {100}}, {});
  CHECK(node.node == 4);
  CHECK(tokens_by_rank(node) == std::vector<std::int64_t>{50, 50, 30, 30});
  const planners::detail::Zones cluster =
      planners::detail::partition(documents, nodes, {{0}, {0}}, {});
  CHECK(cluster.cluster == 4);
  // One node has no other nodes to share with.
  const std::vector<std::int64_t> together{3, 3, 3, 3};
  CHECK(
      planners::detail::partition(documents, planners::detail::rank_nodes(together), {{0}, {0}}, {})
          .node == 4);
}

TEST_CASE("remapping: inside nodes first, by hand") {
  const planners::detail::RankNodes nodes = planners::detail::rank_nodes(kTwoNodes);
  const std::vector<Tokens> documents{{100}, {40}, {10}, {10}};
  const planners::detail::Remapping moves = planners::detail::remapping(
      planners::detail::partition(documents, nodes, {{100}, {100}}, {}), nodes);
  // Even: 40 each. Rank 0 sends 60; 60 leave node 0 over two interfaces.
  CHECK(moves.inside == Tokens{60});
  CHECK(moves.between == Tokens{30});
  CHECK(moves.moved == Tokens{60});
}

TEST_CASE("partition: tokens and pairs are kept for all limits that are tried") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> numbers;
    for (std::int64_t rank = 0; rank < 1 + static_cast<std::int64_t>(seed % 9); ++rank) {
      numbers.push_back(random.between(0, 3));
    }
    std::vector<Tokens> documents;
    std::int64_t tokens = 0, pairs2 = 0;
    for (const std::int64_t length :
         test::random_lengths(random, 1 + static_cast<std::int64_t>(seed % 20), 5000)) {
      documents.push_back({length});
      tokens += length;
      pairs2 += length * length;
    }
    const planners::detail::RankNodes nodes = planners::detail::rank_nodes(numbers);
    const auto choices = planners::detail::limit_choices(documents, nodes);
    REQUIRE(!choices.empty());
    for (const planners::detail::ZoneLimits& limits : choices) {
      const planners::detail::Zones zones =
          planners::detail::partition(documents, nodes, limits, {128});
      std::int64_t own_tokens = 0, own_pairs2 = 0;
      for (const planners::detail::ZoneLoad& rank : zones.ranks) {
        own_tokens += rank.load.tokens.value;
        own_pairs2 += rank.load.pairs2;
      }
      CHECK(own_tokens == tokens);
      CHECK(own_pairs2 == pairs2);
      CHECK(zones.local + zones.node + zones.cluster ==
            static_cast<std::int64_t>(documents.size()));
    }
  }
}

TEST_CASE("zoned_unit: attention of the slowest rank, then even linear work and remapping") {
  planners::PlanRequest request = test::request_of({4000, 1000, 100, 100});
  request.context = {8192};
  request.dp = 4;
  request.cluster.devices_per_node = 2;
  const planners::detail::ZeppelinCandidates candidates(request, "zeppelin");
  const planners::SettingPoint first(candidates.space().sizes().size());
  planners::ZeppelinSettings settings = candidates.space().at(first);
  settings.pack_length = request.context;
  planners::BuiltStep built = candidates.build(settings);
  const Plan& plan = planners::plan_in(built);
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const StageLoad stage = stage_load(plan, Links(plan), plan.groups[0], 0);
  const MicroPack& pack = plan.micropacks.front();
  const planners::detail::RankNodes nodes = planners::detail::rank_nodes(kTwoNodes);
  const std::vector<Tokens> documents{{4000}, {1000}, {100}, {100}};
  const auto unit = [&](const planners::detail::ZoneLimits& limits) {
    return planners::detail::zoned_unit(
        model, plan, pack, planners::detail::partition(documents, nodes, limits, Tokens{128}),
        nodes, stage);
  };
  const auto price = [&](std::int64_t tokens, std::int64_t pairs) {
    PackLoad load;
    load.tokens = Tokens{tokens};
    if (pairs > 0) {
      add_slice(load, {SampleId{0}, Tokens{}, Tokens{pairs}}, RingMode::pass_kv, CpShard{},
                Tokens{128});
      load.tokens = Tokens{tokens};
    }
    return model.forward(load, stage);
  };
  // All local: 4000 tokens on rank 0, or 1300 on each once 2700 of rank 0 have changed ranks,
  // 1200 of them over each of two interfaces.
  const planners::detail::ZonedUnit local = unit({{4000}, {4000}});
  const std::int64_t bytes = planners::detail::remapped_bytes(plan, pack) * stage.layers;
  const Nanos moved = model.transfer(Bytes{2700 * bytes}, plan.cluster.inside) +
                      model.transfer(Bytes{1200 * bytes}, plan.cluster.between);
  const Nanos even = price(1300, 0) + (price(4000, 4000) - price(4000, 0)) + moved;
  CHECK(local.time == std::min(even, price(4000, 4000)));
  CHECK(local.remapped == (even < price(4000, 4000)));
  CHECK(local.bytes == (local.remapped ? 2700 * bytes : 0));
  // All over nodes: every rank has as many tokens.
  const planners::detail::ZonedUnit spread = unit({{0}, {0}});
  CHECK(!spread.remapped);
  // Each rank receives 3900 of 5200 tokens' keys and values, which pass its node's links once more.
  CHECK(spread.bytes == 4 * 2 * 3900 * 2 * 256 * 2 * stage.layers);
  // A quarter of the shorter of attention and rings is exposed, and a latency for each of three
  // steps and each layer; the interfaces of a node take half of the traffic each.
  PackLoad own = planners::detail::partition(documents, nodes, {Tokens{0}, Tokens{0}}, Tokens{128})
                     .ranks.front()
                     .load;
  const planners::UnitParts parts =
      planners::unit_parts(model, own, stage, Pass::forward, Recompute::none);
  const std::int64_t keys = 2 * 256 * 2 * stage.layers;
  const Nanos latency = model.transfer(Bytes{}, plan.cluster.between);
  const Nanos rings =
      std::max(model.transfer(Bytes{(2 * 3900 - 1950) * keys}, plan.cluster.inside) -
                   model.transfer(Bytes{}, plan.cluster.inside),
               model.transfer(Bytes{1950 * keys}, plan.cluster.between) - latency);
  const Nanos shorter = std::min(parts.attention, rings);
  const Nanos expected = parts.linear + std::max(parts.attention, rings) +
                         Nanos{(shorter.value + 3) / 4} + latency * (3 * stage.layers) +
                         part_of(shorter, plan.cluster.small.collective_compute);
  CHECK(std::abs((spread.time - expected).value) < expected.value / 100);
  // A message between nodes goes before the ring between them.
  StageLoad sending = stage;
  sending.forward_message = plan.cluster.between;
  const Nanos message =
      model.transfer(Bytes{own.tokens.value * plan.model.hidden * 2}, plan.cluster.between) -
      latency;
  const Nanos waited =
      planners::detail::zoned_unit(
          model, plan, pack,
          planners::detail::partition(documents, nodes, {Tokens{0}, Tokens{0}}, Tokens{128}), nodes,
          sending)
          .time;
  CHECK(waited > spread.time);
  CHECK(waited <= spread.time + message * 2);
}

TEST_CASE("zeppelin: every candidate is valid and never below the work") {
  planners::PlanRequest request =
      test::request_of({1024, 900, 800, 7, 5, 60, 200, 300, 1000, 1, 128, 77});
  request.dp = 4;
  request.pp = 2;
  request.cluster.devices_per_node = 2;
  const planners::detail::ZeppelinCandidates candidates(request, "zeppelin");
  std::int64_t seen = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const planners::SettingPoint point = test::random_point(candidates.space(), random);
    if (!candidates.space().exists(point)) continue;
    planners::BuiltStep step = candidates.build(candidates.space().at(point));
    CHECK(planners::predict(step, request) == std::nullopt);
    const Plan& plan = planners::plan_in(step);
    for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
    CHECK(plan.prediction.iteration > plan.prediction.ideal);
    const bool shared = plan.groups.front().size() > 1;
    CHECK(std::holds_alternative<Plan>(step) == !shared);
    seen += shared ? 1 : 0;
  }
  CHECK(seen > 20);
}

TEST_CASE("zeppelin: one long document is spread over nodes, short ones stay on their ranks") {
  const auto zones = [](const std::vector<std::int64_t>& lengths) {
    planners::PlanRequest request = test::request_of(lengths);
    request.context = {65536};
    request.dp = 4;
    request.cluster.devices_per_node = 2;
    request.max_cp = 4;
    const planners::detail::ZeppelinCandidates candidates(request, "zeppelin");
    const planners::SettingPoint first(candidates.space().sizes().size());
    planners::ZeppelinSettings settings = candidates.space().at(first);
    settings.pack_length = request.context;
    planners::BuiltStep step = candidates.build(settings);
    planners::SettingTexts texts;
    planners::detail::ZeppelinCandidates::describe(settings, planners::plan_in(step), texts);
    return texts.at("local_documents") + "/" + texts.at("intra_node_documents") + "/" +
           texts.at("inter_node_documents");
  };
  CHECK(zones({65536}) == "0/0/1");
  CHECK(zones(std::vector<std::int64_t>(128, 500)) == "128/0/0");
}

TEST_CASE("zeppelin: routing over all interfaces of a node divides the traffic between nodes") {
  planners::PlanRequest request = test::request_of({65536});
  request.context = {65536};
  request.dp = 8;
  const auto between = [&](std::int64_t devices) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t rank = 0; rank < 8; ++rank) numbers.push_back(rank / devices);
    return planners::detail::partition(request.batch.samples, planners::detail::rank_nodes(numbers),
                                       {{0}, {0}}, {})
        .ranks.front()
        .between.value;
  };
  CHECK(between(1) == 65536 - 8192);
  CHECK(between(4) == (65536 - 8192) / 4);
}

TEST_CASE("zeppelin: a sharded head is refused as published, a bound on groups kept") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700});
  request.dp = 4;
  request.pp = 2;
  request.max_cp = 1;
  CHECK(std::holds_alternative<Plan>(plan_by("zeppelin", request).result));
  request.max_cp = 2;
  CHECK(plan_of(plan_by("zeppelin", request)).groups.front().size() <= 2);
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("zeppelin", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  const auto why = std::get<Infeasible>(plan_by("zeppelin", request).result);
  CHECK(why.constraint == "stages, one in zeppelin's order as published");
}
