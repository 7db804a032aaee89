// SPDX-License-Identifier: Apache-2.0
// Random plans whose ranks share weights: rounds of groups that have all ranks between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

/// What is not set is drawn.
struct SharedPlanOptions {
  std::int32_t tp = 1;
  std::optional<std::int32_t> dp;
  std::optional<std::int64_t> rounds;
  std::optional<bool> tied;
  std::optional<Recompute> recompute;
  bool alone = false;  ///< no group has several ranks
};

namespace detail {

/// Gives the ranks of a round to groups, and each group a forward pack of new samples, whole ones.
inline void random_round(Random& random, Plan& plan, bool alone) {
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(plan.parallel.dp));
  std::iota(ranks.begin(), ranks.end(), 0);
  random.shuffle(std::span(ranks));
  for (std::size_t i = 0; i < ranks.size();) {
    const std::size_t left = ranks.size() - i, size = alone ? 1 : 1 + random.below(left);
    std::vector<std::int32_t> group(ranks.begin() + static_cast<std::ptrdiff_t>(i),
                                    ranks.begin() + static_cast<std::ptrdiff_t>(i + size));
    std::ranges::sort(group);
    i += size;
    auto known = std::ranges::find(plan.groups, group);
    if (known == plan.groups.end()) known = plan.groups.insert(known, group);
    MicroPack pack;
    pack.group = static_cast<GroupId>(known - plan.groups.begin());
    for (std::int64_t samples = random.between(1, 2); samples > 0; --samples) {
      const Tokens length{random.between(1, 24)};
      pack.slices.push_back({static_cast<SampleId>(plan.samples.size()), {}, length});
      if (size > 1) {
        pack.exchange.push_back(random.chance(1, 2) ? RingMode::pass_kv : RingMode::pass_q);
      }
      plan.origin.push_back({0, static_cast<std::int64_t>(plan.samples.size()), {}});
      plan.samples.push_back(length);
      plan.sample_group.push_back(pack.group);
      plan.sample_first.push_back(static_cast<std::int32_t>(random.below(size)));
      plan.target_tokens += length.value - 1;
    }
    plan.micropacks.push_back(std::move(pack));
  }
}

}  // namespace detail

/// A valid plan of a model that the CUDA backend takes.
inline Plan shared_plan(std::uint64_t seed, const SharedPlanOptions& options = {}) {
  Random random(seed + 5'000);
  RandomPlanOptions base = small_plans();
  base.version = 3;
  base.tp = options.tp;
  base.dp = options.dp.value_or(static_cast<std::int32_t>(random.between(2, 4)));
  base.pp = base.chunks = 1;
  base.head = LmHead::last;
  base.tied = options.tied.value_or(random.chance(1, 2));
  Plan plan = rank_plan(seed, base);
  plan.memory.optimizer = OptimizerState::sharded;
  plan.memory.weights = WeightState::sharded;
  plan.parallel.max_cp = plan.parallel.dp;
  plan.samples.clear();
  plan.origin.clear();
  plan.sample_group.clear();
  plan.sample_first.clear();
  plan.groups.clear();
  for (std::int32_t rank = 0; rank < plan.parallel.dp; ++rank) plan.groups.push_back({rank});
  plan.micropacks.clear();
  plan.target_tokens = 0;
  const auto rounds = static_cast<std::size_t>(options.rounds.value_or(random.between(1, 3)));
  std::vector<std::pair<std::size_t, std::size_t>> forward;  // packs of each round
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t begin = plan.micropacks.size();
    detail::random_round(random, plan, options.alone);
    forward.emplace_back(begin, plan.micropacks.size());
  }
  plan.sources = {{"random.lengths", static_cast<std::int64_t>(plan.samples.size()), ""}};
  for (DeviceSchedule& device : plan.schedule) device.order.clear();
  const auto run = [&](UnitKind kind, std::size_t begin, std::size_t end) {
    for (std::size_t pack = begin; pack < end; ++pack) {
      for (const std::int32_t dp : plan.groups[index(plan.micropacks[pack].group)]) {
        plan.schedule[static_cast<std::size_t>(dp)].order.push_back(
            {kind, static_cast<PackId>(pack), 0});
      }
    }
  };
  std::vector<std::size_t> open;  // rounds that have run forward
  for (std::size_t next = 0; next < rounds || !open.empty();) {
    if (next < rounds && (open.empty() || random.chance(1, 2))) {
      const auto [begin, end] = forward[next];
      run(UnitKind::forward, begin, end);
      run(UnitKind::head, begin, end);
      open.push_back(next++);
      continue;
    }
    const std::size_t chosen = random.below(open.size());
    const auto [begin, end] = forward[open[chosen]];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
    const std::size_t first = plan.micropacks.size();
    for (std::size_t pack = begin; pack < end; ++pack) {
      MicroPack back = plan.micropacks[pack];
      back.pass = Pass::backward;
      back.recompute =
          options.recompute.value_or(static_cast<Recompute>(random.below(kRecomputeModes)));
      plan.micropacks.push_back(std::move(back));
    }
    run(UnitKind::backward, first, plan.micropacks.size());
  }
  for (DeviceSchedule& device : plan.schedule) {
    device.order.push_back({UnitKind::reduce, {}, 0});
    device.order.push_back({UnitKind::optimizer, {}, 0});
  }
  return plan;
}

/// The same plan with all weights on each rank.
inline Plan with_whole_weights(Plan plan) {
  plan.memory.weights = WeightState::replicated;
  return plan;
}

}  // namespace slimpack::test
