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

/// The slowest link over which ranks of `group` send from a stage to the next one round the ring of
/// stages, or back; absent with one stage. O(ranks x tp).
[[nodiscard]] inline std::optional<Link> slowest_ring_link(const Plan& plan, const Links& links,
                                                           const std::vector<std::int32_t>& group,
                                                           std::int32_t pp, Pass pass) {
  std::optional<Link> slowest;
  for (const std::int32_t dp : group) {
    const auto link = message_link(plan, links, dp, pp, pass);
    if (link) slowest = slowest ? slower(*slowest, *link) : *link;
  }
  return slowest;
}

/// Whether F, or B, of a virtual stage sends anything on: not from the last one in the pass's
/// direction.
[[nodiscard]] constexpr bool sends_on(const Plan& plan, std::int32_t virtual_stage,
                                      Pass pass) noexcept {
  return virtual_stage != (pass == Pass::forward ? virtual_stages_of(plan).size() - 1 : 0);
}

/// The slowest link over which ranks of `group` send the output of F, or the gradient of B, of a
/// virtual stage; absent where none leaves the device. O(ranks x tp).
[[nodiscard]] inline std::optional<Link> slowest_message_link(
    const Plan& plan, const Links& links, const std::vector<std::int32_t>& group,
    std::int32_t virtual_stage, Pass pass) {
  if (!sends_on(plan, virtual_stage, pass)) return std::nullopt;
  return slowest_ring_link(plan, links, group, virtual_stages_of(plan).stage(virtual_stage), pass);
}

/// What all virtual stages of stage `pp` have in common as the ranks of `group` have them: links
/// and tensor parallelism. Messages are named only where links are shared and other traffic of the
/// units may have to share theirs: with several ranks or tensor-parallel devices.
/// O(ranks x tp log(ranks x tp)).
[[nodiscard]] inline StageLoad stage_links(const Plan& plan, const Links& links,
                                           const std::vector<std::int32_t>& group,
                                           std::int32_t pp) {
  StageLoad stage;
  stage.tensor_parallel = plan.parallel.tp;
  stage.tensor_link = plan.cluster.inside;
  for (const std::int32_t dp : group) {
    stage.tensor_link = slower(stage.tensor_link, links.tensor(dp, pp));
  }
  stage.exchange_link = links.ranks(group, pp);
  stage.exchange_hops = links.ring(group, pp).hops_between();
  stage.node_ranks = links.fewest_on_node(group, pp);
  if (plan.cluster.small.shared_links && (group.size() > 1 || plan.parallel.tp > 1)) {
    const auto link = [&](Pass pass) {
      return slowest_ring_link(plan, links, group, pp, pass).value_or(Link{});
    };
    stage.forward_message = link(Pass::forward);
    stage.backward_message = link(Pass::backward);
  }
  return stage;
}

/// A virtual stage, from what `stage_links` says of its stage. O(1).
[[nodiscard]] inline StageLoad stage_load(const Plan& plan, const StageLoad& links,
                                          std::int32_t virtual_stage) {
  const VirtualStages lines = virtual_stages_of(plan);
  StageLoad stage = links;
  stage.layers = chunk_layers(plan, lines.stage(virtual_stage), lines.chunk(virtual_stage));
  stage.embedding = virtual_stage == 0;
  if (!sends_on(plan, virtual_stage, Pass::forward)) stage.forward_message = {};
  if (!sends_on(plan, virtual_stage, Pass::backward)) stage.backward_message = {};
  return stage;
}
/// A virtual stage as the ranks of `group` have it. O(ranks x tp log(ranks x tp)).
[[nodiscard]] inline StageLoad stage_load(const Plan& plan, const Links& links,
                                          const std::vector<std::int32_t>& group,
                                          std::int32_t virtual_stage) {
  const std::int32_t pp = virtual_stages_of(plan).stage(virtual_stage);
  return stage_load(plan, stage_links(plan, links, group, pp), virtual_stage);
}

}  // namespace slimpack
