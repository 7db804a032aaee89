// SPDX-License-Identifier: Apache-2.0
// What is compiled once: the target slimpack::planners.
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/all_planners.hpp"
#include "slimpack/planners/slimpack/plan_slimpack.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/detail/validate_plan.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack {
template void PricedPlan::price(const Plan&, const AnalyticModel&);
template void PricedPlan::price(const Plan&, const FittedModel&);
template void PricedPlan::price(const Plan&, const TableModel&);
namespace sim {
template Dag build_dag(const Plan&, const PricedPlan&);
template Timeline simulate(const Dag&, IgnoreMemory&);
}  // namespace sim
}  // namespace slimpack
