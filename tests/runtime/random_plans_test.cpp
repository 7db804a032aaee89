// SPDX-License-Identifier: Apache-2.0
// Random valid plans, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <cstdint>

#include "runtime/feature_table.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

TEST_CASE("execution: random plans give the loss, gradients and weights of the unsliced oracle") {
  test::FeatureTable table;
  const auto check = [&](std::uint64_t seed, const test::RandomPlanOptions& options) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options);
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    table.add(plan, found);
  };
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(300U); ++seed) check(seed, {});
  for (std::uint64_t seed = 300; seed < 340; ++seed) {
    test::RandomPlanOptions options;
    options.cp_groups = true;
    options.exchange = seed % 2 == 0 ? RingMode::pass_kv : RingMode::pass_q;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options);
  }
  for (std::uint64_t seed = 340; seed < 360; ++seed) {
    test::RandomPlanOptions options;
    options.pp = seed % 2 == 0 ? 1 : 4;
    options.chunks = 3;
    options.head = LmHead::shard;
    options.tied = true;
    options.max_in_flight = 1;
    check(seed, options);
  }
  for (std::uint64_t seed = 360; seed < 400; ++seed) {
    test::RandomPlanOptions options;
    options.uncut = true;
    if (seed % 2 == 0) options.cp_groups = true;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options);
  }
  for (std::uint64_t seed = 400; seed < 480; ++seed) {
    test::RandomPlanOptions options = test::may_have_weights();
    options.version = 2;
    if (seed % 2 == 0) options.cp_groups = true;
    if (seed % 4 == 1) options.uncut = true;
    if (seed >= 460) options.recompute = static_cast<Recompute>(seed % kRecomputeModes);
    check(seed, options);
  }
  for (std::uint64_t seed = 480; seed < 640; ++seed) {
    check(seed, test::on_nodes(seed % 2 == 0 ? 4 : 6, seed % 4 < 2 ? 1 : 2));
  }
  table.print();
  for (const char* name : {"keys made again",
                           "key gradients not kept",
                           "version 1",
                           "merged, kv exchange",
                           "merged, q exchange",
                           "rings node by node",
                           "ranks in several groups",
                           "chunks",
                           "chunks on one stage",
                           "sharded head",
                           "tied",
                           "tied, sharded head",
                           "differing cuts",
                           "recompute none",
                           "recompute light",
                           "recompute layer",
                           "recompute full",
                           "uneven stages",
                           "stages without layers",
                           "idle ranks",
                           "window 1"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= slimpack::test::draws(10));
  }
}
