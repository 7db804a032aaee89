// SPDX-License-Identifier: Apache-2.0
// Ranks on emulated GPUs: who runs where, and what is said where there is too little of something.
#include "../../apps/mini_trainer/cuda_ranks.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/tiny_plan.hpp"
#include "slimpack_cuda/emulation.hpp"

using namespace slimpack;
using trainer::CudaThreadRanks;

namespace {

/// The tiny plan of tests with a model that GPUs take.
Plan cuda_plan() {
  Plan plan = test::tiny_plan(2, {{0, 1}}, {{8, 0}, {7, 0}});
  plan.model.hidden = 64;
  plan.model.heads = plan.model.kv_heads = 4;
  plan.model.head_dim = 16;
  plan.model.ffn = 96;
  plan.model.vocab = 257;
  plan.model.bytes_per_element = 2;
  return plan;
}

std::string thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

std::vector<int> parts_of(std::size_t ranks) {
  CudaThreadRanks made(ranks);
  std::vector<int> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(made.rank_options(rank).multiprocessors);
  }
  return parts;
}

}  // namespace

TEST_CASE("CudaThreadRanks: ranks of one GPU get equal parts of it, and some of it stays idle") {
  CHECK(parts_of(1) == std::vector<int>{0});  // all of it
  CHECK(parts_of(2) == std::vector<int>{64, 64});
  CHECK(parts_of(4) == std::vector<int>(4, 32));
  CHECK(parts_of(3) == std::vector<int>(3, 40));
  const cuda::ScopedEmulation full({.multiprocessors = 128});
  CHECK(parts_of(2) == std::vector<int>{56, 56});
}

TEST_CASE("CudaThreadRanks: ranks take turns on the GPUs there are") {
  const cuda::ScopedEmulation two({.devices = 2});
  CHECK(parts_of(2) == std::vector<int>{0, 0});
  CHECK(parts_of(3) == std::vector<int>{64, 0, 64});
  CHECK(parts_of(4) == std::vector<int>(4, 64));
  CHECK(CudaThreadRanks(4).ranks_a_gpu() == 2);
  CHECK(CudaThreadRanks(3).ranks_a_gpu() == 2);
}

TEST_CASE("CudaThreadRanks: without a GPU, and with too many ranks for one, a sentence says so") {
  {
    const cuda::ScopedEmulation none({.devices = 0});
    CHECK(thrown_by([] { CudaThreadRanks ranks(1); }).starts_with("--backend cuda: "));
  }
  CHECK(thrown_by([] { CudaThreadRanks ranks(17); }) ==
        "--backend cuda: 17 ranks on GPU 0 would have fewer than 8 multiprocessors each");
}

TEST_CASE("CudaThreadRanks: too little memory names rank, GPU, what is needed and what there is") {
  const Plan plan = cuda_plan();
  const cuda::ScopedEmulation modest({.memory = 256 << 20});
  CudaThreadRanks ranks(2);
  ranks.make_devices(plan, 1, {});
  const std::string sentence = thrown_by([&] {
    ranks.each([](trainer::CudaDevice& device) { device.prepare({Bytes{150 << 20}, {}}); });
  });
  CHECK(sentence.starts_with("rank 1, on GPU 0: the arena needs 157286400 bytes, the device has "));
  CHECK(sentence.ends_with(" left"));
  const cuda::ScopedEmulation small({.memory = 1 << 20});
  CudaThreadRanks others(2);
  CHECK(thrown_by([&] { others.make_devices(plan, 1, {}); }).starts_with("rank 0, on GPU 0: "));
}

TEST_CASE("gpu_as_cluster: ranks of one GPU have equal parts of its rates and its memory") {
  trainer::Options options;
  options.batch_tokens = Tokens{4096};
  const ModelShape model = cuda_plan().model;
  const Cluster whole = trainer::gpu_as_cluster(options, model, 1, 1);
  const Cluster part = trainer::gpu_as_cluster(options, model, 4, 4);
  CHECK(whole.memory == Bytes{std::int64_t{16} << 30U});
  CHECK(part.memory == Bytes{std::int64_t{4} << 30U});
  CHECK(part.matrix_flops == whole.matrix_flops / 4);
  CHECK(part.peak_flops == whole.peak_flops / 4);
  CHECK(part.reserved < whole.reserved);
  CHECK(whole.small.tp_overlap > 0);
  CHECK(trainer::gpu_as_device(8, 1) == MeasuredDevice{whole.name, whole.name, 8});
  const std::string quarter = whole.name + ", one of 4 equal parts";
  CHECK(trainer::gpu_as_device(4, 4) == MeasuredDevice{quarter, quarter, 4});
  options.cost = "cost.json";  // fitted to units with collectives
  CHECK(trainer::gpu_as_cluster(options, model, 4, 4).small.tp_overlap == 0);
  options.memory = Bytes{1000};
  const Cluster little = trainer::gpu_as_cluster(options, model, 1, 1);
  CHECK(little.memory == Bytes{1000});
  CHECK(little.reserved == Bytes{1000});
}
