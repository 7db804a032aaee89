// SPDX-License-Identifier: Apache-2.0
// Plans whose timelines can be drawn by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

inline ModelShape small_model(std::int64_t layers) {
  ModelShape model;
  model.name = "small";
  model.layers = layers;
  model.hidden = 4;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 2;
  model.ffn = 8;
  model.vocab = 10;
  model.bytes_per_element = 2;
  return model;
}

inline Cluster small_cluster() {
  Cluster cluster;
  cluster.name = "desk";
  cluster.memory = Bytes{100000};
  cluster.peak_flops = 1e9;
  cluster.matrix_flops = cluster.attention_forward_flops = cluster.attention_backward_flops = 5e8;
  cluster.memory_bytes_per_s = 1e9;
  cluster.inside = cluster.between = {1e9, 1e-6};
  return cluster;
}

/// A plan of dp x pp devices without work: head on the last stage, a layer a stage, groups of one.
inline Plan empty_plan(std::int32_t dp, std::int32_t pp) {
  Plan plan;
  plan.planner = "by hand";
  plan.model = small_model(pp);
  plan.cluster = small_cluster();
  plan.cost = AnalyticCost{};
  plan.memory.capacity = Bytes{5000};
  plan.memory.reserved = Bytes{500};
  plan.memory.page_tokens = Tokens{2};
  plan.memory.cp_block_tokens = Tokens{2};
  plan.parallel.dp = dp;
  plan.parallel.pp = pp;
  plan.parallel.granularity = Tokens{4};
  for (std::int32_t rank = 0; rank < dp; ++rank) {
    plan.groups.push_back({rank});
    for (std::int32_t stage = 0; stage < pp; ++stage) {
      plan.placement.push_back({rank, stage, 0, std::int64_t{rank} * pp + stage});
      plan.schedule.push_back({rank, stage, {}});
    }
  }
  for (std::int32_t stage = 0; stage < pp; ++stage) {
    plan.stages.push_back({stage, 0, stage, stage + 1, stage == 0});
  }
  return plan;
}

inline PackId add_pack(Plan& plan, Pass pass, std::uint32_t group, std::vector<Slice> slices) {
  MicroPack pack;
  pack.pass = pass;
  pack.group = GroupId{group};
  if (plan.groups[group].size() > 1) pack.exchange.assign(slices.size(), RingMode::pass_kv);
  pack.slices = std::move(slices);
  plan.micropacks.push_back(std::move(pack));
  return PackId{static_cast<std::uint32_t>(plan.micropacks.size() - 1)};
}

/// Sample 0 of 8 tokens is shared by both ranks, forward in one slice and backward in two; samples
/// 1 and 2 of 4 tokens are the ranks' own.
inline Plan tiny_plan() {
  Plan plan = empty_plan(2, 2);
  plan.planner = "by hand <&\"'>";
  plan.step_index = 3;
  plan.groups.push_back({0, 1});
  plan.parallel.max_cp = 2;
  plan.samples = {Tokens{8}, Tokens{4}, Tokens{4}};
  plan.origin.resize(3);
  plan.target_tokens = 13;
  plan.sample_group = {GroupId{2}, GroupId{0}, GroupId{1}};
  const SampleId in_cp_group{0};
  add_pack(plan, Pass::forward, 2, {{in_cp_group, Tokens{0}, Tokens{8}}});
  add_pack(plan, Pass::backward, 2, {{in_cp_group, Tokens{4}, Tokens{8}}});
  add_pack(plan, Pass::backward, 2, {{in_cp_group, Tokens{0}, Tokens{4}}});
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    add_pack(plan, Pass::forward, rank, {{SampleId{rank + 1}, Tokens{0}, Tokens{4}}});
    add_pack(plan, Pass::backward, rank, {{SampleId{rank + 1}, Tokens{0}, Tokens{4}}});
  }
  for (DeviceSchedule& device : plan.schedule) {
    const PackId forward{device.dp == 0 ? 3U : 5U};
    const PackId backward{device.dp == 0 ? 4U : 6U};
    const bool last = device.pp == 1;
    device.order.push_back({UnitKind::forward, PackId{0}, 0});
    if (last) device.order.push_back({UnitKind::head, PackId{0}, 0});
    device.order.push_back({UnitKind::forward, forward, 0});
    if (last) device.order.push_back({UnitKind::head, forward, 0});
    for (const PackId pack : {PackId{1}, PackId{2}, backward}) {
      device.order.push_back({UnitKind::backward, pack, 0});
    }
    device.order.push_back({UnitKind::reduce, {}, 0});
    device.order.push_back({UnitKind::optimizer, {}, 0});
  }
  return plan;
}

/// Microseconds of `tiny_plan`: F 20 or 10; B 25, 20, 20, 16; H 3, transfer 2, R 4, O 5.
struct TinyTimes {
  static Nanos compute(PackId pack, std::int32_t) {
    constexpr std::int64_t kMicros[] = {20, 25, 20, 10, 20, 10, 16};
    return {kMicros[index(pack)] * 1000};
  }
  static Nanos head(PackId, std::size_t, std::int32_t) { return {3000}; }
  static Nanos transfer(PackId, std::int32_t, std::size_t) { return {2000}; }
  static Nanos reduce(std::int32_t, std::int32_t) { return {4000}; }
  static Nanos optimizer(std::int32_t, std::int32_t) { return {5000}; }
};
static_assert(UnitTimes<TinyTimes>);

/// Every rank runs `packs` samples of 4 tokens, all forward, then all backward.
inline Plan uniform_plan(std::int32_t dp, std::int32_t pp, std::uint32_t packs) {
  Plan plan = empty_plan(dp, pp);
  for (std::uint32_t rank = 0; rank < static_cast<std::uint32_t>(dp); ++rank) {
    std::vector<PackId> forward, backward;
    for (std::uint32_t i = 0; i < packs; ++i) {
      const SampleId sample{static_cast<std::uint32_t>(plan.samples.size())};
      plan.samples.push_back(Tokens{4});
      plan.sample_group.push_back(GroupId{rank});
      forward.push_back(add_pack(plan, Pass::forward, rank, {{sample, Tokens{0}, Tokens{4}}}));
      backward.push_back(add_pack(plan, Pass::backward, rank, {{sample, Tokens{0}, Tokens{4}}}));
    }
    for (std::int32_t stage = 0; stage < pp; ++stage) {
      auto& order =
          plan.schedule[rank * static_cast<std::size_t>(pp) + static_cast<std::size_t>(stage)]
              .order;
      for (const PackId pack : forward) {
        order.push_back({UnitKind::forward, pack, 0});
        if (stage == pp - 1) order.push_back({UnitKind::head, pack, 0});
      }
      for (const PackId pack : backward) order.push_back({UnitKind::backward, pack, 0});
      order.push_back({UnitKind::reduce, {}, 0});
      order.push_back({UnitKind::optimizer, {}, 0});
    }
  }
  plan.origin.resize(plan.samples.size());
  plan.target_tokens = 3 * static_cast<std::int64_t>(plan.samples.size());
  return plan;
}

}  // namespace slimpack::test
