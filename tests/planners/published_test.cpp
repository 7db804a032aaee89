// SPDX-License-Identifier: Apache-2.0
// The published formulas of each order, on plans simulated with equal packs and free transfers.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/schedule/orders.hpp"
#include "slimpack/sim/simulate_plan.hpp"

using namespace slimpack;

namespace {

/// Every F and every B alike; nothing else takes time.
struct EqualTimes {
  const Plan& plan;
  Nanos forward, backward;
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t) const {
    return plan.micropacks[index(pack)].pass == Pass::forward ? forward : backward;
  }
  [[nodiscard]] static Nanos head(PackId, std::size_t, std::int32_t) { return {}; }
  [[nodiscard]] static Nanos transfer(PackId, std::int32_t, std::size_t) { return {}; }
  [[nodiscard]] static Nanos reduce(std::int32_t, std::int32_t) { return {}; }
  [[nodiscard]] static Nanos optimizer(std::int32_t, std::int32_t) { return {}; }
};
static_assert(UnitTimes<EqualTimes>);

/// The largest number of pairs (slice, chunk) on stage `pp` whose F has started and whose B has not
/// ended, read from the timeline.
std::int64_t most_open(const sim::PlanSimulation& simulation, std::int32_t pp) {
  std::vector<std::pair<Nanos, std::int64_t>> changes;
  for (std::size_t node = 0; node < simulation.dag.size(); ++node) {
    const sim::NodeLabel& label = simulation.dag.label[node];
    if (label.pp != pp) continue;
    if (label.kind == sim::NodeKind::forward)
      changes.push_back({simulation.timeline.start[node], 1});
    if (label.kind == sim::NodeKind::backward)
      changes.push_back({simulation.timeline.end[node], -1});
  }
  std::sort(changes.begin(), changes.end());  // at one instant what ends comes first
  std::int64_t open = 0;
  std::int64_t most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, open += change);
  return most;
}

planners::PlanRequest full_sequences(std::int64_t count, std::int32_t pp, std::int32_t chunks) {
  planners::PlanRequest request = test::request_of(
      std::vector<std::int64_t>(static_cast<std::size_t>(count), 1024), 2 * pp * chunks);
  request.pp = pp;
  request.granularity = {1};
  request.context = {1024};
  return request;
}

constexpr std::pair<Nanos, Nanos> kRatios[] = {
    {{1000}, {1000}}, {{1000}, {2000}}, {{1000}, {3000}}};

}  // namespace

TEST_CASE("1F1B: (p-1)/m of the ideal time is idle, p - r micro-batches are in flight") {
  for (const std::int32_t p : {1, 2, 3, 4, 8}) {
    for (const std::int64_t m : {1, 2, 3, 8, 11}) {
      CAPTURE(p);
      CAPTURE(m);
      const planners::PlanRequest request = full_sequences(m, p, 1);
      const Plan plan = planners::build_packed(
          request, "1f1b", {}, [](const schedule::Pipeline& pipeline, auto slices) {
            return schedule::one_f_one_b(pipeline.stages, static_cast<std::int32_t>(slices.size()));
          });
      for (const auto& [forward, backward] : kRatios) {
        const sim::PlanSimulation simulation =
            sim::simulate_plan(plan, EqualTimes{plan, forward, backward});
        const Nanos ideal = m * (forward + backward);
        CHECK((simulation.timeline.makespan - ideal) * m == (p - 1) * ideal);
        for (std::int32_t r = 0; r < p; ++r) {
          CHECK(most_open(simulation, r) == std::min<std::int64_t>(m, p - r));
        }
      }
    }
  }
}

TEST_CASE("interleaved 1F1B: (p-1)/(v m) of the ideal time is idle") {
  for (const std::int32_t p : {2, 3, 4, 8}) {
    for (const std::int32_t v : {2, 3, 4}) {
      for (const std::int32_t groups : {1, 2, 4}) {
        const std::int64_t m = groups * p;
        CAPTURE(p);
        CAPTURE(v);
        CAPTURE(m);
        const planners::PlanRequest request = full_sequences(m, p, v);
        planners::PackedSettings settings;
        settings.chunks = v;
        const Plan plan = planners::build_packed(
            request, "interleaved", settings, [](const schedule::Pipeline& pipeline, auto slices) {
              return schedule::interleaved(pipeline, static_cast<std::int32_t>(slices.size()));
            });
        const Nanos forward{1000};
        const Nanos backward{2000};
        const sim::PlanSimulation simulation =
            sim::simulate_plan(plan, EqualTimes{plan, forward, backward});
        const Nanos ideal = m * v * (forward + backward);
        CHECK((simulation.timeline.makespan - ideal) * (m * v) == (p - 1) * ideal);
      }
    }
  }
}

TEST_CASE(
    "SlimPipe: (p-1)/(n v m) of the ideal time is idle, n v + 2(p-1-r) slices are in flight") {
  for (const std::int32_t p : {1, 2, 4, 8}) {
    for (const std::int32_t v : {1, 2, 4}) {
      for (const std::int32_t n : {p, 2 * p, 4 * p}) {
        for (const std::int64_t m : {1, 2, 5}) {
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(n);
          CAPTURE(m);
          const planners::PlanRequest request = full_sequences(m, p, v);
          planners::PackedSettings settings;
          settings.slices = n;
          settings.chunks = v;
          const Plan plan = planners::build_packed(
              request, "slimpipe", settings, [](const schedule::Pipeline& pipeline, auto slices) {
                return schedule::slimpipe(pipeline, slices);
              });
          REQUIRE(plan.micropacks.size() == 2U * static_cast<std::size_t>(n * m));
          for (const auto& [forward, backward] : kRatios) {
            const sim::PlanSimulation simulation =
                sim::simulate_plan(plan, EqualTimes{plan, forward, backward});
            const Nanos ideal = n * v * m * (forward + backward);
            CHECK((simulation.timeline.makespan - ideal) * (n * v * m) == (p - 1) * ideal);
            for (std::int32_t r = 0; r < p; ++r) {
              CHECK(most_open(simulation, r) ==
                    std::min<std::int64_t>(n * v * m, n * v + 2 * (p - 1 - r)));
            }
          }
        }
      }
    }
  }
}
