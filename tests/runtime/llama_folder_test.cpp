// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/llama_folder.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint_folder.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "support/temporary.hpp"

namespace llama_folder_test {

using namespace slimpack;

namespace {

std::string file_of(const std::vector<runtime::NamedShape>& tensors,
                    runtime::ElementType type = runtime::ElementType::f32) {
  runtime::SafetensorsHeader header;
  std::string data;
  for (const runtime::NamedShape& tensor : tensors) {
    header.tensors.push_back({tensor.name, std::string(runtime::to_string(type)), tensor.shape,
                              header.data_bytes(),
                              tensor.elements() * runtime::element_bytes(type)});
    const auto values =
        test::stored_values<float>(runtime::Stored::weight, tensor, 1, 0, tensor.elements());
    std::vector<std::byte> bytes(static_cast<std::size_t>(header.tensors.back().bytes));
    runtime::store_elements(std::span(bytes), std::span<const float>(values), type);
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return runtime::safetensors_header(header) + data;
}

void refused(const std::string& folder, const std::string& message) {
  CHECK_THROWS_WITH_AS((void)runtime::LlamaFolder::open(folder), message.c_str(), InvalidInput);
}

void check_weights(const runtime::LlamaFolder& folder) {
  for (const runtime::NamedShape& tensor : folder.tensors()) {
    CAPTURE(tensor.name);
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    folder.read(tensor.name, 0, std::span<float>(values));
    CHECK(values ==
          test::stored_values<float>(runtime::Stored::weight, tensor, 1, 0, tensor.elements()));
  }
}

}  // namespace

TEST_CASE("llama tensors: the same names and sizes as the backend's") {
  for (const bool tied : {false, true}) {
    const ModelShape model = test::small_llama(tied);
    const auto stored = runtime::llama_tensors(model);
    const auto computed = runtime::model_tensors(model);
    REQUIRE(stored.size() == computed.size());
    for (std::size_t i = 0; i < stored.size(); ++i) {
      CAPTURE(stored[i].name);
      CHECK(stored[i].name == computed[i].name);
      CHECK(stored[i].shape.back() == computed[i].cols);
      CHECK((stored[i].shape.size() == 1 ? 1 : stored[i].shape.front()) == computed[i].rows);
    }
  }
}

TEST_CASE("llama config: read back it is the same model") {
  for (const runtime::ElementType type :
       {runtime::ElementType::f64, runtime::ElementType::f32, runtime::ElementType::bf16}) {
    for (const bool tied : {false, true}) {
      ModelShape model = test::small_llama(tied);
      model.head_dim = 6;  // not hidden / heads
      model.norm_eps = 1.0 / 3e5;
      model.bytes_per_element = runtime::element_bytes(type);
      CHECK(runtime::trainable_model(runtime::llama_config_json(model, type, 4096), "x") == model);
    }
  }
  CHECK_THROWS_AS(
      (void)runtime::llama_config_json(test::small_llama(), runtime::ElementType::f16, 1),
      InvalidInput);
}

TEST_CASE("llama config: scaled positions are planned, and not computed") {
  const auto with = [](const std::string& rope) {
    std::string text =
        runtime::llama_config_json(test::small_llama(), runtime::ElementType::f32, 4096);
    const std::string none = "\"rope_scaling\": null";
    return text.replace(text.find(none), none.size(), rope);
  };
  const auto refuse = [&](const std::string& rope, const char* message) {
    CHECK(model_from_json(with(rope), "x") == test::small_llama());
    CHECK_THROWS_WITH_AS((void)runtime::trainable_model(with(rope), "x"), message, InvalidInput);
  };
  refuse(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})",
         "x: rope_scaling.rope_type: scaled positions are not computed, found 'llama3'");
  refuse(R"("rope_scaling": {"type": "linear", "factor": 2.0})",
         "x: rope_scaling.type: scaled positions are not computed, found 'linear'");
  refuse(R"("rope_scaling": {"factor": 2.0})",
         "x: rope_scaling: scaled positions are not computed, found an object");
  refuse(R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 500000.0})",
         "x: rope_parameters.rope_type: scaled positions are not computed, found 'yarn'");
  for (const char* plain : {R"("rope_scaling": {"rope_type": "default"})",
                            R"("rope_parameters": {"rope_type": "default", "rope_theta": 1.0})"}) {
    CHECK(runtime::trainable_model(with(plain), "x") == test::small_llama());
  }
}

TEST_CASE("LlamaFolder: one file, several files, every type, tied and not") {
  for (const bool tied : {false, true}) {
    const test::TemporaryFolder folder;
    const ModelShape model = test::small_llama(tied);
    auto tensors = runtime::llama_tensors(model);
    write_file(folder.file("config.json"),
               runtime::llama_config_json(model, runtime::ElementType::f32, 64));
    const std::size_t half = tensors.size() / 2;
    const std::vector<runtime::NamedShape> first(tensors.begin(), tensors.begin() + 7),
        second(tensors.begin() + 7, tensors.end());
    CHECK(half > 0);
    write_file(folder.file("a.safetensors"), file_of(first));
    write_file(folder.file("b.safetensors"), file_of(second));
    std::string map;
    for (const runtime::NamedShape& tensor : first)
      map += '"' + tensor.name + "\": \"a.safetensors\", ";
    for (const runtime::NamedShape& tensor : second)
      map += '"' + tensor.name + "\": \"b.safetensors\", ";
    map.resize(map.size() - 2);
    write_file(folder.file("model.safetensors.index.json"),
               R"({"metadata": {"total_size": 1}, "weight_map": {)" + map + "}}");
    check_weights(runtime::LlamaFolder::open(folder.file("")));
    CHECK(runtime::LlamaFolder::open(folder.file("")).model() == model);

    // What transformers leaves out, and without need for the index.
    tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}});
    if (tied) tensors.push_back({"lm_head.weight", {16, 8}});
    write_file(folder.file("model.safetensors"), file_of(tensors));
    const runtime::LlamaFolder single = runtime::LlamaFolder::open(folder.file(""));
    check_weights(single);
    CHECK(single.file_of("model.norm.weight").path() == folder.file("model.safetensors"));
  }
}

TEST_CASE("LlamaFolder: what is wrong is named in a sentence") {
  const test::TemporaryFolder folder;
  const std::string weights = folder.file("model.safetensors");
  const ModelShape model = test::small_llama();
  const auto tensors = runtime::llama_tensors(model);
  const std::string path = folder.file("");
  refused(path, "cannot open '" + path + "config.json': No such file or directory");
  write_file(folder.file("config.json"),
             runtime::llama_config_json(model, runtime::ElementType::f32, 64));
  refused(path, "cannot open '" + weights + "': No such file or directory");

  auto missing = tensors;
  missing.pop_back();
  write_file(weights, file_of(missing));
  refused(path, weights + ": the tensor 'lm_head.weight' is missing");
  auto transposed = tensors;
  transposed[2].shape = {8, 16, 1};
  write_file(weights, file_of(transposed));
  refused(path, weights +
                    ": model.layers.0.self_attn.q_proj.weight: shape must be [16, 8], found "
                    "[8, 16, 1]");
  auto biased = tensors;
  biased.push_back({"model.layers.0.self_attn.q_proj.bias", {16}});
  write_file(weights, file_of(biased));
  refused(path, weights +
                    ": the tensor 'model.layers.0.self_attn.q_proj.bias' is none of a Llama "
                    "of this config.json");
  std::string integers = file_of(tensors);
  integers.replace(integers.find("F32"), 3, "I32");
  write_file(weights, integers);
  refused(path, weights +
                    ": model.embed_tokens.weight: dtype must be F64, F32, F16 or BF16, found "
                    "I32");
  write_file(weights, file_of(tensors));
  const runtime::LlamaFolder good = runtime::LlamaFolder::open(path);
  std::vector<float> value(1);
  CHECK_THROWS_WITH_AS(good.read("x", 0, std::span<float>(value)),
                       (path + ": the model has no tensor 'x'").c_str(), InvalidInput);
  std::filesystem::remove(weights);

  const std::string index = folder.file("model.safetensors.index.json");
  const auto refuse_index = [&](const std::string& text, const std::string& message) {
    write_file(index, text);
    refused(path, message);
  };
  refuse_index("{}", index + ": the key 'weight_map' is missing");
  refuse_index(R"({"weight_map": []})",
               index + ": weight_map: must be an object, found an array of 0");
  refuse_index(R"({"weight_map": {"a": "../b"}})",
               index + ": weight_map.a: must be a file of the same folder, found '../b'");
  refuse_index(R"({"weight_map": {"a": 3}})", index + ": weight_map.a: must be a string, found 3");
  refuse_index(R"({"weight_map": {"a": "none"}})",
               "cannot open '" + path + "none': No such file or directory");
  write_file(folder.file("a"), file_of(tensors));
  write_file(folder.file("b"), file_of({tensors[0]}));
  refuse_index(R"({"weight_map": {"x": "a"}})",
               index + ": weight_map.x: the tensor is not in that file");
  refuse_index(R"({"weight_map": {"lm_head.weight": "a", "model.embed_tokens.weight": "b"}})",
               path + "b: the tensor 'model.embed_tokens.weight' is also in " + path + "a");
  refuse_index(R"({"weight_map": {"model.embed_tokens.weight": "b"}})",
               path + "b: the tensor 'model.layers.0.input_layernorm.weight' is missing");
}

}  // namespace llama_folder_test
