// SPDX-License-Identifier: Apache-2.0
// Requests for plans of real document lengths, scaled down to what is executed in milliseconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/read_lengths.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::test {

/// A committed set of lengths and the factor that brings its steps to a few hundred tokens.
struct ScaledSet {
  std::string_view name;
  std::int64_t factor = 1;
  std::int64_t batch_tokens = 0;
};
inline constexpr std::array kScaledSets{
    ScaledSet{"books", 1200, 1000}, ScaledSet{"webpages", 40, 900},
    ScaledSet{"wikipedia_en", 8, 600}, ScaledSet{"longsft_mix", 64, 800}};

/// Tokens that a sample of an executed step has at most.
inline constexpr Tokens kScaledContext{320};

/// From the folder `data`, where the set is committed.
inline LengthSet scaled_lengths(const ScaledSet& set, const std::string& data) {
  LengthSet lengths = read_lengths(data + "/" + std::string(set.name) + ".lengths");
  for (Tokens& length : lengths.documents) {
    length = std::max(Tokens{1}, Tokens{length.value / set.factor});
  }
  return lengths;
}

/// As large as is executed in milliseconds, with shapes that differ from each other.
inline ModelShape executed_model(Random& random, std::int64_t layers) {
  const std::int64_t kv_heads = random.chance(1, 2) ? 1 : 4;
  return {"executed", layers, 12, 4, kv_heads, 4, 20, 23, random.chance(1, 3), 1e4, 1e-5, 8};
}

/// Rates in proportion to the executed model: a kernel costs as much as a few tokens, not
/// thousands, so that slices of some tens of tokens and groups of ranks can pay.
inline Cluster executed_cluster(std::int64_t devices_per_node) {
  Cluster cluster;
  cluster.name = "executed";
  cluster.devices_per_node = devices_per_node;
  cluster.memory = Bytes{1'000'000'000};
  cluster.peak_flops = 2e9;
  cluster.matrix_flops = 1e9;
  cluster.attention_forward_flops = 5e8;
  cluster.attention_backward_flops = 4e8;
  cluster.memory_bytes_per_s = 1e11;
  cluster.inside = {1e10, 1e-6};
  cluster.between = {2e9, 2e-6};
  cluster.kernel_s = 1e-6;
  cluster.segment_s = 1e-7;
  cluster.tile_tokens = 4;
  return cluster;
}

/// A step of the set for the degrees; everything else that a request leaves open is drawn.
inline planners::PlanRequest scaled_request(const ScaledSet& set, const LengthSet& lengths,
                                            std::uint64_t seed, std::int32_t dp, std::int32_t pp) {
  Random random(seed * 0x9e3779b97f4a7c15U + 0x37U);
  planners::PlanRequest request;
  BatchOptions options;
  options.context = kScaledContext;
  options.overlong = Overlong::split;
  options.batch_tokens = Tokens{set.batch_tokens};
  options.seed = seed;
  request.batch = draw_batch(lengths, options, static_cast<std::int64_t>(seed % 3));
  request.sources = {
      {std::string(set.name), static_cast<std::int64_t>(lengths.documents.size()), ""}};
  request.model = executed_model(random, 2 * std::int64_t{pp} + random.between(0, 1));
  request.cluster = executed_cluster(random.chance(1, 2) ? 2 : 8);
  request.dp = dp;
  request.pp = pp;
  request.context = kScaledContext;
  request.granularity = {std::int64_t{8} << random.below(3)};
  request.effort = random.chance(1, 3) ? planners::Effort::normal : planners::Effort::fast;
  request.optimizer = random.chance(1, 2) ? OptimizerState::sharded : OptimizerState::replicated;
  request.memory.gradient_bytes = 8;
  request.memory.page_tokens = Tokens{8};
  request.memory.cp_block_tokens = Tokens{std::int64_t{8} << random.below(2)};
  request.memory.head_tile = Tokens{32};
  if (random.chance(1, 2)) request.chunks = 2;
  if (random.chance(1, 3)) request.head = random.chance(1, 2) ? LmHead::shard : LmHead::last;
  if (random.chance(1, 2)) request.recompute = static_cast<Recompute>(seed % kRecomputeModes);
  return request;
}

}  // namespace slimpack::test
