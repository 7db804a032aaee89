// SPDX-License-Identifier: Apache-2.0
// A small run whose every number tells the step, to be saved, ended at any moment, and looked at.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/runtime/checkpoint.hpp"
#include "slimpack/runtime/checkpoint_write.hpp"

namespace slimpack::test {

[[nodiscard]] inline ModelShape small_llama(bool tied = false) {
  return {"small", 2, 8, 4, 2, 4, 12, 16, tied, 5e5, 1e-6, 4};
}

/// Element `at` of what is stored of a tensor after `step` steps.
[[nodiscard]] inline double stored_value(runtime::Stored kind, const std::string& name,
                                         std::int64_t i, std::int64_t step) {
  std::uint64_t hash = static_cast<std::uint64_t>(step) * 4 + static_cast<std::uint64_t>(kind);
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  }
  return Random(hash + static_cast<std::uint64_t>(i)).unit() - 0.5;
}

template <runtime::StoredValue Value>
[[nodiscard]] std::vector<Value> stored_values(runtime::Stored kind,
                                               const runtime::NamedShape& tensor, std::int64_t step,
                                               std::int64_t first, std::int64_t end) {
  std::vector<Value> values;
  for (std::int64_t i = first; i < end; ++i) {
    values.push_back(static_cast<Value>(stored_value(kind, tensor.name, i, step)));
  }
  return values;
}

[[nodiscard]] inline std::vector<runtime::Stored> kinds_of(bool master) {
  std::vector<runtime::Stored> kinds{runtime::Stored::weight, runtime::Stored::first_moment,
                                     runtime::Stored::second_moment};
  if (master) kinds.push_back(runtime::Stored::master);
  return kinds;
}

/// Part `part` of `parts`: each tensor cut into so many ranges, not along rows.
template <runtime::StoredValue Value>
Bytes write_part(const std::string& folder, const runtime::CheckpointForm& form, std::int64_t step,
                 std::int64_t part, std::int64_t parts) {
  runtime::CheckpointPart writer(folder);
  for (const runtime::NamedShape& tensor : runtime::llama_tensors(form.model)) {
    const std::int64_t first = tensor.elements() * part / parts;
    const std::int64_t end = tensor.elements() * (part + 1) / parts;
    for (const runtime::Stored kind : kinds_of(form.master)) {
      const auto values = stored_values<Value>(kind, tensor, step, first, end);
      writer.write(kind, tensor.name, first, std::span<const Value>(values));
    }
  }
  return writer.finish();
}

[[nodiscard]] inline runtime::TrainingState state_after(std::int64_t step) {
  runtime::TrainingState state;
  state.step = step;
  state.batches = 3 * step;
  state.tokens = 1000 * step;
  state.seed = ~std::uint64_t{0} - 7;
  state.random = 5;
  state.loss = 1.0 / 3 + static_cast<double>(step);
  state.loss_sum = 1e300 / 7;
  state.settings = {{"context", "8192"}, {"learning rate", "0.001"}};
  return state;
}

template <runtime::StoredValue Value = float>
void save(const std::string& folder, const runtime::CheckpointForm& form, std::int64_t step,
          const runtime::CheckpointObserver& observe = {}) {
  runtime::CheckpointDraft draft(folder, form, state_after(step), observe);
  if (observe) observe("write the parts");
  Bytes written = write_part<Value>(folder, form, step, 0, 2);
  if (observe) observe("write the last part");
  written += write_part<Value>(folder, form, step, 1, 2);
  draft.commit(written);
}

/// The step whose checkpoint the folder holds, every number of it compared; -1 where one differs.
template <runtime::StoredValue Value = float>
[[nodiscard]] std::int64_t whole_step(const std::string& folder,
                                      const runtime::CheckpointForm& form) {
  const runtime::Checkpoint saved = runtime::Checkpoint::open(folder);
  const std::int64_t step = saved.state().step;
  if (!(saved.state() == state_after(step)) || saved.has_master() != form.master) return -1;
  for (const runtime::NamedShape& tensor : saved.weights().tensors()) {
    for (const runtime::Stored kind : kinds_of(form.master)) {
      std::vector<Value> read(static_cast<std::size_t>(tensor.elements()));
      saved.read(kind, tensor.name, 0, std::span<Value>(read));
      if (read != stored_values<Value>(kind, tensor, step, 0, tensor.elements())) return -1;
    }
  }
  return step;
}

}  // namespace slimpack::test
