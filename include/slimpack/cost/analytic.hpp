// SPDX-License-Identifier: Apache-2.0
// Seconds from FLOPs and bytes over a cluster's achieved rates.
#pragma once

#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/head_exchange.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The analytic cost model: FLOPs and bytes over the cluster's achieved rates. Every formula is in
/// docs/costs.md. All answers are in nanoseconds, rounded up once, and O(1).
class AnalyticModel {
 public:
  /// Throws InvalidInput naming the first rate that is not positive.
  AnalyticModel(const ModelShape& model, const Cluster& cluster, const MemorySpec& memory)
      : terms_(model, cluster, memory) {}

  /// F of a pack on a stage, ring and tensor-parallel traffic included.
  [[nodiscard]] Nanos forward(const PackLoad& load, const StageLoad& stage) const noexcept {
    return to_nanos(terms_.embedding(load, stage, false) + layers_forward(load, stage));
  }

  /// B of a pack on a stage, with what it recomputes.
  [[nodiscard]] Nanos backward(const PackLoad& load, const StageLoad& stage,
                               Recompute recompute) const noexcept {
    return to_nanos(layers_backward(load, stage, recompute,
                                    terms_.linear_backward(load.tokens, stage),
                                    terms_.cluster().backward_kernels, kTensorBackward) +
                    terms_.regroup(load, stage, recompute));
  }

  /// B of a pack that leaves the gradients of weights apart, with the gathering of what F kept.
  [[nodiscard]] Nanos backward_apart(const PackLoad& load, const StageLoad& stage,
                                     Recompute recompute) const noexcept {
    return to_nanos(layers_backward(load, stage, recompute,
                                    terms_.linear_backward_apart(load.tokens, stage),
                                    terms_.backward_apart_kernels(), kTensorBackwardApart) +
                    terms_.regroup(load, stage, recompute, true));
  }

  /// W of a pack: the gradients of weights alone.
  [[nodiscard]] Nanos weight(const PackLoad& load, const StageLoad& stage) const noexcept {
    const Picos linear = terms_.linear_weight(load.tokens, stage);
    return to_nanos(linear + terms_.launches(load, stage.layers * terms_.weight_kernels()) +
                    terms_.tensor_parallel(load, stage, kTensorWeight, linear) +
                    terms_.regroup_weight(load, stage));
  }

  /// H: final norm, logits, loss and their gradients.
  [[nodiscard]] Nanos head(const HeadLoad& load) const noexcept {
    return to_nanos(terms_.head(load));
  }

  /// Sending `bytes` over a link.
  [[nodiscard]] Nanos transfer(Bytes bytes, const Link& link) const noexcept {
    return to_nanos(terms_.transfer(bytes.value, link));
  }

  /// Reducing `bytes` of gradients over `ranks`.
  [[nodiscard]] Nanos reduce(Bytes bytes, std::int64_t ranks, const Link& link) const noexcept {
    return to_nanos(terms_.reduction_collectives() * terms_.collective(bytes.value, ranks, link));
  }

  /// O over `touched` bytes, and the gathering of `gathered` bytes of weights over `ranks`.
  [[nodiscard]] Nanos optimizer(Bytes touched, Bytes gathered, std::int64_t ranks,
                                const Link& link) const noexcept {
    return to_nanos(terms_.update(touched.value) + terms_.collective(gathered.value, ranks, link));
  }

  /// What the model charges for work as such.
  [[nodiscard]] WorkRates rates() const noexcept { return terms_.rates(); }

 private:
  [[nodiscard]] Picos layers_forward(const PackLoad& load, const StageLoad& stage) const noexcept {
    const Picos linear = terms_.linear_forward(load.tokens, stage);
    return linear +
           terms_.in_cp_group(terms_.attention(load, stage, false), load, stage, false,
                              terms_.beside_exchange(load, stage, false)) +
           terms_.launches(load, stage.layers * terms_.cluster().forward_kernels) +
           terms_.tensor_parallel(load, stage, kTensorForward, linear,
                                  terms_.beside_tensor(load, stage, false));
  }

  /// B with `linear` work and `kernels` a layer, but for regrouping.
  [[nodiscard]] Picos layers_backward(const PackLoad& load, const StageLoad& stage,
                                      Recompute recompute, Picos linear, std::int64_t kernels,
                                      std::int64_t collectives) const noexcept {
    Picos time =
        terms_.embedding(load, stage, true) + linear +
        terms_.in_cp_group(terms_.attention(load, stage, true), load, stage, true,
                           terms_.beside_exchange(load, stage, true)) +
        queries_ahead(terms_, linear, load, stage, recompute) +
        terms_.launches(load, stage.layers * (kernels + terms_.recomputed_kernels(recompute))) +
        terms_.tensor_parallel(load, stage, collectives, linear,
                               terms_.beside_tensor(load, stage, true));
    if (recompute == Recompute::light) {
      time += terms_.light(load.tokens.value * stage.layers, stage.tensor_parallel);
    }
    if (recompute == Recompute::layer || recompute == Recompute::full) {
      const Picos again = terms_.linear_forward(load.tokens, stage);
      time += again + terms_.tensor_parallel(load, stage, kTensorAgain, again);
    }
    if (recompute == Recompute::full) {
      time += terms_.in_cp_group(terms_.attention(load, stage, false), load, stage, false);
    }
    return time;
  }

  Terms terms_;
};
static_assert(RatedCostModel<AnalyticModel> && SplitCostModel<AnalyticModel> && !CostModel<int>);

}  // namespace slimpack
