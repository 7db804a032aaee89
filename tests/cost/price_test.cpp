// SPDX-License-Identifier: Apache-2.0
// Prices of whole plans: links, collectives, reductions, and the ideal below them.
#include "slimpack/cost/price.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cost/priced_load.hpp"
#include "cost/shapes.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/unit_time_overrides.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using test::h100;
using test::llama_7b;

// Two ranks on two stages: rank 0 crosses nodes between its stages, rank 1 does not.
Plan two_by_two() {
  Plan plan;
  plan.model = llama_7b();
  plan.cluster = h100();
  plan.parallel.dp = plan.parallel.pp = 2;
  plan.parallel.max_cp = 2;
  plan.placement = {{0, 0, 0, 0}, {0, 1, 0, 8}, {1, 0, 0, 1}, {1, 1, 0, 2}};
  plan.stages = {{0, 0, 0, 15, true}, {1, 0, 15, 32, false}};
  plan.groups = {{0}, {1}, {0, 1}};
  plan.samples = {{3000}, {2000}, {10'000}};
  plan.sample_group = {GroupId{0}, GroupId{1}, GroupId{2}};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Slice slice{SampleId{i}, {0}, plan.samples[i]};
    const std::vector<RingMode> exchange(i == 2 ? 1 : 0, RingMode::pass_kv);
    plan.micropacks.push_back({Pass::forward, GroupId{i}, {slice}, exchange, Recompute::none});
    plan.micropacks.push_back({Pass::backward, GroupId{i}, {slice}, exchange, Recompute::light});
  }
  return plan;
}

TEST_CASE("Links: the slowest link of devices that communicate") {
  const Plan plan = two_by_two();
  const Links links(plan);
  const Link inside = plan.cluster.inside, between = plan.cluster.between;
  CHECK(links.stages(0, 0, 1) == between);
  CHECK(links.stages(1, 0, 1) == inside);
  CHECK(links.stages(0, 0, 0) == inside);
  CHECK(links.rank(0) == between);
  CHECK(links.rank(1) == inside);
  CHECK(links.ranks({0, 1}, 0) == inside);
  CHECK(links.ranks({0, 1}, 1) == between);
  CHECK(links.ranks({1}, 1) == inside);
  CHECK(links.tensor(0, 0) == inside);
  CHECK(links.fewest_on_node({0, 1}, 0) == 0);
  CHECK(links.fewest_on_node({0, 1}, 1) == 1);
  CHECK(links.fewest_on_node({1}, 1) == 0);
}

TEST_CASE("Links: a slow link inside a node counts where two of several devices share one") {
  Plan plan = two_by_two();
  plan.cluster.inside = {1e9, 6e-6};
  plan.parallel.dp = 1;
  plan.parallel.pp = 3;
  plan.placement = {{0, 0, 0, 0}, {0, 1, 0, 8}, {0, 2, 0, 1}};
  CHECK(Links(plan).rank(0) == plan.cluster.inside);
  CHECK(Links(plan).stages(0, 0, 1) == plan.cluster.between);
  CHECK(slower({1e9, 1}, {1e9, 2}) == Link{1e9, 2});
  CHECK(slower({1e9, 1}, {2e9, 2}) == Link{1e9, 1});
}

TEST_CASE("Links: the slowest of all pairs, wherever the devices are") {
  std::int64_t apart = 0;  // where devices of one node are not neighbours
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Plan plan = two_by_two();
    const auto dp = static_cast<std::int32_t>(random.between(1, 5));
    const auto pp = static_cast<std::int32_t>(random.between(1, 5));
    const auto tp = static_cast<std::int32_t>(random.between(1, 3));
    plan.parallel.dp = dp;
    plan.parallel.pp = pp;
    plan.parallel.tp = tp;
    plan.cluster.devices_per_node = random.between(1, 4);
    if (seed % 3 == 0) plan.cluster.inside = {1e9, 6e-6};  // slower than between nodes
    plan.placement.clear();
    std::vector<std::int64_t> devices(static_cast<std::size_t>(dp * pp * tp));
    for (std::size_t i = 0; i < devices.size(); ++i) devices[i] = static_cast<std::int64_t>(i);
    for (std::size_t i = devices.size(); i > 1; --i) {
      std::swap(devices[i - 1], devices[random.below(i)]);
    }
    for (std::int32_t i = 0; i < dp * pp * tp; ++i) {
      plan.placement.push_back(
          {i / (pp * tp), i / tp % pp, i % tp, devices[static_cast<std::size_t>(i)]});
    }
    const Links links(plan);
    const auto node = [&](std::int32_t rank, std::int32_t stage, std::int32_t part) {
      return plan.placement[static_cast<std::size_t>((rank * pp + stage) * tp + part)].device /
             plan.cluster.devices_per_node;
    };
    // Of the devices of each part of a tensor-parallel group, or of one such group.
    const auto slowest = [&](const std::vector<std::vector<std::int64_t>>& parts) {
      std::vector<Link> used;
      for (const auto& nodes : parts) {
        for (std::size_t a = 0; a < nodes.size(); ++a) {
          for (std::size_t b = a + 1; b < nodes.size(); ++b) {
            const bool same = nodes[a] == nodes[b];
            used.push_back(same ? plan.cluster.inside : plan.cluster.between);
            apart += same && b > a + 1 && nodes[a] != nodes[a + 1] ? 1 : 0;
          }
        }
      }
      if (used.empty()) return plan.cluster.inside;
      Link all = used.front();
      for (const Link& link : used) all = slower(all, link);
      return all;
    };
    for (std::int32_t rank = 0; rank < dp; ++rank) {
      std::vector<std::vector<std::int64_t>> parts(static_cast<std::size_t>(tp));
      for (std::int32_t i = 0; i < pp * tp; ++i) {
        parts[static_cast<std::size_t>(i % tp)].push_back(node(rank, i / tp, i % tp));
      }
      CHECK(links.rank(rank) == slowest(parts));
    }
    for (std::int32_t stage = 0; stage < pp; ++stage) {
      std::vector<std::int32_t> group;
      for (std::int32_t rank = 0; rank < dp; ++rank) {
        if (random.below(4) > 0) group.push_back(rank);
      }
      std::vector<std::vector<std::int64_t>> parts(static_cast<std::size_t>(tp));
      for (const std::int32_t rank : group) {
        for (std::int32_t part = 0; part < tp; ++part) {
          parts[static_cast<std::size_t>(part)].push_back(node(rank, stage, part));
        }
      }
      CHECK(links.ranks(group, stage) == slowest(parts));
      auto fewest = static_cast<std::int64_t>(group.size());
      for (const auto& nodes : parts) {
        for (const std::int64_t one : nodes) {
          fewest = std::min<std::int64_t>(fewest, std::ranges::count(nodes, one));
        }
      }
      const bool together = fewest == static_cast<std::int64_t>(group.size());
      CHECK(links.fewest_on_node(group, stage) == (together ? 0 : fewest));
      std::vector<std::int64_t> own;
      for (std::int32_t part = 0; part < tp; ++part) own.push_back(node(0, stage, part));
      CHECK(links.tensor(0, stage) == slowest({own}));
    }
  }
  CHECK(apart > 100);
}

TEST_CASE("PricedPlan: groups without packs change no price of the others") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::may_have_weights(seed % 2 == 0);
    options.cp_groups = seed % 3 != 0;
    const Plan whole = test::random_plan(seed, options);
    // The packs of one group, as a search times them.
    Random random(seed);
    const GroupId kept = whole.micropacks[random.below(whole.micropacks.size())].group;
    Plan part = whole;
    part.micropacks.clear();
    std::vector<std::size_t> number;
    for (std::size_t i = 0; i < whole.micropacks.size(); ++i) {
      if (whole.micropacks[i].group != kept) continue;
      part.micropacks.push_back(whole.micropacks[i]);
      number.push_back(i);
    }
    const PricedPlan all(whole), some(part);
    for (std::size_t i = 0; i < number.size(); ++i) {
      const auto here = static_cast<PackId>(i), there = static_cast<PackId>(number[i]);
      const MicroPack& pack = part.micropacks[i];
      for (std::int32_t line = 0; line < virtual_stages_of(whole).size(); ++line) {
        CHECK(some.compute(here, line) == all.compute(there, line));
        for (std::size_t rank = 0; rank < whole.groups[index(kept)].size(); ++rank) {
          CHECK(some.transfer(here, line, rank) == all.transfer(there, line, rank));
          if (pack.pass == Pass::weight) {
            CHECK(some.weight(here, line, rank) == all.weight(there, line, rank));
          }
          if (pack.pass != Pass::forward) continue;
          CHECK(some.head(here, rank, 0) == all.head(there, rank, 0));
        }
      }
    }
  }
}

TEST_CASE("PricedPlan: B of a group waits in every layer for the rank with most attention") {
  // One rank has more rows, the other one more attention: the second half of the sample.
  Plan plan = two_by_two();
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const PackLoads loads(plan);
  const PackId forward{4}, backward{5};
  PackLoad rows = loads(forward, 0), pairs = loads(forward, 1);
  rows.tokens = {4000}, rows.pairs2 = rows.filled_pairs2 = 4'000'000;
  pairs.tokens = {2000}, pairs.pairs2 = pairs.filled_pairs2 = 90'000'000;
  CHECK(detail::with_attention(rows, pairs).tokens == rows.tokens);
  CHECK(detail::with_attention(rows, pairs).pairs2 == pairs.pairs2);
  CHECK(detail::comes_home(plan.micropacks[index(backward)]));
  CHECK(!detail::comes_home(plan.micropacks[index(forward)]));
  plan.micropacks[index(forward)].exchange.back() = RingMode::pass_q;
  CHECK(detail::comes_home(plan.micropacks[index(forward)]));

  // Blocks of half a sample: F takes as long as its slowest rank, B longer than each.
  plan = two_by_two();
  plan.memory.cp_block_tokens = Tokens{(plan.samples.back().value + 1) / 2};
  const PackLoads halves(plan);
  REQUIRE(halves(backward, 0).pairs2 < halves(backward, 1).pairs2);
  const PricedPlan priced(plan);
  StageLoad stage;
  stage.layers = 15;
  stage.embedding = true;
  stage.tensor_link = stage.exchange_link = plan.cluster.inside;
  Nanos slowest;
  for (const std::size_t rank : {0U, 1U}) {
    const PackLoad load = test::priced_load(plan, halves, backward, rank);
    CHECK(load.pairs2 == halves(backward, 1).pairs2);
    slowest = std::max(slowest, model.backward(load, stage, Recompute::light));
  }
  CHECK(priced.compute(backward, 0) == slowest);
  CHECK(priced.compute(forward, 0) == std::max(model.forward(halves(forward, 0), stage),
                                               model.forward(halves(forward, 1), stage)));
}

// The same with the sample of both ranks exchanged by heads.
Plan two_by_two_by_heads() {
  Plan plan = two_by_two();
  plan.version = 3;
  for (const std::size_t pack : {4U, 5U}) plan.micropacks[pack].exchange = {RingMode::by_heads};
  return plan;
}

TEST_CASE("PricedPlan: asks the model with loads and links of the placement") {
  Plan plan = two_by_two();
  SUBCASE("keys travel") {}
  SUBCASE("by heads") {
    plan = two_by_two_by_heads();
    CHECK(detail::comes_home(plan.micropacks[4]));
    CHECK(PackLoads(plan)(PackId{4}, 0).heads_sent > Tokens{0});
  }
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const PricedPlan priced(plan);
  const PackLoads loads(plan);
  for (std::uint32_t pack = 0; pack < 6; ++pack) {
    for (std::int32_t line = 0; line < 2; ++line) {
      StageLoad stage;
      stage.layers = line == 0 ? 15 : 17;
      stage.embedding = line == 0;
      stage.tensor_link = plan.cluster.inside;
      const bool in_cp_group = pack >= 4;
      stage.exchange_link = in_cp_group && line == 1 ? plan.cluster.between : plan.cluster.inside;
      stage.node_ranks = in_cp_group && line == 1 ? 1 : 0;
      Nanos slowest;
      for (std::size_t rank = 0; rank < (in_cp_group ? 2 : 1); ++rank) {
        const PackLoad load = test::priced_load(plan, loads, PackId{pack}, rank);
        slowest = std::max(slowest, pack % 2 == 0 ? model.forward(load, stage)
                                                  : model.backward(load, stage, Recompute::light));
      }
      CHECK(priced.compute(PackId{pack}, line) == slowest);
    }
  }
  const std::int64_t hidden = 4096 * 2;
  CHECK(priced.transfer(PackId{0}, 0, 0) == model.transfer({3000 * hidden}, plan.cluster.between));
  CHECK(priced.transfer(PackId{0}, 1, 0) == Nanos{0});
  CHECK(priced.transfer(PackId{1}, 1, 0) == model.transfer({3000 * hidden}, plan.cluster.between));
  CHECK(priced.transfer(PackId{1}, 0, 0) == Nanos{0});
  CHECK(priced.transfer(PackId{2}, 0, 0) == model.transfer({2000 * hidden}, plan.cluster.inside));
  const std::int64_t own = loads(PackId{4}, 1).tokens.value;
  CHECK(priced.transfer(PackId{4}, 0, 1) == model.transfer({own * hidden}, plan.cluster.inside));

  HeadLoad head;
  head.tokens = {3000};
  head.vocab = 32000;
  head.link = head.tensor_link = plan.cluster.inside;
  CHECK(priced.head(PackId{0}, 0, 1) == model.head(head));

  const std::int64_t layer = plan.model.layer_weights(), table = 32000 * 4096;
  CHECK(priced.reduce(0, 0) == model.reduce({4 * (15 * layer + table)}, 2, plan.cluster.inside));
  CHECK(priced.reduce(1, 0) ==
        model.reduce({4 * (17 * layer + table + 4096)}, 2, plan.cluster.between));
  // Per weight: 12 bytes of state twice, 4 of gradient, 2 of weight, over two ranks.
  const std::int64_t weights = 15 * layer + table;
  CHECK(priced.optimizer(0, 0) ==
        model.optimizer({weights * 30 / 2}, {weights * 2}, 2, plan.cluster.inside));
  CHECK(priced.optimizer(1, 0) == priced.optimizer(0, 0));
}

TEST_CASE("PricedPlan: sharded head, replicated state, tied tables") {
  Plan plan = two_by_two();
  plan.parallel.head = LmHead::shard;
  plan.memory.optimizer = OptimizerState::replicated;
  plan.model.vocab = 32001;
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  HeadLoad head;
  head.tokens = {3000};
  head.vocab = 16001;
  head.shards = 2;
  head.link = plan.cluster.between;
  head.tensor_link = plan.cluster.inside;
  CHECK(PricedPlan(plan).head(PackId{0}, 0, 0) == model.head(head));
  CHECK(PricedPlan(plan).head(PackId{0}, 0, 1) == model.head(head));
  const std::int64_t layer = plan.model.layer_weights(), hidden = 4096;
  CHECK(PricedPlan(plan).reduce(1, 0) ==
        model.reduce({4 * (17 * layer + 16001 * hidden + hidden)}, 2, plan.cluster.between));
  CHECK(
      PricedPlan(plan).optimizer(0, 1) ==
      model.optimizer({30 * (17 * layer + 16001 * hidden + hidden)}, {0}, 2, plan.cluster.between));
  CHECK(tied_stages(plan).empty());

  plan.model.tied = true;
  CHECK(tied_stages(plan) == std::vector<std::int32_t>{0, 1});
  const PricedPlan tied(plan);
  CHECK(tied.reduce(0, 0) == tied.reduce(1, 0));
  const Nanos own =
      model.reduce({4 * (17 * layer + 16001 * hidden + hidden)}, 2, plan.cluster.between);
  CHECK(tied.reduce(0, 0) == own + model.reduce({4 * 32001 * hidden}, 2, plan.cluster.between));
  plan.parallel.head = LmHead::last;
  CHECK(tied_stages(plan) == std::vector<std::int32_t>{0, 1});
}

TEST_CASE("PricedPlan: a stage that is as the one before has its times") {
  std::int64_t same = 0, other = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const PricedPlan priced(plan);
    const auto times = [&](std::int32_t virtual_stage) {
      std::vector<Nanos> all;
      for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
        const auto pack = static_cast<PackId>(i);
        all.push_back(priced.compute(pack, virtual_stage));
        for (std::size_t rank = 0; rank < plan.groups[index(plan.micropacks[i].group)].size();
             ++rank) {
          all.push_back(plan.micropacks[i].pass == Pass::weight
                            ? priced.weight(pack, virtual_stage, rank)
                            : priced.transfer(pack, virtual_stage, rank));
        }
      }
      return all;
    };
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(plan.stages.size()); ++i) {
      ++(priced.as_before(i) ? same : other);
      if (priced.as_before(i)) CHECK(times(i) == times(i - 1));
    }
  }
  CHECK(same > 20);
  CHECK(other > 20);
}

TEST_CASE("PricedPlan: one stage hands over in place") {
  Plan plan = two_by_two();
  plan.parallel.pp = 1;
  plan.parallel.chunks = 2;
  plan.placement = {{0, 0, 0, 0}, {1, 0, 0, 1}};
  plan.stages = {{0, 0, 0, 15, true}, {0, 1, 15, 32, false}};
  const PricedPlan priced(plan);
  CHECK(priced.transfer(PackId{0}, 0, 0) == Nanos{0});
  CHECK(priced.transfer(PackId{1}, 1, 0) == Nanos{0});
  CHECK(priced.compute(PackId{0}, 0) > Nanos{0});
  CHECK(priced.reduce(0, 1) > Nanos{0});
}

TEST_CASE("PricedPlan: tensor-parallel devices send and reduce a part each") {
  Plan plan = two_by_two();
  plan.parallel.tp = 2;
  plan.placement.clear();
  std::int64_t device = 0;
  for (std::int32_t dp = 0; dp < 2; ++dp) {
    for (std::int32_t pp = 0; pp < 2; ++pp) {
      for (std::int32_t tp = 0; tp < 2; ++tp) plan.placement.push_back({dp, pp, tp, device++});
    }
  }
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const PricedPlan priced(plan);
  CHECK(priced.transfer(PackId{0}, 0, 0) == model.transfer({3000 * 4096}, plan.cluster.inside));
  const std::int64_t weights = 15 * plan.model.layer_weights() + 32000 * 4096;
  CHECK(priced.reduce(0, 0) == model.reduce({2 * weights}, 2, plan.cluster.inside));
}

TEST_CASE("PricedPlan: on shared links R takes what units leave of its link") {
  // Stages and ranks of one node: messages, exchange and R all go inside it.
  Plan plan = two_by_two();
  SUBCASE("keys travel") {}
  SUBCASE("by heads") {
    plan = two_by_two_by_heads();
  }
  plan.placement = {{0, 0, 0, 0}, {0, 1, 0, 1}, {1, 0, 0, 2}, {1, 1, 0, 3}};
  const PricedPlan alone(plan);
  plan.cluster.small.shared_links = true;
  const PricedPlan shared(plan);
  const PackLoads loads(plan);
  const double inside = plan.cluster.inside.bytes_per_s;
  const double hidden = 4096 * 2, keys = 4096 * 2;
  for (std::int32_t pp = 0; pp < 2; ++pp) {
    double longest = 0;
    for (std::uint32_t dp = 0; dp < 2; ++dp) {
      double bytes = 0, units = 0;
      for (const std::uint32_t pack : {2 * dp, 2 * dp + 1, 4U, 5U}) {
        const PackLoad& load = loads(PackId{pack}, pack < 4 ? 0 : dp);
        const bool forward = pack % 2 == 0;
        if (forward == (pp == 0)) bytes += static_cast<double>(load.tokens.value) * hidden;
        bytes += static_cast<double>(load.kv_received.value) * (pp == 0 ? 15 : 17) *
                 (forward ? 2 * keys : 2 * keys + 4 * keys);
        // One of two ranks keeps half of what it passes to parts of heads.
        bytes += static_cast<double>(load.heads_sent.value) * (pp == 0 ? 15 : 17) / 2 *
                 ((forward ? 2 * hidden + 32 * 4 : 3 * hidden + 2 * 32 * 4) + 2 * keys);
        units += seconds(shared.compute(PackId{pack}, pp));
        if (forward && pp == 1) {
          units += seconds(shared.head(PackId{pack}, pack < 4 ? 0 : dp, pp));
        }
      }
      const double share = bytes / inside / units;
      REQUIRE(share > 1e-4);
      REQUIRE(share < 0.5);
      longest = std::max(longest, seconds(alone.reduce(pp, 0)) / (1 - share));
    }
    CHECK(seconds(shared.reduce(pp, 0)) == doctest::Approx(longest).epsilon(1e-5));
  }
  // Over other links than those of messages R is as fast as alone.
  plan.groups[2] = {0};
  plan.micropacks[4].exchange = plan.micropacks[5].exchange = {};
  plan.placement = {{0, 0, 0, 0}, {0, 1, 0, 1}, {1, 0, 0, 8}, {1, 1, 0, 9}};
  const Nanos between = PricedPlan(plan).reduce(0, 0);
  plan.cluster.small.shared_links = false;
  CHECK(PricedPlan(plan).reduce(0, 0) == between);
}

TEST_CASE("LinkShares: parts of heads go inside a node and between nodes, each over its link") {
  // Four ranks of one stage on two nodes, all of them one group: R goes between the nodes.
  Plan plan = two_by_two_by_heads();
  plan.parallel.dp = 4;
  plan.parallel.pp = 1;
  plan.placement = {{0, 0, 0, 0}, {1, 0, 0, 1}, {2, 0, 0, 8}, {3, 0, 0, 9}};
  plan.stages = {{0, 0, 0, 32, true}};
  plan.groups = {{0, 1, 2, 3}};
  plan.samples = {{40'000}};
  plan.sample_group = {GroupId{0}};
  plan.micropacks = {plan.micropacks[4], plan.micropacks[5]};
  for (MicroPack& pack : plan.micropacks) {
    pack.group = GroupId{0};
    pack.slices = {{SampleId{0}, {0}, {40'000}}};
  }
  const Nanos alone = PricedPlan(plan).reduce(0, 0);
  plan.cluster.small.shared_links = true;
  const PricedPlan shared(plan);
  const PackLoads loads(plan);
  double longest = 0;
  for (const std::size_t rank : {0U, 1U, 2U, 3U}) {
    double bytes = 0, units = seconds(shared.head(PackId{0}, rank, 0));
    for (const std::uint32_t pack : {0U, 1U}) {
      const PackLoad& load = loads(PackId{pack}, rank);
      const double e = 2, width = 4096;
      bytes += 32 * static_cast<double>(load.heads_sent.value) *
               (pack == 0 ? 4 * width * e + 32 * 4 : 5 * width * e + 2 * 32 * 4);
      units += seconds(shared.compute(PackId{pack}, 0));
    }
    // Two of the four parts leave the node.
    const double share = bytes * 2 / 4 / plan.cluster.between.bytes_per_s / units;
    REQUIRE(share > 1e-3);
    REQUIRE(share < 0.5);
    longest = std::max(longest, seconds(alone) / (1 - share));
  }
  CHECK(seconds(shared.reduce(0, 0)) == doctest::Approx(longest).epsilon(1e-5));
}

TEST_CASE("LinkShares: other bytes of tokens in place of the plan's") {
  Plan plan = two_by_two();
  plan.placement = {{0, 0, 0, 0}, {0, 1, 0, 1}, {1, 0, 0, 2}, {1, 1, 0, 3}};
  plan.cluster.small.shared_links = true;
  const PricedPlan rings(plan);
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const Links links(plan);
  const PackLoads loads(plan);
  const auto reduced = [&](const ExchangeBytes& each) {
    std::optional<LinkShares> shares(std::in_place, plan, links);
    for (std::uint32_t pack = 0; pack < 6; ++pack) {
      std::vector<PackLoad> of_ranks;
      for (std::size_t rank = 0; rank < loads.ranks(PackId{pack}); ++rank) {
        of_ranks.push_back(loads(PackId{pack}, rank));
        of_ranks.back().kv_received = {};
        of_ranks.back().heads_sent = pack < 4 ? Tokens{} : of_ranks.back().tokens;
      }
      shares->add(PackId{pack}, of_ranks, rings, each);
    }
    return reduce_times(plan, links, shares, model);
  };
  const std::int64_t keys = 2 * 4096 * 2;
  const std::vector<Nanos> none = reduced({0, 0, 0}), some = reduced({0, 0, 4 * keys});
  for (const std::size_t pp : {0U, 1U}) CHECK(none[pp] < some[pp]);
  CHECK(none.size() == 2);
}

TEST_CASE("UnitTimeOverrides: R and the compute that it takes are those given") {
  Plan plan = two_by_two();
  plan.cluster.small.collective_compute = 0.25;
  const PricedPlan prices(plan);
  std::vector<Nanos> compute(12, Nanos{5});
  const UnitTimeOverrides as_priced(plan, prices, compute);
  const UnitTimeOverrides given(plan, prices, compute, std::vector{Nanos{4000}, Nanos{8000}});
  for (std::int32_t pp = 0; pp < 2; ++pp) {
    CHECK(as_priced.reduce(pp, 0) == prices.reduce(pp, 0));
    CHECK(as_priced.optimizer(0, pp) == prices.optimizer(0, pp));
    CHECK(given.reduce(pp, 0) == Nanos{pp == 0 ? 4000 : 8000});
    CHECK(given.optimizer(0, pp) == prices.optimizer(0, pp) - part_of(prices.reduce(pp, 0), 0.25) +
                                        Nanos{pp == 0 ? 1000 : 2000});
  }
  CHECK_THROWS_WITH_AS(UnitTimeOverrides(plan, prices, compute, std::vector{Nanos{1}}),
                       "UnitTimeOverrides: there must be a time for each chunk and stage, got 1",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(UnitTimeOverrides(plan, prices, compute, std::vector{Nanos{1}, Nanos{-1}}),
                       "UnitTimeOverrides: a time must be >= 0, got -1", InvalidInput);
}

TEST_CASE("beside_traffic: at most twice as long") {
  CHECK(beside_traffic({90}, {10}, {100}) == Nanos{100});
  CHECK(beside_traffic({91}, {10}, {100}) == Nanos{102});
  CHECK(beside_traffic({90}, {80}, {100}) == Nanos{180});
  CHECK(beside_traffic({90}, {300}, {100}) == Nanos{180});
  CHECK(beside_traffic({90}, {0}, {100}) == Nanos{90});
  CHECK(beside_traffic({90}, {10}, {0}) == Nanos{90});
}

TEST_CASE("PricedPlan: refuses a placement or a group that does not fit") {
  const auto refuses = [](const auto& change, const char* message) {
    Plan plan = two_by_two();
    change(plan);
    CHECK_THROWS_WITH_AS(PricedPlan{plan}, message, InvalidInput);
  };
  refuses([](Plan& plan) { plan.placement.pop_back(); },
          "placement: no device for rank (dp, pp, tp) number, got 3");
  refuses([](Plan& plan) { plan.placement[1].dp = 2; }, "placement[1]: dp is out of range, got 2");
  refuses([](Plan& plan) { plan.placement[1].pp = -1; },
          "placement[1]: pp is out of range, got -1");
  refuses([](Plan& plan) { plan.placement[1].tp = 1; }, "placement[1]: tp is out of range, got 1");
  refuses([](Plan& plan) { plan.placement[1].device = -4; },
          "placement[1]: device must be >= 0, got -4");
  refuses([](Plan& plan) { plan.placement[1].pp = 0; },
          "placement[1]: these ranks have a device already");
  refuses([](Plan& plan) { plan.parallel.dp = 0; }, "parallel: dp, pp and tp must be > 0");
  refuses([](Plan& plan) { plan.parallel.chunks = 0; }, "parallel.chunks must be > 0, got 0");
  refuses([](Plan& plan) { plan.cluster.devices_per_node = 0; },
          "cluster.devices_per_node must be > 0, got 0");
  refuses([](Plan& plan) { plan.groups[1] = {5}; },
          "groups: data-parallel rank does not exist, got 5");
}

CostSpec small_cost(std::uint64_t kind) {
  if (kind == 1) return test::some_fit();
  if (kind == 2) {
    TableCost table = test::exact_table(4e-6, 6.6e-7, 3.3e-9);
    for (Tokens& tokens : table.tokens) tokens = {tokens.value / 16};
    for (Tokens& context : table.context) context = {context.value / 32};
    return table;
  }
  return AnalyticCost{};
}

TEST_CASE("PricedPlan: sharing links makes nothing cheaper") {
  std::int64_t dearer = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.max_tp = 2;
    Plan plan =
        seed < 240 ? test::random_plan(seed, options) : test::random_heads_plan(seed, options);
    plan.cost = small_cost(seed % 3);
    const PricedPlan alone(plan);
    plan.cluster.small.shared_links = true;
    const PricedPlan shared(plan);
    const auto check = [&](Nanos before, Nanos after) {
      CHECK(after >= before);
      if (after > before) ++dearer;
    };
    const std::int32_t lines = virtual_stages_of(plan).size();
    for (std::uint32_t pack = 0; pack < plan.micropacks.size(); ++pack) {
      for (std::int32_t line = 0; line < lines; ++line) {
        check(alone.compute(PackId{pack}, line), shared.compute(PackId{pack}, line));
      }
      if (plan.micropacks[pack].pass == Pass::backward) continue;
      check(alone.head(PackId{pack}, 0, 0), shared.head(PackId{pack}, 0, 0));
    }
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        check(alone.reduce(pp, chunk), shared.reduce(pp, chunk));
        CHECK(shared.reduce(pp, chunk) <= alone.reduce(pp, chunk) * 2);
      }
      check(alone.optimizer(0, pp), shared.optimizer(0, pp));
    }
  }
  CHECK(dearer > 500);
}

Nanos total_compute(const Plan& plan) {
  const PricedPlan priced(plan);
  Nanos total;
  for (const DeviceSchedule& device : plan.schedule) {
    for (const Unit& unit : device.order) {
      if (unit.kind == UnitKind::forward || unit.kind == UnitKind::backward) {
        total += priced.compute(unit.pack, virtual_stages_of(plan).index(device.pp, unit.chunk));
      }
      if (unit.kind == UnitKind::head) {
        const auto& ranks = plan.groups[index(plan.micropacks[index(unit.pack)].group)];
        const auto rank = std::find(ranks.begin(), ranks.end(), device.dp) - ranks.begin();
        total += priced.head(unit.pack, static_cast<std::size_t>(rank), device.pp);
      }
    }
  }
  return total;
}

TEST_CASE("ideal_time: no plan computes less on its devices") {
  std::int64_t close = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.max_tp = 2;
    options.vary_bytes = true;
    Plan plan =
        seed < 240 ? test::random_plan(seed, options) : test::random_heads_plan(seed, options);
    plan.cost = small_cost(seed % 3);
    if (seed % 4 == 0) plan.cluster.kernel_s = plan.cluster.segment_s = 0;
    const std::int64_t devices = std::int64_t{plan.parallel.dp} * plan.parallel.pp;
    const Nanos ideal = ideal_time(plan);
    const Nanos total = total_compute(plan);
    CHECK(ideal > Nanos{0});
    CHECK(ideal * devices <= total);
    if (ideal * devices * 2 > total) ++close;
  }
  CHECK(close > 20);
}

TEST_CASE("ideal_time: equals large units without fixed costs, and divides by all devices") {
  const Plan plan = two_by_two();
  Cluster cluster = h100();
  cluster.kernel_s = cluster.segment_s = 0;
  const AnalyticModel model(plan.model, cluster, plan.memory);
  const std::vector<Tokens> samples = {{81'920}};
  StageLoad whole = test::plain_stage(32);
  whole.embedding = true;
  HeadLoad head;
  head.tokens = samples[0];
  head.vocab = 32000;
  const PackLoad load = test::whole_slice(0, 81'920);
  const Nanos sum =
      model.forward(load, whole) + model.backward(load, whole, Recompute::none) + model.head(head);
  Parallel one;
  CHECK(std::abs((ideal_time(samples, plan.model, cluster, AnalyticCost{}, one) - sum).value) <= 3);
  Parallel many;
  many.dp = 2;
  many.pp = 4;
  many.tp = 2;
  CHECK(
      std::abs((ideal_time(samples, plan.model, cluster, AnalyticCost{}, many) * 16 - sum).value) <=
      20);
  one.tp = 0;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(ideal_time(samples, plan.model, cluster, AnalyticCost{}, one)),
      "ideal_time: dp, pp and tp must be > 0", InvalidInput);
  const std::vector<Tokens> none = {{0}};
  CHECK_THROWS_WITH_AS(
      static_cast<void>(ideal_time(none, plan.model, cluster, AnalyticCost{}, many)),
      "ideal_time: a sample's length must be in [1, 2^31], got 0", InvalidInput);
}

}  // namespace
}  // namespace slimpack
