// SPDX-License-Identifier: Apache-2.0
// Plans that the planners make for real document lengths, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/feature_table.hpp"
#include "runtime/rounding.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/directory.hpp"
#include "support/draws.hpp"
#include "support/scaled_request.hpp"

using namespace slimpack;

namespace {

const std::string kData = test::directory() + "/../examples/data";

/// What of a request a failing draw must tell.
std::string describe_request(const planners::PlanRequest& request) {
  std::string text = request.sources.front().path + " step " + std::to_string(request.batch.step) +
                     " dp " + std::to_string(request.dp) + " pp " + std::to_string(request.pp) +
                     " layers " + std::to_string(request.model.layers) + " granularity " +
                     std::to_string(request.granularity.value) + " chunks " +
                     std::to_string(request.chunks.value_or(0)) + " head " +
                     (request.head ? (*request.head == LmHead::shard ? "shard" : "last") : "free") +
                     " recompute " +
                     (request.recompute ? std::to_string(static_cast<int>(*request.recompute))
                                        : std::string("free"));
  if (request.memory.capacity) {
    text += " capacity " + std::to_string(request.memory.capacity->value);
  }
  return text;
}

/// Executes planners' plans and counts what they were.
class PlannedSteps {
 public:
  /// Null where the planner says that there is no plan, else the plan, executed and compared.
  std::optional<Plan> execute(const planners::PlannerInfo& planner,
                              const planners::PlanRequest& request, std::uint64_t seed) {
    const std::string name(planner.name);
    const std::string asked = describe_request(request);
    CAPTURE(seed);
    CAPTURE(name);
    CAPTURE(asked);
    const planners::PlanOutcome outcome = planner.plan(request);
    if (std::holds_alternative<Infeasible>(outcome.result)) {
      ++infeasible_;
      return std::nullopt;
    }
    Plan plan = *planners::plan_in(outcome.result);
    if (const auto* step = std::get_if<planners::SimulationOnlyPlan>(&outcome.result);
        step != nullptr && plan.memory.weights == WeightState::sharded) {
      // Its rounds are none of a plan: the executor holds what the system shards over ranks.
      const Bytes held = static_bytes(plan, 0).total();
      plan.memory.weights = WeightState::replicated;
      plan.memory.capacity += static_bytes(plan, 0).total() - held;
    }
    CHECK(plan.samples == request.batch.samples);
    CHECK(plan.target_tokens == request.batch.target_tokens);
    const Validation validation = validate(plan);
    for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
    if (!validation.valid()) return std::nullopt;
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    if (in_fp32_.plans("fp32, by " + name) < 2) {
      const auto fast = cpu::check_plan<cpu::FastMath>(plan, cpu::random_tokens(plan, seed), seed);
      CHECK(fast.loss_difference <= 1e-6);
      if (fast.gradient_difference > 2e-5) {
        const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
        CHECK(fast.gradient_difference <= 8 * test::change_by_rounding(plan, data, seed));
      }
      in_fp32_.add("fp32, by " + name, fast);
    }
    for (const Bytes peak : found.peak) {
      // State shared by ranks is whole elements on each of them, and a byte count over dp else.
      CHECK(peak.value < plan.memory.capacity.value - plan.memory.reserved.value + 16);
    }
    table_.add(plan, found);
    table_.add("by " + name, found);
    table_.add("of " + request.sources.front().path, found);
    table_.add("dp " + std::to_string(request.dp), found);
    table_.add("pp " + std::to_string(request.pp), found);
    table_.add(request.recompute ? "recompute asked for" : "recompute searched", found);
    if (request.memory.capacity) table_.add("tight memory", found);
    return plan;
  }
  [[nodiscard]] std::int64_t infeasible() const noexcept { return infeasible_; }
  [[nodiscard]] const test::FeatureTable& table() const noexcept { return table_; }
  [[nodiscard]] const test::FeatureTable& in_fp32() const noexcept { return in_fp32_; }

 private:
  test::FeatureTable table_;
  test::FeatureTable in_fp32_;  ///< two plans a planner
  std::int64_t infeasible_ = 0;
};

/// So many hundredths of the way from what the fullest device always holds to its peak: what a plan
/// of ample memory needs is then too much.
Bytes scarce_capacity(const Plan& plan, std::int64_t percent) {
  const sim::PlanSimulation simulation = sim::simulate_plan(plan);
  Bytes most;
  for (std::size_t device = 0; device < plan.prediction.devices.size(); ++device) {
    const Bytes always = sim::total(simulation.dag.devices[device].always);
    const Bytes above = plan.prediction.devices[device].peak - always;
    most = std::max(most, always + Bytes{above.value * percent / 100});
  }
  return most;
}

}  // namespace

TEST_CASE("execution: plans of real lengths give what the unsliced oracle gives") {
  PlannedSteps steps;
  std::vector<LengthSet> lengths;
  for (const test::ScaledSet& set : test::kScaledSets)
    lengths.push_back(test::scaled_lengths(set, kData));
  struct Degrees {
    std::int32_t dp = 1, pp = 1;
  };
  std::vector<Degrees> degrees;
  for (const std::int32_t dp : {4, 2, 1}) {
    for (std::int32_t pp = 1; pp <= 4; ++pp) degrees.push_back({dp, pp});
  }
  // Later rounds pair planners, sets and degrees anew. Half of the plans are slimpack's own; in 36
  // each other planner has its turn.
  const std::uint64_t plans = std::max(12U, slimpack::test::draws(108U));  // a round at least
  for (std::uint64_t seed = 0; seed < plans; ++seed) {
    const std::size_t i = (seed / 2 + seed / 16) % test::kScaledSets.size();
    const Degrees degree = degrees[(seed + seed / 12) % degrees.size()];
    const planners::PlannerInfo& planner =
        seed % 2 == 0 ? planners::registry().front()
                      : planners::registry()[1 + seed / 2 % (planners::registry().size() - 1)];
    planners::PlanRequest request =
        test::scaled_request(test::kScaledSets[i], lengths[i], seed, degree.dp, degree.pp);
    if (!planner.name.starts_with("slim")) {  // one chunk a stage, the head on the last
      request.head.reset();
      if (planner.name != "megatron-interleaved") request.chunks.reset();
    }
    const auto ample = steps.execute(planner, request, seed);
    if (!ample || seed % 3 != 0) continue;
    request.memory.capacity = scarce_capacity(*ample, seed % 2 == 0 ? 50 : 75);
    request.recompute.reset();
    (void)steps.execute(planner, request, seed);
  }
  // Steps so small that long samples exceed a rank's mean: context-parallel groups balance them.
  const planners::PlannerInfo& slimpack_planner = planners::find_planner("slimpack");
  for (std::uint64_t seed = 100; seed < 112; ++seed) {
    const bool books = seed % 4 < 2;
    test::ScaledSet set = test::kScaledSets[books ? 0 : 3];
    set.batch_tokens = 450;
    planners::PlanRequest request =
        test::scaled_request(set, lengths[books ? 0 : 3], seed, seed % 2 == 0 ? 4 : 2,
                             static_cast<std::int32_t>(1 + seed % 3));
    request.effort = planners::Effort::normal;
    (void)steps.execute(slimpack_planner, request, seed);
  }

  const test::FeatureTable& table = steps.table();
  table.print();
  steps.in_fp32().print();
  std::string strata;
  for (const char* name : {"all",
                           "dp 1",
                           "dp 2",
                           "dp 4",
                           "pp 1",
                           "pp 2",
                           "pp 3",
                           "pp 4",
                           "merged, kv exchange",
                           "merged, q exchange",
                           "chunks",
                           "sharded head",
                           "tied",
                           "differing cuts",
                           "tight memory",
                           "recompute asked for",
                           "recompute searched",
                           "recompute none",
                           "recompute light",
                           "recompute layer",
                           "recompute full"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= 1);
    strata +=
        std::string(strata.empty() ? "" : ", ") + name + " " + std::to_string(table.plans(name));
  }
  for (const test::ScaledSet& set : test::kScaledSets)
    CHECK(table.plans("of " + std::string(set.name)) >= 1);
  MESSAGE(strata, "; infeasible ", steps.infeasible());
}
