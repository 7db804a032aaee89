// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan sends from device to device, by purpose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_bytes.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/pack_rounds.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// Sums over all devices, tensor-parallel ones too, of what they send in one step
/// (docs/reports.md).
struct CommunicationBytes {
  Bytes transfers;  ///< activations and their gradients between stages
  Bytes exchange;   ///< keys, values, queries and partial results inside context-parallel groups
  Bytes head;       ///< hidden states, their gradients and statistics of a sharded head
  Bytes reduction;  ///< gradients of weights
  Bytes gathering;  ///< updated weights, where the optimizer is sharded
  Bytes tensor_parallel;  ///< collectives inside embedding, layers and head
  /// All bytes.
  [[nodiscard]] constexpr Bytes total() const noexcept {
    return transfers + exchange + head + reduction + gathering + tensor_parallel;
  }
  friend bool operator==(const CommunicationBytes&, const CommunicationBytes&) = default;
};

/// How often all weights are gathered, and their gradients summed, in a step: once each, or where
/// ranks share weights by F and B, and by B, of every round.
struct WeightRounds {
  std::int64_t gathers = 1;   ///< of all weights of a stage
  std::int64_t scatters = 1;  ///< sums of all their gradients
};
/// Those of a plan. O(packs x ranks).
[[nodiscard]] inline WeightRounds weight_rounds(const Plan& plan) {
  if (plan.memory.weights == WeightState::replicated) return {};
  const PackRounds rounds(plan);
  WeightRounds most{0, 0};
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const auto nth = static_cast<std::int64_t>(rounds.of(i)) + 1;
    if (plan.micropacks[i].pass == Pass::forward) most.gathers = std::max(most.gathers, nth);
    if (plan.micropacks[i].pass == Pass::backward) most.scatters = std::max(most.scatters, nth);
  }
  most.gathers += most.scatters;
  return most;
}

/// Counts what the plan sends. A ring over n devices sends n - 1 times the bytes it reduces or
/// gathers, twice for an all-reduce. O(slices x ranks).
[[nodiscard]] inline CommunicationBytes communication_of(const Plan& plan) {
  const ModelShape& model = plan.model;
  const std::int64_t pp = plan.parallel.pp, dp = plan.parallel.dp, tp = plan.parallel.tp;
  const std::int64_t hidden = model.hidden * model.bytes_per_element;
  const std::int64_t borders = pp > 1 ? virtual_stages_of(plan).size() - 1 : 0;
  const bool sharded_head = plan.parallel.head == LmHead::shard && pp > 1;
  const std::int64_t head_row =
      head_traffic_bytes(model, element_bytes_of(model, plan.memory.gradient_bytes));
  CommunicationBytes bytes;
  for (const MicroPack& pack : plan.micropacks) {
    std::int64_t tokens = 0;
    for (const Slice& slice : pack.slices) tokens += slice.length().value;
    bytes.tensor_parallel.value +=
        (tp - 1) * tokens * hidden * model.layers * tensor_collectives(pack);
    if (pack.pass != Pass::weight) {
      bytes.transfers.value += tokens * hidden * borders;
      bytes.tensor_parallel.value += (tp - 1) * tokens * hidden;  // of the embedding
    }
    if (pack.pass == Pass::forward) {
      if (sharded_head) bytes.head.value += (pp - 1) * tokens * head_row;
      bytes.tensor_parallel.value += (tp - 1) * 2 * tokens * hidden * (sharded_head ? pp : 1);
    }
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    if (ranks == 1 || pack.pass == Pass::weight) continue;
    const ExchangeBytes each = exchange_bytes(plan, pack);
    std::int64_t by_heads = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      PackLoad load;
      for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
        add_slot(load, plan, pack, slot, rank);
      }
      bytes.exchange.value +=
          model.layers * (load.kv_received.value * each.kv + load.q_received.value * each.q);
      by_heads += load.heads_sent.value * each.heads;
    }
    const auto count = static_cast<std::int64_t>(ranks);
    bytes.exchange.value += model.layers * (by_heads * (count - 1) / count);
  }
  const bool sharded_state = plan.memory.optimizer == OptimizerState::sharded;
  const std::int64_t collectives = sharded_state ? 1 : 2;
  const WeightRounds rounds = weight_rounds(plan);
  for (std::int32_t stage = 0; stage < plan.parallel.pp; ++stage) {
    const std::int64_t weights = (dp - 1) * device_weights(plan, stage).total();
    bytes.reduction.value += rounds.scatters * collectives * weights * plan.memory.gradient_bytes;
    if (sharded_state) bytes.gathering.value += rounds.gathers * weights * model.bytes_per_element;
  }
  if (const auto tied = static_cast<std::int64_t>(tied_stages(plan).size()); tied > 1) {
    bytes.reduction.value +=
        (tied - 1) * dp * collectives * model.vocab * model.hidden * plan.memory.gradient_bytes;
  }
  return bytes;
}

}  // namespace slimpack
