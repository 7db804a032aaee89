// SPDX-License-Identifier: Apache-2.0
// Random valid plans on emulated devices against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "support/executed_memory.hpp"
#include "support/joined_plan.hpp"

namespace random_plans_test {

using namespace slimpack;

namespace {

/// Checks what a plan gave; every matrix is rounded to bf16, in up to 13 layers.
struct Worst {
  double loss = 0, gradient = 0, norm = 0;
  void add(const test::RankCheck& found) {
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
    loss = std::max(loss, found.loss);
    gradient = std::max(gradient, found.gradient);
    norm = std::max(norm, found.norm);
  }
  void print() const {
    std::printf("  largest difference: loss %.1e, gradients %.1e, their norm %.1e\n", loss,
                gradient, norm);
  }
};

/// A plan's step, its memory included.
void check(std::uint64_t seed, const test::RandomPlanOptions& options, Worst& worst) {
  CAPTURE(seed);
  const Plan plan = test::rank_plan(seed, options);
  test::Executed executed(plan);
  const test::RankCheck found = test::check_ranks(plan, seed, executed.observer());
  executed.finish();
  // A rank's part of each piece is whole vectors of 8 numbers, 12 bytes each.
  test::check_memory(plan, executed, test::most_pieces(plan) * 8 * 12);
  worst.add(found);
}

}  // namespace

TEST_CASE("ranks: random plans give the oracle's loss and gradients in the simulator's memory") {
  Worst worst;
  test::RandomPlanOptions options = test::small_plans();
  options.by_heads = true;
  std::int64_t by_heads = 0;
  for (std::uint64_t seed = 32; seed < 48; ++seed) {
    check(seed, options, worst);
    by_heads += test::features_of(test::rank_plan(seed, options)).merged_heads;
  }
  CHECK(by_heads >= 1);
  worst.print();
}

TEST_CASE("ranks: attention on wgmma, both head dimensions that it has") {
  cuda::Emulation hopper;
  hopper.major = 9;
  const cuda::ScopedEmulation emulated(hopper);
  cuda::RankOptions fastest = test::plain_path();
  fastest.path.reset();
  Worst worst;
  for (const std::int64_t dim : {64, 128}) {
    for (std::uint64_t seed = 900; seed < 903; ++seed) {
      CAPTURE(dim);
      CAPTURE(seed);
      test::RandomPlanOptions options = test::small_plans();
      options.max_pp = options.max_dp = 2;
      options.max_chunks = 1;
      options.max_samples = 2;
      options.max_tokens = 150;
      options.min_page = options.max_page = options.min_share = options.max_share = 64;
      options.cp_groups = seed == 902;
      Plan plan = test::rank_plan(seed, options);
      plan.model.heads = 4;
      plan.model.kv_heads = 2 - static_cast<std::int64_t>(seed % 2);
      plan.model.head_dim = dim;
      plan.model.hidden = 2 * dim;
      plan.model.ffn = 3 * dim;
      const cuda::AttentionShape shape{4, static_cast<std::int32_t>(plan.model.kv_heads),
                                       static_cast<std::int32_t>(dim), 64};
      REQUIRE(cuda::best_path(shape, 9, 0) == cuda::AttentionPath::wgmma);
      worst.add(test::check_ranks(plan, seed, {}, fastest));
    }
  }
  worst.print();
}

TEST_CASE("ranks: context-parallel groups, both exchanges, every recompute mode") {
  Worst worst;
  for (std::uint64_t seed = 300; seed < 308; ++seed) {
    test::RandomPlanOptions options = test::small_plans();
    options.max_pp = 2;
    options.cp_groups = true;
    options.exchange = seed % 2 == 0 ? RingMode::pass_kv : RingMode::pass_q;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options, worst);
  }
  worst.print();
}

TEST_CASE("ranks: rings that go node by node, both exchanges") {
  Worst worst;
  std::int64_t plans = 0;
  for (std::uint64_t seed = 400; plans < 6; ++seed) {
    test::RandomPlanOptions options = test::on_nodes(4, 1);
    options.max_tokens = 40;
    options.max_samples = 3;
    options.max_chunks = 2;
    options.exchange = seed % 2 == 0 ? RingMode::pass_kv : RingMode::pass_q;
    if (!test::rings_node_by_node(test::rank_plan(seed, options))) continue;
    check(seed, options, worst);
    ++plans;
  }
  worst.print();
}

TEST_CASE("ranks: samples that are not cut, every recompute mode, alone and in groups") {
  Worst worst;
  std::int64_t again = 0, unsummed = 0;
  for (std::uint64_t seed = 500; seed < 524; ++seed) {
    test::RandomPlanOptions options = test::small_plans();
    options.max_pp = 2;
    options.version = 2;
    // Of the last ones some samples are cut, most of whose packs are `full`.
    if (seed < 516) options.uncut = true;
    options.cp_groups = seed % 2 == 1;
    options.recompute =
        seed < 516 ? static_cast<Recompute>(seed / 2 % kRecomputeModes) : Recompute::full;
    for (const KeptKeys& kept : kept_keys(test::rank_plan(seed, options))) {
      again += kept.pages ? 0 : 1;
      unsummed += kept.gradients ? 0 : 1;
    }
    check(seed, options, worst);
  }
  CHECK(again >= 20);
  CHECK(unsummed > again);
  worst.print();
}

TEST_CASE("ranks: plans with W, every recompute mode, alone and in groups") {
  Worst worst;
  test::Features found;
  for (std::uint64_t seed = 600; seed < 616; ++seed) {
    test::RandomPlanOptions options = test::small_plans();
    options.version = 2;
    options.weights = true;
    options.cp_groups = seed % 2 == 1;
    if (seed < 608) options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options, worst);
    found += test::features_of(test::rank_plan(seed, options));
  }
  CHECK(found.weights >= 12);
  CHECK(found.weights_in_groups >= 4);
  worst.print();
}

TEST_CASE("ranks: gradients with W are those of the same plan without, added up in another order") {
  double worst = 0;
  for (std::uint64_t seed = 620; seed < 632; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::small_plans();
    options.version = 2;
    options.weights = true;
    options.cp_groups = seed % 2 == 1;
    const Plan plan = test::rank_plan(seed, options), whole = test::joined(plan);
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices split = test::rank_devices(plan, seed);
    test::RankDevices together = test::rank_devices(whole, seed);
    CHECK(test::run_ranks(plan, data, std::span(split)).loss ==
          test::run_ranks(whole, data, std::span(together)).loss);
    for (std::size_t device = 0; device < split.size(); ++device) {
      const auto apart = split[device].gradient_parts(), with = together[device].gradient_parts();
      REQUIRE(apart.size() == with.size());
      for (std::size_t part = 0; part < apart.size(); ++part) {
        CAPTURE(apart[part].tensor);
        double largest = 0, difference = 0;
        for (std::size_t i = 0; i < apart[part].values.size(); ++i) {
          const auto want = static_cast<double>(with[part].values[i]);
          largest = std::max(largest, std::abs(want));
          difference = cpu::detail::worse(
              difference, std::abs(static_cast<double>(apart[part].values[i]) - want));
        }
        CHECK(difference <= 1e-5 * largest);
        if (largest > 0) worst = std::max(worst, difference / largest);
      }
    }
  }
  std::printf("  largest difference: %.1e\n", worst);
}

TEST_CASE("ranks: chunks with sharded heads and tied tables") {
  Worst worst;
  for (std::uint64_t seed = 340; seed < 344; ++seed) {
    test::RandomPlanOptions options = test::small_plans();
    options.max_dp = 2;
    options.pp = seed % 2 == 0 ? 1 : 3;
    options.chunks = 2;
    options.head = LmHead::shard;
    options.tied = true;
    options.max_in_flight = 1;
    check(seed, options, worst);
  }
  worst.print();
}

TEST_CASE("ranks: a path of tiles gives the oracle's loss and gradients") {
  Worst worst;
  for (std::uint64_t seed = 400; seed < 404; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::small_plans();
    options.max_dp = 2;
    options.max_pp = 1;
    options.cp_groups = seed % 2 == 1;
    if (seed >= 402) {
      options.version = 2;
      options.uncut = true;
      options.recompute = Recompute::full;
    }
    Plan plan = test::rank_plan(seed, options);
    plan.model.hidden = 128;
    plan.model.ffn = 256;
    plan.model.head_dim = 64;
    plan.model.layers = 1;
    plan.stages = {{0, 0, 0, 1, true}};
    plan.parallel.chunks = 1;
    plan.memory.page_tokens = plan.memory.cp_block_tokens = Tokens{128};
    for (DeviceSchedule& device : plan.schedule) {
      std::erase_if(device.order, [](const Unit& unit) { return unit.chunk > 0; });
    }
    cuda::RankOptions mma = test::plain_path();
    mma.path = cuda::AttentionPath::mma;
    worst.add(test::check_ranks(plan, seed, {}, mma));
  }
  worst.print();
}

}  // namespace random_plans_test
