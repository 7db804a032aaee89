// SPDX-License-Identifier: Apache-2.0
// Weights and moments of a run's devices, from and into folders.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/parameters.hpp"
#include "slimpack/io/checkpoint.hpp"
#include "slimpack/io/checkpoint_write.hpp"
#include "slimpack/io/llama_folder.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::trainer {

inline constexpr std::string_view kTable = "model.embed_tokens.weight";

/// Reads every weight of the devices from a folder in the Hugging Face layout.
template <class Device>
void load_weights(std::span<Device> devices, const LlamaFolder& folder) {
  for (Device& device : devices) {
    for (const exec::HeldTensor& tensor : device.tensors()) {
      folder.read(tensor.shape.name, tensor.first_row * tensor.shape.cols, device.weights(tensor));
    }
  }
}

/// Weights, moments and step of a saved training.
template <class Device>
void load_training(std::span<Device> devices, const Checkpoint& saved) {
  load_weights(devices, saved.weights());
  for (Device& device : devices) {
    for (const auto& part : device.optimizer_state()) {
      const auto first = static_cast<std::int64_t>(part.first);
      saved.read(Stored::first_moment, part.tensor.name, first, part.first_moment);
      saved.read(Stored::second_moment, part.tensor.name, first, part.second_moment);
    }
    device.set_steps(saved.state().step);
  }
}

/// Writes what this device alone is to write: weights of the first rank of a stage, and its own
/// moments; a tied table is written by stage 0.
template <class Device>
void write_part(Device& device, const DeviceSchedule& place, OptimizerState optimizer,
                CheckpointPart& part) {
  using Number = typename Device::Number;
  const auto is_copy = [&](const std::string& name) { return place.pp > 0 && name == kTable; };
  for (const exec::HeldTensor& tensor : device.tensors()) {
    if (place.dp > 0 || is_copy(tensor.shape.name)) continue;
    part.write(Stored::weight, tensor.shape.name, tensor.first_row * tensor.shape.cols,
               std::span<const Number>(device.weights(tensor)));
  }
  if (place.dp > 0 && optimizer == OptimizerState::replicated) return;
  for (const auto& own : device.optimizer_state()) {
    if (is_copy(own.tensor.name)) continue;
    const auto first = static_cast<std::int64_t>(own.first);
    part.write(Stored::first_moment, own.tensor.name, first,
               std::span<const Number>(own.first_moment));
    part.write(Stored::second_moment, own.tensor.name, first,
               std::span<const Number>(own.second_moment));
  }
}

/// Saves model and training, all ranks together. Throws InvalidInput naming file and cause; what
/// the folder held before is then still there.
template <class Ranks>
void save_training(Ranks& ranks, const std::string& folder, const Plan& plan, std::int64_t context,
                   const TrainingState& state) {
  using Number = typename Ranks::Device::Number;
  CheckpointForm form;
  form.model = plan.model;
  form.weights = form.moments = std::same_as<Number, float> ? ElementType::f32 : ElementType::f64;
  form.context = context;
  std::optional<CheckpointDraft> draft;
  if (ranks.is_root()) draft.emplace(folder, form, state);
  ranks.await_all();
  CheckpointPart part(folder);
  std::size_t device = ranks.first();
  for (auto& local : ranks.local()) {
    write_part(local, plan.schedule[device++], plan.memory.optimizer, part);
  }
  const std::int64_t written = ranks.sum(part.finish().value);
  if (draft) draft->commit(Bytes{written});
  ranks.await_all();
}

}  // namespace slimpack::trainer
