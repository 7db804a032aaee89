// SPDX-License-Identifier: Apache-2.0
// Plans for ranks on emulated devices, their execution, and how far it is from the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_cuda/rank_device.hpp"
#include "slimpack_cuda/stream_transport.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

using RankDevices = std::vector<cuda::RankDevice>;

/// A few tokens and as many ranks as a test has time for.
inline RandomPlanOptions small_plans() {
  RandomPlanOptions options;
  options.max_tokens = 40;
  options.max_samples = 5;
  options.max_dp = 3;
  options.max_pp = 3;
  options.max_chunks = 2;
  return options;
}

/// The same with tensor parallelism.
inline RandomPlanOptions tensor_parallel_plans(std::int32_t tp) {
  RandomPlanOptions options = small_plans();
  options.version = 2;
  options.tp = tp;
  options.max_dp = options.max_pp = 2;
  options.max_samples = 3;
  return options;
}

/// Has samples go by heads where the ranks of their group divide a device's heads, with
/// `mixed` two in three of them.
inline void exchange_by_heads(Plan& plan, std::uint64_t seed, bool mixed) {
  Random random(seed + 31'000);
  std::vector<bool> by_heads;
  for (const GroupId group : plan.sample_group) {
    const auto ranks = static_cast<std::int64_t>(plan.groups[index(group)].size());
    const bool divides = divides_heads(plan.model, plan.parallel.tp, ranks);
    by_heads.push_back(divides && (!mixed || random.chance(2, 3)));
  }
  for (MicroPack& pack : plan.micropacks) {
    for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
      if (by_heads[index(pack.slices[i].sample)]) pack.exchange[i] = RingMode::by_heads;
    }
  }
}

/// A random plan whose model has sizes that the CUDA backend takes, some samples by heads where
/// `by_heads` allows it.
inline Plan rank_plan(std::uint64_t seed, RandomPlanOptions options = small_plans()) {
  options.bytes_per_element = 2;
  options.gradient_bytes = 4;
  const bool by_heads = std::exchange(options.by_heads, false);  // the model's heads are drawn here
  Plan plan = random_plan(seed, options);
  Random random(seed + 1'000);
  ModelShape& model = plan.model;
  model.hidden = 32;
  model.heads = 4;
  model.kv_heads = std::int64_t{1} << random.below(3);
  model.head_dim = 16;
  model.ffn = 8 * random.between(6, 9);
  model.vocab = random.between(150, 190);
  if (const std::int64_t tp = plan.parallel.tp; tp > 1) {
    model.kv_heads = tp == 2 ? std::int64_t{2} << random.below(2) : 4;
    model.ffn = 8 * tp * random.between(8 / tp, 12 / tp);
  }
  if (by_heads && plan.version >= 3) exchange_by_heads(plan, seed, true);
  return plan;
}

inline cuda::RankOptions plain_path() {
  cuda::RankOptions options;
  options.path = cuda::AttentionPath::plain;
  options.gemm_workspace = 4096;  // products are computed on the host
  options.piece = 1500;           // several a layer
  return options;
}

/// Most pieces in which a device's gradients are given to ranks.
inline std::int64_t most_pieces(const Plan& plan) {
  std::size_t most = 0;
  for (std::size_t device = 0; device < device_count(plan); ++device) {
    std::size_t pieces = 0;
    const runtime::StageProcessGroups place = cuda::place_of(plan, device);
    const runtime::ParameterLayout layout = runtime::layout_of(plan, place.pp, place.tp);
    for (const runtime::Bucket& bucket :
         runtime::buckets_of(plan.model, plan.stages, place, layout)) {
      pieces += cuda::layout_of(bucket, plan.parallel.dp, plain_path().piece).pieces().size();
    }
    most = std::max(most, pieces);
  }
  return static_cast<std::int64_t>(most);
}

/// The weights that tests begin with, as bf16 has them. Each layer adds little to what it reads, as
/// in a model that has learned; with weights all alike every layer would magnify the rounding of
/// those before it.
inline cpu::Tensors calm_weights(const ModelShape& model, std::uint64_t seed) {
  cpu::Tensors weights = cpu::initial_weights(model, seed);
  for (auto& [name, weight] : weights) {
    double factor = 1;
    if (name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight")) factor = 0.5;
    if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) factor = 0.1;
    if (name == runtime::kEmbedding) factor = 4;
    for (double& value : weight.values) {
      value =
          static_cast<double>(cuda::to_float(cuda::to_bf16(static_cast<float>(factor * value))));
    }
  }
  return weights;
}

/// The part of a whole tensor that a device holds.
inline std::vector<float> held(const cpu::Matrix& whole, const runtime::HeldTensor& tensor) {
  std::vector<float> values(tensor.size());
  tensor.for_each_run(0, tensor.size(), [&](std::size_t first, std::size_t i, std::size_t count) {
    const auto begin = whole.values.begin() + static_cast<std::ptrdiff_t>(first);
    std::transform(begin, begin + static_cast<std::ptrdiff_t>(count),
                   values.begin() + static_cast<std::ptrdiff_t>(i),
                   [](double value) { return static_cast<float>(value); });
  });
  return values;
}

/// One device a rank of the plan, with calm weights.
inline RankDevices rank_devices(const Plan& plan, std::uint64_t seed, cuda::AdamW settings = {},
                                const cuda::RankOptions& options = plain_path()) {
  const cpu::Tensors weights = calm_weights(plan.model, seed);
  RankDevices devices;
  for (std::size_t device = 0; device < device_count(plan); ++device) {
    devices.emplace_back(plan, device, seed, settings, options);
    const auto tensors = devices.back().tensors();
    for (const runtime::HeldTensor& tensor : std::vector(tensors.begin(), tensors.end())) {
      devices.back().set_weights(tensor, held(weights.at(tensor.shape.name), tensor));
    }
  }
  return devices;
}

/// A step on streams. Any type that has a RankDevice's calls will do.
template <class Device>
runtime::StepResult run_ranks(const Plan& plan, const runtime::StepData& data,
                              std::span<Device> devices,
                              const runtime::MemoryObserver& observer = {}) {
  const runtime::Program program = runtime::make_program(plan);
  runtime::DeviceThreads device_threads(devices.size());
  std::vector<std::unique_ptr<cuda::RankStreams>> streams;
  for (Device& device : devices) {
    streams.push_back(std::make_unique<cuda::RankStreams>(device.stream()));
  }
  const auto link = [&](cuda::StreamRendezvous& rendezvous, std::size_t device) {
    return cuda::StreamTransport(rendezvous, device, cuda::StreamMover(*streams[device]));
  };
  return runtime::run_step_with<cuda::StreamTransport>(device_threads, plan, program, data, devices,
                                                       link, observer);
}

inline runtime::StepData random_data(const Plan& plan, std::uint64_t seed) {
  return cpu::step_data(plan, cpu::random_tokens(plan, seed));
}

/// Differences from the oracle, relative to it; a gradient's to its tensor's largest value.
struct RankCheck {
  double loss = 0, gradient = 0;
  double norm = 0;  ///< of all gradients' differences, relative to that of the gradients
  std::string worst_tensor;
};

inline RankCheck compare(const Plan& plan, const runtime::StepData& data, std::uint64_t seed,
                         const runtime::StepResult& step, const RankDevices& devices) {
  const cpu::ReferenceResult reference =
      cpu::reference_step(plan.model, calm_weights(plan.model, seed), data);
  double squares = 0, all = 0;
  RankCheck check;
  check.loss = std::abs(step.loss - reference.loss) / std::abs(reference.loss);
  for (const cuda::RankDevice& device : devices) {
    for (const cuda::TensorPart& part : device.gradient_parts()) {
      const cpu::Matrix& expected = reference.gradients.at(part.tensor);
      double largest = 0;
      for (std::size_t i = 0; i < part.values.size(); ++i) {
        const double want = expected.values[part.first + i];
        const double off = static_cast<double>(part.values[i]) - want;
        largest = cpu::detail::worse(largest, std::abs(off));
        squares += off * off;
        all += want * want;
      }
      const double difference =
          cpu::detail::relative(largest, cpu::detail::largest_value(expected));
      if (!(difference <= check.gradient)) check.worst_tensor = part.tensor;
      check.gradient = cpu::detail::worse(check.gradient, difference);
    }
  }
  check.norm = std::sqrt(squares / all);
  return check;
}

/// Executes a step of the plan on fresh devices.
inline RankCheck check_ranks(const Plan& plan, std::uint64_t seed,
                             const runtime::MemoryObserver& observer = {},
                             const cuda::RankOptions& options = plain_path()) {
  const runtime::StepData data = random_data(plan, seed);
  RankDevices devices = rank_devices(plan, seed, {}, options);
  const runtime::StepResult step = run_ranks(plan, data, std::span(devices), observer);
  return compare(plan, data, seed, step, devices);
}

/// Everything that devices have learned: weights, gradients, masters and moments.
inline std::vector<float> state_of(const RankDevices& devices) {
  std::vector<float> state;
  const auto add = [&](const std::vector<float>& values) {
    state.insert(state.end(), values.begin(), values.end());
  };
  for (const cuda::RankDevice& device : devices) {
    if (device.shares_weights()) {
      for (const cuda::TensorPart& part : device.weight_parts()) add(part.values);
    } else {
      for (const runtime::HeldTensor& tensor : device.tensors()) add(device.weights(tensor));
    }
    for (const cuda::TensorPart& part : device.gradient_parts()) add(part.values);
    for (const cuda::MasterPart& part : device.master_parts()) {
      add(part.weights);
      add(part.first_moment);
      add(part.second_moment);
    }
  }
  return state;
}

}  // namespace slimpack::test
