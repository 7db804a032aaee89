// SPDX-License-Identifier: Apache-2.0
// What slimpack does on one stage: the order of groups, packs that keep what fits, spread samples.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/fill_tiles.hpp"
#include "slimpack/planners/slimpack/fit_modes.hpp"
#include "slimpack/planners/slimpack/queue_segments.hpp"
#include "slimpack/planners/slimpack/split_packs.hpp"
#include "slimpack/planners/slimpack/spread_samples.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"

namespace one_stage_test {

using namespace slimpack;

namespace {

TEST_CASE("queue_segments: on one stage short samples first means narrow groups first") {
  using planners::QueueOrder;
  const std::vector<std::vector<std::int32_t>> groups{{0}, {1}, {2}, {0, 1}, {0, 1, 2}};
  std::vector<std::vector<schedule::QueuedSample>> members(groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    members[group].push_back({static_cast<SampleId>(group), Tokens{10}});
  }
  const auto sizes = [&](QueueOrder order, bool one_stage) {
    const std::vector<QueueOrder> orders(groups.size(), order);
    std::vector<std::size_t> found;
    for (const auto& part : planners::queue_segments(groups, members, orders, one_stage)) {
      found.push_back(groups[index(part.group)].size());
    }
    return found;
  };
  CHECK(sizes(QueueOrder::short_first, true) == std::vector<std::size_t>{1, 1, 1, 2, 3});
  CHECK(sizes(QueueOrder::short_first, false) == std::vector<std::size_t>{1, 1, 1, 3, 2});
  CHECK(sizes(QueueOrder::long_first, true) == std::vector<std::size_t>{3, 2, 1, 1, 1});
}

/// Lets ranks run each pack forward and then backward at once.
void run_at_once(Plan& plan) {
  std::vector<std::size_t> forward, backward;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    (plan.micropacks[i].pass == Pass::forward ? forward : backward).push_back(i);
  }
  for (DeviceSchedule& device : plan.schedule) {
    device.order.clear();
    for (const std::size_t f : forward) {
      const auto& ranks = plan.groups[index(plan.micropacks[f].group)];
      if (std::ranges::find(ranks, device.dp) == ranks.end()) continue;
      const auto b = std::ranges::find_if(backward, [&](std::size_t other) {
        return plan.micropacks[other].slices == plan.micropacks[f].slices;
      });
      REQUIRE(b != backward.end());
      device.order.push_back({UnitKind::forward, static_cast<PackId>(f), 0});
      device.order.push_back({UnitKind::head, static_cast<PackId>(f), 0});
      device.order.push_back({UnitKind::backward, static_cast<PackId>(*b), 0});
    }
    device.order.push_back({UnitKind::reduce, {}, 0});
    device.order.push_back({UnitKind::optimizer, {}, 0});
  }
}

/// A plan of one stage whose ranks run each pack forward and then backward at once.
Plan one_by_one(std::uint64_t seed, bool by_heads = false) {
  test::RandomPlanOptions options;
  options.pp = options.chunks = 1;
  options.tp = 1 + static_cast<std::int32_t>(seed % 2);
  options.same_cuts = options.uncut = true;
  options.recompute = Recompute::none;
  options.large_model = true;
  options.version = 2;
  Plan plan = by_heads ? test::random_heads_plan(seed, options) : test::random_plan(seed, options);
  run_at_once(plan);
  return plan;
}

TEST_CASE("fit_modes: packs fit whatever they need, and none is leaner than a fuller one needs") {
  std::int64_t leaner = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Plan plan = one_by_one(seed);
    REQUIRE(validate(plan).valid());
    const Plan none = plan;
    Plan full = plan;
    for (MicroPack& pack : full.micropacks) {
      if (pack.pass == Pass::backward) pack.recompute = Recompute::full;
    }
    const auto peak = [](const Plan& one) {
      return std::ranges::max(validate(one).worst_case_peak);
    };
    const Bytes most = peak(none), least = peak(full);
    REQUIRE(least <= most);
    // Hidden gradients and logits count as those of the largest pack, so that packs need a little
    // more than what all need in the leanest mode.
    for (const std::int64_t eighths : {2, 4, 6, 16}) {
      plan = none;
      plan.memory.reserved = {};
      plan.memory.capacity = least + Bytes{(most - least).value * eighths / 8};
      planners::fit_modes(plan);
      CHECK(validate(plan).valid());
      for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
        if (plan.micropacks[i].pass != Pass::backward) continue;
        ++(plan.micropacks[i].recompute == Recompute::none ? kept : leaner);
      }
      if (eighths == 16) CHECK(plan.micropacks == none.micropacks);
    }
  }
  CHECK(leaner > 50);
  CHECK(kept > 50);
}

TEST_CASE("fit_modes: where the leanest pack by heads does not fit its ranks exchange by rings") {
  const auto by_heads = [](const MicroPack& pack) {
    return std::ranges::find(pack.exchange, RingMode::by_heads) != pack.exchange.end();
  };
  std::int64_t changed = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Plan heads = one_by_one(seed, true);
    REQUIRE(validate(heads).valid());
    Plan rings = heads;
    for (MicroPack& pack : rings.micropacks) {
      if (pack.pass == Pass::backward) pack.recompute = Recompute::full;
      if (by_heads(pack)) pack.exchange = planners::detail::ring_exchange(rings, pack);
    }
    const auto peak = [](const Plan& one) {
      return std::ranges::max(validate(one).worst_case_peak);
    };
    const Bytes most = peak(heads), least = peak(rings);
    for (const std::int64_t eighths : {1, 2, 4, 16}) {
      Plan plan = heads;
      plan.memory.reserved = {};
      plan.memory.capacity = least + Bytes{std::abs((most - least).value) * eighths / 8};
      planners::fit_modes(plan);
      CHECK(validate(plan).valid());
      for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
        if (!by_heads(heads.micropacks[i])) continue;
        ++(by_heads(plan.micropacks[i]) ? kept : changed);
      }
      if (eighths == 16 && most > least) CHECK(plan.micropacks == heads.micropacks);
    }
  }
  CHECK(changed > 20);
  CHECK(kept > 20);
}

TEST_CASE("split_packs: parts hold the same samples, fit, and take no longer") {
  std::int64_t cut = 0, whole = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Plan none = one_by_one(seed, seed % 3 == 0);
    REQUIRE(validate(none).valid());
    Plan full = none;
    for (MicroPack& pack : full.micropacks) {
      if (pack.pass == Pass::backward) pack.recompute = Recompute::full;
    }
    const auto peak = [](const Plan& one) {
      return std::ranges::max(validate(one).worst_case_peak);
    };
    const Bytes most = peak(none), least = peak(full);
    for (const std::int64_t eighths : {2, 4, 6, 16}) {
      Plan fitted = none;
      fitted.memory.reserved = {};
      fitted.memory.capacity = least + Bytes{std::abs((most - least).value) * eighths / 8};
      Plan plan = fitted;
      planners::fit_modes(fitted);
      planners::split_packs(plan, [](Plan& settled) { planners::fit_modes(settled); });
      run_at_once(plan);
      CHECK(validate(plan).valid());
      // What was one pack takes no longer, also where several packs have its samples now.
      const PricedPlan before(fitted), after(plan);
      const auto now = planners::detail::twin_packs(plan);
      for (const auto& [forward, backward] : planners::detail::twin_packs(fitted)) {
        const MicroPack& pack = fitted.micropacks[index(forward)];
        std::vector<planners::detail::TwinPacks> parts;
        std::vector<Slice> slices;
        for (const planners::detail::TwinPacks& twins : now) {
          const std::vector<Slice>& own = plan.micropacks[index(twins.first)].slices;
          if (std::ranges::find(pack.slices, own.front()) == pack.slices.end()) continue;
          parts.push_back(twins);
          slices.insert(slices.end(), own.begin(), own.end());
        }
        std::vector<Slice> all = pack.slices;
        std::ranges::sort(all);
        std::ranges::sort(slices);
        CHECK(slices == all);
        ++(parts.size() > 1 ? cut : whole);
        const std::array<planners::detail::TwinPacks, 1> one{{{forward, backward}}};
        CHECK(planners::detail::twins_time(plan, after, parts) <=
              planners::detail::twins_time(fitted, before, one));
      }
      if (eighths == 16 && most > least) CHECK(plan.micropacks == none.micropacks);
    }
  }
  CHECK(cut > 20);
  CHECK(whole > 20);
}

TEST_CASE("split_packs: ranks that share weights run as many packs each, so none is cut") {
  Plan plan = one_by_one(7);
  plan.memory.weights = WeightState::sharded;
  plan.version = kPlanVersion;
  const std::size_t packs = plan.micropacks.size();
  planners::split_packs(plan, [](Plan& settled) {
    for (MicroPack& pack : settled.micropacks) {
      if (pack.pass == Pass::backward) pack.recompute = Recompute::full;
    }
  });
  CHECK(plan.micropacks.size() == packs);
}

TEST_CASE(
    "fill_tiles: as many packs of the same samples in fewer tiles, on ranks that share none") {
  constexpr std::int64_t kTile = 16;
  std::int64_t fewer = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    Plan plan = one_by_one(seed);
    plan.memory.capacity = Bytes{std::int64_t{1} << 50};
    plan.cluster.small.matrix_tile_rows = kTile;
    const Plan before = plan;
    const bool changed = planners::fill_tiles(plan);
    CHECK(changed == (plan.micropacks != before.micropacks));
    ++(changed ? fewer : kept);
    run_at_once(plan);
    CHECK(validate(plan).valid());
    std::vector<std::int64_t> tiles(plan.groups.size());  // more than before
    REQUIRE(plan.micropacks.size() == before.micropacks.size());
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const MicroPack &now = plan.micropacks[i], &then = before.micropacks[i];
      CHECK(now.group == then.group);
      CHECK(now.pass == then.pass);
      CHECK(now.recompute == then.recompute);
      CHECK_FALSE(now.slices.empty());
      if (plan.groups[index(now.group)].size() > 1) CHECK(now == then);
      const auto rows = [](const MicroPack& pack) {
        std::int64_t tokens = 0;
        for (const Slice& slice : pack.slices) tokens += slice.length().value;
        return (tokens + kTile - 1) / kTile;
      };
      tiles[index(now.group)] += rows(now) - rows(then);
    }
    for (const std::int64_t more : tiles) CHECK(more <= 0);
    CHECK(changed == std::ranges::any_of(tiles, [](std::int64_t more) { return more < 0; }));
  }
  CHECK(fewer > 10);
  CHECK(kept > 10);
}

TEST_CASE("fill_packs: all but the last pack have room for nothing that came behind") {
  const auto slice = [](std::int32_t sample, std::int64_t tokens) {
    return Slice{static_cast<SampleId>(sample), Tokens{0}, Tokens{tokens}};
  };
  const std::vector<Slice> slices{slice(0, 30), slice(1, 70), slice(2, 64),
                                  slice(3, 28), slice(4, 36), slice(5, 7)};
  const auto packs = planners::detail::fill_packs(slices, 3, 100);
  CHECK(packs[0] == std::vector<Slice>{slices[1], slices[0]});
  CHECK(packs[1] == std::vector<Slice>{slices[2], slices[4]});
  CHECK(packs[2] == std::vector<Slice>{slices[3], slices[5]});
}

TEST_CASE("spread_samples: of what one rank owns the fullest has the mean and one sample at most") {
  std::int64_t packs = 0, moved = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.cp_groups = true;
    options.uncut = true;
    options.version = 2;
    options.min_share = options.max_share = 60;  // no sample has two blocks
    Plan plan = test::random_plan(seed, options);
    const schedule::SliceCost cost{3, 100, 1};
    planners::spread_samples(plan, cost);
    CHECK(plan.version == 3);
    REQUIRE(plan.sample_first.size() == plan.samples.size());
    CHECK(validate(plan).valid());
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const MicroPack& pack = plan.micropacks[i];
      const std::size_t ranks = plan.groups[index(pack.group)].size();
      if (pack.pass != Pass::forward || ranks == 1) continue;
      std::int64_t sum = 0, fullest = 0, longest = 0;
      std::vector<std::int64_t> work(ranks);
      for (const Slice& slice : pack.slices) {
        const std::int64_t length = slice.length().value;
        const std::int64_t each = 3 + 100 * length + length * length;
        const auto first = static_cast<std::size_t>(plan.sample_first[index(slice.sample)]);
        moved += first > 0 ? 1 : 0;
        work[first] += each;
        sum += each;
        longest = std::max(longest, each);
      }
      fullest = *std::ranges::max_element(work);
      CHECK(fullest <= sum / static_cast<std::int64_t>(ranks) + longest);
      ++packs;
      // Nothing travels, and each rank attends to its own samples alone.
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const PackLoad load = pack_load(plan, static_cast<PackId>(i), rank);
        CHECK(load.kv_received == Tokens{});
        CHECK(load.q_received == Tokens{});
        CHECK(load.pairs2 == load.alone_pairs2);
      }
    }
  }
  CHECK(packs > 100);
  CHECK(moved > 20);
}

TEST_CASE("spread_samples: a divided sample begins where the others leave least") {
  Plan plan;
  plan.version = 2;
  plan.parallel.dp = plan.parallel.max_cp = 2;
  plan.memory.cp_block_tokens = {10};
  plan.samples = {Tokens{10}, Tokens{25}, Tokens{9}};
  plan.groups = {{0}, {1}, {0, 1}};
  plan.sample_group = {GroupId{2}, GroupId{2}, GroupId{2}};
  MicroPack pack;
  pack.group = GroupId{2};
  for (std::uint32_t i = 0; i < 3; ++i) {
    pack.slices.push_back({SampleId{i}, Tokens{0}, plan.samples[i]});
  }
  plan.micropacks = {pack};
  planners::spread_samples(plan, {0, 1, 0});
  // Sample 1 has 10 tokens on its first rank and 15 on the next one; then 10 go to the first, and 9
  // to the second.
  CHECK(plan.sample_first == std::vector<std::int32_t>{0, 0, 1});
}

}  // namespace

}  // namespace one_stage_test
