// SPDX-License-Identifier: Apache-2.0
// From a plan to the DAG of its units, transfers and reductions (docs/equations.md).
#pragma once

#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/plan_draft.hpp"
#include "slimpack/sim/detail/plan_links.hpp"
#include "slimpack/sim/detail/plan_reductions.hpp"
#include "slimpack/sim/detail/plan_units.hpp"

namespace slimpack::sim {

/// Makes the DAG of a plan whose units take `times`. Device i of the DAG is `plan.schedule[i]`, its
/// compute is resource i. Ids rise along each device's schedule; a transfer follows its unit.
/// Collectives begin in a `join`, and each bucket of R waits for the `release`, or the B, that
/// frees it. With tied embeddings the last bucket of chunk 0 is a collective of the stages that
/// hold the table. A chunk's R is cut into buckets by the bytes of their gradients. Throws
/// InvalidInput, naming the place, where arrays do not fit together, slices do not partition their
/// samples, a unit is missing or there twice, or a time is negative; violations that only make a
/// plan invalid pass. Linear in units, slices and edges, apart from sorting.
template <UnitTimes Times>
[[nodiscard]] Dag build_dag(const Plan& plan, const Times& times) {
  detail::PlanDraft draft(plan);
  detail::PlanReductions<Times> reductions(draft, times);
  detail::PlanUnits<Times>(draft, times).add();
  reductions.plan();
  detail::PlanLinks(draft).add();
  reductions.add();
  return std::move(draft.out).finish();
}

}  // namespace slimpack::sim
