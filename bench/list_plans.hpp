// SPDX-License-Identifier: Apache-2.0
// Plans without orders: one rank's samples cut into units of equal cost, for scheduling benchmarks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/layout.hpp"

namespace slimpack::bench {

/// Lengths with about `tokens` in all: log-normal with median 1500 and sigma 1.3, three in a
/// hundred Pareto from 8192 with exponent 0.9, all within [64, longest]. Longest first.
[[nodiscard]] inline std::vector<Tokens> drawn_lengths(std::int64_t tokens, std::int64_t longest,
                                                       std::uint64_t seed) {
  Random random(seed);
  std::vector<Tokens> lengths;
  for (std::int64_t sum = 0; sum < tokens;) {
    const double drawn = random.chance(3, 100) ? 8192.0 * std::pow(1.0 - random.unit(), -1.0 / 0.9)
                                               : 1500.0 * std::exp(1.3 * random.normal());
    const double bounded = std::clamp(drawn, 64.0, static_cast<double>(longest));
    lengths.push_back({std::min(static_cast<std::int64_t>(bounded), tokens - sum)});
    sum += lengths.back().value;
  }
  std::stable_sort(lengths.begin(), lengths.end(), [](Tokens a, Tokens b) { return a > b; });
  return lengths;
}

/// Weights of a slice's cost: for a token, and for a pair of a query and a key.
struct CutCost {
  double token = 1, pair = 0;
};

/// Cuts the samples of the plan into `units` packs of one pass and nearly equal cost, samples in
/// their order, backward each from its end. Boundaries are multiples of the granularity.
inline void cut_pass(Plan& plan, Pass pass, std::int64_t units, const CutCost& cost) {
  const auto reach = [&](Tokens end) {
    const auto tokens = static_cast<double>(end.value);
    return cost.token * tokens + cost.pair * tokens * tokens / 2;
  };
  double all = 0;
  for (const Tokens length : plan.samples) all += reach(length);
  const std::int64_t step = plan.parallel.granularity.value;
  double done = 0;
  std::int64_t made = 0;
  MicroPack pack;
  pack.pass = pass;
  const auto close = [&] {
    plan.micropacks.push_back(pack);
    pack.slices.clear();
    ++made;
  };
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    const Tokens length = plan.samples[i];
    const bool forward = pass == Pass::forward;
    for (Tokens from = forward ? Tokens{} : length; from != (forward ? length : Tokens{});) {
      const double target = all * static_cast<double>(made + 1) / static_cast<double>(units);
      const double wanted = std::max(0.0, target - done);
      // Where the cost of this pack is reached, by the inverse of `reach`.
      const double base = forward ? reach(from) + wanted : reach(from) - wanted;
      const double here =
          base <= 0 ? 0
          : cost.pair == 0
              ? base / cost.token
              : (std::sqrt(cost.token * cost.token + 2 * cost.pair * base) - cost.token) /
                    cost.pair;
      auto to = static_cast<std::int64_t>(std::llround(here / static_cast<double>(step))) * step;
      if (forward) {
        to = std::min(std::max(to, (from.value / step + (pack.slices.empty() ? 1 : 0)) * step),
                      length.value);
        if (made + 1 == units) to = length.value;
      } else {
        to = std::max<std::int64_t>(
            std::min(to, ((from.value - 1) / step + (pack.slices.empty() ? 0 : 1)) * step), 0);
        if (made + 1 == units) to = 0;
        to = std::min(to, from.value);
      }
      if (to == from.value) {
        close();
        continue;
      }
      const Slice slice{SampleId{static_cast<std::uint32_t>(i)},
                        {std::min(from.value, to)},
                        {std::max(from.value, to)}};
      pack.slices.push_back(slice);
      done += reach(slice.end) - reach(slice.begin);
      from = Tokens{to};
      if (to != (forward ? length.value : 0)) close();
    }
  }
  if (!pack.slices.empty()) close();
}

/// llama-7b on h100, one data-parallel rank on `stages` stages.
[[nodiscard]] inline Plan list_plan(std::int32_t stages, LmHead head, std::int64_t units,
                                    std::vector<Tokens> lengths) {
  Plan plan;
  plan.planner = "bench";
  plan.model = *model_preset("llama-7b");
  plan.cluster = *cluster_preset("h100");
  plan.memory.capacity = plan.cluster.memory;
  plan.memory.reserved = plan.cluster.reserved;
  plan.parallel.pp = stages;
  plan.parallel.head = head;
  plan.placement = planners::place_devices(plan.parallel);
  plan.stages = planners::spread_layers(plan.model.layers, virtual_stages_of(plan));
  plan.groups = {{0}};
  plan.samples = std::move(lengths);
  plan.sample_group.resize(plan.samples.size());
  plan.sources.push_back({"drawn.lengths", static_cast<std::int64_t>(plan.samples.size()), ""});
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    plan.origin.push_back({0, static_cast<std::int64_t>(i), {}});
    plan.target_tokens += plan.samples[i].value - 1;
  }
  const auto weights = static_cast<double>(plan.model.layers * plan.model.layer_matrix_weights());
  const auto width = static_cast<double>(plan.model.layers * plan.model.query_width());
  const Cluster& cluster = plan.cluster;
  cut_pass(plan, Pass::forward, units,
           {2 * weights / cluster.matrix_flops, 4 * width / cluster.attention_forward_flops});
  cut_pass(plan, Pass::backward, units,
           {4 * weights / cluster.matrix_flops, 10 * width / cluster.attention_backward_flops});
  return plan;
}

}  // namespace slimpack::bench
