// SPDX-License-Identifier: Apache-2.0
// The laws of CostModel and RatedCostModel, checked for any model on random loads.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cost/shapes.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/cost_model.hpp"

namespace slimpack::test {

inline PackLoad random_load(Random& random) {
  PackLoad load = whole_slice(random.between(0, 200'000), random.between(0, 20'000));
  load.ranks = random.chance(1, 2) ? 1 : random.between(2, 8);
  load.filled_pairs2 += random.between(0, load.pairs2 / 4);
  load.segments = random.between(0, 40);
  load.runs = random.between(0, 40);
  if (load.ranks > 1) {
    load.kv_received = {random.between(0, 200'000)};
    load.q_received = {random.between(0, 20'000)};
    load.kv_sent = {random.between(0, 100'000)};
    if (random.chance(1, 2)) load.heads_sent = {random.between(0, 20'000)};
    // The first token that travels of a kind brings a wait for the message and latencies.
    if (random.chance(1, 4)) load.kv_received = load.q_received = load.kv_sent = {};
  }
  return load;
}

inline StageLoad random_stage(Random& random) {
  const Cluster cluster = h100();
  StageLoad stage;
  stage.layers = random.between(0, 16);
  stage.embedding = random.chance(1, 2);
  stage.tensor_parallel = std::int64_t{1} << random.between(0, 3);
  stage.tensor_link = cluster.inside;
  stage.exchange_link = random.chance(1, 2) ? cluster.inside : cluster.between;
  if (stage.exchange_link != cluster.inside) stage.node_ranks = random.between(1, 8);
  for (Link* message : {&stage.forward_message, &stage.backward_message}) {
    if (random.chance(1, 3)) continue;
    *message = random.chance(1, 2) ? cluster.inside : cluster.between;
  }
  return stage;
}

inline HeadLoad random_head(Random& random) {
  const Cluster cluster = h100();
  HeadLoad head;
  head.tokens = {random.between(0, 10'000)};
  head.vocab = random.between(0, 128'000);
  head.shards = random.chance(1, 2) ? 1 : random.between(2, 16);
  head.tensor_parallel = std::int64_t{1} << random.between(0, 3);
  head.tile = {random.between(1, 2048)};
  head.link = random.chance(1, 2) ? cluster.inside : cluster.between;
  head.tensor_link = cluster.inside;
  return head;
}

template <RatedCostModel Model>
void check_laws(const Model& model) {
  const Cluster cluster = h100();
  const WorkRates rates = model.rates();
  constexpr Recompute kModes[] = {Recompute::none, Recompute::light, Recompute::layer,
                                  Recompute::full};
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const PackLoad load = random_load(random);
    const StageLoad stage = random_stage(random);
    const HeadLoad head = random_head(random);
    CHECK(model.forward(load, stage) == model.forward(load, stage));
    CHECK(model.forward(load, stage) >= Nanos{0});
    CHECK(model.head(head) >= Nanos{0});

    std::vector<PackLoad> more(10, load);
    const std::int64_t by = random.between(1, 3000);
    more[0].tokens += Tokens{by};
    more[1].pairs2 += by * 1000;
    more[2].filled_pairs2 += by * 1000;
    more[3].segments += by;
    more[4].runs += by;
    more[5].kv_received += Tokens{by};
    more[6].q_received += Tokens{by};
    more[7].heads_sent += Tokens{by};
    more[8].kv_sent += Tokens{by};
    more[9].own_pairs2 += by * 1000;
    for (std::size_t i = 0; i < more.size(); ++i) {
      CAPTURE(i);
      CHECK(model.forward(more[i], stage) >= model.forward(load, stage));
      for (const Recompute mode : kModes) {
        CHECK(model.backward(more[i], stage, mode) >= model.backward(load, stage, mode));
      }
    }
    StageLoad longer = stage;
    longer.layers += 1;
    CHECK(model.forward(load, longer) >= model.forward(load, stage));
    CHECK(model.backward(load, longer, Recompute::none) >=
          model.backward(load, stage, Recompute::none));
    PackLoad ordered = load;  // with several runs, recomputing saves a gather
    ordered.runs = 1;
    CHECK(model.backward(ordered, stage, Recompute::full) >=
          model.backward(ordered, stage, Recompute::layer));
    CHECK(model.backward(ordered, stage, Recompute::layer) >=
          model.backward(ordered, stage, Recompute::none));
    PackLoad alone = load;  // a rank of a group never costs less than its part alone
    alone.ranks = 1;
    CHECK(model.forward(load, stage) >= model.forward(alone, stage));
    StageLoad nothing = stage;
    nothing.layers = 0;
    nothing.embedding = false;
    CHECK(model.forward(load, nothing) == Nanos{0});
    CHECK(model.backward(load, nothing, Recompute::full) == Nanos{0});

    HeadLoad larger = head;
    larger.tokens += Tokens{by};
    CHECK(model.head(larger) >= model.head(head));
    larger = head;
    larger.vocab += by;
    CHECK(model.head(larger) >= model.head(head));

    const Link& link = random.chance(1, 2) ? cluster.inside : cluster.between;
    const Bytes bytes{random.between(0, 1'000'000'000)};
    const Bytes further = bytes + Bytes{by};
    const std::int64_t ranks = random.between(1, 64);
    CHECK(model.transfer(bytes, link) >= Nanos{0});
    CHECK(model.transfer(further, link) >= model.transfer(bytes, link));
    CHECK(model.reduce(bytes, 1, link) == Nanos{0});
    CHECK(model.reduce(further, ranks, link) >= model.reduce(bytes, ranks, link));
    CHECK(model.reduce(bytes, ranks + 1, link) >= model.reduce(bytes, ranks, link));
    CHECK(model.optimizer(further, bytes, ranks, link) >=
          model.optimizer(bytes, bytes, ranks, link));
    CHECK(model.optimizer(bytes, further, ranks, link) >=
          model.optimizer(bytes, bytes, ranks, link));

    // No price is below the rates; 2 ns stand for the rounding of terms.
    const auto tokens = static_cast<double>(load.tokens.value);
    const auto layers = static_cast<double>(stage.layers);
    const auto tp = static_cast<double>(stage.tensor_parallel);
    const double units = load.tokens.value > 0 || load.ranks > 1 ? 1 : 0;
    const auto all = static_cast<double>(load.segments);
    const double passed = 1e12 * (tp - 1) / stage.tensor_link.bytes_per_s;
    const auto pairs = [&](bool tiles) {
      return static_cast<double>(tiles ? load.filled_pairs2 : load.pairs2);
    };
    double forward =
        layers * (tokens * rates.forward_token + pairs(rates.forward_tiles) * rates.forward_pair2 +
                  tokens * static_cast<double>(rates.forward_tensor) * passed);
    double backward = layers * (tokens * rates.backward_token +
                                pairs(rates.backward_tiles) * rates.backward_pair2 +
                                tokens * static_cast<double>(rates.backward_tensor) * passed);
    if (stage.embedding) {
      forward += tokens * rates.embedding_forward;
      backward += tokens * rates.embedding_backward;
    }
    forward += tp * layers * (units * rates.forward_launch + all * rates.forward_segment);
    backward += tp * layers * (units * rates.backward_launch + all * rates.backward_segment);
    if (stage.layers > 0) {
      forward += tp * units * rates.forward_unit;
      backward += tp * units * rates.backward_unit;
    }
    const std::array<double, kRecomputeModes> again = {0, rates.light_token, rates.forward_token,
                                                       rates.forward_token};
    CHECK(static_cast<double>(model.forward(load, stage).value) + 2 >= forward / (1000 * tp));
    for (const Recompute mode : kModes) {
      const double repeated = layers * tokens * again[static_cast<std::size_t>(mode)];
      CHECK(static_cast<double>(model.backward(load, stage, mode).value) + 2 >=
            (backward + repeated) / (1000 * tp));
    }
    // B apart has the rates of its own; with W together, those of B.
    const double apart =
        backward - layers * (tokens * (rates.backward_token - rates.apart_token) +
                             tokens * passed *
                                 static_cast<double>(rates.backward_tensor - rates.apart_tensor) +
                             tp * units * (rates.backward_launch - rates.apart_launch));
    CHECK(apart <= backward);
    if constexpr (SplitCostModel<Model>) {
      PackLoad own = load;
      own.ranks = 1;
      const double weight = static_cast<double>(model.weight(own, stage).value);
      const double without_rows = load.tokens.value > 0 ? 0 : backward - apart;
      for (const Recompute mode : kModes) {
        const double repeated = layers * tokens * again[static_cast<std::size_t>(mode)];
        const double time = static_cast<double>(model.backward_apart(load, stage, mode).value);
        CHECK(time + 2 >= (apart + repeated) / (1000 * tp));
        CHECK(time + weight + 3 >= (backward - without_rows + repeated) / (1000 * tp));
        CHECK(model.backward_apart(load, stage, mode) >= model.backward_apart(own, stage, mode));
      }
    } else {
      CHECK(apart == backward);
    }
    const auto head_tp = static_cast<double>(head.tensor_parallel);
    const double head_passed = 1e12 * (head_tp - 1) / head.tensor_link.bytes_per_s;
    const double projected =
        (static_cast<double>(head.tokens.value) *
             (rates.head_token + static_cast<double>(head.vocab) * rates.head_row +
              static_cast<double>(rates.head_tensor) * head_passed) +
         (head.tokens.value > 0 ? head_tp * rates.head_unit : 0)) /
        (1000 * head_tp);
    CHECK(static_cast<double>(model.head(head).value) + 2 >= projected);
  }
}

}  // namespace slimpack::test
