// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism with sequence parallelism, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string>

#include "runtime/feature_table.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/executed_memory.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// Plans of tp 2 and 4, by turns with every feature.
test::RandomPlanOptions tensor_parallel(std::uint64_t seed) {
  test::RandomPlanOptions options = test::may_have_weights(seed % 3 == 0);
  options.version = 2;
  options.tp = seed % 2 == 0 ? 2 : 4;
  options.max_dp = 3;
  options.max_pp = 3;
  options.max_chunks = 2;
  options.max_tokens = 40;
  if (seed % 5 == 0) options.cp_groups = true;
  if (seed % 7 == 0) options.uncut = true;
  if (seed % 4 < 2) options.recompute = static_cast<Recompute>(seed / 4 % kRecomputeModes);
  if (seed % 11 == 0) options.head = LmHead::shard;
  return options;
}

}  // namespace

TEST_CASE("tensor parallelism: random plans give the loss, gradients and weights of the oracle") {
  test::FeatureTable table;
  for (std::uint64_t seed = 0; seed < test::draws(120U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, tensor_parallel(seed));
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    table.add(plan, found);
    table.add("tp " + std::to_string(plan.parallel.tp), found);
    if (test::features_of(plan).weights != 0) table.add("W", found);
  }
  table.print();
  for (const char* name :
       {"tp 2", "tp 4", "merged, kv exchange", "merged, q exchange", "chunks", "sharded head",
        "tied", "tied, sharded head", "recompute none", "recompute light", "recompute layer",
        "recompute full", "W", "keys made again", "key gradients not kept", "sharded optimizer"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= test::draws(5));
  }
}

TEST_CASE(
    "tensor parallelism: devices hold the simulator's bytes, event by event and at the peak") {
  for (std::uint64_t seed = 0; seed < test::draws(80U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, tensor_parallel(seed));
    test::Executed executed(plan);
    auto devices = cpu::make_devices(plan, seed);
    (void)runtime::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                            std::span(devices), executed.observer());
    executed.finish();
    test::check_memory(plan, executed, 16);
  }
}
