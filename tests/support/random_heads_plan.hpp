// SPDX-License-Identifier: Apache-2.0
// Random plans of whose samples many are exchanged by heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/layer_bytes.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

/// A valid plan of version 3 with groups of several ranks. Of their samples two in three are
/// exchanged by heads, of which the model has as many times more as the ranks of each group divide;
/// of keys' in every second plan only if ranks can have none of them together.
[[nodiscard]] inline Plan random_heads_plan(std::uint64_t seed, RandomPlanOptions options = {}) {
  options.version = 3;
  options.cp_groups = true;
  Plan plan = random_plan(seed, options);
  std::int64_t times = 1;
  for (const auto& group : plan.groups) {
    times = std::lcm(times, static_cast<std::int64_t>(group.size()));
  }
  plan.model.heads *= times;
  Random random(seed + 0x4ead5u);
  const bool shares = std::ranges::all_of(plan.groups, [&](const auto& group) {
    return divides_heads(plan.model, plan.parallel.tp, static_cast<std::int64_t>(group.size()));
  });
  if (!shares || random.chance(1, 2)) plan.model.kv_heads *= times;
  std::vector<bool> by_heads;
  for (std::size_t i = 0; i < plan.samples.size(); ++i) by_heads.push_back(random.chance(2, 3));
  for (MicroPack& pack : plan.micropacks) {
    for (std::size_t slot = 0; slot < pack.exchange.size(); ++slot) {
      if (by_heads[index(pack.slices[slot].sample)]) pack.exchange[slot] = RingMode::by_heads;
    }
  }
  return plan;
}

}  // namespace slimpack::test
