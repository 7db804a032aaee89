// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report::detail {

ComputeTimes compute_times(const Plan& plan, const sim::Dag& dag) {
  std::vector<Nanos> pack(plan.micropacks.size());
  ComputeTimes times;
  times.rank.resize(static_cast<std::size_t>(plan.parallel.dp));
  for (std::size_t i = 0; i < dag.size(); ++i) {
    const sim::NodeLabel& label = dag.label[i];
    if (!sim::is_compute(label.kind) || label.kind == sim::NodeKind::optimizer) continue;
    times.rank[static_cast<std::size_t>(label.dp)] += dag.duration[i];
    if (label.kind == sim::NodeKind::head) continue;
    const GroupId group = plan.micropacks[index(label.pack)].group;
    if (plan.groups[index(group)].front() == label.dp) pack[index(label.pack)] += dag.duration[i];
  }
  for (std::size_t i = 0; i < pack.size(); ++i) {
    switch (plan.micropacks[i].pass) {
      case Pass::forward:
        times.forward.push_back(pack[i]);
        break;
      case Pass::backward:
        times.backward.push_back(pack[i]);
        break;
      case Pass::weight:
        times.weight.push_back(pack[i]);
        break;
    }
  }
  return times;
}

const ComparedPlan* feasible_entry(const Comparison& comparison, std::string_view planner,
                                   std::int64_t step) {
  const auto found = std::find_if(
      comparison.results.begin(), comparison.results.end(), [&](const ComparedPlan& entry) {
        return entry.planner == planner && entry.step == step && entry.metrics.has_value();
      });
  return found == comparison.results.end() ? nullptr : &*found;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const ComparedStep* compared_step(const Comparison& comparison, std::int64_t step) {
  const auto found =
      std::find_if(comparison.steps.begin(), comparison.steps.end(),
                   [step](const ComparedStep& compared) { return compared.step == step; });
  return found == comparison.steps.end() ? nullptr : &*found;
}

}  // namespace slimpack::report::detail
