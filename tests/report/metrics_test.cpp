// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/metrics.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "report/plans.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/report/summary.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

TEST_CASE("metrics_of: a plan of four devices, by hand") {
  // us     stage 0, rank 0          stage 1, rank 0
  //   0    F0 to 20, F3 to 30       F0 22-42, H0 -45, F3 -55, H3 -58, B1 -83, B2 -103, B4 -123
  //  85    B1 -110, B2 -130, B4 -150                                            R -127, O -132
  // 150    R -154, O -159
  // Rank 1 is alike with F5 for F3, and B6 of 16 us for B4 of 20.
  const Plan plan = test::tiny_plan();
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  const report::Metrics metrics = report::metrics_of(plan, simulation);
  CHECK(metrics.iteration == Nanos{159000});
  CHECK(simulation.timeline.busy ==
        std::vector<Nanos>{Nanos{100000}, Nanos{106000}, Nanos{96000}, Nanos{102000}});
  CHECK(metrics.ideal == ideal_time(plan));
  CHECK(metrics.efficiency ==
        doctest::Approx(static_cast<double>(ideal_time(plan).value) / 159000.0));
  CHECK(metrics.bubble == doctest::Approx(232.0 / (4 * 159)));
  CHECK(metrics.dp_imbalance == doctest::Approx(196.0 / ((196.0 + 188.0) / 2)));
  CHECK(metrics.forward_cv == doctest::Approx(std::sqrt(0.125)));          // 40, 20, 20
  CHECK(metrics.backward_cv == doctest::Approx(std::sqrt(40.75) / 40.5));  // 50, 40, 40, 32
  CHECK(metrics.tokens == Tokens{16});
  CHECK(metrics.merged_tokens == Tokens{8});
  CHECK(metrics.samples == 3);
  CHECK(metrics.forward_packs == 3);
  CHECK(metrics.backward_packs == 4);
  CHECK(metrics.tokens_per_s == doctest::Approx(16 / 159e-6));

  // Matrices of a layer: 4 (2 x 4 + 2 x 2) + 3 x 4 x 8 = 144; head 40; attention 2 x 2 x 4 a layer
  // and half a squared length.
  const double forward = 16 * 2 * (2 * 144 + 40) + 2 * 2 * 4 * (64 + 16 + 16);
  CHECK(report::model_flops(plan) == 3 * forward);
  CHECK(metrics.mfu == doctest::Approx(3 * forward / (1e9 * 4 * 159e-6)));

  Nanos idle;
  for (const Nanos gap : metrics.gaps) idle += gap;
  CHECK(idle == Nanos{232000});
}

TEST_CASE("communication_of: a plan of four devices, by hand") {
  const Plan plan = test::tiny_plan();
  const CommunicationBytes bytes = communication_of(plan);
  CHECK(bytes.transfers == Bytes{32 * 4 * 2});  // 16 tokens down, 16 up, 4 wide, 2 bytes
  // Each rank owns 4 of the 8 shared tokens, 2 of the first 4: forward brings 4 + 4, the backward
  // slices 4 + 4 and 2 + 2; keys and values are 2 x 2 wide, gradients of 4 bytes.
  CHECK(bytes.exchange == Bytes{2 * (8 * 2 * 2 * 2 + 12 * (2 * 2 * 2 + 2 * 2 * 4))});
  CHECK(bytes.head == Bytes{0});
  // Per layer 144 + 8 of the norms; embedding 40, final norm 4, head 40. Two ranks.
  const std::int64_t weights = 2 * 152 + 40 + 4 + 40;
  CHECK(bytes.reduction == Bytes{weights * 4});
  CHECK(bytes.gathering == Bytes{weights * 2});
  CHECK(bytes.tensor_parallel == Bytes{0});

  Plan other = plan;
  other.memory.optimizer = OptimizerState::replicated;
  CHECK(communication_of(other).reduction == Bytes{weights * 8});
  CHECK(communication_of(other).gathering == Bytes{0});
  other.parallel.head = LmHead::shard;
  // Hidden states of 4 x 2 bytes, their gradients of 4 x 4, six statistics of 4 bytes.
  CHECK(communication_of(other).head == Bytes{16 * (8 + 16 + 24)});
  other = plan;
  other.micropacks[0].exchange = {RingMode::pass_q};
  other.micropacks[1].exchange = {RingMode::pass_q};
  other.micropacks[2].recompute = Recompute::full;
  // Queries: forward 8 - 4 tokens on each rank, 2 x 4 x 2 bytes and two statistics; backward 4 - 2
  // with 4 x 4 of query gradients and four statistics; the other slice repeats its forward.
  CHECK(communication_of(other).exchange ==
        Bytes{2 * (8 * (16 + 8) + 4 * (16 + 16 + 16) + 4 * (8 + 16 + 8))});
  other = plan;
  other.version = 3;
  other.model.kv_heads = 2;
  for (const std::size_t pack : {0U, 1U, 2U}) {
    other.micropacks[pack].exchange = {RingMode::by_heads};
  }
  other.micropacks[2].recompute = Recompute::full;
  // By heads half of what a token brings goes to the other rank. Queries, outputs and their
  // gradients are 4 wide, keys and values 2 x 4, in 2 bytes; statistics are two of 4 bytes. Forward
  // 8 tokens; backward 4, then 4 that repeat their forward, for which queries have come.
  const std::int64_t forward = 2 * 8 + 16 + 8, back = 2 * 8 + 16 + 2 * 8;
  CHECK(communication_of(other).exchange ==
        Bytes{2 * (8 * forward + 4 * (back + 8) + 4 * (back + forward)) / 2});
  // One head of keys goes to both.
  other.model.kv_heads = 1;
  CHECK(communication_of(other).exchange ==
        Bytes{2 * (8 * forward + 4 * (back + 8) + 4 * (back + forward)) / 2});
  // What one rank owns of a longer sample travels too.
  other.memory.cp_block_tokens = Tokens{4};
  CHECK(communication_of(other).exchange ==
        Bytes{2 * (8 * forward + 4 * (back + 8) + 4 * (back + forward)) / 2});
  other.memory.cp_block_tokens = Tokens{8};
  CHECK(communication_of(other).exchange == Bytes{0});
  other = plan;
  other.parallel.tp = 2;
  // Of each of 16 tokens and 2 layers: forward 4 collectives, backward 6; embedding 2, head 2.
  CHECK(communication_of(other).tensor_parallel == Bytes{16 * 8 * (2 * (4 + 6) + 2 + 2)});
  other = plan;
  other.model.tied = true;
  // The whole table on stage 0, its copy on the last: 40 weights on either, and once between.
  CHECK(communication_of(other).reduction == Bytes{(weights + 2 * 40) * 4});
}

TEST_CASE("metrics_of: every second of every device is busy or a gap with a cause") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const sim::Timeline& timeline = simulation.timeline;
    const sim::Gaps gaps = sim::find_gaps(simulation.dag, timeline, report::memory_limit(plan));
    const report::Metrics metrics = report::metrics_of(plan, simulation, gaps);
    Nanos all;
    for (std::size_t i = 0; i < timeline.busy.size(); ++i) {
      Nanos sum = timeline.busy[i];
      for (const Nanos gap : gaps.device[i]) sum += gap;
      CHECK(sum == timeline.makespan);
      CHECK(metrics.peak >= timeline.peak[i].bytes);
      all += timeline.makespan - timeline.busy[i];
    }
    Nanos caused;
    for (const Nanos gap : metrics.gaps) caused += gap;
    CHECK(caused == all);
    CHECK(metrics.iteration == timeline.makespan);
    CHECK(metrics.efficiency > 0);
    CHECK(metrics.efficiency <= 1);
    CHECK(metrics.bubble >= 0);
    CHECK(metrics.bubble < 1);
    CHECK(metrics.dp_imbalance >= 1);
    CHECK(metrics.dp_imbalance <= plan.parallel.dp);
    CHECK(metrics.dp_over_least >= 1);
    CHECK(sim::total(metrics.at_peak) == metrics.peak);
    CHECK(metrics.forward_packs + metrics.backward_packs ==
          std::ranges::count_if(plan.micropacks,
                                [](const MicroPack& pack) { return pack.pass != Pass::weight; }));
    CHECK(metrics.merged_tokens <= metrics.tokens);
    CHECK((metrics.communication.transfers > Bytes{}) == (plan.parallel.pp > 1));
    CHECK((metrics.communication.reduction > Bytes{}) ==
          (plan.parallel.dp > 1 || (plan.model.tied && plan.parallel.pp > 1)));
    if (metrics.merged_tokens == Tokens{}) CHECK(metrics.communication.exchange == Bytes{});
  }
}

TEST_CASE("metrics_of: a simulation of other devices is refused") {
  const sim::PlanSimulation simulation = sim::simulate_plan(test::tiny_plan(), test::TinyTimes{});
  CHECK_THROWS_WITH_AS(
      static_cast<void>(report::metrics_of(test::uniform_plan(1, 2, 1), simulation)),
      "metrics_of: the simulation must have the plan's devices, one or more, got 4", InvalidInput);
}

TEST_CASE("summary_of: the steps of a critical path sum up to the makespan") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const auto path = sim::critical_path(simulation.dag, simulation.timeline);
    const report::PathSummary whole = report::summary_of(simulation.dag, path, path.size());
    Nanos sum;
    for (const Nanos time : whole.time) sum += time;
    CHECK(sum == simulation.timeline.makespan);
    CHECK(whole.shown.size() == whole.steps);
    const report::PathSummary part = report::summary_of(simulation.dag, path, 3);
    CHECK(part.steps == whole.steps);
    CHECK(part.time == whole.time);
    CHECK(part.shown.size() == std::min<std::size_t>(3, whole.steps));
    Nanos shown, least = Nanos::max();
    for (const sim::PathStep& step : part.shown) {
      CHECK(simulation.timeline.start[index(step.node)] >= shown);
      shown = simulation.timeline.start[index(step.node)];
      least = std::min(least, simulation.dag.duration[index(step.node)]);
    }
    std::size_t longer = 0;
    for (const sim::PathStep& step : whole.shown) {
      if (simulation.dag.duration[index(step.node)] > least) ++longer;
    }
    CHECK(longer < 3);
  }
}

}  // namespace
}  // namespace slimpack
