// SPDX-License-Identifier: Apache-2.0
// Which backward packs leave the gradients of weights apart, and the weight packs that have them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

/// The last backward packs of a rank that leave weights apart by `tail`: their W is about what a
/// stage waits for in the drain, once for each other stage and less often with chunks.
[[nodiscard]] constexpr std::int32_t tail_packs(const Parallel& degrees) noexcept {
  return std::max(1, (degrees.pp - 1 + degrees.chunks - 1) / degrees.chunks);
}

/// Lets backward packs leave weights apart as `rule(group)` says, and adds a weight pack of the
/// same slices for each, in their order. Rows of such a pack lie together, so W regroups nothing;
/// larger ones save accumulator traffic but pay more for gathering. By `tail` all ranks of a group
/// see one of their last packs in it, and the last pack of every rank is apart. O(slices).
template <class RuleOf>
void add_weight_packs(Plan& plan, const RuleOf& rule) {
  std::vector<std::int32_t> behind(static_cast<std::size_t>(plan.parallel.dp), 0);
  std::vector<std::size_t> apart;
  for (std::size_t id = plan.micropacks.size(); id-- > 0;) {
    MicroPack& pack = plan.micropacks[id];
    if (pack.pass != Pass::backward) continue;
    std::int32_t fewest = plan.max_in_flight + plan.parallel.pp;
    for (const std::int32_t dp : plan.groups[index(pack.group)]) {
      fewest = std::min(fewest, behind[static_cast<std::size_t>(dp)]++);
    }
    const WeightRule wanted = rule(pack.group);
    if (wanted == WeightRule::with) continue;
    if (wanted == WeightRule::tail && fewest >= tail_packs(plan.parallel)) continue;
    pack.weights = WeightGradients::apart;
    apart.push_back(id);
  }
  for (std::size_t i = apart.size(); i-- > 0;) {
    MicroPack pack;
    pack.pass = Pass::weight;
    pack.group = plan.micropacks[apart[i]].group;
    pack.slices = plan.micropacks[apart[i]].slices;
    plan.micropacks.push_back(std::move(pack));
  }
}

}  // namespace slimpack::planners
