// SPDX-License-Identifier: Apache-2.0
// Saving a training run into a folder in the Hugging Face layout so that no fault loses the last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/checkpoint.hpp"
#include "slimpack/runtime/detail/disk.hpp"
#include "slimpack/runtime/detail/safetensors.hpp"
#include "slimpack/runtime/element_type.hpp"
#include "slimpack/runtime/llama_config.hpp"
#include "slimpack/runtime/llama_folder.hpp"
#include "slimpack/runtime/training_state.hpp"

namespace slimpack::runtime {

/// What a checkpoint consists of; equal on every rank.
struct CheckpointForm {
  ModelShape model;                        ///< whose tensors are written, and config.json
  ElementType weights = ElementType::f32;  ///< of model.safetensors
  ElementType moments = ElementType::f32;  ///< of both moments, and of the master weights
  bool master = false;                     ///< master weights are kept beside the model's
  std::int64_t context = 2048;             ///< longest sample, for config.json
};

/// Called with a few words before each change of what is on the disk, in their fixed order. What it
/// throws ends the saving as a full disk would; tests end the process in it.
using CheckpointObserver = std::function<void(std::string_view)>;

namespace detail {

inline constexpr std::string_view kTrainingPart = "training.safetensors.part";
inline constexpr std::string_view kWeightsPart = "model.safetensors.part";
inline constexpr std::string_view kConfigPart = "config.json.part";

inline void append_entry(SafetensorsHeader& header, Stored kind, const NamedShape& tensor,
                         ElementType type) {
  header.tensors.push_back({stored_name(kind, tensor.name), std::string(to_string(type)),
                            tensor.shape, header.data_bytes(),
                            tensor.elements() * element_bytes(type)});
}

[[nodiscard]] inline SafetensorsHeader weights_header(const CheckpointForm& form) {
  SafetensorsHeader header;
  for (const NamedShape& tensor : llama_tensors(form.model)) {
    append_entry(header, Stored::weight, tensor, form.weights);
  }
  return header;
}

[[nodiscard]] inline SafetensorsHeader training_header(const CheckpointForm& form) {
  SafetensorsHeader header;
  for (const NamedShape& tensor : llama_tensors(form.model)) {
    append_entry(header, Stored::first_moment, tensor, form.moments);
    append_entry(header, Stored::second_moment, tensor, form.moments);
    if (form.master) append_entry(header, Stored::master, tensor, form.moments);
  }
  return header;
}

/// The file of moments that belongs to the folder's weights: empty where there are no weights, or
/// weights that no training saved.
[[nodiscard]] inline std::string training_file(const std::string& folder) {
  const std::string path = in_folder(folder, kWeightsFile);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const FileBytes file = FileBytes::open(path);
  const SafetensorsHeader header = parse_safetensors(file.bytes(), path);
  const auto name = header.metadata.find(std::string(kTrainingKey));
  return name == header.metadata.end() ? std::string() : name->second;
}

}  // namespace detail

/// A checkpoint in the making; one rank has it. Order of events, every rank waiting for the others
/// between them: that rank makes the draft; every rank writes its part through a CheckpointPart and
/// finishes it; that rank commits with the sum of the bytes they wrote.
///
/// The folder holds config.json, model.safetensors and training-STEP.safetensors (moments and
/// state). model.safetensors names its training file, so that renaming that one file over its
/// predecessor makes both new at once: whenever a process or machine ends, the folder is the old
/// checkpoint or the new one, and opens in `transformers`. The old training file is removed last.
/// A draft that is not committed removes all that it has made.
class CheckpointDraft {
 public:
  /// Makes both files at full size, so that a full disk is told now; removes what an ended process
  /// left behind. Throws InvalidInput naming file and cause: the disk, or a folder that holds
  /// another model.
  CheckpointDraft(std::string folder, const CheckpointForm& form, const TrainingState& state,
                  CheckpointObserver observe = {});
  CheckpointDraft(const CheckpointDraft&) = delete;
  CheckpointDraft& operator=(const CheckpointDraft&) = delete;
  CheckpointDraft(CheckpointDraft&&) = delete;
  CheckpointDraft& operator=(CheckpointDraft&&) = delete;
  ~CheckpointDraft() { discard(); }

  /// Bytes that all parts together have to write.
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

  /// Makes the draft the folder's checkpoint. `written` is the sum over all parts; throws
  /// InvalidInput unless it is bytes(), for then a rank has failed or an element has no writer or
  /// two. What was there stays unless it returns, or throws after the one decisive renaming.
  void commit(Bytes written);

 private:
  void before(std::string_view moment) const {
    if (observe_) observe_(moment);
  }
  [[nodiscard]] std::string inside(std::string_view name) const {
    return detail::in_folder(folder_, name);
  }
  void remove(std::string_view name) const {
    std::error_code ignored;
    std::filesystem::remove(inside(name), ignored);
  }
  void make_folder() const;
  void remove_left_over() const;
  void keep_config(const CheckpointForm& form) const;
  void make_file(std::string_view name, const SafetensorsHeader& header) const;
  void discard() noexcept;

  std::string folder_;
  CheckpointObserver observe_;
  std::string old_training_, new_training_;
  Bytes bytes_;
  bool renamed_ = false;    ///< the new training file has its name
  bool committed_ = false;  ///< and the weights theirs
};

/// One rank's part of a checkpoint in the making. Parts write distinct elements, in any order and
/// at the same time, from threads or processes that share the folder.
class CheckpointPart {
 public:
  /// Opens the files of the folder's draft. Throws InvalidInput where there is none.
  explicit CheckpointPart(const std::string& folder)
      : weights_(folder, detail::kWeightsPart), training_(folder, detail::kTrainingPart) {}

  /// Elements [first, first + values.size()) of what is stored of a weight, counted along its rows.
  /// Values are rounded to nearest where the file's are narrower. Throws InvalidInput naming the
  /// tensor for a range or name that is not in the checkpoint, and for the disk. O(values).
  template <StoredValue Value>
  void write(Stored kind, std::string_view weight, std::int64_t first,
             std::span<const Value> values) {
    File& file = kind == Stored::weight ? weights_ : training_;
    written_ += file.write(detail::stored_name(kind, weight), first, values);
  }

  /// Waits until all of it is on the disk. The bytes written, to be summed over the parts. Throws
  /// InvalidInput naming file and cause.
  [[nodiscard]] Bytes finish() {
    weights_.file.finish();
    training_.file.finish();
    return written_;
  }

 private:
  struct File {
    File(const std::string& folder, std::string_view name)
        : path(detail::in_folder(folder, name)), file(detail::DiskFile::open(path)) {
      const FileBytes bytes = FileBytes::open(path);
      header = parse_safetensors(bytes.bytes(), path);
      for (std::size_t i = 0; i < header.tensors.size(); ++i) {
        by_name.emplace(header.tensors[i].name, i);
      }
    }
    template <StoredValue Value>
    Bytes write(const std::string& name, std::int64_t first, std::span<const Value> values) const;

    std::string path;
    detail::DiskFile file;
    SafetensorsHeader header;
    std::map<std::string, std::size_t> by_name;
  };

  File weights_, training_;
  Bytes written_;
};

template <StoredValue Value>
Bytes CheckpointPart::File::write(const std::string& name, std::int64_t first,
                                  std::span<const Value> values) const {
  const auto place = by_name.find(name);
  if (place == by_name.end()) {
    throw InvalidInput(path + ": the tensor '" + name + "' is not in the checkpoint");
  }
  const TensorEntry& tensor = header.tensors[place->second];
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t elements = tensor.elements();
  if (first < 0 || first > elements || count > elements - first) {
    throw InvalidInput(path + ": " + name + ": elements " + std::to_string(first) + " .. " +
                       std::to_string(first + count) + " are not within its " +
                       std::to_string(elements));
  }
  const ElementType type = from_string<ElementType>(tensor.type).value_or(ElementType::bf16);
  const std::int64_t width = element_bytes(type);
  const std::int64_t begin = header.data_begin + tensor.begin + first * width;
  if (detail::is_native<Value>(type)) {
    file.write(std::as_bytes(values), begin);
    return {count * width};
  }
  constexpr std::size_t kBlock = std::size_t{1} << 16U;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < values.size(); i += kBlock) {
    const auto part = values.subspan(i, std::min(kBlock, values.size() - i));
    bytes.resize(part.size() * static_cast<std::size_t>(width));
    store_elements(std::span(bytes), part, type);
    file.write(bytes, begin + static_cast<std::int64_t>(i) * width);
  }
  return {count * width};
}

inline CheckpointDraft::CheckpointDraft(std::string folder, const CheckpointForm& form,
                                        const TrainingState& state, CheckpointObserver observe)
    : folder_(std::move(folder)), observe_(std::move(observe)) {
  SafetensorsHeader weights = detail::weights_header(form);
  SafetensorsHeader training = detail::training_header(form);
  bytes_ = Bytes{weights.data_bytes() + training.data_bytes()};
  make_folder();
  old_training_ = detail::training_file(folder_);
  remove_left_over();
  keep_config(form);
  const std::string step = std::to_string(state.step);
  // A run may save its step again; the weights that are there need their own training file.
  new_training_ = "training-" + step + ".safetensors";
  for (int copy = 2; new_training_ == old_training_; ++copy) {
    new_training_ = "training-" + step + "-" + std::to_string(copy) + ".safetensors";
  }
  weights.metadata = {{"format", "pt"},
                      {std::string(detail::kStepKey), step},
                      {std::string(detail::kTrainingKey), new_training_}};
  training.metadata = {{std::string(detail::kStepKey), step},
                       {std::string(detail::kStateKey), training_state_json(state)}};
  try {
    make_file(detail::kTrainingPart, training);
    make_file(detail::kWeightsPart, weights);
  } catch (...) {
    discard();
    throw;
  }
}

inline void CheckpointDraft::make_folder() const {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(folder_, error)) {
    before("make the folder");
    fs::create_directories(folder_, error);
    if (error) throw InvalidInput("cannot make the folder '" + folder_ + "': " + error.message());
    const fs::path parent = fs::absolute(folder_).lexically_normal().parent_path();
    detail::sync_folder(parent.string());
  }
  require(!fs::exists(inside(kShardIndexFile), error),
          folder_ + ": holds a model in several files; save into another folder");
}

inline void CheckpointDraft::remove_left_over() const {
  before("remove what is left over");
  for (const std::string_view part :
       {detail::kTrainingPart, detail::kWeightsPart, detail::kConfigPart}) {
    remove(part);
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("training-") && name.ends_with(".safetensors") && name != old_training_) {
      remove(name);
    }
  }
}

inline void CheckpointDraft::keep_config(const CheckpointForm& form) const {
  const std::string path = inside(kConfigFile);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    ModelShape there = trainable_model(read_file(path), path);
    const bool same_type = there.bytes_per_element == element_bytes(form.weights);
    there.name = form.model.name;
    there.bytes_per_element = form.model.bytes_per_element;
    require(there == form.model && same_type,
            path + ": is of another model or element type; save into another folder");
    return;
  }
  const std::string text = llama_config_json(form.model, form.weights, form.context);
  before("write config.json");
  const std::string part = inside(detail::kConfigPart);
  try {
    auto file = detail::DiskFile::create(part, static_cast<std::int64_t>(text.size()));
    file.write(std::as_bytes(std::span(text)), 0);
    file.finish();
    before("rename config.json");
    detail::rename_over(part, path);
  } catch (...) {
    remove(detail::kConfigPart);
    throw;
  }
  detail::sync_folder(folder_);
}

inline void CheckpointDraft::make_file(std::string_view name,
                                       const SafetensorsHeader& header) const {
  before("make " + std::string(name));
  const std::string text = safetensors_header(header);
  auto file = detail::DiskFile::create(
      inside(name), static_cast<std::int64_t>(text.size()) + header.data_bytes());
  before("write the header of " + std::string(name));
  file.write(std::as_bytes(std::span(text)), 0);
  file.finish();
}

inline void CheckpointDraft::commit(Bytes written) {
  require(!committed_, folder_ + ": a draft is committed once");
  if (written != bytes_) {
    throw InvalidInput(folder_ + ": the parts of a checkpoint must have " +
                       std::to_string(bytes_.value) + " bytes together, found " +
                       std::to_string(written.value));
  }
  before("rename the training file");
  detail::rename_over(inside(detail::kTrainingPart), inside(new_training_));
  renamed_ = true;
  before("make its name durable");
  detail::sync_folder(folder_);
  before("rename the weights");
  detail::rename_over(inside(detail::kWeightsPart), inside(kWeightsFile));
  committed_ = true;
  before("make their name durable");
  detail::sync_folder(folder_);
  before("remove the old training file");
  if (!old_training_.empty()) remove(old_training_);
  before("end");
}

inline void CheckpointDraft::discard() noexcept {
  if (committed_) return;
  try {
    remove(detail::kTrainingPart);
    remove(detail::kWeightsPart);
    if (renamed_) remove(new_training_);
  } catch (...) {
    return;  // no memory for a name: the next draft removes what is left
  }
}

}  // namespace slimpack::runtime
