// SPDX-License-Identifier: Apache-2.0
// Hand-made plans of one stage for tests that break them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

/// A sample: its length and group.
struct TinySample {
  std::int64_t length = 0;
  std::uint32_t group = 0;
};

/// One stage, two layers. Sample i is forward pack 2i and backward pack 2i + 1, whole. Every rank
/// runs all F and H of its groups, then all B, then R and O.
inline Plan tiny_plan(std::int32_t dp, std::vector<std::vector<std::int32_t>> groups,
                      const std::vector<TinySample>& samples) {
  Plan plan;
  plan.planner = "tiny";
  plan.model = {"tiny", 2, 8, 2, 1, 4, 12, 17, false, 10000.0, 1e-5, 8};
  plan.memory.capacity = Bytes{1'000'000'000};
  plan.memory.gradient_bytes = 8;
  plan.memory.page_tokens = Tokens{4};
  plan.memory.cp_block_tokens = Tokens{2};
  plan.memory.head_tile = Tokens{5};
  plan.parallel.dp = dp;
  plan.parallel.granularity = Tokens{1};
  plan.parallel.max_cp = dp;
  plan.stages = {{0, 0, 0, plan.model.layers, true}};
  plan.groups = std::move(groups);
  for (std::int32_t rank = 0; rank < dp; ++rank) {
    plan.placement.push_back({rank, 0, 0, rank});
    plan.schedule.push_back({rank, 0, {}});
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Slice slice{static_cast<SampleId>(i), Tokens{0}, Tokens{samples[i].length}};
    const auto group = static_cast<GroupId>(samples[i].group);
    plan.samples.push_back(slice.end);
    plan.origin.push_back({0, static_cast<std::int64_t>(i), Tokens{0}});
    plan.target_tokens += samples[i].length - 1;
    plan.sample_group.push_back(group);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      plan.micropacks.push_back({pass, group, {slice}, {}, Recompute::none});
      if (plan.groups[samples[i].group].size() > 1) {
        plan.micropacks.back().exchange.push_back(RingMode::pass_kv);
      }
    }
  }
  for (DeviceSchedule& device : plan.schedule) {
    const auto mine = [&](std::size_t i) {
      const auto& ranks = plan.groups[samples[i].group];
      return std::find(ranks.begin(), ranks.end(), device.dp) != ranks.end();
    };
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!mine(i)) continue;
      device.order.push_back({UnitKind::forward, static_cast<PackId>(2 * i), 0});
      device.order.push_back({UnitKind::head, static_cast<PackId>(2 * i), 0});
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (mine(i)) device.order.push_back({UnitKind::backward, static_cast<PackId>(2 * i + 1), 0});
    }
    device.order.push_back({UnitKind::reduce, {}, 0});
    device.order.push_back({UnitKind::optimizer, {}, 0});
  }
  return plan;
}

}  // namespace slimpack::test
