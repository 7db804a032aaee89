// SPDX-License-Identifier: Apache-2.0
// Prints a hash of many prices. Built with and without optimisation, fused multiply-add and the
// host's vector instructions, it must print the same.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/search/bound.hpp"

namespace {

using namespace slimpack;

class Hash {
 public:
  void add(std::int64_t value) noexcept {
    for (int byte = 0; byte < 8; ++byte) {
      state_ ^= static_cast<std::uint64_t>(value) >> (8 * byte) & 0xffU;
      state_ *= 0x100000001b3U;
    }
  }
  void add(Nanos time) noexcept { add(time.value); }
  [[nodiscard]] std::uint64_t value() const noexcept { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325U;
};

// Inputs are exact products, so that they are the same in every build.
double some(Random& random, double unit) {
  return static_cast<double>(random.between(1, 1'000'000)) * unit;
}

FittedCost some_fit(Random& random) {
  const auto terms = [&] {
    return FittedTerms{some(random, 1e-11), some(random, 1e-10), some(random, 1e-12),
                       some(random, 1e-17), some(random, 1e-12), some(random, 1e-18)};
  };
  FittedCost cost;
  cost.layer_forward = terms();
  cost.layer_backward = terms();
  cost.embedding_forward = terms();
  cost.head = terms();
  cost.reduce = terms();
  cost.exchange = terms();
  return cost;
}

TableCost some_table(Random& random) {
  TableCost table;
  for (std::int64_t row = 0; row < 6; ++row) table.tokens.push_back({std::int64_t{100} << row});
  for (std::int64_t column = 0; column < 5; ++column)
    table.context.push_back({7 * column * column});
  for (std::size_t i = 0; i < 30; ++i) {
    const double step = some(random, 1e-10);
    table.forward_s.push_back(i % 5 == 0 ? step : table.forward_s.back() + step);
    table.backward_s.push_back(table.forward_s.back() * 2);
  }
  return table;
}

void add_prices(Hash& hash, Random& random, const Plan& plan) {
  const AnyModel any = make_model(plan);
  std::visit(
      [&](const auto& model) {
        for (int round = 0; round < 300; ++round) {
          PackLoad load;
          load.tokens = {random.between(0, 20'000)};
          load.pairs2 = random.between(0, 1'000'000'000);
          load.filled_pairs2 = load.pairs2 + random.between(0, 1'000'000);
          load.segments = random.between(0, 30);
          load.runs = random.between(0, 9);
          load.ranks = random.between(1, 6);
          load.kv_received = {random.between(0, 100'000)};
          load.q_received = {random.between(0, 10'000)};
          StageLoad stage;
          stage.layers = random.between(0, 20);
          stage.embedding = random.chance(1, 2);
          stage.tensor_parallel = random.between(1, 8);
          stage.tensor_link = plan.cluster.inside;
          stage.exchange_link = plan.cluster.between;
          if (round % 2 == 1) {
            stage.forward_message = plan.cluster.between;
            stage.backward_message = plan.cluster.inside;
          }
          hash.add(model.forward(load, stage));
          for (const Recompute mode :
               {Recompute::none, Recompute::light, Recompute::layer, Recompute::full}) {
            hash.add(model.backward(load, stage, mode));
          }
          HeadLoad head;
          head.tokens = load.tokens;
          head.vocab = random.between(1, 200'000);
          head.shards = random.between(1, 16);
          head.tensor_parallel = stage.tensor_parallel;
          head.link = head.tensor_link = plan.cluster.inside;
          hash.add(model.head(head));
          const Bytes bytes{random.between(0, 1'000'000'000)};
          hash.add(model.transfer(bytes, plan.cluster.between));
          hash.add(model.reduce(bytes, load.ranks, plan.cluster.inside));
          hash.add(model.optimizer(bytes, bytes, load.ranks, plan.cluster.inside));
        }
      },
      any);
  hash.add(ideal_time(plan));
  hash.add(planners::iteration_bound(plan).value);
}

}  // namespace

int main() {
  Hash hash;
  Random random(2024);
  for (const ModelShape& model : model_presets()) {
    for (const Cluster& cluster : cluster_presets()) {
      Plan plan;
      plan.model = model;
      plan.cluster = cluster;
      plan.parallel.dp = 4;
      plan.parallel.pp = 2;
      plan.parallel.head = LmHead::shard;
      plan.stages = {{0, 0, 0, model.layers / 2, true},
                     {1, 0, model.layers / 2, model.layers, false}};
      for (int i = 0; i < 40; ++i) plan.samples.push_back({random.between(1, 100'000)});
      for (int kind = 0; kind < 3; ++kind) {
        if (kind == 1) plan.cost = some_fit(random);
        if (kind == 2) plan.cost = some_table(random);
        add_prices(hash, random, plan);
      }
    }
  }
  std::printf("%016llx\n", static_cast<unsigned long long>(hash.value()));
}
