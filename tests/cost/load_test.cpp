// SPDX-License-Identifier: Apache-2.0
// The work of packs, counted token by token.
#include "slimpack/cost/load.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

// Twice the pairs of query `query` with keys that `shard` owns (all of them for `pass_kv`).
std::int64_t pairs2_of(std::int64_t query, RingMode exchange, const CpShard& shard) {
  std::int64_t pairs2 = 0;
  for (std::int64_t key = 0; key <= query; ++key) {
    if (exchange == RingMode::pass_kv || shard.owns({key})) pairs2 += key == query ? 1 : 2;
  }
  return pairs2;
}

std::int64_t owner(std::int64_t token, const CpShard& shard) {
  for (std::int64_t rank = 0; rank < shard.ranks; ++rank) {
    if (shard.of(rank).owns({token})) return rank;
  }
  return -1;
}

// Queries come in runs of equal owners; the last rows of a run are filled up to a tile, a filler
// row seeing as many keys as the mean of the rows it joins.
void add_by_tokens(PackLoad& load, const Slice& slice, RingMode exchange, const CpShard& shard,
                   std::int64_t tile) {
  const bool kv = shard.ranks == 1 || exchange == RingMode::pass_kv;
  const bool computes = shard.between(slice.begin, slice.end).value > 0;
  for (std::int64_t key = 0; key < slice.end.value; ++key) {
    if (kv ? computes : shard.owns({key})) ++load.keys;
  }
  std::int64_t i = slice.begin.value;
  while (i < slice.end.value) {
    std::int64_t end = i;
    std::vector<std::int64_t> rows;
    while (end < slice.end.value && owner(end, shard) == owner(i, shard)) {
      rows.push_back(pairs2_of(end++, kv ? RingMode::pass_kv : RingMode::pass_q, shard));
    }
    std::int64_t pairs2 = 0, own2 = 0;
    for (const std::int64_t row : rows) pairs2 += row;
    for (std::int64_t query = i; query < end; ++query) {
      for (std::int64_t key = i; key <= query; ++key) {
        if (kv || shard.owns({key})) own2 += key == query ? 1 : 2;
      }
    }
    const bool mine = owner(i, shard) == shard.rank;
    if (mine) load.tokens += Tokens{end - i};
    if (kv ? mine : pairs2 > 0) {
      load.pairs2 += pairs2;
      load.own_pairs2 += own2;
      ++load.segments;
      const auto count = static_cast<std::int64_t>(rows.size());
      const std::int64_t partial = count % tile;
      std::int64_t filler = 0;
      for (std::int64_t row = count - partial; row < count; ++row) {
        filler += rows[static_cast<std::size_t>(row)];
      }
      load.filled_pairs2 += pairs2;
      // In q mode the first and last key count stand for the mean, exact where keys are even.
      if (partial > 0 && kv) load.filled_pairs2 += (tile - partial) * filler / partial;
      if (partial > 0 && !kv) {
        load.filled_pairs2 +=
            (tile - partial) * (shard.before({end}) + shard.before({end - partial})).value;
      }
    }
    if (!kv && !mine) load.q_received += Tokens{end - i};
    i = end;
  }
  for (std::int64_t key = 0; kv && shard.ranks > 1 && key < slice.end.value; ++key) {
    (shard.owns({key}) ? load.kv_sent : load.kv_received) += Tokens{1};
  }
}

// Each rank has a part of the heads, and all pairs of its heads. Amounts are counted in
// whole heads; a rank waits for no ring.
void add_by_heads(PackLoad& load, const Slice& slice, const CpShard& shard, std::int64_t tile) {
  const std::int64_t heads = 3 * shard.ranks;
  PackLoad whole;
  add_by_tokens(whole, slice, RingMode::pass_kv, CpShard{}, tile);
  std::int64_t pairs2 = 0, filled = 0, own2 = 0, keys = 0;
  for (std::int64_t head = 0; head < heads; ++head) {
    if (head * shard.ranks / heads != shard.rank) continue;
    for (std::int64_t query = slice.begin.value; query < slice.end.value; ++query) {
      pairs2 += pairs2_of(query, RingMode::pass_kv, CpShard{});
    }
    filled += whole.filled_pairs2;
    own2 += whole.own_pairs2;
    keys += slice.end.value;
  }
  const auto in_whole = [&](std::int64_t count) { return (count + heads - 1) / heads; };
  load.pairs2 += in_whole(pairs2), load.alone_pairs2 += in_whole(pairs2);
  load.filled_pairs2 += in_whole(filled), load.alone_filled_pairs2 += in_whole(filled);
  load.own_pairs2 += in_whole(own2), load.alone_own_pairs2 += in_whole(own2);
  load.keys += in_whole(keys), load.alone_keys += in_whole(keys);
  ++load.segments;
  for (std::int64_t token = slice.begin.value; token < slice.end.value; ++token) {
    if (owner(token, shard) != shard.rank) continue;
    load.heads_sent += Tokens{1};
    load.tokens += Tokens{1};
  }
}

// What one rank owns up to the slice's end it attends to by itself.
void add_alone(PackLoad& load, const Slice& slice, const CpShard& shard, std::int64_t tile) {
  if (owner(slice.begin.value, shard) != shard.rank) return;
  PackLoad alone;
  add_by_tokens(alone, slice, RingMode::pass_kv, CpShard{}, tile);
  load.tokens += alone.tokens;
  load.pairs2 += alone.pairs2;
  load.filled_pairs2 += alone.filled_pairs2;
  load.own_pairs2 += alone.own_pairs2;
  load.keys += alone.keys;
  load.segments += alone.segments;
  load.alone_pairs2 += alone.pairs2;
  load.alone_filled_pairs2 += alone.filled_pairs2;
  load.alone_own_pairs2 += alone.own_pairs2;
  load.alone_keys += alone.keys;
}

// Runs of the rows that packs of the pass before have saved, from the address of each row.
std::int64_t runs_by_tokens(const Plan& plan, const MicroPack& pack, std::size_t rank) {
  const Pass before = pack.pass == Pass::weight ? Pass::backward : Pass::forward;
  std::map<std::pair<std::size_t, std::int64_t>, std::pair<std::size_t, std::int64_t>> address;
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (plan.micropacks[id].pass != before || plan.micropacks[id].group != pack.group) {
      continue;
    }
    std::int64_t next = 0;
    for (const Slice& slice : plan.micropacks[id].slices) {
      const CpShard shard = cp_shard_of(plan, slice.sample, rank);
      for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
        if (shard.owns({i})) address[{index(slice.sample), i}] = {id, next++};
      }
    }
  }
  std::vector<std::pair<std::size_t, std::int64_t>> rows;
  for (const Slice& slice : pack.slices) {
    const CpShard shard = cp_shard_of(plan, slice.sample, rank);
    for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
      if (shard.owns({i})) rows.push_back(address.at({index(slice.sample), i}));
    }
  }
  std::sort(rows.begin(), rows.end());
  std::int64_t runs = rows.empty() ? 0 : 1;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto follows = std::pair{rows[i - 1].first, rows[i - 1].second + 1};
    if (rows[i] != follows) ++runs;
  }
  return runs;
}

TEST_CASE("PackLoads: equal to counting token by token") {
  std::int64_t cp_kv = 0, cp_q = 0, several_runs = 0, weight_runs = 0, twins = 0, no_twins = 0;
  std::int64_t alone = 0, cp_heads = 0, first_blocks = 0;
  for (std::uint64_t seed = 0; seed < 160; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.max_tokens = 90;
    if (seed % 2 == 0) options.cp_groups = true;
    options.weights = seed % 3 > 0;
    Plan plan =
        seed < 120 ? test::random_plan(seed, options) : test::random_heads_plan(seed, options);
    plan.cluster.tile_tokens = 1 + static_cast<std::int64_t>(seed % 9);
    const PackLoads loads(plan);
    PassPacks forward(plan, Pass::forward);
    REQUIRE(loads.packs() == plan.micropacks.size());
    for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
      const MicroPack& pack = plan.micropacks[id];
      const auto pack_id = static_cast<PackId>(id);
      REQUIRE(loads.ranks(pack_id) == plan.groups[index(pack.group)].size());
      for (std::size_t rank = 0; rank < loads.ranks(pack_id); ++rank) {
        PackLoad expected;
        if (pack.pass == Pass::weight) {
          for (const Slice& slice : pack.slices) {
            const CpShard shard = cp_shard_of(plan, slice.sample, rank);
            for (Tokens i = slice.begin; i < slice.end; i += Tokens{1}) {
              if (shard.owns(i)) expected.tokens += Tokens{1};
            }
          }
          expected.runs = runs_by_tokens(plan, pack, rank);
          if (expected.runs > 1) ++weight_runs;
          CHECK(loads(pack_id, rank) == expected);
          CHECK(pack_load(plan, pack_id, rank) == expected);
          continue;
        }
        expected.ranks = static_cast<std::int64_t>(loads.ranks(pack_id));
        for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
          const Slice& slice = pack.slices[slot];
          const CpShard shard = cp_shard_of(plan, slice.sample, rank);
          const bool whole = shard.ranks > 1 && pack.exchange[slot] == RingMode::by_heads
                                 ? plan.samples[index(slice.sample)] <= shard.block
                                 : plan.version >= 3 && shard.ranks > 1 && slice.end <= shard.block;
          if (whole) {
            add_alone(expected, slice, shard, plan.cluster.tile_tokens);
            ++alone;
            continue;
          }
          const RingMode exchange = shard.ranks == 1 ? RingMode::pass_kv : pack.exchange[slot];
          if (exchange == RingMode::by_heads) {
            add_by_heads(expected, slice, shard, plan.cluster.tile_tokens);
            ++cp_heads;
            first_blocks += slice.end <= shard.block ? 1 : 0;
            continue;
          }
          add_by_tokens(expected, slice, exchange, shard, plan.cluster.tile_tokens);
          if (shard.ranks > 1) ++(exchange == RingMode::pass_kv ? cp_kv : cp_q);
        }
        if (pack.pass == Pass::backward) {
          expected.runs = runs_by_tokens(plan, pack, rank);
          ++(forward.twin(pack) ? twins : no_twins);
        }
        if (expected.runs > 1) ++several_runs;
        if (expected.heads_sent > Tokens{}) expected.head_sets = head_sets_of(plan, pack);
        CHECK(loads(pack_id, rank) == expected);
        CHECK(pack_load(plan, pack_id, rank) == expected);
      }
    }
  }
  CHECK(cp_kv > 1000);
  CHECK(cp_q > 1000);
  CHECK(cp_heads > 1000);
  CHECK(first_blocks > 10);
  CHECK(alone > 100);
  CHECK(several_runs > 500);
  CHECK(weight_runs > 50);
  CHECK(twins > 200);
  CHECK(no_twins > 200);
}

TEST_CASE("PassPacks: finds the pack with the same slices, as comparing all packs does") {
  std::int64_t found = 0, absent = 0;
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    if (seed >= 120) {  // the same packs in both passes, in runs that one of them has backwards
      std::erase_if(plan.micropacks, [](const auto& pack) { return pack.pass != Pass::forward; });
      std::vector<MicroPack> back = plan.micropacks;
      for (std::size_t first = 0, size = 0; first < back.size(); first += size) {
        size = std::min<std::size_t>(1 + random.below(7), back.size() - first);
        const auto run = back.begin() + static_cast<std::ptrdiff_t>(first);
        std::reverse(run, run + static_cast<std::ptrdiff_t>(size));
      }
      if (seed % 3 == 0) std::swap(back.front(), back[random.below(back.size())]);
      if (seed % 5 == 0) back.erase(back.begin() + static_cast<std::ptrdiff_t>(back.size() / 2));
      for (MicroPack& pack : back) pack.pass = Pass::backward;
      plan.micropacks.insert(plan.micropacks.end(), back.begin(), back.end());
    }
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      PassPacks packs(plan, pass);
      for (const MicroPack& pack : plan.micropacks) {
        std::optional<PackId> expected;
        for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
          const MicroPack& other = plan.micropacks[id];
          if (other.pass == pass && other.slices == pack.slices) expected = static_cast<PackId>(id);
        }
        CHECK(packs.twin(pack) == expected);
        ++(expected ? found : absent);
      }
    }
  }
  CHECK(found > 500);
  CHECK(absent > 500);
}

TEST_CASE("add_slice: the ranks of a group share tokens and pairs without loss") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t ranks = random.between(1, 7);
    const Tokens block{random.between(1, 600)};
    Slice slice;
    slice.begin = {random.between(0, 100'000)};
    slice.end = slice.begin + Tokens{random.between(1, 50'000)};
    for (const RingMode exchange : {RingMode::pass_kv, RingMode::pass_q}) {
      PackLoad sum;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        PackLoad load;
        add_slice(load, slice, exchange, {rank, ranks, block}, {128});
        sum.tokens += load.tokens;
        sum.pairs2 += load.pairs2;
        sum.kv_received += load.kv_received;
        sum.kv_sent += load.kv_sent;
        sum.q_received += load.q_received;
        CHECK(load.filled_pairs2 >= load.pairs2);
        CHECK(load.own_pairs2 >= 0);
        CHECK(load.own_pairs2 <= load.pairs2);
      }
      CHECK(sum.tokens == slice.length());
      CHECK(sum.pairs2 ==
            slice.end.value * slice.end.value - slice.begin.value * slice.begin.value);
      const bool kv = ranks == 1 || exchange == RingMode::pass_kv;
      CHECK(sum.kv_received == (kv ? slice.end * (ranks - 1) : Tokens{0}));
      CHECK(sum.kv_sent == (kv && ranks > 1 ? slice.end : Tokens{0}));
      CHECK(sum.q_received == (kv ? Tokens{0} : slice.length() * (ranks - 1)));
    }
  }
}

TEST_CASE("add_slice: by heads all ranks have an equal part, and rows stay their owners'") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t ranks = random.between(2, 7);
    const Tokens block{random.between(1, 600)};
    Slice slice;
    slice.begin = {random.between(0, 100'000)};
    slice.end = slice.begin + Tokens{random.between(1, 50'000)};
    const std::int64_t first = random.between(0, ranks - 1);
    PackLoad whole, sum;
    add_slice(whole, slice, RingMode::pass_kv, CpShard{}, {128});
    const auto part = [&](std::int64_t all) { return (all + ranks - 1) / ranks; };
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      PackLoad load;
      const CpShard shard{rank, ranks, block, first};
      add_slice(load, slice, RingMode::by_heads, shard, {128});
      CHECK(load.pairs2 == part(whole.pairs2));
      CHECK(load.filled_pairs2 == part(whole.filled_pairs2));
      CHECK(load.keys == part(slice.end.value));
      CHECK(load.segments == 1);
      CHECK(load.alone_pairs2 == load.pairs2);
      CHECK(load.alone_filled_pairs2 == load.filled_pairs2);
      CHECK(load.own_pairs2 == part(whole.own_pairs2));
      CHECK(load.alone_own_pairs2 == load.own_pairs2);
      CHECK(load.alone_keys == load.keys);
      CHECK(load.kv_received == Tokens{0});
      CHECK(load.kv_sent == Tokens{0});
      CHECK(load.q_received == Tokens{0});
      CHECK(load.tokens == shard.between(slice.begin, slice.end));
      CHECK(load.heads_sent == load.tokens);
      sum.tokens += load.tokens;
    }
    CHECK(sum.tokens == slice.length());
  }
}

TEST_CASE("add_slot: by heads a sample stays whole where one rank owns all of it") {
  Plan plan;
  plan.version = 3;
  plan.samples = {{40}, {10}};
  plan.groups = {{0, 1}};
  plan.sample_group = {GroupId{}, GroupId{}};
  plan.sample_first = {0, 1};
  plan.memory.cp_block_tokens = {10};
  plan.cluster.tile_tokens = 10;
  plan.micropacks = {{Pass::forward,
                      GroupId{},
                      {{SampleId{0}, {20}, {40}}, {SampleId{1}, {0}, {10}}},
                      {RingMode::by_heads, RingMode::by_heads},
                      Recompute::none},
                     {Pass::forward,
                      GroupId{},
                      {{SampleId{0}, {0}, {10}}},
                      {RingMode::by_heads},
                      Recompute::none}};
  // Rank 0 has blocks 0 and 3 of the long sample, and no token of the short one.
  const PackLoad none = pack_load(plan, PackId{0}, 0), all = pack_load(plan, PackId{0}, 1);
  CHECK(none.tokens == Tokens{10});
  CHECK(none.heads_sent == Tokens{10});
  CHECK(none.pairs2 == (1600 - 400) / 2);
  CHECK(none.keys == 20);
  CHECK(none.segments == 1);
  CHECK(all.tokens == Tokens{20});
  CHECK(all.heads_sent == Tokens{10});
  CHECK(all.pairs2 == (1600 - 400) / 2 + 100);
  CHECK(all.alone_pairs2 == all.pairs2);
  CHECK(all.keys == 30);
  CHECK(all.segments == 2);
  // A slice that one rank owns passes to the other's heads with the rest of its sample.
  const PackLoad owner = pack_load(plan, PackId{1}, 0), other = pack_load(plan, PackId{1}, 1);
  CHECK(owner.heads_sent == Tokens{10});
  CHECK(other.heads_sent == Tokens{0});
  for (const PackLoad* load : {&owner, &other}) {
    CHECK(load->pairs2 == 100 / 2);
    CHECK(load->keys == 5);
    CHECK(load->segments == 1);
  }
}

TEST_CASE("add_slice: tiles by hand") {
  PackLoad load;
  add_slice(load, {SampleId{}, {128}, {300}}, RingMode::pass_kv, CpShard{}, {128});
  CHECK(load.tokens == Tokens{172});
  CHECK(load.pairs2 == 172 * (2 * 128 + 172));
  // 44 rows are left for the second tile: 84 more with the mean keys (256 + 300) / 2.
  CHECK(load.filled_pairs2 == load.pairs2 + 84 * (256 + 300));
  CHECK(load.segments == 1);
  PackLoad full;
  add_slice(full, {SampleId{}, {100}, {356}}, RingMode::pass_kv, CpShard{}, {128});
  CHECK(full.filled_pairs2 == full.pairs2);
  // Rank 0 of 2 owns blocks 0, 3, 4: of [0, 40) in tens the runs [0, 10) and [30, 40).
  PackLoad in_cp_group;
  add_slice(in_cp_group, {SampleId{}, {0}, {40}}, RingMode::pass_kv, CpShard{0, 2, {10}}, {10});
  CHECK(in_cp_group.segments == 2);
  CHECK(in_cp_group.pairs2 == 100 + 1600 - 900);
  CHECK(in_cp_group.kv_received == Tokens{20});
  // Its keys [0, 10) are read by 10 + 20 + 10 queries, [30, 40) by the last ten.
  PackLoad queries;
  add_slice(queries, {SampleId{}, {0}, {40}}, RingMode::pass_q, CpShard{0, 2, {10}}, {10});
  CHECK(queries.segments == 3);
  CHECK(queries.pairs2 == 100 + 2 * 10 * 30 + 100);
  CHECK(queries.q_received == Tokens{20});
}

TEST_CASE("PackLoads: a pack equal to a forward pack is one run, reversed slices too") {
  Plan plan;
  plan.samples = {{256}, {128}};
  plan.groups = {{0}};
  plan.sample_group = {GroupId{}, GroupId{}};
  const Slice a{SampleId{0}, {0}, {256}}, b{SampleId{1}, {0}, {128}};
  plan.micropacks = {{Pass::forward, GroupId{}, {a, b}, {}, Recompute::none},
                     {Pass::backward, GroupId{}, {b, a}, {}, Recompute::none}};
  CHECK(pack_load(plan, PackId{1}, 0).runs == 1);
  CHECK(pack_load(plan, PackId{0}, 0).runs == 0);
  const Slice tail{SampleId{0}, {128}, {256}}, head{SampleId{0}, {0}, {128}};
  plan.micropacks[1].slices = {tail};
  plan.micropacks.push_back({Pass::backward, GroupId{}, {b, head}, {}, Recompute::none});
  CHECK(pack_load(plan, PackId{1}, 0).runs == 1);
  CHECK(pack_load(plan, PackId{2}, 0).runs == 2);
}

TEST_CASE("PackLoads: what is not there is refused by name") {
  Plan plan;
  plan.samples = {{256}};
  plan.groups = {{0, 1}};
  plan.sample_group = {GroupId{}};
  plan.micropacks = {{Pass::forward,
                      GroupId{},
                      {{SampleId{0}, {0}, {256}}},
                      {RingMode::pass_kv},
                      Recompute::none}};
  CHECK_THROWS_WITH_AS(static_cast<void>(pack_load(plan, PackId{1}, 0)),
                       "MicroPack does not exist, got 1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(pack_load(plan, PackId{0}, 2)),
                       "rank of the group does not exist, got 2", InvalidInput);
  Plan broken = plan;
  broken.micropacks[0].group = GroupId{3};
  CHECK_THROWS_WITH_AS(PackLoads{broken}, "cost: micropacks[0].group must be a group, got 3",
                       InvalidInput);
  broken = plan;
  broken.groups[0].clear();
  CHECK_THROWS_WITH_AS(PackLoads{broken}, "cost: micropacks[0].group must have ranks",
                       InvalidInput);
  broken = plan;
  broken.micropacks[0].exchange.clear();
  CHECK_THROWS_WITH_AS(PackLoads{broken},
                       "cost: micropacks[0].exchange must have one entry a slice, got 0",
                       InvalidInput);
  broken = plan;
  broken.micropacks[0].slices[0].end = {0};
  CHECK_THROWS_WITH_AS(PackLoads{broken},
                       "cost: micropacks[0]: a slice must not be empty or begin before 0, got 0",
                       InvalidInput);
  broken = plan;
  broken.micropacks[0].slices[0].end = {(std::int64_t{1} << 31) + 1};
  CHECK_THROWS_WITH_AS(PackLoads{broken},
                       "cost: micropacks[0]: the ends of its slices sum to more than 2^31, got "
                       "2147483649",
                       InvalidInput);
  broken = plan;
  broken.memory.cp_block_tokens = {0};
  CHECK_THROWS_WITH_AS(PackLoads{broken}, "memory.share_tokens must be > 0, got 0", InvalidInput);
  broken = plan;
  broken.micropacks[0].slices[0].sample = SampleId{7};
  CHECK_THROWS_WITH_AS(PackLoads{broken}, "slice: sample does not exist, got 7", InvalidInput);
}

}  // namespace
}  // namespace slimpack
