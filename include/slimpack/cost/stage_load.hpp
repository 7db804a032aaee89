// SPDX-License-Identifier: Apache-2.0
// Layers and links of a virtual stage, as the ranks of a group have them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// The slowest link over which ranks of `group` send the output of F, or the gradient of B, of a
/// virtual stage; absent where none leaves the device. O(ranks x tp).
[[nodiscard]] inline std::optional<Link> slowest_message_link(
    const Plan& plan, const Links& links, const std::vector<std::int32_t>& group,
    std::int32_t virtual_stage, Pass pass) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  if (virtual_stage == (pass == Pass::forward ? virtual_stages.size() - 1 : 0)) return std::nullopt;
  std::optional<Link> slowest;
  for (const std::int32_t dp : group) {
    const auto link = message_link(plan, links, dp, virtual_stages.stage(virtual_stage), pass);
    if (link) slowest = slowest ? slower(*slowest, *link) : *link;
  }
  return slowest;
}

/// A virtual stage as the ranks of `group` have it. Its messages are named only where links are
/// shared and other traffic of its units may have to share theirs: with several ranks or
/// tensor-parallel devices. O(ranks x tp log(ranks x tp)).
[[nodiscard]] inline StageLoad stage_load(const Plan& plan, const Links& links,
                                          const std::vector<std::int32_t>& group,
                                          std::int32_t virtual_stage) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  const std::int32_t pp = virtual_stages.stage(virtual_stage);
  StageLoad stage;
  stage.layers = chunk_layers(plan, pp, virtual_stages.chunk(virtual_stage));
  stage.embedding = virtual_stage == 0;
  stage.tensor_parallel = plan.parallel.tp;
  stage.tensor_link = plan.cluster.inside;
  for (const std::int32_t dp : group) {
    stage.tensor_link = slower(stage.tensor_link, links.tensor(dp, pp));
  }
  stage.exchange_link = links.ranks(group, pp);
  stage.exchange_hops = links.ring(group, pp).hops_between();
  if (plan.cluster.small.shared_links && (group.size() > 1 || plan.parallel.tp > 1)) {
    const auto link = [&](Pass pass) {
      return slowest_message_link(plan, links, group, virtual_stage, pass).value_or(Link{});
    };
    stage.forward_message = link(Pass::forward);
    stage.backward_message = link(Pass::backward);
  }
  return stage;
}

}  // namespace slimpack
