// SPDX-License-Identifier: Apache-2.0
// How near a plan's data-parallel ranks come to the least that its fullest rank could have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/slimpack/exchange.hpp"
#include "slimpack/planners/slimpack/slice_costs.hpp"
#include "slimpack/schedule/assign_bound.hpp"

namespace slimpack::planners {

/// Loads of data-parallel ranks by what samples cost where they lie in large packs: F and B on the
/// fullest stage with the plan's recomputation, exchange included, but neither the cost of a unit
/// by itself nor any wait. In nanoseconds.
struct RankBalance {
  double mean = 0;     ///< of all ranks, as the plan has them
  double fullest = 0;  ///< the rank with most
  /// What no assignment of these samples has less of on its fullest rank (`least_fullest_load`),
  /// every group lying on as few nodes as have room for it.
  double least = 0;
};

namespace detail {

/// Prices whole samples on groups of ranks.
class SamplePrices {
 public:
  explicit SamplePrices(const Plan& plan)
      : plan_(plan),
        model_(make_model(plan)),
        modes_(plan.samples.size()),
        by_heads_(plan.samples.size()) {
    stage_.layers = most_layers(plan.stages, plan.parallel.pp);
    stage_.tensor_parallel = plan.parallel.tp;
    stage_.tensor_link = plan.cluster.inside;
    for (const MicroPack& pack : plan.micropacks) {
      if (pack.pass != Pass::backward) continue;
      for (std::size_t i = 0; i < pack.slices.size(); ++i) {
        const std::size_t sample = index(pack.slices[i].sample);
        modes_[sample] = std::max(modes_[sample], pack.recompute);
        by_heads_[sample] = i < pack.exchange.size() && pack.exchange[i] == RingMode::by_heads;
      }
    }
  }

  /// Time on each of so many ranks of whose hops so many go from node to node, never below an even
  /// part of the time on one rank, with the exchange that the plan has; `even` is the least that it
  /// may be where rows divide evenly, with either exchange.
  [[nodiscard]] std::int64_t time(std::size_t sample, std::int32_t ranks, std::int64_t far,
                                  bool even) const {
    const std::int64_t alone = price(sample, 1, 0, false, true);
    if (ranks == 1) return alone;
    const bool heads = may_divide_heads(plan_, static_cast<std::size_t>(ranks));
    std::int64_t time = price(sample, ranks, far, !even && by_heads_[sample], even);
    if (even && heads) time = std::min(time, price(sample, ranks, far, true, even));
    return std::max((alone + ranks - 1) / ranks, time);
  }
  /// Of a nanosecond: times are in sixteenths, so that none is lost.
  static constexpr std::int64_t kPerNano = 16;

 private:
  static constexpr std::int64_t kNanosParts = kCostScale / kPerNano;

  [[nodiscard]] std::int64_t price(std::size_t sample, std::int32_t ranks, std::int64_t far,
                                   bool by_heads, bool even) const {
    auto found = costs_.find({ranks, far, by_heads});
    if (found == costs_.end()) {
      StageLoad stage = stage_;
      stage.exchange_link = far == 0 ? plan_.cluster.inside : plan_.cluster.between;
      stage.exchange_hops = far;
      if (far > 0) stage.node_ranks = std::max<std::int64_t>(1, ranks / (far + 1));
      const CostProbe probe(model_, stage, ranks, PackSize::large, by_heads);
      found = costs_.emplace(std::tuple(ranks, far, by_heads), probe.passes()).first;
    }
    const Tokens length = plan_.samples[sample];
    const PassCosts& costs = found->second;
    const schedule::SliceCost& back = costs.backward[static_cast<std::size_t>(modes_[sample])];
    Int128 work = costs.forward.slice({}, length) + back.slice({}, length);
    if (!even) {
      const CpShard first{0, ranks, plan_.memory.cp_block_tokens};
      const std::int64_t rows = first.before(length).value * ranks - length.value;
      work += Int128{costs.forward.per_token + back.per_token} * std::max<std::int64_t>(0, rows);
    }
    return static_cast<std::int64_t>(work / kNanosParts) + 1;
  }

  const Plan& plan_;
  AnyModel model_;
  StageLoad stage_;
  std::vector<Recompute> modes_;  // by sample
  std::vector<bool> by_heads_;    // by sample
  mutable std::map<std::tuple<std::int32_t, std::int64_t, bool>, PassCosts> costs_;
};

}  // namespace detail

/// The balance of a plan's ranks. `fullest` is at least `least`. O(samples log samples).
[[nodiscard]] inline RankBalance rank_balance(const Plan& plan) {
  const detail::SamplePrices prices(plan);
  const Links links(plan);
  std::vector<std::int64_t> far;  // by group
  for (const auto& group : plan.groups) {
    const std::int64_t between = links.ring(group, 0).hops_between();
    const bool near = links.ranks(group, 0) == plan.cluster.inside;
    far.push_back(near || between > 0 ? between : static_cast<std::int64_t>(group.size()) - 1);
  }
  const auto scaled = [](double load) { return load / detail::SamplePrices::kPerNano; };
  std::vector<std::int64_t> load(static_cast<std::size_t>(plan.parallel.dp));
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    const std::size_t group = index(plan.sample_group[sample]);
    const auto ranks = static_cast<std::int32_t>(plan.groups[group].size());
    const CpShard shard = cp_shard_of(plan, static_cast<SampleId>(sample), 0);
    if (plan.version >= 3 && ranks > 1 && shard.undivided(plan.samples[sample])) {
      const std::int32_t rank = plan.groups[group][static_cast<std::size_t>(shard.first)];
      load[static_cast<std::size_t>(rank)] += prices.time(sample, 1, 0, false);
      continue;
    }
    const std::int64_t each = prices.time(sample, ranks, far[group], false);
    for (const std::int32_t rank : plan.groups[group]) {
      load[static_cast<std::size_t>(rank)] += each;
    }
  }
  std::vector<std::int64_t> times;
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    times.push_back(prices.time(sample, 1, 0, true));
  }
  const std::int64_t node = std::max<std::int64_t>(
      1, plan.cluster.devices_per_node / std::max<std::int64_t>(1, plan.parallel.tp));
  const std::int64_t least = schedule::least_fullest_load(
      times, plan.parallel.dp, plan.parallel.dp, [&](std::size_t sample, std::int32_t ranks) {
        return prices.time(sample, ranks, (ranks - 1) / node, true);
      });
  const auto sum = std::accumulate(load.begin(), load.end(), 0.0);
  const auto fullest = static_cast<double>(*std::max_element(load.begin(), load.end()));
  return {scaled(sum / static_cast<double>(load.size())), scaled(fullest),
          scaled(static_cast<double>(least))};
}

/// Whether the ranks of a plan share no sample and the fullest has over a hundredth more than all
/// on average. O(samples log samples).
[[nodiscard]] inline bool is_uneven(const Plan& plan) {
  const auto shared = [&](GroupId group) { return plan.groups[index(group)].size() > 1; };
  if (std::any_of(plan.sample_group.begin(), plan.sample_group.end(), shared)) return false;
  const RankBalance balance = rank_balance(plan);
  return balance.fullest > 1.01 * balance.mean;
}

}  // namespace slimpack::planners
