// SPDX-License-Identifier: Apache-2.0
// A saved training run, opened for reading: weights, moments and state, by any partition.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/detail/safetensors.hpp"
#include "slimpack/runtime/element_type.hpp"
#include "slimpack/runtime/llama_config.hpp"
#include "slimpack/runtime/llama_folder.hpp"
#include "slimpack/runtime/training_state.hpp"

namespace slimpack::runtime {

/// Tensors that a checkpoint has of each weight. `master` are weights of higher precision than the
/// model is stored in.
enum class Stored : std::uint8_t { weight, first_moment, second_moment, master };

namespace detail {

inline constexpr std::string_view kTrainingKey = "slimpack_training";  ///< name of the other file
inline constexpr std::string_view kStepKey = "slimpack_step";
inline constexpr std::string_view kStateKey = "slimpack_state";

[[nodiscard]] inline std::string in_folder(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

/// The name in its file of what is stored of a weight.
[[nodiscard]] inline std::string stored_name(Stored kind, std::string_view weight) {
  std::string name(weight);
  switch (kind) {
    case Stored::weight:
      return name;
    case Stored::first_moment:
      return "first_moment." + name;
    case Stored::second_moment:
      return "second_moment." + name;
    case Stored::master:
      return "master." + name;
  }
  return name;
}

}  // namespace detail

/// A saved run, opened for reading by any partition. Thread-safe once open.
class Checkpoint {
 public:
  /// Throws InvalidInput naming file, tensor, rule and value: what LlamaFolder::open refuses, and
  /// weights without the training that belongs to them. O(tensors + bytes of the headers).
  [[nodiscard]] static Checkpoint open(const std::string& folder) { return Checkpoint(folder); }

  /// Shape of the saved model.
  [[nodiscard]] const ModelShape& model() const noexcept { return weights_.model(); }
  /// The weights, as a Llama folder.
  [[nodiscard]] const LlamaFolder& weights() const noexcept { return weights_; }
  /// The state of the run behind the last step that it saved.
  [[nodiscard]] const TrainingState& state() const noexcept { return state_; }
  /// Whether it holds master weights, of higher precision than the model's.
  [[nodiscard]] bool has_master() const noexcept { return has_master_; }

  /// As LlamaFolder::read. Float from F32 and double from F64 keep every bit. Throws InvalidInput,
  /// also for master weights that the checkpoint has not.
  template <StoredValue Value>
  void read(Stored kind, std::string_view weight, std::int64_t first,
            std::span<Value> values) const {
    if (kind == Stored::weight) {
      weights_.read(weight, first, values);
    } else {
      training_.read(detail::stored_name(kind, weight), first, values);
    }
  }

 private:
  explicit Checkpoint(const std::string& folder)
      : weights_(LlamaFolder::open(folder)), training_(open_training(folder, weights_)) {
    const auto& metadata = training_.header().metadata;
    const auto text = metadata.find(std::string(detail::kStateKey));
    require(text != metadata.end(), training_.path() + ": holds no state of a run (metadata " +
                                        std::string(detail::kStateKey) + ")");
    state_ = training_state_from_json(text->second, training_.path());
    const auto& of_weights = first_file(weights_).header().metadata;
    const auto step = of_weights.find(std::string(detail::kStepKey));
    if (step == of_weights.end() || step->second != std::to_string(state_.step)) {
      throw InvalidInput(training_.path() + ": must be of the step of the weights, " +
                         (step == of_weights.end() ? "which have none" : step->second) +
                         ", found " + std::to_string(state_.step));
    }
    has_master_ = training_.find(detail::stored_name(Stored::master,
                                                     weights_.tensors().front().name)) != nullptr;
    for (const NamedShape& tensor : weights_.tensors()) {
      for (const Stored kind : {Stored::first_moment, Stored::second_moment, Stored::master}) {
        if (kind == Stored::master && !has_master_) continue;
        training_.require_tensor(detail::stored_name(kind, tensor.name), tensor.shape);
      }
    }
  }

  [[nodiscard]] static const SafetensorsFile& first_file(const LlamaFolder& weights) {
    return weights.file_of(weights.tensors().front().name);
  }
  [[nodiscard]] static SafetensorsFile open_training(const std::string& folder,
                                                     const LlamaFolder& weights) {
    const SafetensorsFile& file = first_file(weights);
    const auto name = file.header().metadata.find(std::string(detail::kTrainingKey));
    if (name == file.header().metadata.end()) {
      throw InvalidInput(file.path() + ": holds weights alone, no training to resume");
    }
    if (name->second.find_first_of("/\\") != std::string::npos) {
      throw InvalidInput(file.path() + ": the training must be a file of the same folder, found " +
                         in_quotes(name->second));
    }
    return SafetensorsFile::open(detail::in_folder(folder, name->second));
  }

  LlamaFolder weights_;
  SafetensorsFile training_;
  TrainingState state_;
  bool has_master_ = false;
};

}  // namespace slimpack::runtime
