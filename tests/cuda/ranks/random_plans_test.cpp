// SPDX-License-Identifier: Apache-2.0
// Random valid plans on emulated devices against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "cuda/ranks/rank_plans.hpp"
#include "support/draws.hpp"

using namespace slimpack;

namespace {

/// Rounding to bf16 at every matrix, in as many layers as the plans have.
constexpr double kBound = 2e-2;

double worst_loss = 0, worst_gradient = 0;

void check(std::uint64_t seed, const test::RandomPlanOptions& options) {
  CAPTURE(seed);
  const Plan plan = test::rank_plan(seed, options);
  const test::RankCheck found = test::check_ranks(plan, seed);
  CAPTURE(found.worst_tensor);
  std::printf("seed %d layers %d tokens %d loss %.1e max %.1e norm %.1e %s\n", (int)seed, (int)plan.model.layers, (int)plan.target_tokens, found.loss, found.gradient, found.norm, found.worst_tensor.c_str());
  CHECK(found.loss <= kBound);
  CHECK(found.gradient <= kBound);
  worst_loss = std::max(worst_loss, found.loss);
  worst_gradient = std::max(worst_gradient, found.gradient);
}

}  // namespace

TEST_CASE("ranks: random plans give loss and gradients of the unsliced oracle") {
  test::RandomPlanOptions options;
  options.max_tokens = 40;
  options.max_samples = 6;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(20U); ++seed) check(seed, options);
  std::printf("  largest difference: loss %.2e, gradients %.2e\n", worst_loss, worst_gradient);
}

TEST_CASE("ranks: merged groups, both exchanges, every recompute mode") {
  for (std::uint64_t seed = 300; seed < 316; ++seed) {
    test::RandomPlanOptions options;
    options.max_tokens = 40;
    options.max_samples = 4;
    options.max_dp = 3;
    options.max_pp = 2;
    options.max_chunks = 2;
    options.merged = true;
    options.exchange = seed % 2 == 0 ? Exchange::kv : Exchange::q;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options);
  }
}

TEST_CASE("ranks: chunks with sharded heads and tied tables") {
  for (std::uint64_t seed = 340; seed < 346; ++seed) {
    test::RandomPlanOptions options;
    options.max_tokens = 40;
    options.max_samples = 4;
    options.max_dp = 2;
    options.pp = seed % 2 == 0 ? 1 : 3;
    options.chunks = 2;
    options.head = Head::shard;
    options.tied = true;
    options.window = 1;
    check(seed, options);
  }
}
