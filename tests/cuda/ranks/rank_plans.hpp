// SPDX-License-Identifier: Apache-2.0
// Plans for ranks on emulated devices, their execution, and how far it is from the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "slimpack/exec/run_step.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_cuda/rank_device.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

/// As random_plan, with a model whose sizes the CUDA backend takes.
inline Plan rank_plan(std::uint64_t seed, RandomPlanOptions options = {}) {
  options.bytes_per_element = 2;
  options.gradient_bytes = 4;
  Plan plan = random_plan(seed, options);
  Random random(seed + 1'000);
  ModelShape& model = plan.model;
  model.hidden = 32;
  model.heads = 4;
  model.kv_heads = std::int64_t{1} << random.below(3);
  model.head_dim = 16;
  model.ffn = 8 * random.between(6, 9);
  model.vocab = random.between(150, 190);
  return plan;
}

inline cuda::RankOptions plain_path() {
  cuda::RankOptions options;
  options.path = cuda::AttentionPath::plain;
  return options;
}

inline std::vector<cuda::RankDevice> rank_devices(const Plan& plan, std::uint64_t seed,
                                                  cuda::AdamW settings = {},
                                                  const cuda::RankOptions& options = plain_path()) {
  std::vector<cuda::RankDevice> devices;
  for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
    devices.emplace_back(plan, device, seed, settings, options);
  }
  return devices;
}

/// The oracle's weights: those drawn from `seed` as bf16 has them.
inline cpu::Tensors rounded_weights(const ModelShape& model, std::uint64_t seed) {
  cpu::Tensors weights = cpu::initial_weights(model, seed);
  for (auto& [name, weight] : weights) {
    for (double& value : weight.values) {
      value = static_cast<double>(cuda::to_float(cuda::to_bf16(static_cast<float>(value))));
    }
  }
  return weights;
}

/// Differences from the oracle; a tensor's relative to its largest absolute value.
struct RankCheck {
  double loss = 0, gradient = 0;
  double norm = 0;  ///< of all gradients' differences, over that of the gradients
  std::string worst_tensor;
};

inline RankCheck compare(const Plan& plan, const exec::StepData& data, std::uint64_t seed,
                         const exec::StepResult& step,
                         const std::vector<cuda::RankDevice>& devices) {
  const cpu::ReferenceResult reference =
      cpu::reference_step(plan.model, rounded_weights(plan.model, seed), data);
  double squares = 0, all = 0;
  RankCheck check;
  check.loss = std::abs(step.loss - reference.loss) / std::abs(reference.loss);
  for (const cuda::RankDevice& device : devices) {
    for (const exec::HeldTensor& tensor : device.tensors()) {
      const cpu::Matrix& expected = reference.gradients.at(tensor.shape.name);
      const std::vector<float> found = device.gradients(tensor);
      const double difference =
          cpu::detail::relative(cpu::detail::largest_difference<const float>(
                                    std::span<const float>(found), expected, tensor.first_row),
                                cpu::detail::largest_value(expected));
      if (!(difference <= check.gradient)) check.worst_tensor = tensor.shape.name;
      check.gradient = cpu::detail::worse(check.gradient, difference);
      const auto first = static_cast<std::size_t>(tensor.first_row * expected.cols);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double want = expected.values[first + i];
        squares += (static_cast<double>(found[i]) - want) * (static_cast<double>(found[i]) - want);
        all += want * want;
      }
    }
  }
  check.norm = std::sqrt(squares / all);
  return check;
}

/// Executes a step of the plan on fresh devices.
inline RankCheck check_ranks(const Plan& plan, std::uint64_t seed,
                             const exec::MemoryObserver& observer = {},
                             const cuda::RankOptions& options = plain_path()) {
  const exec::StepData data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
  std::vector<cuda::RankDevice> devices = rank_devices(plan, seed, {}, options);
  const exec::StepResult step = exec::run_step(plan, data, std::span(devices), observer);
  return compare(plan, data, seed, step, devices);
}

}  // namespace slimpack::test
