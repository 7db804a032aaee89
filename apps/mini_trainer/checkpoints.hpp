// SPDX-License-Identifier: Apache-2.0
// Weights and moments of a run's devices, from and into folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/checkpoint.hpp"
#include "slimpack/runtime/checkpoint_write.hpp"
#include "slimpack/runtime/llama_folder.hpp"
#include "slimpack/runtime/parameters.hpp"

namespace slimpack::trainer {

/// The embedding table, which is also the vocabulary projection where weights are tied.
inline constexpr std::string_view kTable = "model.embed_tokens.weight";

/// Reads every weight of the ranks' devices from a folder in the Hugging Face layout.
template <class Ranks>
void load_weights(Ranks& ranks, const runtime::LlamaFolder& folder) {
  ranks.each([&](auto& device) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      // A device may hold a part of the tensor alone, which begins at element `from`.
      device.fill_weights(tensor, [&](auto weights, std::size_t from = 0) {
        tensor.for_each_run(from, from + weights.size(),
                            [&](std::size_t first, std::size_t i, std::size_t count) {
                              folder.read(tensor.shape.name, static_cast<std::int64_t>(first),
                                          weights.subspan(i - from, count));
                            });
      });
    }
  });
}

/// Reads weights, moments and step of a saved training into the ranks' devices.
template <class Ranks>
void load_training(Ranks& ranks, const runtime::Checkpoint& saved) {
  load_weights(ranks, saved.weights());
  ranks.each([&](auto& device) {
    device.fill_moments([&](const runtime::TensorShape& tensor, std::size_t i, auto first_moment,
                            auto second_moment) {
      const auto first = static_cast<std::int64_t>(i);
      saved.read(runtime::Stored::first_moment, tensor.name, first, first_moment);
      saved.read(runtime::Stored::second_moment, tensor.name, first, second_moment);
    });
    device.set_steps(saved.state().step);
  });
}

/// Writes what device (dp, pp, tp) alone is to write: weights, and its own moments. Stage 0 writes
/// a tied table, the first tensor-parallel device gains of norms.
template <class Device>
void write_part(Device& device, const DeviceSchedule& schedule, std::size_t tp,
                OptimizerState optimizer, runtime::CheckpointPart& part) {
  using Values = std::span<const typename Device::Stored>;
  const auto is_copy = [&](const std::string& name) {
    return (schedule.pp > 0 && name == kTable) || (tp > 0 && name.ends_with("norm.weight"));
  };
  device.visit_weights(schedule, optimizer,
                       [&](const std::string& name, std::int64_t first, Values weights) {
                         if (!is_copy(name))
                           part.write(runtime::Stored::weight, name, first, weights);
                       });
  if (schedule.dp > 0 && optimizer == OptimizerState::replicated) return;
  device.visit_moments(
      [&](const std::string& name, std::int64_t first, Values first_moment, Values second_moment) {
        if (is_copy(name)) return;
        part.write(runtime::Stored::first_moment, name, first, first_moment);
        part.write(runtime::Stored::second_moment, name, first, second_moment);
      });
}

/// What a checkpoint of such a run holds.
template <class Ranks>
[[nodiscard]] runtime::CheckpointForm form_of(const ModelShape& model, std::int64_t context) {
  runtime::CheckpointForm form;
  form.model = model;
  form.weights = form.moments = Ranks::Device::kStored;
  form.context = context;
  return form;
}

/// Saves model and training; all ranks call it. Throws InvalidInput naming file and cause; what
/// the folder held before is then still there.
template <class Ranks>
void save_training(Ranks& ranks, const std::string& folder, const Plan& plan, std::int64_t context,
                   const runtime::TrainingState& state) {
  std::optional<runtime::CheckpointDraft> draft;
  if (ranks.is_root()) draft.emplace(folder, form_of<Ranks>(plan.model, context), state);
  ranks.await_all();
  runtime::CheckpointPart part(folder);
  const auto parts = static_cast<std::size_t>(plan.parallel.tp);
  std::size_t number = ranks.first();
  ranks.each([&](auto& device) {
    write_part(device, plan.schedule[number / parts], number % parts, plan.memory.optimizer, part);
    ++number;
  });
  const std::int64_t written = ranks.sum(part.finish().value);
  if (draft) draft->commit(Bytes{written});
  ranks.await_all();
}

}  // namespace slimpack::trainer
