// SPDX-License-Identifier: Apache-2.0
// Laws of every cost model, magnitudes of the analytic one, and refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "cost/model_laws.hpp"
#include "cost/shapes.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/presets.hpp"

namespace slimpack {
namespace {

using test::h100;
using test::llama_7b;
using test::plain_stage;
using test::whole_slice;

AnalyticModel analytic() {
  return {llama_7b(), h100(), MemorySpec{}};
}

Cluster without_fixed_costs() {
  Cluster cluster = h100();
  cluster.kernel_s = cluster.segment_s = 0;
  cluster.inside.latency_s = cluster.between.latency_s = 0;
  return cluster;
}

// All prices of small units, with numbers that no preset has.
Cluster with_small_units() {
  Cluster cluster = h100();
  cluster.small.matrix_tile_rows = 64;
  cluster.small.weight_traffic = 1.25;
  cluster.small.accumulator_traffic = 1;
  cluster.small.prefix_traffic = 1.5;
  cluster.small.memory_overlap = 0.7;
  cluster.small.tp_overlap = 0.5;
  cluster.small.collective_compute = 0.15;
  cluster.small.head_dims = {{64, 0.75, 0.85}, {128, 1, 1}, {256, 1.1, 0.9}};
  return cluster;
}

double ratio(Nanos a, Nanos b) {
  return static_cast<double>(a.value) / static_cast<double>(b.value);
}

TEST_CASE("cost models: the laws hold") {
  SUBCASE("analytic") {
    test::check_laws(analytic());
  }
  SUBCASE("analytic, replicated state, no fixed cost") {
    MemorySpec memory;
    memory.optimizer = OptimizerState::replicated;
    test::check_laws(AnalyticModel(llama_7b(), without_fixed_costs(), memory));
  }
  SUBCASE("analytic, small units priced") {
    test::check_laws(AnalyticModel(llama_7b(), with_small_units(), MemorySpec{}));
  }
  SUBCASE("fitted and table, small units priced") {
    FittedCost cost = test::some_fit();
    cost.layer_backward->key = 1e-10;
    cost.layer_backward->accumulator_byte = 3e-13;
    cost.layer_forward->weight_byte = 2e-13;
    test::check_laws(FittedModel(cost, llama_7b(), with_small_units(), MemorySpec{}));
    cost.layer_forward.reset();
    cost.head.reset();
    test::check_laws(FittedModel(cost, llama_7b(), with_small_units(), MemorySpec{}));
    test::check_laws(TableModel(test::exact_table(4e-5, 6.6e-7, 3.3e-11), llama_7b(),
                                with_small_units(), MemorySpec{}));
  }
  SUBCASE("fitted") {
    test::check_laws(FittedModel(test::some_fit(), llama_7b(), h100(), MemorySpec{}));
  }
  SUBCASE("fitted, tokens that spill") {
    FittedCost cost = test::some_fit();
    for (auto* const terms : {&cost.layer_forward, &cost.layer_backward}) {
      (*terms)->spill_token = (*terms)->token / 4;
      (*terms)->spill_from = 1000;
    }
    test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
    test::check_laws(FittedModel(cost, llama_7b(), with_small_units(), MemorySpec{}));
    FittedCost nothing = cost;  // spills
    nothing.layer_forward->spill_token = 0;
    const auto price = [](const FittedCost& by, std::int64_t tokens, std::int64_t tp) {
      PackLoad load;
      load.tokens = {tokens};
      StageLoad stage;
      stage.layers = 4;
      stage.tensor_parallel = tp;
      return FittedModel(by, llama_7b(), h100(), MemorySpec{}).forward(load, stage);
    };
    for (const std::int64_t tp : {1, 2, 4}) {
      CHECK(price(cost, 1000 * tp, tp) == price(nothing, 1000 * tp, tp));
      CHECK(price(cost, 1100 * tp, tp) > price(nothing, 1100 * tp, tp));
      StageLoad stage;
      stage.layers = 4;
      stage.tensor_parallel = tp;
      const FittedModel model(cost, llama_7b(), h100(), MemorySpec{});
      for (const std::int64_t tokens : {1000 * tp, 1100 * tp, 9000 * tp}) {
        const Nanos more = price(cost, tokens, tp) - price(nothing, tokens, tp);
        const Nanos spilled = model.spilled({tokens}, stage, false);
        CHECK(std::abs((more - spilled).value) <= 1);
        CHECK(spilled <= model.spilled({tokens}, stage, true));
      }
    }
    cost.layer_forward->spill_from = 1e10;
    CHECK_THROWS_WITH_AS(
        FittedModel(cost, llama_7b(), h100(), MemorySpec{}),
        "cost.layer_forward.spill_from must be from 0 to 1e9, got '10000000000.000000'",
        InvalidInput);
  }
  SUBCASE("fitted, pairs of a slice with itself dearer") {
    FittedCost cost = test::some_fit();
    cost.layer_forward->own_pair = 2e-12;
    cost.layer_backward->own_pair = 5e-12;
    const FittedModel model(cost, llama_7b(), h100(), MemorySpec{});
    test::check_laws(model);
    const FittedModel without(test::some_fit(), llama_7b(), h100(), MemorySpec{});
    // A slice has them whatever is before it, by the devices that share it.
    for (const std::int64_t tp : {1, 2}) {
      StageLoad stage = test::plain_stage(3);
      stage.tensor_parallel = tp;
      for (const std::int64_t prefix : {0, 3000}) {
        const PackLoad load = test::whole_slice(prefix, 4000);
        const double own = 3 * 4000.0 * 4000 / 2 / static_cast<double>(tp);
        const auto more = [](Nanos with, Nanos its) {
          return static_cast<double>((with - its).value);
        };
        const double again = more(model.backward(load, stage, Recompute::full),
                                  without.backward(load, stage, Recompute::full));
        CHECK(more(model.forward(load, stage), without.forward(load, stage)) ==
              doctest::Approx(2e-3 * own).epsilon(1e-5));
        CHECK(more(model.backward(load, stage, Recompute::none),
                   without.backward(load, stage, Recompute::none)) ==
              doctest::Approx(5e-3 * own).epsilon(1e-5));
        CHECK(again == doctest::Approx(7e-3 * own).epsilon(1e-5));
      }
    }
    cost.layer_forward->own_pair = -1;
    CHECK_THROWS_WITH_AS(FittedModel(cost, llama_7b(), h100(), MemorySpec{}),
                         "cost.layer_forward.own_pair must be finite and >= 0, got '-1.000000'",
                         InvalidInput);
  }
  SUBCASE("fitted, B apart and W measured") {
    FittedCost cost = test::some_fit();
    for (const double part : {0.3, 0.6, 1.1}) {
      cost.layer_apart = cost.layer_backward;
      cost.layer_apart->token *= part;
      cost.layer_apart->pair *= 1.05 - part / 10;
      cost.layer_weight = FittedTerms{1e-6, 3e-5, 0.5e-6, 0, 0, 0, 0, 0, 1e-13};
      test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
    }
  }
  SUBCASE("fitted, tensor-parallel collectives too") {
    FittedCost cost = test::some_fit();
    for (const double byte : {0.0, 1e-12, 1e-10}) {
      cost.tensor = FittedTerms{2e-6, 0, 0, 0, 0, byte};
      test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
      test::check_laws(FittedModel(cost, llama_7b(), with_small_units(), MemorySpec{}));
    }
  }
  SUBCASE("fitted, groups too") {
    FittedCost cost = test::some_fit();
    for (const double byte : {0.0, 1e-12, 1e-10}) {
      cost.context_forward = FittedTerms{0, 2e-6, 0, 0, 0, byte};
      cost.context_backward = FittedTerms{0, 3e-6, 0, 0, 0, 2 * byte};
      test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
      test::check_laws(FittedModel(cost, llama_7b(), with_small_units(), MemorySpec{}));
    }
  }
  SUBCASE("fitted, recomputation `light` too") {
    FittedCost cost = test::some_fit();
    cost.light = FittedTerms{0, 2e-5, 3e-8, 0, 0, 0};
    test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
    test::check_laws(FittedModel(cost, llama_7b(), with_small_units(), MemorySpec{}));
    const FittedModel model(cost, llama_7b(), h100(), MemorySpec{});
    PackLoad load;
    StageLoad stage;
    stage.layers = 3;
    CHECK(model.backward(load, stage, Recompute::light) == Nanos{});  // nothing is there
    load.tokens = {1000};
    load.segments = load.runs = 1;
    for (const std::int64_t tp : {1, 2}) {
      stage.tensor_parallel = tp;
      const Nanos added = model.backward(load, stage, Recompute::light) -
                          model.backward(load, stage, Recompute::none);
      CHECK(std::abs(added.value - 3 * (20'000 + 30'000 / tp)) <= 1);
    }
    CHECK(model.rates().light_token == doctest::Approx(3e4));
  }
  SUBCASE("fitted in part") {
    FittedCost cost = test::some_fit();
    cost.layer_forward.reset();
    cost.head.reset();
    test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
    cost = test::some_fit();
    cost.layer_backward.reset();
    cost.embedding_forward.reset();
    cost.exchange.reset();
    test::check_laws(FittedModel(cost, llama_7b(), h100(), MemorySpec{}));
  }
  SUBCASE("exact table") {
    test::check_laws(
        TableModel(test::exact_table(4e-5, 6.6e-7, 3.3e-11), llama_7b(), h100(), MemorySpec{}));
  }
  SUBCASE("noisy tables, of one row or column too") {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      Random random(seed);
      TableCost table = test::exact_table(4e-5, 6.6e-7, 3.3e-11);
      if (seed % 4 == 1) table.tokens.resize(1);
      if (seed % 4 == 2) table.context.resize(1);
      if (seed % 4 == 3) table.tokens.resize(2), table.context.resize(2);
      const std::size_t columns = table.context.size();
      table.forward_s.resize(table.tokens.size() * columns);
      table.backward_s.resize(table.tokens.size() * columns);
      for (auto* values : {&table.forward_s, &table.backward_s}) {
        for (std::size_t i = 0; i < values->size(); ++i) {
          (*values)[i] *= 1 + random.unit();
          if (i % columns > 0) (*values)[i] = std::max((*values)[i], (*values)[i - 1]);
        }
      }
      test::check_laws(TableModel(table, llama_7b(), h100(), MemorySpec{}));
    }
  }
}

TEST_CASE(
    "analytic: a unit on four layers costs 0.16 ms forward and 0.32 ms backward before work") {
  PackLoad waiting;  // a rank of a context-parallel group that owns nothing here
  waiting.ranks = 2;
  CHECK(analytic().forward(waiting, plain_stage(4)) == Nanos{160'000});
  CHECK(analytic().backward(waiting, plain_stage(4), Recompute::none) == Nanos{320'000});
  CHECK(analytic().forward(PackLoad{}, plain_stage(4)) == Nanos{0});
  StageLoad first = plain_stage(4);
  first.embedding = true;
  CHECK(analytic().forward(waiting, first) == Nanos{168'000});
}

TEST_CASE("analytic: weights, accumulators and prefixes, term by term") {
  Cluster cluster = without_fixed_costs();
  cluster.small = with_small_units().small;
  const ModelShape shape = llama_7b();
  const auto weights = static_cast<double>(shape.layer_matrix_weights());
  const auto beside = [](double a, double b) { return std::max(a, b) + 0.3 * std::min(a, b); };
  for (const std::int64_t tokens : {1, 64, 65, 500, 4096}) {
    for (const std::int64_t prefix : {0, 200'000}) {
      CAPTURE(tokens);
      CAPTURE(prefix);
      PackLoad load = whole_slice(prefix, tokens);
      load.keys = prefix + tokens;
      const StageLoad stage = plain_stage(2);
      const double rows = static_cast<double>((tokens + 63) / 64 * 64);
      const double products = 2 * 2 * weights * rows / cluster.matrix_flops;
      const double read = 2 * 1.25 * 2 * weights / cluster.memory_bytes_per_s;
      const double accumulated = 2 * 8 * weights / cluster.memory_bytes_per_s;
      const double keys =
          2 * 1.5 * 4096.0 * static_cast<double>(load.keys) / cluster.memory_bytes_per_s;
      const double pairs =
          2 * 4096.0 * static_cast<double>(std::max(load.filled_pairs2, load.pairs2));
      const double n = static_cast<double>(tokens), e = 2;
      const double moved =
          2 * n * e * (9 * 4096 + 4 * 4096 + 3 * 11008) / cluster.memory_bytes_per_s;
      const double moved_back =
          2 * n * (e * (8 * 4096 + 2 * 4096 + 4 * 4096 + 2 * 4096 + 5 * 11008) + 8 * 4096) /
          cluster.memory_bytes_per_s;
      const double forward = beside(products, read) + moved +
                             beside(2 * pairs / cluster.attention_forward_flops, keys * 2 * e);
      const double backward =
          beside(products, read) + beside(products, accumulated) + moved_back +
          beside(5 * pairs / cluster.attention_backward_flops, keys * (2 * e + 16));
      const AnalyticModel model(shape, cluster, MemorySpec{});
      CHECK(std::abs(seconds(model.forward(load, stage)) - forward) < 2e-9);
      CHECK(std::abs(seconds(model.backward(load, stage, Recompute::none)) - backward) < 2e-9);
    }
  }
}

TEST_CASE("analytic: accumulators of a 7B layer take as long as the product of 850 rows") {
  Cluster cluster = without_fixed_costs();
  const auto weights = static_cast<double>(llama_7b().layer_matrix_weights());
  CHECK(8 * weights == doctest::Approx(1.6e9).epsilon(0.02));
  const double read_and_written = 8 * weights / cluster.memory_bytes_per_s;
  CHECK(read_and_written == doctest::Approx(0.56e-3).epsilon(0.01));
  CHECK(read_and_written * cluster.matrix_flops / (2 * weights) ==
        doctest::Approx(850).epsilon(0.01));
}

TEST_CASE("analytic: attention's rate by head dimension lies between its neighbours'") {
  const std::vector<HeadDimRate> rates = {{64, 0.75, 0.85}, {128, 1, 1}};
  CHECK(rate_of_head_dim({}, 96) == HeadDimRate{96, 1, 1});
  CHECK(rate_of_head_dim(rates, 32).forward == 0.75);
  CHECK(rate_of_head_dim(rates, 96).forward == doctest::Approx(0.875));
  CHECK(rate_of_head_dim(rates, 96).backward == doctest::Approx(0.925));
  CHECK(rate_of_head_dim(rates, 128).backward == 1);
  CHECK(rate_of_head_dim(rates, 512).forward == 1);
}

TEST_CASE("fitted: tensor-parallel collectives inside a node have their measured price") {
  FittedCost cost;
  cost.layer_forward = FittedTerms{};  // costs nothing
  cost.head = FittedTerms{};
  const Cluster cluster = h100();
  const ModelShape model = llama_7b();
  StageLoad stage = test::plain_stage(3);
  stage.tensor_parallel = 4;
  stage.tensor_link = cluster.inside;
  PackLoad load = test::whole_slice(0, 1000);
  load.runs = 1;
  HeadLoad head;
  head.tokens = {1000};
  head.vocab = model.vocab;
  head.tensor_parallel = 4;
  head.tensor_link = cluster.inside;
  const double bytes = 1000.0 * static_cast<double>(model.hidden * model.bytes_per_element) * 3 / 4;
  for (const double byte : {1e-13, 5e-12, 1e-10}) {
    CAPTURE(byte);
    cost.tensor = FittedTerms{2e-6, 0, 0, 0, 0, byte};
    const FittedModel fitted(cost, model, cluster, MemorySpec{});
    const double collective = 1e9 * (2e-6 + byte * bytes);
    CHECK(static_cast<double>(fitted.forward(load, stage).value) ==
          doctest::Approx(12 * collective).epsilon(1e-4));
    CHECK(static_cast<double>(fitted.head(head).value) ==
          doctest::Approx(2 * collective).epsilon(2e-4));
    // Another link keeps the analytic price.
    StageLoad across = stage;
    across.tensor_link = cluster.between;
    FittedCost without = cost;
    without.tensor.reset();
    const FittedModel analytic(without, model, cluster, MemorySpec{});
    CHECK(fitted.forward(load, across) == analytic.forward(load, across));
    CHECK(fitted.forward(load, stage) != analytic.forward(load, stage));
    // What bounds count over the fastest link is no more than that.
    const WorkRates rates = fitted.rates();
    const double fastest = std::max(cluster.inside.bytes_per_s, cluster.between.bytes_per_s);
    CHECK(1e9 * 1000 * 3 * 0.75 * static_cast<double>(rates.forward_tensor) / fastest <=
          12 * collective);
    CHECK(1e9 * 1000 * 0.75 * static_cast<double>(rates.head_tensor) / fastest <= 2 * collective);
  }
}

TEST_CASE("fitted: a group that was measured pays for all it sends, and nothing hides it") {
  const Cluster cluster = without_fixed_costs();
  const ModelShape model = llama_7b();
  const auto k = static_cast<double>(model.key_width()),
             q = static_cast<double>(model.query_width());
  StageLoad stage = plain_stage(3);
  stage.exchange_link = cluster.inside;
  FittedCost cost = test::some_fit();
  const FittedModel alone(cost, model, cluster, MemorySpec{});
  cost.context_forward = FittedTerms{0, 1e-4, 0, 0, 0, 2e-10};
  cost.context_backward = FittedTerms{0, 3e-4, 0, 0, 0, 5e-10};
  const FittedModel group(cost, model, cluster, MemorySpec{});
  PackLoad load = whole_slice(0, 1000);
  load.runs = 1;
  const auto added = [&](bool back, Recompute recompute) {
    PackLoad one = load;
    one.ranks = 1;
    one.kv_received = one.q_received = one.kv_sent = one.heads_sent = {};
    return back ? seconds(group.backward(load, stage, recompute) -
                          alone.backward(one, stage, recompute))
                : seconds(group.forward(load, stage) - alone.forward(one, stage));
  };
  const auto forward = [](double bytes) { return 3 * (1e-4 + 2e-10 * bytes); };
  const auto backward = [](double bytes) { return 3 * (3e-4 + 5e-10 * bytes); };
  load.ranks = 4;
  CHECK(added(false, Recompute::none) == doctest::Approx(0));  // one rank owns all of it
  load.kv_received = {3000};
  const double keys = 3000 * 2 * k * 2, gradients = 3000 * 2 * k * 4;
  CHECK(added(false, Recompute::none) == doctest::Approx(forward(keys)).epsilon(1e-4));
  CHECK(added(true, Recompute::none) == doctest::Approx(backward(keys + gradients)).epsilon(1e-4));
  CHECK(added(true, Recompute::full) ==
        doctest::Approx(backward(keys + gradients) + forward(keys)).epsilon(1e-4));
  // Whoever owns most receives least, and waits until all others have that.
  load.kv_sent = {900};
  CHECK(added(false, Recompute::none) == doctest::Approx(forward(keys)).epsilon(1e-4));
  load.kv_received = {};
  CHECK(added(false, Recompute::none) == doctest::Approx(forward(0.9 * keys)).epsilon(1e-4));
  CHECK(added(true, Recompute::none) ==
        doctest::Approx(backward(0.9 * (keys + gradients))).epsilon(1e-4));
  load.kv_sent = {};
  // By heads, of own tokens: queries, keys and values there, outputs and log-sum-exp home.
  load.heads_sent = {1000};
  const double there =
      1000 * (2 * q * 2 + 2 * k * 2 + static_cast<double>(model.heads) * 4) * 3 / 4;
  CHECK(added(false, Recompute::none) == doctest::Approx(forward(there)).epsilon(1e-4));
  const double ahead = 1000 * q * 2 * 3 / 4;
  const double whole = added(true, Recompute::none);
  CHECK(whole - (added(true, Recompute::full) - forward(there)) ==
        doctest::Approx(3 * 5e-10 * ahead).epsilon(1e-3));
  // Another link keeps its price.
  stage.exchange_link = cluster.between;
  CHECK(group.forward(load, stage) == alone.forward(load, stage));
  CHECK(group.backward(load, stage, Recompute::none) ==
        alone.backward(load, stage, Recompute::none));
}

TEST_CASE("cost models: what is computed again and the embedding pay their collectives") {
  Cluster cluster = without_fixed_costs();
  cluster.inside.latency_s = 1;  // all else is invisible beside it
  StageLoad stage = plain_stage(4);
  stage.tensor_parallel = 3;
  stage.tensor_link = cluster.inside;
  const PackLoad load = whole_slice(0, 4096);
  const auto latencies = [](Nanos time) { return std::lround(seconds(time)); };
  const auto check = [&](const auto& model) {
    // Three a layer and two latencies each: the layer's output is not reduced again.
    const Nanos kept = model.backward(load, stage, Recompute::none);
    CHECK(latencies(model.backward(load, stage, Recompute::layer) - kept) == 3 * 4 * 2);
    CHECK(latencies(model.backward(load, stage, Recompute::full) - kept) == 3 * 4 * 2);
    CHECK(latencies(model.backward(load, stage, Recompute::light) - kept) == 0);
    StageLoad first = stage;
    first.embedding = true;
    CHECK(latencies(model.forward(load, first) - model.forward(load, stage)) == 2);
    CHECK(latencies(model.backward(load, first, Recompute::none) - kept) == 2);
  };
  check(AnalyticModel(llama_7b(), cluster, MemorySpec{}));
  check(FittedModel(FittedCost{}, llama_7b(), cluster, MemorySpec{}));
  FittedCost fitted;
  fitted.embedding_forward = fitted.embedding_backward = FittedTerms{};
  check(FittedModel(fitted, llama_7b(), cluster, MemorySpec{}));
  fitted.tensor = FittedTerms{2, 0, 0, 0, 0, 0};  // as long as two latencies
  check(FittedModel(fitted, llama_7b(), cluster, MemorySpec{}));
}

TEST_CASE("analytic: a share of tensor-parallel traffic hides behind the products") {
  Cluster cluster = without_fixed_costs();
  StageLoad stage = plain_stage(4);
  stage.tensor_parallel = 4;
  stage.tensor_link = cluster.inside;
  const PackLoad load = whole_slice(0, 4096);
  const auto time = [&](double overlap, double taken) {
    cluster.small.tp_overlap = overlap;
    cluster.small.collective_compute = taken;
    return seconds(AnalyticModel(llama_7b(), cluster, MemorySpec{}).forward(load, stage));
  };
  const double traffic = 4 * 4 * 4096.0 * 4096 * 2 * 3 / 4 / cluster.inside.bytes_per_s;
  CHECK(time(0, 0.15) - time(1, 0) == doctest::Approx(traffic).epsilon(1e-6));
  CHECK(time(0, 0) - time(0.5, 0) == doctest::Approx(traffic / 2).epsilon(1e-6));
  CHECK(time(0.5, 0.2) - time(0.5, 0) == doctest::Approx(0.1 * traffic).epsilon(1e-6));
}

TEST_CASE("analytic: attention of a 7B layer equals its linear part near a prefix of 25K tokens") {
  // In FLOPs, as the method counts: alpha = 2 weights, beta = 4 heads head_dim.
  const ModelShape model = llama_7b();
  const double prefix = 2.0 * static_cast<double>(model.layer_matrix_weights()) /
                        (4.0 * static_cast<double>(model.query_width()));
  CHECK(prefix == doctest::Approx(24'700).epsilon(0.02));
  // In seconds attention is slower, but the linear part has memory-bound kernels.
  const WorkRates rates = analytic().rates();
  CHECK(rates.forward_token / (2 * rates.forward_pair2) == doctest::Approx(21'700).epsilon(0.01));
}

TEST_CASE("analytic: backward over forward runs from 2.0 to about 2.46 in FLOPs, further in time") {
  Cluster flat = without_fixed_costs();
  flat.attention_forward_flops = flat.attention_backward_flops = flat.matrix_flops;
  flat.memory_bytes_per_s = 1e30;
  const AnalyticModel flops(llama_7b(), flat, MemorySpec{});
  const auto b_over_f = [&](const AnalyticModel& model, std::int64_t prefix, std::int64_t tokens) {
    const PackLoad load = whole_slice(prefix, tokens);
    return ratio(model.backward(load, plain_stage(4), Recompute::none),
                 model.forward(load, plain_stage(4)));
  };
  CHECK(b_over_f(flops, 0, 128) == doctest::Approx(2.0).epsilon(0.002));
  CHECK(b_over_f(flops, 256 * 1024 - 2048, 2048) == doctest::Approx(2.46).epsilon(0.005));
  CHECK(b_over_f(AnalyticModel(llama_7b(), without_fixed_costs(), MemorySpec{}), 256 * 1024 - 2048,
                 2048) > 2.9);
}

TEST_CASE("analytic: recomputation adds what it repeats") {
  Cluster flat = without_fixed_costs();
  const AnalyticModel model(llama_7b(), flat, MemorySpec{});
  const PackLoad load = whole_slice(8192, 4096);
  const StageLoad stage = plain_stage(4);
  const Nanos none = model.backward(load, stage, Recompute::none);
  const Nanos full = model.backward(load, stage, Recompute::full);
  const Nanos layer = model.backward(load, stage, Recompute::layer);
  const Nanos light = model.backward(load, stage, Recompute::light);
  CHECK(std::abs((full - none - model.forward(load, stage)).value) <= 2);
  PackLoad linear = load;
  linear.pairs2 = linear.filled_pairs2 = linear.segments = 0;
  CHECK(std::abs((layer - none - model.forward(linear, stage)).value) <= 2);
  // 4 h + 3 f elements of two bytes over 2.9e12 bytes a second.
  const double bytes = 2.0 * (4 * 4096 + 3 * 11008) * 4096 * 4;
  CHECK(static_cast<double>((light - none).value) == doctest::Approx(bytes / 2.9e3).epsilon(1e-4));
}

TEST_CASE("analytic: the vocabulary projection of llama-7b is about 0.65 of a layer") {
  Cluster flat = without_fixed_costs();
  flat.memory_bytes_per_s = 1e30;
  const AnalyticModel model(llama_7b(), flat, MemorySpec{});
  HeadLoad head;
  head.tokens = {4096};
  head.vocab = 32000;
  PackLoad linear = whole_slice(0, 4096);
  linear.pairs2 = linear.filled_pairs2 = 0;
  const StageLoad one = plain_stage(1);
  const Nanos layer = model.forward(linear, one) + model.backward(linear, one, Recompute::none);
  CHECK(ratio(model.head(head), layer) == doctest::Approx(0.648).epsilon(0.002));
}

TEST_CASE("analytic: saved rows in runs cost the cheaper of a gather and more launches") {
  const AnalyticModel model = analytic();
  const StageLoad stage = plain_stage(4);
  PackLoad load = whole_slice(0, 8192);
  const Nanos base = model.backward(load, stage, Recompute::none);
  load.runs = 2;  // 4 products of 4 layers once more
  CHECK(model.backward(load, stage, Recompute::none) - base == Nanos{64'000});
  load.runs = 1000;  // 2 (2 h + q + f) elements read and written
  const double gather = 2.0 * 2 * (3 * 4096 + 11008) * 8192 * 4 / 2.9e12;
  const Nanos extra = model.backward(load, stage, Recompute::none) - base;
  CHECK(seconds(extra) == doctest::Approx(gather).epsilon(1e-3));
  CHECK(model.backward(load, stage, Recompute::full) ==
        model.backward(whole_slice(0, 8192), stage, Recompute::full));
  // A blind gather of all that is kept would be about 7 % of the linear backward.
  const double kept = 2.0 * 2 * (4 * 4096 + 2 * 4096 + 3 * 11008) / 2.9e12;
  CHECK(kept / (analytic().rates().backward_token * 1e-12) == doctest::Approx(0.055).epsilon(0.1));
}

TEST_CASE(
    "analytic: the ring of a context-parallel group hides behind attention but for one step") {
  const AnalyticModel model(llama_7b(), without_fixed_costs(), MemorySpec{});
  PackLoad load = whole_slice(60'000, 4096);
  const Nanos alone = model.forward(load, plain_stage(1));
  load.ranks = 4;
  load.kv_received = {45'000};
  StageLoad stage = plain_stage(1);
  const double traffic = 45'000.0 * 2 * 4096 * 2 / 360e9;
  CHECK(seconds(model.forward(load, stage) - alone) == doctest::Approx(traffic / 4).epsilon(1e-3));
  stage.exchange_link = h100().between;
  const double slow = 45'000.0 * 2 * 4096 * 2 / 45e9;
  const double attention =
      static_cast<double>(load.filled_pairs2) * model.rates().forward_pair2 * 1e-12;
  REQUIRE(slow > attention);
  CHECK(seconds(model.forward(load, stage) - alone) ==
        doctest::Approx(slow - attention + attention / 4).epsilon(1e-3));
  // Backward: keys and values come again, four-byte gradients of both go back.
  PackLoad back = load;
  back.kv_received = {100};
  PackLoad none = load;
  none.kv_received = {0};
  const StageLoad near = plain_stage(1);
  CHECK(seconds(model.backward(back, near, Recompute::none) -
                model.backward(none, near, Recompute::none)) ==
        doctest::Approx(100.0 * 2 * 4096 * (2 + 4) / 360e9 / 4).epsilon(2e-2));
}

TEST_CASE(
    "analytic: node by node few hops of a ring leave their node, beside their part of attention") {
  Cluster cluster = without_fixed_costs();
  cluster.small.collective_compute = 0;
  const AnalyticModel model(llama_7b(), cluster, MemorySpec{});
  PackLoad load = whole_slice(60'000, 4096);
  const Nanos alone = model.forward(load, plain_stage(1));
  load.ranks = 8;
  load.kv_received = {52'500};
  StageLoad stage = plain_stage(1);
  stage.exchange_link = cluster.between;
  const double attention =
      static_cast<double>(load.filled_pairs2) * model.rates().forward_pair2 * 1e-12;
  const double bytes = 52'500.0 * 2 * 4096 * 2;
  for (const std::int64_t hops : {1, 3}) {
    const auto far = static_cast<double>(hops);
    const double inside = bytes * (7 - far) / 7 / 360e9, outside = bytes * far / 7 / 45e9;
    const double beside_inside = attention * (7 - far) / 8;
    const double beside_outside = attention - beside_inside;
    REQUIRE(inside < beside_inside);
    const double hidden = inside + std::min(beside_outside, outside);
    stage.exchange_hops = hops;
    CHECK(seconds(model.forward(load, stage) - alone) ==
          doctest::Approx(std::max(beside_outside, outside) - beside_outside + hidden / 8)
              .epsilon(1e-3));
  }
  stage.exchange_hops = 3;
  const Nanos two_rings = model.forward(load, stage);
  stage.exchange_hops = 7;
  const Nanos all = model.forward(load, stage);
  stage.exchange_hops = 0;
  CHECK(model.forward(load, stage) == all);
  CHECK(two_rings < all);
}

// A slice of 4096 tokens after 60,000 on one of four ranks that attend by heads.
PackLoad slice_by_heads() {
  PackLoad load = whole_slice(60'000, 4096);
  load.ranks = 4;
  load.alone_pairs2 = load.pairs2;
  load.alone_filled_pairs2 = load.filled_pairs2;
  load.heads_sent = {1024};
  return load;
}
// What a layer of F, or of B, of it passes on: queries, outputs and statistics, keys and values of
// the slice. Those of tokens before it are where their heads are. B's queries go ahead of it.
constexpr double kHeadsForward = 1024.0 * (2 * 4096 * 2 + 2 * 4096 * 2 + 32 * 4);
constexpr double kHeadsBackward = 1024.0 * (2 * 4096 * 2 + 2 * 4096 * 2 + 2 * 32 * 4);
constexpr double kQueries = 1024.0 * 4096 * 2;

/// What an exchange that takes `exchange` adds to an attention of `attention`, in four pieces.
double beside(double exchange, double attention, const Cluster& cluster) {
  const double hidden = std::min(exchange, attention) * 3 / 4;
  return exchange - hidden * (1 - cluster.small.collective_compute);
}

TEST_CASE("analytic: all-to-alls by heads hide behind attention but for a piece, by hand") {
  Cluster cluster = h100();
  cluster.kernel_s = cluster.segment_s = 0;
  const PackLoad load = slice_by_heads();
  PackLoad one = load;
  one.ranks = 1;
  const AnalyticModel model(llama_7b(), cluster, MemorySpec{});
  const auto added = [&](const StageLoad& stage, bool back, Recompute mode = Recompute::none) {
    const auto price = [&](const PackLoad& of) {
      return back ? model.backward(of, stage, mode) : model.forward(of, stage);
    };
    return seconds(price(load) - price(one));
  };
  StageLoad stage = plain_stage(3);
  const auto attention = [&](bool back) {
    PackLoad rows;
    rows.tokens = one.tokens;
    rows.runs = one.runs;
    return seconds(back ? model.backward(one, stage, Recompute::none) -
                              model.backward(rows, stage, Recompute::none)
                        : model.forward(one, stage) - model.forward(rows, stage));
  };
  const auto near = [](double bytes, double peers, int collectives = 8) {
    return 3 * (collectives * 6e-6 + bytes * peers / 4 / 360e9);
  };
  const auto far = [](double bytes, double peers, int collectives = 8) {
    return 3 * (collectives * 1e-5 + bytes * peers / 4 / 45e9);
  };
  const double share = cluster.small.collective_compute;
  const auto inside = [&](double bytes, double peers) {
    return beside(near(bytes, peers), attention(bytes == kHeadsBackward), cluster);
  };
  const auto between = [&](double bytes, double peers) {
    return beside(far(bytes, peers), attention(bytes == kHeadsBackward), cluster);
  };
  CHECK(added(stage, false) == doctest::Approx(inside(kHeadsForward, 3)).epsilon(1e-4));
  // Queries hide behind the work on rows.
  CHECK(added(stage, true) ==
        doctest::Approx(inside(kHeadsBackward, 3) + share * near(kQueries, 3, 4)).epsilon(1e-4));
  CHECK(added(stage, true, Recompute::layer) == doctest::Approx(added(stage, true)).epsilon(1e-4));
  CHECK(added(stage, true, Recompute::full) ==
        doctest::Approx(inside(kHeadsForward, 3) + inside(kHeadsBackward, 3)).epsilon(1e-4));
  // One head of keys for each rank is one piece, of which nothing hides.
  ModelShape few = llama_7b();
  few.kv_heads = 4;
  const AnalyticModel one_piece(few, cluster, MemorySpec{});
  const double keys = 1024.0 * 2 * (4096 - 512) * 2;  // that fewer heads do not bring
  CHECK(seconds(one_piece.forward(load, stage) - one_piece.forward(one, stage)) ==
        doctest::Approx(3 * (2 * 6e-6 + (kHeadsForward - keys) * 3 / 4 / 360e9)).epsilon(1e-4));
  // Each rank on a node of its own.
  stage.exchange_link = cluster.between;
  stage.node_ranks = 1;
  CHECK(added(stage, false) == doctest::Approx(between(kHeadsForward, 3)).epsilon(1e-4));
  // Two on each: one part stays on the node, beside the two that leave it.
  stage.node_ranks = 2;
  REQUIRE(near(kHeadsBackward, 1) < far(kHeadsBackward, 2));
  CHECK(added(stage, false) == doctest::Approx(between(kHeadsForward, 2)).epsilon(1e-4));
  CHECK(added(stage, true) ==
        doctest::Approx(between(kHeadsBackward, 2) + share * far(kQueries, 2, 4)).epsilon(1e-4));
  // Each of two tensor-parallel devices has half of the heads.
  stage.tensor_parallel = 2;
  stage.tensor_link = cluster.inside;
  CHECK(added(stage, false) == doctest::Approx(between(kHeadsForward / 2, 2)).epsilon(1e-4));
  stage.layers = 0;
  CHECK(added(stage, false) == 0);
}

TEST_CASE("fitted: an exchange by heads inside a node has the measured price of exchanges") {
  FittedCost cost = test::some_fit();
  const FittedModel model(cost, llama_7b(), h100(), MemorySpec{});
  cost.exchange.reset();
  const FittedModel without(cost, llama_7b(), h100(), MemorySpec{});
  const PackLoad load = slice_by_heads();
  PackLoad one = load;
  one.ranks = 1;
  PackLoad rows;
  rows.tokens = one.tokens;
  StageLoad stage = plain_stage(3);
  CHECK(seconds(model.forward(load, stage) - model.forward(one, stage)) ==
        doctest::Approx(beside(3 * (8 * 9e-6 + 3.1e-12 * kHeadsForward * 3 / 4),
                               seconds(model.forward(one, stage) - model.forward(rows, stage)),
                               h100()))
            .epsilon(1e-4));
  CHECK(model.forward(load, stage) != without.forward(load, stage));
  stage.exchange_link = h100().between;
  stage.node_ranks = 2;
  CHECK(model.forward(load, stage) == without.forward(load, stage));
}

TEST_CASE("cost models: an exchange by heads waits for the unit's message, once with a ring") {
  const Cluster cluster = h100();
  const auto check = [&](const auto& model, Picos ring_waits_parts) {
    PackLoad load = slice_by_heads();
    StageLoad stage = plain_stage(1), shared = stage;
    shared.forward_message = cluster.inside;
    const double message = 4096.0 * 4096 * 2 / 360e9;
    const auto added = [&] {
      return seconds(model.forward(load, shared) - model.forward(load, stage));
    };
    CHECK(added() == doctest::Approx(message).epsilon(1e-3));
    // Behind attention of a ring a fourth of the message would stay visible.
    load.alone_pairs2 = load.alone_filled_pairs2 = 0;
    load.kv_received = {100};
    CHECK(added() == doctest::Approx(message).epsilon(1e-3));
    load.heads_sent = {};
    CHECK(added() ==
          doctest::Approx(message / static_cast<double>(ring_waits_parts)).epsilon(1e-3));
  };
  check(AnalyticModel(llama_7b(), cluster, MemorySpec{}), 4);
  check(FittedModel(test::some_fit(), llama_7b(), cluster, MemorySpec{}), 4);
}

TEST_CASE("analytic: a sharded head hides its traffic but for the first tile") {
  const AnalyticModel model(llama_7b(), without_fixed_costs(), MemorySpec{});
  HeadLoad head;
  head.tokens = {8192};
  head.vocab = 4000;
  head.tile = {1024};
  const Nanos own = model.head(head);
  head.shards = 8;
  head.link = h100().inside;
  const double traffic = 8192.0 * (4096 * 2 + 4096 * 4 + 6 * 4) / 360e9;
  CHECK(seconds(model.head(head) - own) == doctest::Approx(traffic / 8).epsilon(1e-3));
  head.link = h100().between;
  const double slow = 8192.0 * (4096 * 2 + 4096 * 4 + 6 * 4) / 45e9;
  CHECK(seconds(model.head(head)) == doctest::Approx(slow + seconds(own) / 8).epsilon(1e-3));
}

TEST_CASE("analytic: on shared links a unit's other traffic waits for its message") {
  Cluster cluster = without_fixed_costs();
  cluster.small.collective_compute = 0;
  const AnalyticModel model(llama_7b(), cluster, MemorySpec{});
  PackLoad load = whole_slice(60'000, 4096);
  load.ranks = 4;
  load.kv_received = {45'000};
  load.runs = 1;
  StageLoad stage = plain_stage(1);
  const auto added = [&](const auto& price) {
    StageLoad shared = stage;
    shared.forward_message = shared.backward_message = cluster.inside;
    return seconds(price(shared) - price(stage));
  };
  const auto forward = [&](const StageLoad& on) { return model.forward(load, on); };
  const double message = 4096.0 * 4096 * 2 / 360e9;
  // A fourth of the ring stays visible.
  CHECK(added(forward) == doctest::Approx(message / 4).epsilon(1e-3));
  for (const Recompute mode : {Recompute::none, Recompute::full}) {
    const auto backward = [&](const StageLoad& on) { return model.backward(load, on, mode); };
    CHECK(added(backward) == doctest::Approx(message / 4).epsilon(1e-3));
  }
  stage.exchange_link = cluster.between;
  CHECK(added(forward) == 0);
  // Of tensor-parallel traffic nothing hides here; each device sends a part of the message.
  stage.tensor_parallel = 4;
  CHECK(added(forward) == doctest::Approx(message / 4).epsilon(1e-3));
  stage.exchange_link = cluster.inside;
  CHECK(added(forward) == doctest::Approx(message / 4).epsilon(1e-3));
  load.ranks = 1;
  stage.tensor_parallel = 1;
  CHECK(added(forward) == 0);
}

TEST_CASE("analytic: on shared links the sharded head's traffic waits for messages") {
  Cluster cluster = without_fixed_costs();
  HeadLoad head;
  head.tokens = {8192};
  head.vocab = 4000;
  head.shards = 8;
  head.tile = {1024};
  head.link = cluster.between;
  const Nanos before = AnalyticModel(llama_7b(), cluster, MemorySpec{}).head(head);
  cluster.small.shared_links = true;
  const Nanos after = AnalyticModel(llama_7b(), cluster, MemorySpec{}).head(head);
  CHECK(seconds(after - before) == doctest::Approx(8192.0 * 4096 * 2 / 45e9).epsilon(1e-3));
  head.shards = 1;
  CHECK(AnalyticModel(llama_7b(), cluster, MemorySpec{}).head(head) ==
        AnalyticModel(llama_7b(), without_fixed_costs(), MemorySpec{}).head(head));
}

TEST_CASE("analytic: tensor parallelism divides compute and adds exposed traffic") {
  const AnalyticModel model(llama_7b(), without_fixed_costs(), MemorySpec{});
  const PackLoad load = whole_slice(0, 8192);
  StageLoad stage = plain_stage(4);
  const Nanos forward = model.forward(load, stage);
  const Nanos backward = model.backward(load, stage, Recompute::none);
  stage.tensor_parallel = 4;
  stage.tensor_link.latency_s = 0;
  const double once = 8192.0 * 4 * 4096 * 2 * 0.75 / 360e9;
  CHECK(seconds(model.forward(load, stage)) ==
        doctest::Approx(seconds(forward) / 4 + 4 * once).epsilon(1e-4));
  CHECK(seconds(model.backward(load, stage, Recompute::none)) ==
        doctest::Approx(seconds(backward) / 4 + 6 * once).epsilon(1e-4));
}

TEST_CASE("analytic: traffic by hand") {
  const AnalyticModel model = analytic();
  const Cluster cluster = h100();
  CHECK(model.transfer({0}, cluster.inside) == Nanos{6'000});
  CHECK(model.transfer({36'000'000}, cluster.inside) == Nanos{106'000});
  CHECK(model.transfer({36'000'000}, cluster.between) == Nanos{810'000});
  CHECK(model.reduce({36'000'000}, 4, cluster.inside) == Nanos{75'000 + 18'000});
  MemorySpec replicated;
  replicated.optimizer = OptimizerState::replicated;
  CHECK(AnalyticModel(llama_7b(), cluster, replicated).reduce({36'000'000}, 4, cluster.inside) ==
        Nanos{2 * (75'000 + 18'000)});
  CHECK(model.optimizer({29'000'000}, {36'000'000}, 4, cluster.inside) ==
        Nanos{4'000 + 10'000 + 75'000 + 18'000});
  CHECK(model.optimizer({29'000'000}, {0}, 4, cluster.inside) == Nanos{14'000});
}

TEST_CASE("fitted: prices are the formula, absent kinds the analytic value") {
  const FittedModel model(test::some_fit(), llama_7b(), h100(), MemorySpec{});
  const PackLoad load = whole_slice(1000, 500);
  const double pairs = 500.0 * 1250;
  const double forward = 1e-6 + 4 * (4e-5 + 6.6e-7 * 500 + 3.3e-11 * pairs + 5e-7);
  const double backward = 2e-6 + 4 * (8e-5 + 1.4e-6 * 500 + 1e-10 * pairs + 6e-7);
  const StageLoad stage = plain_stage(4);
  CHECK(seconds(model.forward(load, stage)) == doctest::Approx(forward).epsilon(1e-5));
  CHECK(seconds(model.backward(load, stage, Recompute::none)) ==
        doctest::Approx(backward).epsilon(1e-5));
  CHECK(seconds(model.backward(load, stage, Recompute::layer)) ==
        doctest::Approx(backward + 4 * (4e-5 + 6.6e-7 * 500)).epsilon(1e-5));
  CHECK(seconds(model.backward(load, stage, Recompute::full)) ==
        doctest::Approx(backward + forward - 1e-6).epsilon(1e-5));
  HeadLoad head;
  head.tokens = {1000};
  head.vocab = 32000;
  CHECK(seconds(model.head(head)) == doctest::Approx(4e-5 + 1.4e-3).epsilon(1e-5));
  head.vocab = 8000;
  CHECK(seconds(model.head(head)) == doctest::Approx(4e-5 + 0.35e-3).epsilon(1e-5));
  CHECK(seconds(model.transfer({1'000'000}, h100().inside)) == doctest::Approx(1e-5));
  CHECK(model.transfer({1'000'000}, h100().between) ==
        analytic().transfer({1'000'000}, h100().between));
  CHECK(seconds(model.reduce({1'000'000}, 4, h100().inside)) == doctest::Approx(4.24e-5));

  const FittedModel empty(FittedCost{}, llama_7b(), h100(), MemorySpec{});
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const PackLoad some = test::random_load(random);
    const StageLoad where = test::random_stage(random);
    const HeadLoad any = test::random_head(random);
    CHECK(empty.forward(some, where) == analytic().forward(some, where));
    for (const Recompute mode :
         {Recompute::none, Recompute::light, Recompute::layer, Recompute::full}) {
      CHECK(empty.backward(some, where, mode) == analytic().backward(some, where, mode));
    }
    CHECK(empty.head(any) == analytic().head(any));
  }
  CHECK(empty.rates() == analytic().rates());
}

TEST_CASE("table: interpolates, clamps below, goes on above") {
  const double a = 4e-5, b = 6.6e-7, c = 3.3e-11;
  const TableModel model(test::exact_table(a, b, c), llama_7b(), h100(), MemorySpec{});
  const StageLoad stage = plain_stage(2);
  struct Place {
    std::int64_t tokens, context;
  };
  for (const Place place : {Place{64, 32}, Place{100, 200}, Place{3000, 9000}, Place{16384, 131072},
                            Place{200, 300'000}, Place{60'000, 90'000}, Place{100'000, 500'000}}) {
    const std::int64_t tokens = place.tokens, context = place.context;
    CAPTURE(tokens);
    CAPTURE(context);
    PackLoad load = whole_slice(0, tokens);
    load.pairs2 = load.filled_pairs2 = 2 * tokens * context;
    const auto n = static_cast<double>(tokens), keys = static_cast<double>(context);
    // Above the last row a token costs what it does at the least context, pairs go on apart.
    CHECK(seconds(model.forward(load, stage)) ==
          doctest::Approx(2 * (a + n * (b + c * keys))).epsilon(1e-5));
    CHECK(seconds(model.backward(load, stage, Recompute::none)) ==
          doctest::Approx(4.6 * (a + n * (b + c * keys))).epsilon(1e-5));
  }
  PackLoad tiny = whole_slice(0, 5);
  PackLoad corner = whole_slice(0, 64);
  corner.pairs2 = 2 * 64 * 32;
  CHECK(model.forward(tiny, stage) == model.forward(corner, stage));
  PackLoad segments = corner;
  segments.segments = 3;
  CHECK(model.forward(segments, stage) - model.forward(corner, stage) == Nanos{2'000});
  // The rates undercut the table nowhere and reach it far out.
  const WorkRates rates = model.rates();
  CHECK(rates.forward_token == doctest::Approx(b * 1e12).epsilon(2e-3));
  CHECK(rates.forward_pair2 == doctest::Approx(c * 1e12 / 2).epsilon(1e-6));
}

template <class Change>
std::string refusal(const Change& change) {
  Plan plan;
  plan.model = llama_7b();
  plan.cluster = h100();
  try {
    change(plan);
    static_cast<void>(make_model(plan));
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("cost models: what is out of range is refused by name") {
  CHECK(refusal([](Plan&) {}) == "accepted");
  CHECK(refusal([](Plan& plan) { plan.cluster.matrix_flops = 0; }) ==
        "cluster.matrix_flops must be finite and > 0, got '0.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.attention_forward_flops = -1; }) ==
        "cluster.attention_forward_flops must be finite and > 0, got '-1.000000'");
  CHECK(refusal([](Plan& plan) {
          plan.cluster.attention_backward_flops = std::numeric_limits<double>::infinity();
        }) == "cluster.attention_backward_flops must be finite and > 0, got 'inf'");
  CHECK(refusal([](Plan& plan) { plan.cluster.memory_bytes_per_s = 0; }) ==
        "cluster.memory_bytes_per_s must be finite and > 0, got '0.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.inside.bytes_per_s = 0; }) ==
        "cluster.inside.bytes_per_s must be finite and > 0, got '0.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.between.bytes_per_s = 0; }) ==
        "cluster.between.bytes_per_s must be finite and > 0, got '0.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.inside.latency_s = -2; }) ==
        "cluster.inside.latency_s must be finite and >= 0, got '-2.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.between.latency_s = -2; }) ==
        "cluster.between.latency_s must be finite and >= 0, got '-2.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.kernel_s = -2; }) ==
        "cluster.kernel_s must be finite and >= 0, got '-2.000000'");
  CHECK(refusal([](Plan& plan) { plan.cluster.segment_s = -2; }) ==
        "cluster.segment_s must be finite and >= 0, got '-2.000000'");
  CHECK(refusal([](Plan& plan) { plan.model.hidden = 0; }) == "model.hidden must be > 0, got 0");
  CHECK(refusal([](Plan& plan) { plan.model.heads = 0; }) == "model.heads must be > 0, got 0");
  CHECK(refusal([](Plan& plan) { plan.model.bytes_per_element = 0; }) ==
        "model.bytes_per_element must be > 0, got 0");
  CHECK(refusal([](Plan& plan) {
          FittedCost cost = test::some_fit();
          cost.layer_backward->pair = -1;
          plan.cost = cost;
        }) == "cost.layer_backward.pair must be finite and >= 0, got '-1.000000'");
  CHECK(refusal([](Plan& plan) {
          plan.cost = test::some_fit();
          plan.model.vocab = 0;
        }) == "model.vocab must be > 0, got 0");
  const auto table = [](const auto& change) {
    return refusal([&](Plan& plan) {
      TableCost cost = test::exact_table(1e-5, 1e-7, 1e-11);
      change(cost);
      plan.cost = cost;
    });
  };
  CHECK(table([](TableCost&) {}) == "accepted");
  CHECK(table([](TableCost& cost) { cost.tokens.clear(); }) == "cost.tokens must not be empty");
  CHECK(table([](TableCost& cost) { cost.context.clear(); }) == "cost.context must not be empty");
  CHECK(table([](TableCost& cost) { cost.tokens[1] = {64}; }) ==
        "cost.tokens must be positive and ascending, got 64");
  CHECK(table([](TableCost& cost) { cost.tokens[0] = {0}; }) ==
        "cost.tokens must be positive and ascending, got 0");
  CHECK(table([](TableCost& cost) { cost.context[1] = {5}; }) ==
        "cost.context must be >= 0 and ascending, got 5");
  CHECK(table([](TableCost& cost) { cost.forward_s.pop_back(); }) ==
        "cost.forward_s must have one value for each pair of tokens and context, got 24");
  CHECK(table([](TableCost& cost) { cost.backward_s[3] = -1; }) ==
        "cost.backward_s[3] must be finite and >= 0, got '-1.000000'");
  CHECK(table([](TableCost& cost) { cost.backward_s[3] = 0; }) ==
        "cost.backward_s[3] must not be less than the value before it in its row, got '0.000000'");
}

TEST_CASE("presets: every model on every cluster can be priced") {
  for (const auto& shape : model_presets()) {
    for (const auto& cluster : cluster_presets()) {
      const AnalyticModel model(shape, cluster, MemorySpec{});
      CHECK(model.forward(whole_slice(0, 4096), plain_stage(4)) > Nanos{160'000});
    }
  }
}

}  // namespace
}  // namespace slimpack
