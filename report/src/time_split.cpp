// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/time_split.hpp"

#include <cstddef>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// F, B and H of all devices at a plan's prices.
[[nodiscard]] Nanos priced_compute(const Plan& plan) {
  const PricedPlan prices(plan);
  const std::int32_t places = virtual_stages_of(plan).size();
  const bool shard = plan.parallel.head == LmHead::shard;
  Nanos sum;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const auto id = static_cast<PackId>(i);
    const MicroPack& pack = plan.micropacks[i];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    if (pack.pass == Pass::weight) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::int32_t place = 0; place < places; ++place) sum += prices.weight(id, place, rank);
      }
      continue;
    }
    Nanos line;
    for (std::int32_t place = 0; place < places; ++place) line += prices.compute(id, place);
    sum += line * static_cast<std::int64_t>(ranks);
    if (pack.pass == Pass::backward) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sum += prices.head(id, rank, plan.parallel.pp - 1) * (shard ? plan.parallel.pp : 1);
    }
  }
  return sum;
}

}  // namespace

TimeSplit time_split(const ComparedTimeline& step, const Metrics& metrics) {
  const auto devices = static_cast<std::int64_t>(step.plan.schedule.size());
  const auto mean = [&](Nanos sum) { return Nanos{sum.value / devices}; };
  TimeSplit split;
  const auto set = [&](TimeShare share, Nanos time) {
    split.time[static_cast<std::size_t>(share)] = time;
  };
  const Nanos priced = priced_compute(step.plan);
  Plan changed = step.plan;
  changed.cluster.inside = changed.cluster.between = Link{1e30, 0};
  const Nanos alone = priced_compute(changed);
  for (MicroPack& pack : changed.micropacks) pack.recompute = Recompute::none;
  const Nanos once = priced_compute(changed);
  Nanos optimizer;
  const sim::Dag& dag = step.simulation.dag;
  for (std::size_t i = 0; i < dag.size(); ++i) {
    if (dag.label[i].kind == sim::NodeKind::optimizer) optimizer += dag.duration[i];
  }
  set(TimeShare::ideal, metrics.ideal);
  set(TimeShare::communication, mean(priced - alone));
  set(TimeShare::recompute, mean(alone - once));
  set(TimeShare::optimizer, mean(optimizer));
  for (std::size_t cause = 0; cause < sim::kGapCauses; ++cause) {
    split.time[kTimeShares + cause] = mean(metrics.gaps[cause]);
  }
  set(TimeShare::overhead, metrics.iteration - split.total());
  return split;
}

}  // namespace slimpack::report
