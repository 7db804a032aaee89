// SPDX-License-Identifier: Apache-2.0
// What holds of every step on devices: equal bits, whenever streams run; nothing read that was not
// written; and what a step leaves when it fails.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "slimpack_cuda/gemm_layout.hpp"
#include "slimpack_cuda/rank/head.hpp"

namespace laws_test {

using namespace slimpack;

namespace {

/// The state after two steps, and their losses.
std::vector<float> trained(const Plan& plan, std::uint64_t seed) {
  test::RankDevices devices = test::rank_devices(plan, seed);
  std::vector<float> losses;
  for (std::uint64_t step = 0; step < 2; ++step) {
    const runtime::StepData data = test::random_data(plan, 100 * seed + step);
    losses.push_back(static_cast<float>(test::run_ranks(plan, data, std::span(devices)).loss));
  }
  std::vector<float> state = test::state_of(devices);
  state.insert(state.end(), losses.begin(), losses.end());
  return state;
}

test::RandomPlanOptions few() {
  test::RandomPlanOptions options = test::small_plans();
  options.max_samples = 3;
  options.max_pp = 2;
  return options;
}

/// A device whose fresh buffers hold NaN everywhere.
class PoisonedRank : public cuda::RankDevice {
 public:
  using cuda::RankDevice::RankDevice;
  explicit PoisonedRank(cuda::RankDevice&& device) : cuda::RankDevice(std::move(device)) {}
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    Buffer buffer = cuda::RankDevice::allocate(bytes);
    if (bytes > Bytes{}) {
      cuda::detail::fill_bytes(buffer.bytes.data(), 0xff, buffer.bytes.size(), stream());
    }
    return buffer;
  }
};

/// A device whose hidden gradients are NaN though its losses are finite.
class SpoiltRank : public cuda::RankDevice {
 public:
  using cuda::RankDevice::RankDevice;
  explicit SpoiltRank(cuda::RankDevice&& device) : cuda::RankDevice(std::move(device)) {}
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    cuda::RankDevice::head(call, link);
    for (const runtime::BlockMemory& memory : call.blocks) {
      cuda::detail::fill_bytes(memory.hidden_gradient.data(), 0xff, memory.hidden_gradient.size(),
                               stream());
    }
  }
};

template <class Device>
std::vector<float> masters_of(const std::vector<Device>& devices) {
  std::vector<float> all;
  for (const cuda::RankDevice& device : devices) {
    for (const cuda::MasterPart& part : device.master_parts()) {
      all.insert(all.end(), part.weights.begin(), part.weights.end());
    }
  }
  return all;
}

/// What a step fails with that leaves all weights as they were.
template <class Device>
std::string said_of(const Plan& plan, const runtime::StepData& data, std::vector<Device>& devices) {
  const std::vector<float> before = masters_of(devices);
  std::string said;
  try {
    (void)test::run_ranks(plan, data, std::span(devices));
  } catch (const runtime::ExecutionError& error) {
    said = error.what();
  }
  CHECK(masters_of(devices) == before);
  for (const cuda::RankDevice& device : devices) CHECK(device.steps() == 0);
  return said;
}

}  // namespace

TEST_CASE("for_each_run: neighbours are one where all matrices go on, and all rows come once") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    std::vector<cuda::Bf16> norms(1000), products(1000);
    std::vector<cuda::BlockRows> blocks;
    std::vector<bool> goes_on;
    std::int64_t row = 0, norm = 0, product = 0;  // norms of one number a row, products of two
    for (std::int64_t count = random.between(0, 8); count > 0; --count) {
      const std::int64_t gap = random.below(3) == 0 ? 1 : 0, other = random.below(3) == 0 ? 1 : 0;
      goes_on.push_back(!blocks.empty() && gap == 0 && other == 0);
      norm += gap, product += other;
      cuda::BlockRows& block = blocks.emplace_back();
      block.rows = random.between(1, 9), block.first = row;
      block.mid_norm = {norms.data() + norm, block.rows};
      block.product = {products.data() + product, 2 * block.rows};
      row += block.rows, norm += block.rows, product += 2 * block.rows;
    }
    std::size_t at = 0;
    cuda::for_each_run(
        blocks,
        [&](const cuda::BlockRows& run) {
          REQUIRE(at < blocks.size());
          CHECK_FALSE(goes_on[at]);
          CHECK(run.first == blocks[at].first);
          CHECK(run.mid_norm.data == blocks[at].mid_norm.data);
          CHECK(run.product.data == blocks[at].product.data);
          std::int64_t rows = blocks[at].rows;
          for (++at; at < blocks.size() && goes_on[at]; ++at) rows += blocks[at].rows;
          CHECK(run.rows == rows);
          CHECK(run.mid_norm.size == rows);
          CHECK(run.product.size == 2 * rows);
        },
        &cuda::BlockRows::mid_norm, &cuda::BlockRows::product);
    CHECK(at == blocks.size());
  }
}

TEST_CASE("ranks: two runs are equal to the last bit, as late as streams may run too") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options =
        seed < 4 ? few() : test::tensor_parallel_plans(seed % 2 == 0 ? 2 : 4);
    if (seed % 2 == 1) options.cp_groups = true;
    options.weights = seed == 2 || seed == 3 || seed == 5;
    const Plan plan = test::rank_plan(seed, options);
    const std::vector<float> first = trained(plan, seed);
    CHECK(trained(plan, seed) == first);
    cuda::Emulation late = cuda::emulation();
    late.timing = cuda::EmulatedTiming::late;
    const cuda::ScopedEmulation scope(late);
    CHECK(trained(plan, seed) == first);
  }
}

TEST_CASE("ranks: units read nothing that was not written or kept for them") {
  for (std::uint64_t seed = 20; seed < 44; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options =
        seed < 36 ? few() : test::tensor_parallel_plans(seed % 4 < 2 ? 2 : 4);
    if (seed % 2 == 1) options.cp_groups = true;
    if (seed >= 24) options.version = 2;
    if (seed >= 24) options.uncut = seed < 28 || seed >= 40;
    if ((seed >= 26 && seed < 30) || seed >= 41) options.recompute = Recompute::full;
    options.weights = seed >= 30 && seed < 40;
    const Plan plan = test::rank_plan(seed, options);
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices devices = test::rank_devices(plan, seed);
    std::vector<PoisonedRank> poisoned;
    for (cuda::RankDevice& device : test::rank_devices(plan, seed)) {
      poisoned.emplace_back(std::move(device));
    }
    const double loss = test::run_ranks(plan, data, std::span(devices)).loss;
    CHECK(test::run_ranks(plan, data, std::span(poisoned)).loss == loss);
    test::RankDevices sliced;
    for (PoisonedRank& device : poisoned) sliced.push_back(std::move(device));
    CHECK(test::state_of(sliced) == test::state_of(devices));
  }
}

TEST_CASE("ranks: an evaluation gives the losses of a step and changes nothing") {
  for (std::uint64_t seed = 40; seed < 44; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = seed < 43 ? few() : test::tensor_parallel_plans(2);
    options.weights = seed == 42;
    const Plan plan = test::rank_plan(seed, options);
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices devices = test::rank_devices(plan, seed);
    for (cuda::RankDevice& device : devices) device.set_evaluating(true);
    const runtime::StepResult evaluated = test::run_ranks(plan, data, std::span(devices));
    for (cuda::RankDevice& device : devices) {
      CHECK(device.steps() == 0);
      device.set_evaluating(false);
    }
    const runtime::StepResult step = test::run_ranks(plan, data, std::span(devices));
    CHECK(evaluated.sample_loss == step.sample_loss);
    for (const cuda::RankDevice& device : devices) CHECK(device.steps() == 1);
  }
}

TEST_CASE("ranks: losses that are not finite stop the step before the update") {
  test::RandomPlanOptions options = few();
  options.pp = 1;
  options.dp = 2;
  options.cp_groups = false;
  options.tied = false;
  const Plan plan = test::rank_plan(50, options);
  const runtime::StepData data = test::random_data(plan, 50);
  test::RankDevices devices = test::rank_devices(plan, 50);
  for (cuda::RankDevice& device : devices) {
    const runtime::HeldTensor embedding = device.tensors().front();
    std::vector<float> values = device.weights(embedding);
    const auto row = static_cast<std::size_t>(data.tokens[0][0] * embedding.shape.cols);
    values[row] = std::numeric_limits<float>::infinity();
    device.set_weights(embedding, values);
  }
  const std::string said = said_of(plan, data, devices);
  CAPTURE(said);
  CHECK(said.find("O, failed: the loss of step 1 is not finite in MicroPack ") !=
        std::string::npos);
  CHECK(said.find(", samples ") != std::string::npos);
}

TEST_CASE("ranks: gradients that are not finite stop the step before the update") {
  for (std::int32_t pp = 1; pp <= 3; ++pp) {
    CAPTURE(pp);
    test::RandomPlanOptions options = pp < 3 ? few() : test::tensor_parallel_plans(2);
    options.tied = false;
    options.pp = pp < 3 ? pp : 1;
    const Plan plan = test::rank_plan(51, options);
    const runtime::StepData data = test::random_data(plan, 51);
    std::vector<SpoiltRank> spoilt;
    for (cuda::RankDevice& device : test::rank_devices(plan, 51)) {
      spoilt.emplace_back(std::move(device));
    }
    const std::string token = said_of(plan, data, spoilt);
    CAPTURE(token);
    CHECK(token.find("O, failed: the gradient of step 1 is not finite in MicroPack ") !=
          std::string::npos);
    CHECK(token.find(", samples ") != std::string::npos);

    // Every token's gradient is finite; the squares of those of the head's weights are not.
    test::RankDevices large = test::rank_devices(plan, 51);
    for (cuda::RankDevice& device : large) {
      const auto held = device.tensors();
      for (const runtime::HeldTensor& tensor : std::vector(held.begin(), held.end())) {
        const bool norm = tensor.shape.name == runtime::kFinalNorm;
        if (!norm && tensor.shape.name != runtime::kHead) continue;
        std::vector<float> values = device.weights(tensor);
        for (float& value : values) value *= norm ? 1e25F : 1e-25F;
        device.set_weights(tensor, values);
      }
    }
    const std::string sum = said_of(plan, data, large);
    CAPTURE(sum);
    CHECK(sum.ends_with("O, failed: the norm of the gradients of step 1 is not finite"));
  }
}

TEST_CASE("ranks: devices hold what plans count, the arena and fixed_bytes, no more") {
  for (std::uint64_t seed = 55; seed < 64; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options =
        seed < 60 ? few() : test::tensor_parallel_plans(seed % 2 == 0 ? 2 : 4);
    if (seed % 2 == 1) options.cp_groups = true;
    options.weights = seed >= 58 && seed < 62;
    const Plan plan = test::rank_plan(seed, options);
    const runtime::Program program = runtime::make_program(plan);
    const std::int64_t before = cuda::free_memory();
    test::RankDevices devices = test::rank_devices(plan, seed);
    (void)test::run_ranks(plan, test::random_data(plan, seed), std::span(devices));
    std::int64_t held = 0;
    for (std::size_t device = 0; device < devices.size(); ++device) {
      const StaticBytes always = devices[device].static_bytes();
      held += (always.weights + always.gradients + always.optimizer).value +
              devices[device].arena()->capacity().value +
              cuda::fixed_bytes(plan, program, device, 4096).value;
    }
    const std::int64_t used = before - cuda::free_memory();
    CHECK(used <= held);
    CHECK(used >= held - static_cast<std::int64_t>(devices.size()) * 8192);
  }
}

TEST_CASE("ranks: an arena that the device has no room for is refused in a sentence") {
  const Plan plan = test::rank_plan(60, few());
  cuda::RankDevice device(plan, 0, 1, {}, test::plain_path());
  try {
    device.reserve(Bytes{std::int64_t{3} << 33});
    FAIL("there is not as much memory");
  } catch (const cuda::CudaError& error) {
    const std::string said = error.what();
    CAPTURE(said);
    CHECK(said.starts_with("the arena needs 257698"));
    CHECK(said.ends_with(" left"));
  }
}

TEST_CASE("ranks: models that a device cannot compute are refused in a sentence") {
  const Plan good = test::rank_plan(61, few());
  const auto refused = [&](auto change) -> std::string {
    Plan plan = good;
    change(plan);
    try {
      const cuda::RankDevice device(plan, 0, 1);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refused([](Plan& plan) { plan.model.hidden = 36; }) ==
        "RankDevice: hidden must be a multiple of 8 from 8 to 16384, got 36");
  CHECK(refused([](Plan& plan) { plan.model.ffn = 12; }) ==
        "RankDevice: ffn must be a positive multiple of 8, got 12");
  CHECK(refused([](Plan& plan) { plan.model.head_dim = 24; }) ==
        "RankDevice: head_dim must be a multiple of 16 from 16 to 512, got 24");
  CHECK(refused([](Plan& plan) { plan.model.heads = plan.model.kv_heads = 0; }) ==
        "RankDevice: heads must be >= 1, got 0");
  CHECK(refused([](Plan& plan) { plan.model.kv_heads = 3; }) ==
        "RankDevice: kv_heads must divide heads, got 3");
  CHECK(refused([](Plan& plan) {
          plan.model.kv_heads = 4;
          plan.model.ffn = 40;
        }) == "RankDevice: 3 * ffn must be >= 2 * kv_heads * head_dim, got 120");
  CHECK(refused([](Plan& plan) { plan.model.heads = 8; }) ==
        "RankDevice: heads * head_dim must be at most 2 * hidden, got 128");
  const auto with = [](std::int64_t kv_heads, std::int64_t ffn) {
    return [=](Plan& plan) {
      plan.version = std::max(plan.version, 2);
      plan.parallel.tp = 2;
      plan.model.kv_heads = kv_heads;
      plan.model.ffn = ffn;
    };
  };
  CHECK(refused(with(1, 64)) == "execution: parallel.tp must divide model.kv_heads (1), got 2");
  CHECK(refused(with(2, 56)) ==
        "RankDevice: ffn must be a multiple of 8 on each tensor-parallel device, got 28");
  CHECK(refused(with(4, 48)) ==
        "RankDevice: tensor parallelism needs ffn >= kv_heads * head_dim, got 48");
}

TEST_CASE("ranks: tiles of a head are as few as there can be, and ask for few products") {
  for (const std::int64_t most : {1, 5, 8, 1000, 4096}) {
    CAPTURE(most);
    for (std::int64_t rows = 1; rows <= 20'000; rows += 37) {
      CAPTURE(rows);
      const std::int64_t length = cuda::head_tile_length(rows, most);
      REQUIRE(length >= 1);
      CHECK(length <= most);
      const std::int64_t tiles = (rows + length - 1) / length;
      CHECK(tiles == (rows + most - 1) / most);
      CHECK(tiles * length - rows < 8 * tiles + (length == most ? most : 0));
    }
  }
  std::set<std::int64_t> asked;  // by the last tile, of packs of 8K to 16K rows
  for (std::int64_t rows = 8192; rows <= 16'384; ++rows) {
    const std::int64_t length = cuda::head_tile_length(rows, 4096);
    asked.insert(cuda::rounded_rows(rows - (rows - 1) / length * length));
  }
  CHECK(asked.size() <= 8);
}

}  // namespace laws_test
