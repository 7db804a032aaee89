// SPDX-License-Identifier: Apache-2.0
// Models, clusters and plans that the cost tests share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

inline ModelShape llama_7b() {
  return {"llama-7b", 32, 4096, 32, 32, 128, 11008, 32000, false, 1e4, 1e-5, 2};
}

inline Cluster h100() {
  Cluster cluster;
  cluster.name = "h100";
  cluster.memory = {85'500'000'000};
  cluster.reserved = {6'000'000'000};
  cluster.peak_flops = 989e12;
  cluster.matrix_flops = 620e12;
  cluster.attention_forward_flops = 500e12;
  cluster.attention_backward_flops = 400e12;
  cluster.memory_bytes_per_s = 2.9e12;
  cluster.inside = {360e9, 6e-6};
  cluster.between = {45e9, 1e-5};
  cluster.kernel_s = 4e-6;
  cluster.segment_s = 0.5e-6;
  return cluster;
}

/// A table of t = a + tokens (b + c context) per layer, with rows and columns a power of two apart.
inline TableCost exact_table(double a, double b, double c) {
  TableCost table;
  for (std::int64_t n = 64; n <= 16384; n *= 4) table.tokens.push_back({n});
  for (std::int64_t n = 32; n <= 131072; n *= 8) table.context.push_back({n});
  for (const Tokens tokens : table.tokens) {
    for (const Tokens context : table.context) {
      const auto n = static_cast<double>(tokens.value);
      const double forward = a + n * (b + c * static_cast<double>(context.value));
      table.forward_s.push_back(forward);
      table.backward_s.push_back(2.3 * forward);
    }
  }
  return table;
}

inline FittedCost some_fit() {
  FittedCost cost;
  cost.layer_forward = FittedTerms{1e-6, 4e-5, 6.6e-7, 3.3e-11, 5e-7, 0};
  cost.layer_backward = FittedTerms{2e-6, 8e-5, 1.4e-6, 1e-10, 6e-7, 0};
  cost.embedding_forward = FittedTerms{8e-6, 0, 6e-9, 0, 0, 0};
  cost.embedding_backward = FittedTerms{8e-6, 0, 2e-8, 0, 0, 0};
  cost.head = FittedTerms{4e-5, 0, 1.4e-6, 0, 0, 0};
  cost.optimizer = FittedTerms{4e-6, 0, 0, 0, 0, 4e-13};
  cost.p2p = FittedTerms{7e-6, 0, 0, 0, 0, 3e-12};
  cost.reduce = FittedTerms{4e-5, 0, 0, 0, 0, 3.2e-12};
  cost.exchange = FittedTerms{9e-6, 0, 0, 0, 0, 3.1e-12};
  return cost;
}

/// One load of `tokens` tokens after `prefix` others, one segment, full tiles.
inline PackLoad whole_slice(std::int64_t prefix, std::int64_t tokens) {
  PackLoad load;
  load.tokens = {tokens};
  load.pairs2 = tokens * (2 * prefix + tokens);
  load.filled_pairs2 = load.pairs2;
  load.own_pairs2 = tokens * tokens;
  load.segments = 1;
  load.runs = 1;
  return load;
}

inline StageLoad plain_stage(std::int64_t layers) {
  StageLoad stage;
  stage.layers = layers;
  stage.tensor_link = stage.exchange_link = h100().inside;
  return stage;
}

}  // namespace slimpack::test
