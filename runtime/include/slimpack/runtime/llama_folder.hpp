// SPDX-License-Identifier: Apache-2.0
// A folder in the Hugging Face Llama layout, opened for reading: config.json and safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/detail/safetensors.hpp"
#include "slimpack/runtime/element_type.hpp"
#include "slimpack/runtime/llama_config.hpp"

namespace slimpack::runtime {

/// File of a Llama folder that says which model it is.
inline constexpr std::string_view kConfigFile = "config.json";
/// File of a Llama folder that holds all weights, where they are not divided over several files.
inline constexpr std::string_view kWeightsFile = "model.safetensors";
/// File of a Llama folder that says which of several files holds each tensor.
inline constexpr std::string_view kShardIndexFile = "model.safetensors.index.json";

/// The weights of a model by name. The files are mapped: a rank that reads its part reads no other.
/// Thread-safe once open.
class LlamaFolder {
 public:
  /// Reads FOLDER/config.json and model.safetensors, or without one the files that
  /// model.safetensors.index.json names. Throws InvalidInput, one sentence with file, tensor, rule
  /// and value: a file that cannot be read, a model that cannot be computed, a tensor that is
  /// missing, has another shape, no floating-point type, or belongs to no Llama (those that every
  /// reader leaves out, rotary frequencies and the head of a tied model, are passed over).
  /// O(tensors + bytes of the headers).
  [[nodiscard]] static LlamaFolder open(const std::string& folder) { return LlamaFolder(folder); }

  /// Shape of the model, as config.json says.
  [[nodiscard]] const ModelShape& model() const noexcept { return model_; }
  /// The tensors of the model, in the order of llama_tensors.
  [[nodiscard]] const std::vector<NamedShape>& tensors() const noexcept { return tensors_; }
  /// The file that holds a tensor of the model. Throws InvalidInput for another name.
  [[nodiscard]] const SafetensorsFile& file_of(std::string_view name) const {
    const auto place = place_.find(name);
    if (place == place_.end()) {
      throw InvalidInput(folder_ + ": the model has no tensor '" + std::string(name) + "'");
    }
    return files_[place->second];
  }

  /// Elements [first, first + values.size()) of a tensor, counted along its rows: row r of a matrix
  /// begins at r * columns. Values are rounded to nearest where the file's are wider. Throws
  /// InvalidInput. O(values).
  template <StoredValue Value>
  void read(std::string_view name, std::int64_t first, std::span<Value> values) const {
    file_of(name).read(name, first, values);
  }

 private:
  explicit LlamaFolder(const std::string& folder) : folder_(folder) {
    const std::string config = inside(kConfigFile);
    model_ = trainable_model(read_file(config), config);
    tensors_ = llama_tensors(model_);
    std::error_code ignored;
    if (std::filesystem::exists(inside(kWeightsFile), ignored) ||
        !std::filesystem::exists(inside(kShardIndexFile), ignored)) {
      add_file(kWeightsFile);
    } else {
      add_shards();
    }
    check();
  }

  [[nodiscard]] std::string inside(std::string_view name) const {
    return (std::filesystem::path(folder_) / name).string();
  }
  void add_file(std::string_view name);
  void add_shards();
  void check() const;

  std::string folder_;
  ModelShape model_;
  std::vector<NamedShape> tensors_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> place_;  ///< position in `files_` by tensor
};

inline void LlamaFolder::add_file(std::string_view name) {
  files_.push_back(SafetensorsFile::open(inside(name)));
  for (const TensorEntry& tensor : files_.back().header().tensors) {
    const auto [place, fresh] = place_.emplace(tensor.name, files_.size() - 1);
    if (!fresh) {
      throw InvalidInput(files_.back().path() + ": the tensor '" + tensor.name + "' is also in " +
                         files_[place->second].path());
    }
  }
}

inline void LlamaFolder::add_shards() {
  const std::string path = inside(kShardIndexFile);
  const nlohmann::json document = parse_json(read_file(path), path);
  const JsonReader map = JsonReader(document, path).at("weight_map");
  map.check(map.is_object(), "must be an object");
  std::set<std::string> names;
  for (const auto& [tensor, unused] : document.at("weight_map").items()) {
    static_cast<void>(unused);
    const JsonReader file = map.at(tensor);
    const std::string& name = file.text();
    file.check(!name.empty() && name.find_first_of("/\\") == std::string::npos && name != "..",
               "must be a file of the same folder");
    names.insert(name);
  }
  for (const std::string& name : names) add_file(name);
  for (const auto& [tensor, file] : document.at("weight_map").items()) {
    const auto place = place_.find(tensor);
    if (place == place_.end() || files_[place->second].path() != inside(file.get<std::string>())) {
      map.at(tensor).fail("the tensor is not in that file");
    }
  }
}

inline void LlamaFolder::check() const {
  for (const NamedShape& tensor : tensors_) {
    const auto place = place_.find(tensor.name);
    if (place == place_.end()) {
      throw InvalidInput((files_.size() == 1 ? files_.front().path() : folder_) + ": the tensor '" +
                         tensor.name + "' is missing");
    }
    files_[place->second].require_tensor(tensor.name, tensor.shape);
  }
  std::set<std::string_view> known;
  for (const NamedShape& tensor : tensors_) known.insert(tensor.name);
  for (const auto& [name, file] : place_) {
    if (known.contains(name) || name.ends_with("rotary_emb.inv_freq") ||
        (model_.tied && name == "lm_head.weight")) {
      continue;
    }
    throw InvalidInput(files_[file].path() + ": the tensor '" + name +
                       "' is none of a Llama of this config.json");
  }
}

}  // namespace slimpack::runtime
