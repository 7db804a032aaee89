// SPDX-License-Identifier: Apache-2.0
// On one stage: packs that would have to keep less are cut into smaller ones where that is faster.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/fit_modes.hpp"

namespace slimpack::planners {

namespace detail {

/// Two packs with the slices of one, which has at least two: longest first, each to the second pack
/// as long as this has no more than `permille` of all tokens, else to the first, which has at least
/// the shortest. Slices stay in their order.
[[nodiscard]] inline std::array<MicroPack, 2> parts_of(const MicroPack& pack,
                                                       std::int64_t permille) {
  std::vector<std::size_t> order(pack.slices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return pack.slices[a].length() > pack.slices[b].length();
  });
  std::int64_t all = 0, taken = 0;
  for (const Slice& slice : pack.slices) all += slice.length().value;
  std::vector<std::size_t> part(order.size());
  for (const std::size_t slot : order) {
    const std::int64_t more = taken + pack.slices[slot].length().value;
    if (more * 1000 > all * permille) continue;
    taken = more;
    part[slot] = 1;
  }
  if (taken == 0) part[order.front()] = 1;
  std::array<MicroPack, 2> parts{pack, pack};
  for (MicroPack& each : parts) {
    each.slices.clear();
    each.exchange.clear();
  }
  for (std::size_t slot = 0; slot < part.size(); ++slot) {
    parts[part[slot]].slices.push_back(pack.slices[slot]);
    if (!pack.exchange.empty()) parts[part[slot]].exchange.push_back(pack.exchange[slot]);
  }
  if (taken * 2 < all) std::swap(parts[0], parts[1]);
  return parts;
}

/// A plan with some packs in two parts, and where each pack begins in it.
struct DividedPlan {
  Plan plan;
  std::vector<std::size_t> first;  ///< by pack of the plan before
};

/// `permille` by pack: of parts_of, 0 where the pack stays whole.
[[nodiscard]] inline DividedPlan divide_packs(const Plan& plan,
                                              const std::vector<std::int64_t>& permille) {
  DividedPlan result{plan, {}};
  std::vector<MicroPack>& packs = result.plan.micropacks;
  packs.clear();
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    result.first.push_back(packs.size());
    if (permille[i] == 0) {
      packs.push_back(plan.micropacks[i]);
      continue;
    }
    for (MicroPack& part : parts_of(plan.micropacks[i], permille[i])) {
      packs.push_back(std::move(part));
    }
  }
  return result;
}

/// F, H and B of twin packs, one after the other, on the rank that they take longest on, and what
/// R, which runs beside the longest B, takes beyond it.
[[nodiscard]] inline Nanos twins_time(const Plan& plan, const PricedPlan& times,
                                      std::span<const TwinPacks> twins) {
  Nanos sum, longest;
  for (const auto& [forward, backward] : twins) {
    Nanos head;
    const std::size_t ranks = plan.groups[index(plan.micropacks[index(forward)].group)].size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      head = std::max(head, times.head(forward, rank, 0));
    }
    const Nanos back = times.compute(backward, 0);
    sum += times.compute(forward, 0) + head + back;
    longest = std::max(longest, back);
  }
  return sum + std::max(Nanos{}, times.reduce(0, 0) - longest);
}

/// Twin packs that keep less than they should, and what they take.
struct LeanTwins {
  TwinPacks packs;
  Nanos time;
};

/// Those of several samples among `open` packs that keep less in `settled` than in `base`, and
/// would take less time if they had room.
[[nodiscard]] inline std::vector<LeanTwins> lean_twins(const Plan& base, const Plan& settled,
                                                       const std::vector<bool>& open) {
  std::vector<TwinPacks> lean;
  Plan roomy = settled;
  for (const TwinPacks& twins : twin_packs(base)) {
    const std::size_t backward = index(twins.second);
    const MicroPack& pack = base.micropacks[backward];
    if (!open[backward] || pack.slices.size() < 2) continue;
    if (settled.micropacks[backward].recompute == pack.recompute) continue;
    roomy.micropacks[backward].recompute = pack.recompute;
    lean.push_back(twins);
  }
  if (lean.empty()) return {};
  const PricedPlan times(settled), with_room(roomy);
  std::vector<LeanTwins> result;
  for (const TwinPacks& twins : lean) {
    const Nanos time = twins_time(settled, times, {&twins, 1});
    if (twins_time(roomy, with_room, {&twins, 1}) < time) result.push_back({twins, time});
  }
  return result;
}

/// Into which parts each pack of a plan is best cut, as `divide_packs` takes them; 0 where it is
/// best whole.
template <class Settle>
[[nodiscard]] std::vector<std::int64_t> best_parts(const Plan& base, std::vector<LeanTwins> lean,
                                                   const Settle& settle) {
  std::vector<std::int64_t> best(base.micropacks.size());
  for (const std::int64_t permille : {500, 750, 875}) {
    std::vector<std::int64_t> divided(base.micropacks.size());
    for (const LeanTwins& twins : lean) {
      divided[index(twins.packs.first)] = divided[index(twins.packs.second)] = permille;
    }
    DividedPlan parts = divide_packs(base, divided);
    settle(parts.plan);
    const PricedPlan times(parts.plan);
    for (LeanTwins& twins : lean) {
      const std::size_t forward = index(twins.packs.first), backward = index(twins.packs.second);
      std::array<TwinPacks, 2> both;
      for (std::size_t part = 0; part < both.size(); ++part) {
        both[part] = {static_cast<PackId>(parts.first[forward] + part),
                      static_cast<PackId>(parts.first[backward] + part)};
      }
      const Nanos time = twins_time(parts.plan, times, both);
      if (time >= twins.time) continue;
      twins.time = time;
      best[forward] = best[backward] = permille;
    }
  }
  return best;
}

}  // namespace detail

/// Lets `settle` give a plan of one stage what its packs need (samples on ranks, ways to exchange,
/// `fit_modes`). Packs that keep less for it than they did before are then cut in two, and these
/// once more, where the parts take less time: each is backward as soon as it has been forward, so
/// that a device holds one at a time; but the gradients are reduced beside the last alone, so that
/// one of them should be long. Packs count that are the same in both passes and hold whole samples,
/// at least two. Ranks that share weights run as many packs each, so nothing is cut there.
/// O(settle) and prices of the plan, a few times.
template <std::invocable<Plan&> Settle>
void split_packs(Plan& plan, const Settle& settle) {
  constexpr int kTimes = 2;
  Plan base = plan;
  settle(plan);
  if (plan.parallel.pp > 1 || plan.memory.weights == WeightState::sharded) return;
  std::vector<bool> open(base.micropacks.size(), true);
  for (int time = 0; time < kTimes; ++time) {
    std::vector<detail::LeanTwins> lean = detail::lean_twins(base, plan, open);
    if (lean.empty()) return;
    const std::vector<std::int64_t> parts = detail::best_parts(base, std::move(lean), settle);
    open.clear();
    for (const std::int64_t permille : parts) {
      open.insert(open.end(), permille > 0 ? 2 : 1, permille > 0);
    }
    if (open.size() == parts.size()) return;
    base = detail::divide_packs(base, parts).plan;
    plan = base;
    settle(plan);
  }
}

}  // namespace slimpack::planners
