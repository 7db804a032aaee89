// SPDX-License-Identifier: Apache-2.0
// On one stage: the longest sample of a round that all ranks run together, cut in two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/fit_modes.hpp"

namespace slimpack::planners {

/// Cuts packs that all ranks run together and that recompute: the first part has the first
/// `sixteenths` of the longest sample and recomputes as the pack did, the second has all else and
/// keeps the next more. Packs count that are the same in both passes and hold whole samples. Cuts
/// fall where all ranks own as much. O(packs).
inline void cut_rounds(Plan& plan, std::int64_t sixteenths) {
  std::vector<bool> cut(plan.micropacks.size());
  for (const auto& [forward, backward] : detail::twin_packs(plan)) {
    const MicroPack& pack = plan.micropacks[index(backward)];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    if (pack.recompute == Recompute::none || ranks < static_cast<std::size_t>(plan.parallel.dp)) {
      continue;
    }
    cut[index(forward)] = cut[index(backward)] = true;
  }
  std::vector<MicroPack> packs;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    MicroPack& pack = plan.micropacks[i];
    const auto longest = static_cast<std::size_t>(
        std::ranges::max_element(pack.slices, {}, &Slice::length) - pack.slices.begin());
    const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
    const std::int64_t step =
        std::lcm(plan.parallel.granularity.value,
                 ranks == 1 ? 1 : 2 * ranks * plan.memory.cp_block_tokens.value);
    const std::int64_t end = pack.slices[longest].length().value * sixteenths / 16 / step * step;
    if (!cut[i] || end == 0) {
      packs.push_back(std::move(pack));
      continue;
    }
    MicroPack first = pack;
    first.slices = {pack.slices[longest]};
    first.slices.front().end = pack.slices[longest].begin = Tokens{end};
    if (!pack.exchange.empty()) first.exchange = {pack.exchange[longest]};
    // In the order in which they run.
    if (pack.pass == Pass::forward) {
      packs.push_back(std::move(first));
      packs.push_back(std::move(pack));
    } else {
      pack.recompute = static_cast<Recompute>(static_cast<std::uint8_t>(pack.recompute) - 1);
      packs.push_back(std::move(pack));
      packs.push_back(std::move(first));
    }
  }
  plan.micropacks = std::move(packs);
}

/// Gives a plan of one stage in rounds its schedule: each rank runs forward, head and backward of
/// pack after pack; where a pack is cut, both forward before both backward, the last first. Each
/// forward pack must have a backward pack of the same slices.
inline void add_round_orders(Plan& plan) {
  std::vector<std::vector<Unit>> orders(static_cast<std::size_t>(plan.parallel.dp));
  const auto add = [&](GroupId group, const Unit& unit) {
    for (const std::int32_t dp : plan.groups[index(group)]) {
      orders[static_cast<std::size_t>(dp)].push_back(unit);
    }
  };
  PassPacks backward(plan, Pass::backward);
  std::optional<PackId> begun;  // B of a sample's first part
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.pass != Pass::forward) continue;
    add(pack.group, {UnitKind::forward, static_cast<PackId>(i), 0});
    add(pack.group, {UnitKind::head, static_cast<PackId>(i), 0});
    const PackId twin = backward.twin(pack).value();
    const Slice& slice = pack.slices.front();
    if (slice.end < plan.samples[index(slice.sample)]) {
      begun = twin;
      continue;
    }
    add(pack.group, {UnitKind::backward, twin, 0});
    if (begun) add(pack.group, {UnitKind::backward, *std::exchange(begun, std::nullopt), 0});
  }
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    std::vector<Unit>& order = orders[static_cast<std::size_t>(dp)];
    order.push_back({UnitKind::reduce, {}, 0});
    order.push_back({UnitKind::optimizer, {}, 0});
    plan.schedule.push_back({dp, 0, std::move(order)});
  }
}

}  // namespace slimpack::planners
