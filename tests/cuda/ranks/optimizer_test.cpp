// SPDX-License-Identifier: Apache-2.0
// The update of a device's weights against fp64, and the optimizer's state on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ranks/rank_plans.hpp"

namespace optimizer_test {

using namespace slimpack;

namespace {

using Values = std::map<std::string, std::vector<double>>;

test::RandomPlanOptions few() {
  test::RandomPlanOptions options = test::small_plans();
  options.max_samples = 3;
  options.max_pp = 2;
  return options;
}

/// Parts that make up every tensor: values(part) of elements from part.first on.
template <class Part, class Tensor, class Of>
void put(Values& all, const std::vector<Part>& parts, const ModelShape& model, Tensor tensor,
         Of values) {
  for (const runtime::TensorShape& shape : runtime::model_tensors(model)) {
    all[shape.name].resize(static_cast<std::size_t>(shape.rows * shape.cols));
  }
  for (const Part& part : parts) {
    for (std::size_t i = 0; i < values(part).size(); ++i) {
      all.at(tensor(part))[part.first + i] = static_cast<double>(values(part)[i]);
    }
  }
}

Values gradients_of(const test::RankDevices& devices, const ModelShape& model) {
  Values values;
  for (const cuda::RankDevice& device : devices) {
    put(
        values, device.gradient_parts(), model, [](const auto& part) { return part.tensor; },
        [](const auto& part) { return std::span(part.values); });
  }
  return values;
}

Values masters_of(const test::RankDevices& devices, const ModelShape& model) {
  Values values;
  for (const cuda::RankDevice& device : devices) {
    put(
        values, device.master_parts(), model, [](const auto& part) { return part.tensor.name; },
        [](const auto& part) { return std::span(part.weights); });
  }
  return values;
}

cpu::Tensors tensors_of(const ModelShape& model, const Values& values) {
  cpu::Tensors tensors;
  for (const runtime::TensorShape& shape : runtime::model_tensors(model)) {
    cpu::Matrix matrix(shape.rows, shape.cols);
    matrix.values = values.at(shape.name);
    tensors.emplace(shape.name, std::move(matrix));
  }
  return tensors;
}

}  // namespace

TEST_CASE("ranks: updates are those of AdamW in fp64, clipped by the norm of all gradients") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::rank_plan(
        seed, seed < 6 ? few() : test::tensor_parallel_plans(seed % 2 == 0 ? 2 : 4));
    cuda::AdamW settings;
    settings.largest_norm = seed % 2 == 0 ? 0.05 : 100.0;
    test::RankDevices devices = test::rank_devices(plan, seed, settings);
    cpu::Tensors expected = test::calm_weights(plan.model, seed);
    cpu::AdamW oracle_settings;
    oracle_settings.largest_norm = settings.largest_norm;
    cpu::ReferenceOptimizer oracle(oracle_settings);
    for (std::uint64_t step = 0; step < 2; ++step) {
      (void)test::run_ranks(plan, test::random_data(plan, 10 * seed + step), std::span(devices));
      const cpu::Tensors gradients = tensors_of(plan.model, gradients_of(devices, plan.model));
      double squares = 0;
      for (const auto& [name, gradient] : gradients) {
        for (const double value : gradient.values) squares += value * value;
      }
      for (const cuda::RankDevice& device : devices) {
        CHECK(device.gradient_norm() == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
        CHECK(device.gradient_norm() == devices.front().gradient_norm());
      }
      oracle.update(expected, gradients);
    }
    const Values masters = masters_of(devices, plan.model);
    for (const auto& [name, weight] : expected) {
      CAPTURE(name);
      const auto& found = masters.at(name);
      double worst = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        worst = std::max(worst, std::abs(found[i] - weight.values[i]));
      }
      CHECK(worst <= 2e-5);
    }
    // Every rank has the whole bf16 copy of what all ranks have updated.
    for (const cuda::RankDevice& device : devices) {
      for (const runtime::HeldTensor& tensor : device.tensors()) {
        const std::vector<float> copy = device.weights(tensor);
        const auto& whole = masters.at(tensor.shape.name);
        bool equal = true;
        tensor.for_each_run(
            0, tensor.size(), [&](std::size_t first, std::size_t i, std::size_t count) {
              for (std::size_t k = 0; k < count; ++k) {
                const auto master = static_cast<float>(whole[first + k]);
                equal = equal && copy[i + k] == cuda::to_float(cuda::to_bf16(master));
              }
            });
        CHECK(equal);
      }
    }
  }
}

TEST_CASE("ranks: training goes on from saved state as if it had never stopped") {
  for (std::uint64_t seed = 10; seed < 15; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::rank_plan(
        seed, seed < 13 ? few() : test::tensor_parallel_plans(seed % 2 == 0 ? 2 : 4));
    const auto data = [&](std::uint64_t step) { return test::random_data(plan, 10 * seed + step); };
    test::RankDevices devices = test::rank_devices(plan, seed);
    (void)test::run_ranks(plan, data(0), std::span(devices));
    test::RankDevices resumed = test::rank_devices(plan, seed + 1);
    for (std::size_t device = 0; device < devices.size(); ++device) {
      for (const runtime::HeldTensor& tensor : devices[device].tensors()) {
        resumed[device].set_weights(tensor, devices[device].weights(tensor));
      }
      resumed[device].set_master_parts(devices[device].master_parts());
      resumed[device].set_steps(devices[device].steps());
    }
    const double loss = test::run_ranks(plan, data(1), std::span(devices)).loss;
    CHECK(test::run_ranks(plan, data(1), std::span(resumed)).loss == loss);
    CHECK(test::state_of(resumed) == test::state_of(devices));
  }
}

TEST_CASE("ranks: parts of another device's optimizer are refused") {
  const Plan plan = test::rank_plan(20, few());
  cuda::RankDevice device(plan, 0, 1, {}, test::plain_path());
  std::vector<cuda::MasterPart> parts = device.master_parts();
  parts.pop_back();
  CHECK_THROWS_AS(device.set_master_parts(parts), InvalidInput);
  CHECK_THROWS_WITH_AS(device.set_steps(-1), "RankDevice: steps must be >= 0, got -1",
                       InvalidInput);
}

}  // namespace optimizer_test
