// SPDX-License-Identifier: Apache-2.0
// The cost model that a plan's `cost` object asks for.
#pragma once

#include <type_traits>
#include <variant>

#include "slimpack/cost/analytic.hpp"
#include "slimpack/cost/fitted.hpp"
#include "slimpack/cost/table.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// One of the cost models; `std::visit` gives a RatedCostModel.
using AnyModel = std::variant<AnalyticModel, FittedModel, TableModel>;

/// The model of `spec`. Throws InvalidInput where the spec or the cluster is out of range.
[[nodiscard]] inline AnyModel make_model(const CostSpec& spec, const ModelShape& model,
                                         const Cluster& cluster, const MemorySpec& memory) {
  return std::visit(
      [&](const auto& cost) -> AnyModel {
        using Cost = std::remove_cvref_t<decltype(cost)>;
        if constexpr (std::is_same_v<Cost, FittedCost>) {
          return FittedModel(cost, model, cluster, memory);
        } else if constexpr (std::is_same_v<Cost, TableCost>) {
          return TableModel(cost, model, cluster, memory);
        } else {
          return AnalyticModel(model, cluster, memory);
        }
      },
      spec);
}

/// The model of a plan. Throws InvalidInput where its cost or cluster is out of range.
[[nodiscard]] inline AnyModel make_model(const Plan& plan) {
  return make_model(plan.cost, plan.model, plan.cluster, plan.memory);
}

}  // namespace slimpack
