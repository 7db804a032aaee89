// SPDX-License-Identifier: Apache-2.0
// Small plans put together by hand, whose every unit a test can point at.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

inline Unit f(std::uint32_t pack, std::int32_t chunk = 0) {
  return {UnitKind::forward, PackId{pack}, chunk};
}
inline Unit b(std::uint32_t pack, std::int32_t chunk = 0) {
  return {UnitKind::backward, PackId{pack}, chunk};
}
inline Unit w(std::uint32_t pack, std::int32_t chunk = 0) {
  return {UnitKind::weight, PackId{pack}, chunk};
}
inline Unit h(std::uint32_t pack) {
  return {UnitKind::head, PackId{pack}, 0};
}
inline Unit r(std::int32_t chunk = 0) {
  return {UnitKind::reduce, {}, chunk};
}
inline Unit o() {
  return {UnitKind::optimizer, {}, 0};
}

struct HandShape {
  std::int32_t dp = 1, pp = 1, chunks = 1;
  LmHead head = LmHead::last;
  std::int32_t max_in_flight = 2;
};

/// A tiny model on dp x pp devices, one layer a stage and chunk, granularity 2; singleton groups.
inline Plan hand_plan(const HandShape& shape) {
  Plan plan;
  plan.planner = "hand";
  plan.sources = {{"hand.lengths", 1'000'000, ""}};
  plan.model = {"hand", shape.pp * shape.chunks, 4, 2, 1, 2, 6, 10, false, 1e4, 1e-5, 2};
  plan.cluster.devices_per_node = 8;
  plan.memory.capacity = {1'000'000'000};
  plan.memory.reserved = {1000};
  plan.memory.page_tokens = {4};
  plan.memory.cp_block_tokens = {2};
  plan.memory.head_tile = {3};
  plan.parallel = {shape.dp, shape.pp, 1, shape.chunks, shape.head, {2}, shape.dp};
  plan.max_in_flight = shape.max_in_flight;
  for (std::int32_t dp = 0; dp < shape.dp; ++dp) {
    plan.groups.push_back({dp});
    for (std::int32_t pp = 0; pp < shape.pp; ++pp) {
      plan.placement.push_back({dp, pp, 0, dp * shape.pp + pp});
      plan.prediction.devices.push_back({dp, pp, {}, {}});
    }
  }
  for (std::int32_t line = 0; line < shape.pp * shape.chunks; ++line) {
    plan.stages.push_back({line % shape.pp, line / shape.pp, line, line + 1, line == 0});
  }
  return plan;
}

/// Adds a sample to a group and returns its id.
inline SampleId add_sample(Plan& plan, std::int64_t length, std::uint32_t group) {
  const std::size_t id = plan.samples.size();
  plan.samples.push_back({length});
  plan.origin.push_back({0, static_cast<std::int64_t>(id), {0}});
  plan.sample_group.push_back(GroupId{group});
  plan.target_tokens += length - 1;
  return static_cast<SampleId>(id);
}

/// Adds a MicroPack and returns its id.
inline std::uint32_t add_pack(Plan& plan, Pass pass, std::uint32_t group, std::vector<Slice> slices,
                              Recompute mode = Recompute::none) {
  MicroPack pack;
  pack.pass = pass;
  pack.group = GroupId{group};
  pack.slices = std::move(slices);
  if (plan.groups[group].size() > 1 && pass != Pass::weight)
    pack.exchange.assign(pack.slices.size(), RingMode::pass_kv);
  if (pass == Pass::backward) pack.recompute = mode;
  plan.micropacks.push_back(std::move(pack));
  return static_cast<std::uint32_t>(plan.micropacks.size() - 1);
}

/// All forward packs by rising id, chunk after chunk, then all H, then all backward packs by rising
/// id, last chunk first, all weight packs likewise, R, O.
inline void schedule_in_order(Plan& plan) {
  plan.schedule.clear();
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      std::vector<std::uint32_t> forward, backward, weight;
      for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
        const auto& ranks = plan.groups[index(plan.micropacks[id].group)];
        if (std::find(ranks.begin(), ranks.end(), dp) == ranks.end()) continue;
        const Pass pass = plan.micropacks[id].pass;
        (pass == Pass::forward    ? forward
         : pass == Pass::backward ? backward
                                  : weight)
            .push_back(static_cast<std::uint32_t>(id));
      }
      DeviceSchedule device{dp, pp, {}};
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        for (const auto id : forward) device.order.push_back(f(id, chunk));
      }
      if (plan.parallel.head == LmHead::shard || pp + 1 == plan.parallel.pp) {
        for (const auto id : forward) device.order.push_back(h(id));
      }
      for (std::int32_t chunk = plan.parallel.chunks; chunk-- > 0;) {
        for (const auto id : backward) device.order.push_back(b(id, chunk));
        for (const auto id : weight) device.order.push_back(w(id, chunk));
      }
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        device.order.push_back(r(chunk));
      }
      device.order.push_back(o());
      plan.schedule.push_back(std::move(device));
    }
  }
}

inline std::vector<Unit>& order_of(Plan& plan, std::int32_t dp, std::int32_t pp) {
  return plan.schedule[static_cast<std::size_t>(dp * plan.parallel.pp + pp)].order;
}

/// The place of a unit in an order.
inline std::ptrdiff_t place_of(const std::vector<Unit>& order, const Unit& unit) {
  return std::find(order.begin(), order.end(), unit) - order.begin();
}

inline void swap_units(std::vector<Unit>& order, const Unit& one, const Unit& other) {
  std::iter_swap(std::find(order.begin(), order.end(), one),
                 std::find(order.begin(), order.end(), other));
}

/// Takes a unit out of an order and puts it in again before position `to` of what is left.
inline void move_unit(std::vector<Unit>& order, const Unit& unit, std::ptrdiff_t to) {
  order.erase(std::find(order.begin(), order.end(), unit));
  order.insert(order.begin() + to, unit);
}

/// Ids in the order of creation: one sample of 8 tokens in group 0, forward packs 0 and 1 of
/// [0, 4) and [4, 8), backward packs 2 and 3 of [6, 8) and [0, 6); where there is a second rank
/// also a sample of 6 tokens of group 1, packs 4 (forward) and 5 (backward), and in the
/// context-parallel group [0, 1], which is group dp, a sample of 12 tokens: forward 6 and 7,
/// backward 8.
inline Plan usual_plan(const HandShape& shape) {
  Plan plan = hand_plan(shape);
  const SampleId long_one = add_sample(plan, 8, 0);
  add_pack(plan, Pass::forward, 0, {{long_one, {0}, {4}}});
  add_pack(plan, Pass::forward, 0, {{long_one, {4}, {8}}});
  add_pack(plan, Pass::backward, 0, {{long_one, {6}, {8}}}, Recompute::full);
  add_pack(plan, Pass::backward, 0, {{long_one, {0}, {6}}}, Recompute::light);
  if (shape.dp > 1) {
    const auto in_cp_group = static_cast<std::uint32_t>(plan.groups.size());
    plan.groups.push_back({0, 1});
    const SampleId other = add_sample(plan, 6, 1);
    const SampleId shared = add_sample(plan, 12, in_cp_group);
    add_pack(plan, Pass::forward, 1, {{other, {0}, {6}}});
    add_pack(plan, Pass::backward, 1, {{other, {0}, {6}}});
    add_pack(plan, Pass::forward, in_cp_group, {{shared, {0}, {4}}});
    add_pack(plan, Pass::forward, in_cp_group, {{shared, {4}, {12}}});
    add_pack(plan, Pass::backward, in_cp_group, {{shared, {0}, {12}}}, Recompute::layer);
  }
  schedule_in_order(plan);
  return plan;
}

/// The usual plan with the weights of backward pack 3, tokens [0, 6) of sample 0, left to two
/// weight packs, [2, 6) and [0, 2); with a second rank those of pack 8, in the context-parallel
/// group, too: [0, 12) in a third.
inline Plan weight_plan(const HandShape& shape) {
  Plan plan = usual_plan(shape);
  plan.micropacks[3].weights = WeightGradients::apart;
  add_pack(plan, Pass::weight, 0, {{SampleId{0}, {2}, {6}}});
  add_pack(plan, Pass::weight, 0, {{SampleId{0}, {0}, {2}}});
  if (shape.dp > 1) {
    plan.micropacks[8].weights = WeightGradients::apart;
    add_pack(plan, Pass::weight, static_cast<std::uint32_t>(plan.groups.size() - 1),
             {{SampleId{2}, {0}, {12}}});
  }
  schedule_in_order(plan);
  return plan;
}

}  // namespace slimpack::test
