// SPDX-License-Identifier: Apache-2.0
#include "drawn_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report::detail {

std::vector<std::size_t> ranks_by_work(const Plan& plan, const sim::PlanSimulation& simulation) {
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  const std::vector<Nanos>& busy = simulation.timeline.busy;
  std::vector<Nanos> work(busy.size() / stages);
  for (std::size_t i = 0; i < busy.size(); ++i) work[i / stages] += busy[i];
  std::vector<std::size_t> order(work.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  return order;
}

std::vector<std::size_t> drawn_ranks(const Plan& plan, const sim::PlanSimulation& simulation,
                                     std::size_t most) {
  std::vector<std::size_t> order = ranks_by_work(plan, simulation);
  if (order.size() > most) {
    std::vector<std::size_t> ranks;
    for (std::size_t i = 0; i < most; ++i) {
      ranks.push_back(order[most == 1 ? 0 : i * (order.size() - 1) / (most - 1)]);
    }
    order = std::move(ranks);
  }
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace slimpack::report::detail
