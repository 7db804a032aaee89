// SPDX-License-Identifier: Apache-2.0
// Bytes that units send besides their messages: exchanges and tensor-parallel collectives.
#pragma once

#include <cstdint>

#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Bytes that one received token brings per layer, or by heads one token that passes to the parts
/// of heads, whole, of which a rank keeps its own part; what a full recomputation repeats is added.
struct ExchangeBytes {
  std::int64_t kv = 0;     ///< RingMode::pass_kv: of a token whose keys and values arrive
  std::int64_t q = 0;      ///< RingMode::pass_q: of a token whose queries arrive
  std::int64_t heads = 0;  ///< RingMode::by_heads: of an own token
};

/// What a MicroPack's ring brings in its pass; a weight pack has none. O(1).
[[nodiscard]] inline ExchangeBytes exchange_bytes(const Plan& plan, const MicroPack& pack) {
  const RingBytes ring =
      ring_bytes(plan.model, element_bytes_of(plan.model, plan.memory.gradient_bytes));
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  const std::int64_t keys = key_copies(plan.model, plan.parallel.tp, ranks) * ring.kv;
  const ExchangeBytes forward{ring.kv, ring.q, ring.heads + keys};
  if (pack.pass == Pass::forward) return forward;
  ExchangeBytes bytes{ring.kv + ring.kv_back, ring.q_back,
                      ring.heads_back + keys + ring.heads_query};
  if (pack.recompute == Recompute::full) {
    bytes.kv += forward.kv;
    bytes.q += forward.q;
    bytes.heads = ring.heads_back + keys + forward.heads;
  }
  return bytes;
}

/// Collectives a layer between the tensor-parallel devices that run a MicroPack.
[[nodiscard]] constexpr std::int64_t tensor_collectives(const MicroPack& pack) noexcept {
  if (pack.pass == Pass::forward) return kTensorForward;
  if (pack.pass == Pass::weight) return kTensorWeight;
  const bool again = pack.recompute == Recompute::layer || pack.recompute == Recompute::full;
  const bool apart = pack.weights == WeightGradients::apart;
  return (apart ? kTensorBackwardApart : kTensorBackward) + (again ? kTensorAgain : 0);
}

}  // namespace slimpack
