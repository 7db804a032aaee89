// SPDX-License-Identifier: Apache-2.0
// Prices of B that leaves weights apart, and of W.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "cost/priced_load.hpp"
#include "cost/shapes.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/analytic.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/fitted.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/table.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using test::h100;
using test::llama_7b;

static_assert(!SplitCostModel<TableModel> && !SplitCostModel<int>);

Cluster with_small_prices() {
  Cluster cluster = h100();
  cluster.small.weight_traffic = 1;
  cluster.small.accumulator_traffic = 1.5;
  cluster.small.memory_overlap = 0.5;
  cluster.small.matrix_tile_rows = 128;
  return cluster;
}

MemorySpec usual_memory() {
  MemorySpec memory;
  memory.gradient_bytes = 4;
  return memory;
}

TEST_CASE("W: matrix work, accumulators and kernels by hand") {
  // W of a layer: 4 x 4096^2 + 3 x 4096 x 11008 weights.
  const double weights = 4.0 * 4096 * 4096 + 3.0 * 4096 * 11008;
  const AnalyticModel plain(llama_7b(), h100(), usual_memory());
  const StageLoad stage = test::plain_stage(8);
  PackLoad load;
  load.tokens = {1000};
  load.runs = 1;
  const auto near = [](Nanos time, double seconds) {
    CHECK(static_cast<double>(time.value) >= seconds * 1e9 - 1);
    CHECK(static_cast<double>(time.value) <= seconds * 1e9 + 2);
  };
  near(plain.weight(load, stage), 2 * weights * 1000 * 8 / 620e12 + 4 * 8 * 4e-6);
  // Rows fill tiles, and half of the accumulators' traffic hides: 8 bytes a weight, 1.5 times.
  const AnalyticModel small(llama_7b(), with_small_prices(), usual_memory());
  const double work = 2 * weights * 1024 * 8 / 620e12, traffic = 12 * weights * 8 / 2.9e12;
  near(small.weight(load, stage),
       std::max(work, traffic) + std::min(work, traffic) / 2 + 4 * 8 * 4e-6);
  // Rows that do not lie together: gathered, twice (4h + 2q + 2k + 3f) bytes of 2.
  load.runs = 1000;
  const double gathered = 2.0 * 2 * (8 * 4096 + 3 * 11008) * 1000 * 8 / 2.9e12;
  near(plain.weight(load, stage), 2 * weights * 1000 * 8 / 620e12 + 4 * 8 * 4e-6 + gathered);
  load.runs = 2;  // four kernels a layer more
  near(plain.weight(load, stage), 2 * weights * 1000 * 8 / 620e12 + 2 * 4 * 8 * 4e-6);
  load.tokens = {0};
  load.runs = 0;
  CHECK(plain.weight(load, stage) == Nanos{0});
}

TEST_CASE("B apart and W together are B, but for rounding, where rows lie together") {
  for (const Cluster& cluster : {h100(), with_small_prices()}) {
    const AnalyticModel analytic(llama_7b(), cluster, usual_memory());
    const FittedModel measured(test::some_fit(), llama_7b(), cluster, usual_memory());
    const FittedModel unmeasured(FittedCost{}, llama_7b(), cluster, usual_memory());
    for (std::int64_t tokens = 1; tokens < 40'000; tokens *= 3) {
      CAPTURE(tokens);
      const PackLoad load = test::whole_slice(5 * tokens, tokens);
      for (const std::int64_t layers : {0, 1, 9}) {
        StageLoad stage = test::plain_stage(layers);
        stage.embedding = layers == 9;
        for (int mode = 0; mode < kRecomputeModes; ++mode) {
          const auto recompute = static_cast<Recompute>(mode);
          const auto more = [&](const auto& model) {
            return (model.backward_apart(load, stage, recompute) + model.weight(load, stage) -
                    model.backward(load, stage, recompute))
                .value;
          };
          CHECK(more(analytic) >= 0);
          CHECK(more(analytic) <= 2);
          CHECK(more(unmeasured) >= 0);
          CHECK(more(unmeasured) <= 2);
          // Each has the fixed cost of a unit, 2 us of the fit.
          CHECK(more(measured) >= (layers > 0 ? 1998 : 0));
          CHECK(more(measured) <= (layers > 0 ? 2003 : 1));
        }
      }
    }
  }
}

// Prices of B apart and W that were measured too: some terms are less than those of B, some more.
FittedCost fitted_apart(std::uint64_t seed) {
  Random random(seed);
  FittedCost cost = test::some_fit();
  const auto near = [&](double most) {
    FittedTerms terms = *cost.layer_backward;
    for (double* term : {&terms.unit, &terms.layer, &terms.token, &terms.pair, &terms.segment}) {
      *term *= most * random.unit();
    }
    return terms;
  };
  cost.layer_apart = near(1.3);
  cost.layer_weight = near(1);
  cost.layer_weight->pair = cost.layer_weight->segment = 0;
  cost.layer_weight->accumulator_byte = 1e-13;
  return cost;
}

TEST_CASE("B apart and W that were measured: prices are the formula") {
  FittedCost cost = test::some_fit();
  cost.layer_apart = FittedTerms{3e-6, 4e-5, 9e-7, 2e-10, 7e-7, 0, 1e-9};
  cost.layer_weight = FittedTerms{1e-6, 2e-5, 5e-7, 0, 0, 0, 0, 0, 2e-13};
  const FittedModel model(cost, llama_7b(), h100(), usual_memory());
  StageLoad stage = test::plain_stage(4);
  PackLoad load = test::whole_slice(300, 1000);
  load.runs = 1;
  load.keys = 1300;
  const double pairs = 1000 * (300 + 500.0);
  CHECK(
      model.backward_apart(load, stage, Recompute::none).value ==
      doctest::Approx(1e9 * (3e-6 + 4 * (4e-5 + 9e-7 * 1000 + 2e-10 * pairs + 7e-7 + 1e-9 * 1300)))
          .epsilon(1e-6));
  const double accumulators = 2.0 * 4 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008);
  CHECK(model.weight(load, stage).value ==
        doctest::Approx(1e9 * (1e-6 + 4 * (2e-5 + 5e-7 * 1000 + 2e-13 * accumulators)))
            .epsilon(1e-6));
  const FittedModel whole(test::some_fit(), llama_7b(), h100(), usual_memory());
  CHECK(model.backward(load, stage, Recompute::none) ==
        whole.backward(load, stage, Recompute::none));
  cost.layer_weight.reset();
  CHECK_THROWS_AS(FittedModel(cost, llama_7b(), h100(), usual_memory()), InvalidInput);
}

TEST_CASE("B of several runs, each a graph: the fixed costs of both passes for each further run") {
  Cluster cluster = h100();
  cluster.small.run_graphs = true;
  FittedCost cost = test::some_fit();
  cost.layer_forward->weight_byte = 1e-13;
  cost.layer_apart = FittedTerms{3e-6, 4e-5, 9e-7, 2e-10, 7e-7, 0};
  cost.layer_weight = FittedTerms{1e-6, 2e-5, 5e-7, 0, 0, 0};
  const AnalyticModel analytic(llama_7b(), cluster, usual_memory());
  const FittedModel fitted(cost, llama_7b(), cluster, usual_memory());
  const StageLoad stage = test::plain_stage(6);
  const double bytes = 2.0 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008);
  for (const std::int64_t runs : {1, 2, 5}) {
    PackLoad one = test::whole_slice(0, 1000), load = one;
    one.runs = 1;
    load.runs = runs;
    // Seconds for each further run.
    const auto more = [&](const auto& model, bool apart) {
      const Recompute none = Recompute::none;
      const Nanos time =
          apart ? model.backward_apart(load, stage, none) - model.backward_apart(one, stage, none)
                : model.backward(load, stage, none) - model.backward(one, stage, none);
      return static_cast<double>(time.value) * 1e-9 / static_cast<double>(runs > 1 ? runs - 1 : 1);
    };
    const double some = runs > 1 ? 1 : 0;
    // 10 kernels of F, 20 of B, of which 4 are W's, of 4 microseconds each.
    CHECK(more(analytic, false) == doctest::Approx(some * 30 * 6 * 4e-6).epsilon(1e-4));
    CHECK(more(analytic, true) == doctest::Approx(some * 26 * 6 * 4e-6).epsilon(1e-4));
    const FittedTerms &f = *cost.layer_forward, &b = *cost.layer_backward, &a = *cost.layer_apart;
    const double forward = f.unit + 6 * (f.layer + f.weight_byte * bytes);
    CHECK(more(fitted, false) ==
          doctest::Approx(some * (forward + b.unit + 6 * b.layer)).epsilon(1e-4));
    CHECK(more(fitted, true) ==
          doctest::Approx(some * (forward + a.unit + 6 * a.layer)).epsilon(1e-4));
  }
}

TEST_CASE("B apart and W that were measured: no price is below the rates") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const FittedModel model(fitted_apart(seed), llama_7b(), h100(), usual_memory());
    const WorkRates rates = model.rates();
    PackLoad load = test::whole_slice(random.between(0, 10'000), random.between(1, 10'000));
    load.runs = random.between(1, 3);
    const StageLoad stage = test::plain_stage(random.between(1, 9));
    const auto tokens = static_cast<double>(load.tokens.value);
    const auto layers = static_cast<double>(stage.layers);
    const double attention = rates.backward_pair2 * static_cast<double>(load.pairs2) +
                             rates.backward_segment * static_cast<double>(load.segments);
    const double whole = rates.backward_unit + layers * (rates.backward_launch + attention +
                                                         rates.backward_token * tokens);
    const double apart = rates.backward_unit +
                         layers * (rates.apart_launch + attention + rates.apart_token * tokens);
    const Nanos b = model.backward_apart(load, stage, Recompute::none);
    CHECK(rates.apart_token <= rates.backward_token);
    CHECK(static_cast<double>(model.backward(load, stage, Recompute::none).value) >=
          whole / 1000 - 1);
    CHECK(static_cast<double>(b.value) >= apart / 1000 - 1);
    CHECK(static_cast<double>((b + model.weight(load, stage)).value) >= whole / 1000 - 1);
  }
}

TEST_CASE("B apart and W: more of anything costs no less") {
  const AnalyticModel analytic(llama_7b(), with_small_prices(), usual_memory());
  const FittedModel measured(test::some_fit(), llama_7b(), with_small_prices(), usual_memory());
  const FittedModel in_parts(fitted_apart(1), llama_7b(), with_small_prices(), usual_memory());
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    PackLoad load = test::whole_slice(random.between(0, 10'000), random.between(1, 10'000));
    load.runs = random.between(1, 20);
    StageLoad stage = test::plain_stage(random.between(1, 9));
    stage.tensor_parallel = random.between(1, 4);
    PackLoad more = load;
    more.tokens += Tokens{random.between(0, 3)};
    more.pairs2 += random.between(0, 1000);
    more.filled_pairs2 = more.pairs2;
    more.runs += random.between(0, 2);
    StageLoad taller = stage;
    taller.layers += random.between(0, 1);
    const auto check = [&](const auto& model) {
      CHECK(model.weight(load, stage) > Nanos{});
      CHECK(model.weight(load, stage) <= model.weight(more, taller));
      for (int mode = 0; mode < kRecomputeModes; ++mode) {
        const auto recompute = static_cast<Recompute>(mode);
        CHECK(model.backward_apart(load, stage, recompute) <=
              model.backward_apart(more, taller, recompute));
      }
    };
    check(analytic);
    check(measured);
    check(in_parts);
  }
}

TEST_CASE("PricedPlan: W of each rank by its own tokens") {
  std::int64_t differing = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.weights = true;
    options.version = 2;
    options.max_tp = 2;
    if (seed % 2 == 0) options.cp_groups = true;
    const Plan plan = test::random_plan(seed, options);
    const AnalyticModel model(plan.model, plan.cluster, plan.memory);
    const PricedPlan priced(plan);
    const PackLoads loads(plan);
    const Links links(plan);
    std::int64_t sent = 0;
    for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
      const MicroPack& pack = plan.micropacks[id];
      const auto pack_id = static_cast<PackId>(id);
      for (const Slice& slice : pack.slices) {
        if (pack.pass != Pass::weight) sent += slice.length().value;
      }
      for (std::int32_t line = 0; line < virtual_stages_of(plan).size(); ++line) {
        const StageLoad stage = stage_load(plan, links, plan.groups[index(pack.group)], line);
        Nanos slowest;
        for (std::size_t rank = 0; rank < loads.ranks(pack_id); ++rank) {
          const PackLoad load = test::priced_load(plan, loads, pack_id, rank);
          if (pack.pass == Pass::forward) {
            slowest = std::max(slowest, model.forward(load, stage));
          } else if (pack.weights == WeightGradients::apart) {
            slowest = std::max(slowest, model.backward_apart(load, stage, pack.recompute));
          } else if (pack.pass == Pass::backward) {
            slowest = std::max(slowest, model.backward(load, stage, pack.recompute));
          } else {
            const Nanos time = model.weight(load, stage);
            CHECK(priced.weight(pack_id, line, rank) == time);
            CHECK(priced.transfer(pack_id, line, rank) == Nanos{});
            differing += rank > 0 && time != slowest ? 1 : 0;
            slowest = std::max(slowest, time);
          }
        }
        CHECK(priced.compute(pack_id, line) == slowest);
      }
    }
    const std::int64_t borders = plan.parallel.pp > 1 ? virtual_stages_of(plan).size() - 1 : 0;
    CHECK(communication_of(plan).transfers.value ==
          sent * borders * plan.model.hidden * plan.model.bytes_per_element);
  }
  CHECK(differing > 100);
}

TEST_CASE("PricedPlan: a table has no prices of W") {
  test::RandomPlanOptions options;
  options.weights = true;
  options.version = 2;
  Plan plan = test::random_plan(1, options);
  std::size_t first = 0;
  while (plan.micropacks[first].weights == WeightGradients::with &&
         plan.micropacks[first].pass != Pass::weight) {
    ++first;
  }
  plan.cost = test::exact_table(4e-6, 6.6e-7, 3.3e-9);
  const std::string message = "prices of whole B alone: micropacks[" + std::to_string(first) +
                              "] must leave no gradients of weights to units of their own (W)";
  CHECK_THROWS_WITH_AS(PricedPlan{plan}, message.c_str(), InvalidInput);
}

}  // namespace
}  // namespace slimpack
