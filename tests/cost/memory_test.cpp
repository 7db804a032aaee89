// SPDX-License-Identifier: Apache-2.0
// Bytes of tokens, units and devices.
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/presets.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>

#include "cost/shapes.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using test::h100;
using test::llama_7b;

TEST_CASE("layer_bytes: llama-7b by hand") {
  const LayerBytes bytes = layer_bytes(llama_7b());
  const std::int64_t h = 4096, f = 11008;
  CHECK(bytes.kept == std::array<std::int64_t, 4>{2 * (6 * h + 3 * f) + 4 * 34,
                                                  2 * (4 * h + 2 * f) + 4 * 32, 2 * 2 * h + 4 * 32,
                                                  2 * h});
  for (std::size_t mode = 0; mode < 4; ++mode) {
    CHECK(bytes.kept[mode] + bytes.recomputed[mode] == bytes.kept[0]);
    CHECK(bytes.forward_workspace[mode] == 2 * 4 * h + bytes.recomputed[mode]);
    CHECK(bytes.backward_workspace[mode] ==
          2 * (5 * h + 3 * f) + 2 * h * 4 + bytes.recomputed[mode]);
  }
  CHECK(bytes.kv == 2 * 2 * h);
  CHECK(bytes.kv_gradient == 2 * h * 4);
  CHECK(bytes.boundary == 2 * h);
  CHECK(bytes.kv_exchange == 2 * 2 * h * 2);
  CHECK(bytes.kv_exchange_back == 2 * 2 * h * 4);
  CHECK(bytes.q_exchange == 2 * (2 * h * 2 + 32 * 4));
  CHECK(bytes.q_exchange_back == 2 * (2 * h * 2 + h * 4 + 2 * 32 * 4));
  // Own queries, keys and values, and a statistic; of all rows what has come, the queries in the
  // order of tokens, and the outputs.
  CHECK(head_buffers(bytes.heads, Pass::forward, false, 1) ==
        HeadBuffers{3 * h * 2 + 32 * 4, 5 * h * 2 + 32 * 4, 0});
  // What goes home: gradients of queries, keys and values; of all rows these, queries with the
  // gradients of outputs and their own, and statistics; of whole samples the gradients of keys
  // and values as they are summed.
  CHECK(head_buffers(bytes.heads, Pass::backward, false, 1) ==
        HeadBuffers{3 * h * 2, 6 * h * 2 + 4 * 32 * 4, 2 * h * 4});
  // Queries come twice where attention is made again, with keys and values.
  CHECK(head_buffers(bytes.heads, Pass::backward, true, 1) ==
        HeadBuffers{3 * h * 2, 7 * h * 2 + 4 * 32 * 4, 2 * h * 4 + 2 * h * 2});
  // Of shared keys it is less that goes home than comes: queries, gradients of outputs, with
  // statistics and room to align them.
  const LayerBytes shared = layer_bytes(*model_preset("llama3-8b"), 4);
  CHECK(head_buffers(shared.heads, Pass::backward, false, 1).own == 2 * 4096 * 2 + 3 * 32 * 4);
  // Where each of 32 ranks has one head of keys, it is as many as there are of queries.
  CHECK(head_buffers(shared.heads, Pass::forward, false, 4) ==
        HeadBuffers{3 * h * 2 + 32 * 4, 5 * h * 2 + 32 * 4, 0});
  CHECK(head_buffers(shared.heads, Pass::backward, true, 4) ==
        head_buffers(bytes.heads, Pass::backward, true, 1));
  const RingBytes ring = ring_bytes(llama_7b(), {2, 4, 4});
  CHECK(ring.heads == 2 * h * 2 + 32 * 4);
  CHECK(ring.heads_back == 2 * h * 2 + 2 * 32 * 4);
  CHECK(ring.heads_query == h * 2);
  const LayerBytes third = layer_bytes(llama_7b(), 4, 3);
  CHECK(third.kv == (bytes.kv + 2) / 3);
  CHECK(third.kept[0] == (bytes.kept[0] + 2) / 3);
}

TEST_CASE("head_buffer_bytes: a plan of two ranks by hand") {
  Plan plan;
  plan.version = 3;
  plan.model = llama_7b();
  plan.memory.cp_block_tokens = {10};
  plan.groups = {{0, 1}};
  plan.samples = {{45}, {30}, {10}};
  plan.sample_group = {GroupId{}, GroupId{}, GroupId{}};
  plan.sample_first = {0, 1, 0};
  MicroPack pack{Pass::forward,
                 GroupId{},
                 {{SampleId{0}, {20}, {45}}, {SampleId{1}, {0}, {30}}, {SampleId{2}, {0}, {10}}},
                 {RingMode::by_heads, RingMode::by_heads, RingMode::by_heads},
                 Recompute::none};
  LayerBytes layer;
  layer.heads = {100, 50, 7, 11, 1};
  // Forward a token's query, keys and statistic, then two more of queries. Backward two of queries
  // and three statistics, then three of queries, or four, and four statistics; sums of 7.
  constexpr std::int64_t kForth = 161, kBack = 233, kRead = 344;
  // Rank 0 has blocks 0, 3 and 4 of sample 0, so 15 of [20, 45); of sample 1, which rank 1 begins,
  // blocks 1 and 2, 20 of [0, 30). Rank 1 has 10 and 10. Sample 2 is one block. Of 25 + 30 tokens
  // each has a half.
  CHECK(head_buffer_bytes(plan, pack, layer) == 35 * kForth + (55 * (kForth + 200) + 1) / 2);
  pack.pass = Pass::backward;
  CHECK(head_buffer_bytes(plan, pack, layer) ==
        35 * kBack + (55 * (kBack + kRead) + 30 * 7 + 1) / 2);
  pack.recompute = Recompute::full;
  CHECK(head_buffer_bytes(plan, pack, layer) ==
        35 * kBack + (55 * (kBack + kRead + 100) + 30 * (7 + 50) + 1) / 2);
  pack.recompute = Recompute::layer;
  pack.exchange[1] = RingMode::pass_kv;
  CHECK(head_buffer_bytes(plan, pack, layer) == 15 * kBack + (25 * (kBack + kRead) + 1) / 2);
  // What one rank owns of a longer sample passes to the heads of the other too.
  pack.slices[0] = {SampleId{0}, {0}, {10}};
  CHECK(head_buffer_bytes(plan, pack, layer) == 10 * kBack + 10 * (kBack + kRead) / 2);
  // Of one head of keys both have all.
  Plan one_key = plan;
  one_key.model.kv_heads = 1;
  pack.pass = Pass::forward;
  CHECK(head_buffer_bytes(one_key, pack, layer) ==
        10 * (kForth + 50) + 10 * (kForth + 50 + 200) / 2);
  pack.pass = Pass::backward;
  pack.exchange[0] = RingMode::pass_q;  // the block of sample 2 is alone
  CHECK(head_buffer_bytes(plan, pack, layer) == 0);
  CHECK(ring_buffer_bytes(layer_bytes(llama_7b()), pack.slices[0], Pass::forward,
                          RingMode::by_heads, 2, {10}) == 0);
}

TEST_CASE("MemoryModel: by heads each rank has a part of all keys of a sample, by hand") {
  Plan plan;
  plan.version = 3;
  plan.model = llama_7b();
  plan.memory.cp_block_tokens = {10};
  plan.memory.page_tokens = {16};
  plan.groups = {{0, 1}};
  plan.samples = {{45}, {10}};
  plan.sample_group = {GroupId{}, GroupId{}};
  plan.sample_first = {0, 1};
  const auto add = [&](Pass pass, std::vector<Slice> slices) {
    const std::size_t count = slices.size();
    plan.micropacks.push_back({pass, GroupId{}, std::move(slices),
                               std::vector<RingMode>(count, RingMode::by_heads), Recompute::none});
  };
  add(Pass::forward, {{SampleId{0}, {0}, {10}}});
  add(Pass::forward, {{SampleId{0}, {10}, {45}}, {SampleId{1}, {0}, {10}}});
  add(Pass::backward, {{SampleId{0}, {20}, {45}}});
  add(Pass::backward, {{SampleId{0}, {0}, {20}}, {SampleId{1}, {0}, {10}}});
  // The short sample is whole on rank 1.
  CHECK(kept_keys(plan) == std::vector<KeptKeys>{{true, true, true, 2}, {true, false, false, 1}});
  const MemoryModel memory(plan);
  const std::int64_t page = 16 * 2 * 4096 * 2, gradient = 2 * 4096 * 4;
  for (const std::size_t rank : {0U, 1U}) {
    CAPTURE(rank);
    const std::int64_t whole = rank == 1 ? page : 0;
    // One page of 10 tokens, three of 45, each with half of the heads.
    CHECK(memory.keys_values(PackId{0}, rank, 3) == Bytes{3 * page / 2});
    CHECK(memory.keys_values(PackId{1}, rank, 3) == Bytes{3 * (2 * page / 2 + whole)});
    CHECK(memory.keys_values(PackId{2}, rank, 3) == Bytes{0});
    CHECK(memory.keys_values(PackId{3}, rank, 3) == Bytes{3 * (3 * page / 2 + whole)});
    CHECK(memory.begun_gradients(PackId{2}, rank, 3) == Bytes{3 * 45 * gradient / 2});
    CHECK(memory.begun_gradients(PackId{3}, rank, 3) == Bytes{0});
    CHECK(memory.ended_gradients(PackId{2}, rank, 3) == Bytes{0});
    CHECK(memory.ended_gradients(PackId{3}, rank, 3) == Bytes{3 * 45 * gradient / 2});
  }
}

TEST_CASE("memory: llama-7b at pp 8 keeps half a megabyte a token, and fills an h100 near 106K") {
  Plan plan;
  plan.model = llama_7b();
  plan.cluster = h100();
  plan.parallel.pp = 8;
  for (std::int32_t pp = 0; pp < 8; ++pp)
    plan.stages.push_back({pp, 0, 4 * pp, 4 * pp + 4, pp == 0});
  const LayerBytes layer = layer_bytes(plan.model);
  const std::int64_t activations = 4 * (layer.kept[0] + layer.kv);
  const std::int64_t gradients = 4 * layer.kv_gradient;
  CHECK(static_cast<double>(activations) == doctest::Approx(0.5e6).epsilon(0.06));
  CHECK(static_cast<double>(gradients) == doctest::Approx(0.13e6).epsilon(0.01));
  for (const std::int32_t dp : {1, 2, 4, 8}) {
    CAPTURE(dp);
    plan.parallel.dp = dp;
    const Bytes room = plan.cluster.memory - plan.cluster.reserved - static_bytes(plan, 3).total();
    const auto longest =
        static_cast<double>(room.value) / static_cast<double>(activations + gradients);
    CHECK(longest == doctest::Approx(106e3).epsilon(0.08));
  }
}

TEST_CASE("static_bytes: weights, gradients and state of every kind of stage") {
  Plan plan;
  plan.model = llama_7b();
  plan.parallel.pp = 2;
  plan.parallel.dp = 3;
  plan.stages = {
      {0, 0, 0, 8, true}, {1, 0, 8, 16, false}, {0, 1, 16, 24, false}, {1, 1, 24, 32, false}};
  const std::int64_t layers = 16 * plan.model.layer_weights(), h = 4096;
  CHECK(plan.model.layer_weights() == 4 * h * h + 3 * h * 11008 + 2 * h);
  CHECK(device_weights(plan, 0) == DeviceWeights{layers, 32000 * h, 0, 0});
  CHECK(device_weights(plan, 1) == DeviceWeights{layers, 0, h, 32000 * h});
  const std::int64_t weights = layers + 32000 * h + h;
  CHECK(static_bytes(plan, 1) ==
        StaticBytes{{2 * weights}, {4 * weights}, {(12 * weights + 2) / 3}});
  plan.memory.optimizer = OptimizerState::replicated;
  CHECK(static_bytes(plan, 1).optimizer == Bytes{12 * weights});
  plan.parallel.head = LmHead::shard;
  CHECK(device_weights(plan, 0).head == 16000 * h);
  CHECK(device_weights(plan, 1).head == 16000 * h);
  plan.model.tied = true;
  CHECK(device_weights(plan, 0).head == 0);
  CHECK(device_weights(plan, 1).head == 16000 * h);
  plan.parallel.pp = 1;
  plan.parallel.head = LmHead::last;
  CHECK(device_weights(plan, 0).head == 0);
  CHECK(state_bytes(plan.model) == 12);
  plan.model.bytes_per_element = 4;
  CHECK(state_bytes(plan.model) == 8);
  plan.model.bytes_per_element = 8;
  CHECK(state_bytes(plan.model) == 16);
}

TEST_CASE("MemoryModel: equal to counting token by token") {
  std::int64_t unpaged = 0, unsummed = 0, twins = 0, no_twins = 0, by_heads = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.vary_bytes = true;
    if (seed >= 100 && seed < 150) options.uncut = true;
    if (seed >= 125 && seed < 150) options.recompute = Recompute::full;
    options.weights = seed % 3 > 0;
    const Plan plan =
        seed < 150 ? test::random_plan(seed, options) : test::random_heads_plan(seed, options);
    const MemoryModel memory(plan);
    PassPacks backward(plan, Pass::backward);
    for (const MicroPack& pack : plan.micropacks) {
      if (pack.pass == Pass::forward) ++(backward.twin(pack) ? twins : no_twins);
    }
    const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes);
    CHECK(memory.layer() == layer);
    std::vector<std::vector<Recompute>> mode(plan.samples.size());
    for (std::size_t i = 0; i < mode.size(); ++i) {
      mode[i].resize(static_cast<std::size_t>(plan.samples[i].value));
    }
    for (const MicroPack& pack : plan.micropacks) {
      for (const Slice& slice : pack.slices) {
        for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
          if (pack.pass == Pass::backward) {
            mode[index(slice.sample)][static_cast<std::size_t>(i)] = pack.recompute;
          }
        }
      }
    }
    std::map<std::pair<Pass, SampleId>, std::int64_t> slices;
    for (const MicroPack& pack : plan.micropacks) {
      for (const Slice& slice : pack.slices) ++slices[{pack.pass, slice.sample}];
    }
    std::map<std::pair<Pass, std::size_t>, std::int64_t> kept, paged;  // by pass and group
    std::int64_t begun = 0, ended = 0;
    std::map<std::size_t, std::int64_t> left;  // by group: by B less by W
    for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
      const MicroPack& pack = plan.micropacks[id];
      const auto pack_id = static_cast<PackId>(id);
      for (std::size_t rank = 0; rank < plan.groups[index(pack.group)].size(); ++rank) {
        const bool apart = pack.weights == WeightGradients::apart;
        if (pack.pass == Pass::weight || apart) {
          const std::int64_t e = plan.model.bytes_per_element, h = plan.model.hidden;
          const std::int64_t q = plan.model.query_width(), k = plan.model.key_width();
          const std::int64_t f = plan.model.ffn;
          std::int64_t own = 0;
          for (const Slice& slice : pack.slices) {
            const CpShard shard = cp_shard_of(plan, slice.sample, rank);
            for (Tokens i = slice.begin; i < slice.end; i += Tokens{1})
              own += shard.owns(i) ? 1 : 0;
          }
          const std::int64_t gradients = (2 * h + q + 2 * k + 2 * f) * e;
          const std::int64_t all = own * ((2 * h + q + f) * e + gradients);
          CHECK(memory.left_apart(pack_id, rank, 3) == Bytes{3 * all});
          left[index(pack.group)] += apart ? all : -all;
          constexpr std::array<std::array<std::int64_t, 2>, kRecomputeModes> kAgain{
              {{0, 0}, {1, 0}, {1, 0}, {1, 1}}};
          const auto& [linear, attended] = kAgain[static_cast<std::size_t>(pack.recompute)];
          const std::int64_t made = own * ((linear * (2 * h + f) + attended * q) * e + gradients);
          CHECK(memory.made_apart(pack_id, rank, 3) == Bytes{apart ? 3 * made : 0});
          CHECK(memory.own_tokens(pack_id, rank) == Tokens{own});
          if (!apart) {
            CHECK(memory.pack_workspace(pack_id, rank) == Bytes{all});
            CHECK(memory.workspace({UnitKind::weight, pack_id, 0}, 0, rank) == Bytes{all});
            continue;
          }
        } else {
          CHECK(memory.left_apart(pack_id, rank, 3) == Bytes{});
          CHECK(memory.made_apart(pack_id, rank, 3) == Bytes{});
        }
        std::int64_t tokens = 0, bytes = 0, work = 0, exchange = 0;
        std::vector<std::int64_t> of_heads(plan.groups[index(pack.group)].size());
        std::int64_t of_all_heads = 0;
        std::int64_t pages = 0, opens = 0, closes = 0;  // bytes of a layer
        const bool back = pack.pass == Pass::backward;
        for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
          const Slice& slice = pack.slices[slot];
          const CpShard shard = cp_shard_of(plan, slice.sample, rank);
          const Tokens length = plan.samples[index(slice.sample)];
          const bool summed = plan.version == 1 || slices[{Pass::backward, slice.sample}] > 1;
          const bool in_pages = summed || slices[{Pass::forward, slice.sample}] > 1 ||
                                mode[index(slice.sample)].front() != Recompute::full;
          if (back && !in_pages) work += layer.kv * shard.before(length).value;
          unpaged += in_pages ? 0 : 1;
          unsummed += summed ? 0 : 1;
          // By heads a rank has a part of the heads of every token.
          const bool parts =
              shard.ranks > 1 && pack.exchange[slot] == RingMode::by_heads && length > shard.block;
          const std::int64_t copies = key_copies(plan.model, plan.parallel.tp, shard.ranks);
          const std::int64_t share = parts ? shard.ranks / copies : 1;
          const std::int64_t page_bytes = plan.memory.page_tokens.value * layer.kv / share;
          std::set<std::int64_t> before, now;  // pages
          std::int64_t place = 0;
          for (std::int64_t i = 0; i < length.value; ++i) {
            if (!parts && !shard.owns({i})) continue;
            const std::int64_t page = place++ / plan.memory.page_tokens.value;
            if (i < slice.begin.value) before.insert(page);
            if (i < slice.end.value) now.insert(page);
          }
          if (in_pages && !back) {
            pages += static_cast<std::int64_t>(now.size() - before.size()) * page_bytes;
          }
          if (in_pages && back && slice.begin == Tokens{}) {
            pages += (place + plan.memory.page_tokens.value - 1) / plan.memory.page_tokens.value *
                     page_bytes;
          }
          const std::int64_t gradients = place * layer.kv_gradient / share;
          if (back && summed && slice.end == length) opens += gradients;
          if (back && summed && slice.begin == Tokens{}) closes += gradients;
          for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
            if (!shard.owns({i})) continue;
            const auto how =
                static_cast<std::size_t>(mode[index(slice.sample)][static_cast<std::size_t>(i)]);
            ++tokens;
            bytes += layer.kept[how];
            work += back ? layer.backward_workspace[how] : layer.forward_workspace[how];
          }
          if (shard.ranks == 1) continue;
          if (pack.exchange[slot] == RingMode::by_heads) {
            if (!parts) continue;
            ++by_heads;
            const HeadBuffers each =
                head_buffers(layer.heads, pack.pass, pack.recompute == Recompute::full, copies);
            const bool whole = slice.length() == plan.samples[index(slice.sample)];
            for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
              of_all_heads += each.all + (whole ? each.whole : 0);
              for (std::size_t other = 0; other < of_heads.size(); ++other) {
                if (cp_shard_of(plan, slice.sample, other).owns({i})) of_heads[other] += each.own;
              }
            }
            continue;
          }
          const bool kv = pack.exchange[slot] == RingMode::pass_kv;
          std::int64_t largest = 0;
          for (std::int64_t other = 0; other < shard.ranks; ++other) {
            std::int64_t own = 0;
            for (std::int64_t i = kv ? 0 : slice.begin.value; i < slice.end.value; ++i) {
              own += CpShard{other, shard.ranks, shard.block}.owns({i}) ? 1 : 0;
            }
            largest = std::max(largest, own);
          }
          const std::int64_t row = kv ? layer.kv_exchange + (back ? layer.kv_exchange_back : 0)
                                      : (back ? layer.q_exchange_back : layer.q_exchange);
          exchange = std::max(exchange, largest * row);
        }
        const auto ranks = static_cast<std::int64_t>(of_heads.size());
        exchange += *std::ranges::max_element(of_heads) + (of_all_heads + ranks - 1) / ranks;
        CHECK(memory.own_tokens(pack_id, rank) == Tokens{tokens});
        CHECK(memory.kept(pack_id, rank, 3) == Bytes{3 * bytes});
        CHECK(memory.boundary(pack_id, rank) == Bytes{tokens * layer.boundary});
        CHECK(memory.pack_workspace(pack_id, rank) == Bytes{work + exchange});
        const UnitKind kind = back ? UnitKind::backward : UnitKind::forward;
        CHECK(memory.workspace({kind, pack_id, 0}, 0, rank) == Bytes{work + exchange});
        const std::int64_t statistic = plan.model.statistic_bytes();
        const std::int64_t row = head_rows(plan, 0) * statistic +
                                 3 * plan.model.hidden * plan.model.bytes_per_element +
                                 plan.model.hidden * plan.memory.gradient_bytes + 4 * statistic;
        CHECK(memory.workspace({UnitKind::head, pack_id, 0}, 0, rank) ==
              Bytes{std::min(tokens, plan.memory.head_tile.value) * row});
        CHECK(memory.workspace({UnitKind::reduce, {}, 0}, 0, rank) == Bytes{0});
        CHECK(memory.keys_values(pack_id, rank, 3) == Bytes{3 * pages});
        CHECK(memory.begun_gradients(pack_id, rank, 3) == Bytes{3 * opens});
        CHECK(memory.ended_gradients(pack_id, rank, 3) == Bytes{3 * closes});
        begun += opens;
        ended += closes;
        paged[{pack.pass, index(pack.group)}] += memory.keys_values(pack_id, rank, 1).value;
        kept[{pack.pass, index(pack.group)}] += memory.kept(pack_id, rank, 1).value;
      }
    }
    for (const auto& [key, bytes] : kept) {
      CHECK(bytes == (kept[{Pass::backward, key.second}]));
      CHECK(paged[key] == (paged[{Pass::backward, key.second}]));
    }
    CHECK(begun == ended);
    for (const auto& [group, bytes] : left) CHECK(bytes == 0);
  }
  CHECK(by_heads > 500);
  CHECK(unpaged > 100);
  CHECK(unsummed > unpaged);
  CHECK(twins > 200);
  CHECK(no_twins > 200);
}

TEST_CASE("kept_keys: what is not cut keeps no gradients, and no pages where all is made again") {
  Plan plan;
  plan.samples = {Tokens{10}, Tokens{10}, Tokens{10}, Tokens{10}};
  const auto slice = [](std::uint32_t sample, std::int64_t begin, std::int64_t end) {
    return Slice{SampleId{sample}, Tokens{begin}, Tokens{end}};
  };
  const auto pack = [&](Pass pass, std::vector<Slice> slices, Recompute mode = Recompute::none) {
    plan.micropacks.push_back({pass, GroupId{0}, std::move(slices), {}, mode});
  };
  pack(Pass::forward, {slice(0, 0, 10), slice(1, 0, 10), slice(2, 0, 6), slice(3, 0, 10)});
  pack(Pass::forward, {slice(2, 6, 10)});
  pack(Pass::backward, {slice(3, 4, 10)}, Recompute::full);
  pack(Pass::backward, {slice(0, 0, 10), slice(2, 0, 10), slice(3, 0, 4)}, Recompute::full);
  pack(Pass::backward, {slice(1, 0, 10)}, Recompute::layer);
  CHECK(kept_keys(plan) == std::vector<KeptKeys>{{false, false}, {true, false}, {true, false}, {}});
  plan.version = 1;
  CHECK(kept_keys(plan) == std::vector<KeptKeys>(4));
}

TEST_CASE("MemoryModel: refuses pages of no token") {
  Plan plan;
  plan.memory.page_tokens = {0};
  CHECK_THROWS_WITH_AS(MemoryModel{plan}, "memory.page_tokens must be > 0, got 0", InvalidInput);
}

}  // namespace
}  // namespace slimpack
