// SPDX-License-Identifier: Apache-2.0
// Model shapes as JSON: the `model` object of plan.json, and Hugging Face config.json.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/io/known_keys.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

/// A model from the JSON text of a file: a Hugging Face config.json where it has the key
/// `num_hidden_layers`, `model_type` or `architectures`, else the `model` object of plan.json.
/// A config.json may have any further keys; of the own format an unknown key is refused.
/// Throws InvalidInput naming file, key, rule and value; an architecture that is not planned is
/// refused by the name of what it needs.
[[nodiscard]] ModelShape model_from_json(std::string_view text, const std::string& name);

/// The `model` object of plan.json.
[[nodiscard]] std::string model_to_json(const ModelShape& model);

namespace detail {

/// Refuses shapes that no Llama has, and those whose byte counts would not fit in 63 bits.
inline void check_model(const JsonReader& place, const ModelShape& model) {
  if (model.heads % model.kv_heads != 0) {
    place.fail("kv heads must divide heads, found " + std::to_string(model.kv_heads) + " of " +
               std::to_string(model.heads));
  }
  if (model.head_dim % 2 != 0) {
    place.fail("the width of a head must be even for rotary positions, found " +
               std::to_string(model.head_dim));
  }
  constexpr double kBytesOfState = 64;  // more than weight, gradient, master and two moments take
  const auto hidden = static_cast<double>(model.hidden);
  const double widths =
      2.0 * static_cast<double>(model.heads) * static_cast<double>(model.head_dim) +
      2.0 * static_cast<double>(model.kv_heads) * static_cast<double>(model.head_dim) +
      3.0 * static_cast<double>(model.ffn) + 2.0;
  const double weights = hidden * (widths * static_cast<double>(model.layers) +
                                   2.0 * static_cast<double>(model.vocab) + 1.0);
  if (!(weights * kBytesOfState < 0x1p62)) {
    place.fail("the weights and their state must be countable in 63 bits");
  }
}

inline constexpr std::int64_t kLargestDimension = std::int64_t{1} << 31U;
inline constexpr double kLargestTheta = 1e30;

/// The size of an element: a power of two, at most `most`.
[[nodiscard]] inline std::int64_t read_element_bytes(const JsonReader& value, std::int64_t most) {
  const std::int64_t bytes = value.integer(1, most);
  value.check((bytes & (bytes - 1)) == 0, "must be a power of two");
  return bytes;
}

/// The keys of the `model` object of plan.json.
inline constexpr std::array<std::string_view, 12> kModelKeys{
    "name", "layers", "hidden", "heads",      "kv_heads", "head_dim",
    "ffn",  "vocab",  "tied",   "rope_theta", "norm_eps", "bytes_per_element"};

/// The `model` object of plan.json; other keys are ignored.
[[nodiscard]] inline ModelShape read_model(const JsonReader& object) {
  const auto dimension = [&object](std::string_view key) {
    return object.at(key).integer(1, kLargestDimension);
  };
  ModelShape model;
  model.name = object.at("name").text();
  model.layers = dimension("layers");
  model.hidden = dimension("hidden");
  model.heads = dimension("heads");
  model.kv_heads = dimension("kv_heads");
  model.head_dim = dimension("head_dim");
  model.ffn = dimension("ffn");
  model.vocab = dimension("vocab");
  model.tied = object.at("tied").boolean();
  model.rope_theta = object.at("rope_theta").real(1e-30, kLargestTheta);
  model.norm_eps = object.at("norm_eps").real(0, 1);
  model.bytes_per_element = read_element_bytes(object.at("bytes_per_element"), 8);
  check_model(object, model);
  return model;
}

inline void write_model(JsonWriter& out, const ModelShape& model) {
  out.begin_object(JsonLayout::flat).key("name").text(model.name);
  out.key("layers").number(model.layers).key("hidden").number(model.hidden);
  out.key("heads").number(model.heads).key("kv_heads").number(model.kv_heads);
  out.key("head_dim").number(model.head_dim).key("ffn").number(model.ffn);
  out.key("vocab").number(model.vocab).key("tied").boolean(model.tied);
  out.key("rope_theta").number(model.rope_theta).key("norm_eps").number(model.norm_eps);
  out.key("bytes_per_element").number(model.bytes_per_element).end_object();
}

/// "FILE: KEY: REASON is not planned, found VALUE".
inline void refuse_feature(const JsonReader& value, std::string_view feature) {
  value.refuse(std::string(feature) + " are not planned");
}

/// True for a number above `most`, or anything else that is not null, false or a number.
[[nodiscard]] inline bool is_active(const JsonReader& value, std::int64_t most) {
  if (value.is_null()) return false;
  if (value.is_number()) return value.real(-1e300, 1e300) > static_cast<double>(most);
  if (value.is_boolean()) return value.boolean();
  return true;
}

/// Refuses what a Llama does not have, by its name.
inline void refuse_other_features(const JsonReader& config) {
  struct Feature {
    std::string_view key;
    std::string_view name;
    std::int64_t most;  ///< a number up to this one means that the feature is off
  };
  static constexpr std::array<Feature, 19> kFeatures{{
      {"num_local_experts", "experts", 1},
      {"num_experts", "experts", 1},
      {"n_routed_experts", "experts", 0},
      {"n_shared_experts", "experts", 0},
      {"moe_num_experts", "experts", 1},
      {"moe_intermediate_size", "experts", 0},
      {"ffn_config", "other feed-forward blocks", 0},
      {"kv_lora_rank", "latent attention layers", 0},
      {"q_lora_rank", "latent attention layers", 0},
      {"attention_chunk_size", "chunked attention layers", 0},
      {"attention_bias", "attention biases", 0},
      {"qkv_bias", "attention biases", 0},
      {"mlp_bias", "feed-forward biases", 0},
      {"use_qk_norm", "norms of queries and keys", 0},
      {"qk_layernorm", "norms of queries and keys", 0},
      {"num_nextn_predict_layers", "multi-token prediction layers", 0},
      {"is_encoder_decoder", "encoder-decoder models", 0},
      {"add_cross_attention", "cross-attention layers", 0},
      {"quantization_config", "quantized weights", 0},
  }};
  for (const Feature& feature : kFeatures) {
    const auto value = config.find(feature.key);
    if (value && is_active(*value, feature.most)) refuse_feature(*value, feature.name);
  }
  // A sliding window may be written down and switched off.
  const auto window = config.find_value("sliding_window");
  const auto used = config.find_value("use_sliding_window");
  if (window && is_active(*window, 0) && !(used && !used->boolean())) {
    refuse_feature(*window, "sliding windows");
  }
  if (const auto types = config.find_value("layer_types")) {
    for (std::size_t layer = 0; layer < types->size(); ++layer) {
      const JsonReader type = types->item(layer);
      if (type.text() == "sliding_attention") refuse_feature(type, "sliding windows");
      if (type.text() != "full_attention") refuse_feature(type, "layers other than full attention");
    }
  }
  if (const auto part = config.find_value("partial_rotary_factor")) {
    if (part->real(0, 1) != 1) refuse_feature(*part, "partly rotated heads");
  }
  const auto activation = config.find_value("hidden_act");
  if (activation && activation->text() != "silu" && activation->text() != "swish") {
    refuse_feature(*activation, "activations other than silu");
  }
}

/// True for dense models that differ from a Llama in biases of the attention (Qwen2) or norms of
/// queries and keys (Qwen3) alone.
[[nodiscard]] constexpr bool is_nearly_llama(std::string_view name) noexcept {
  return name == "Qwen2ForCausalLM" || name == "qwen2" || name == "Qwen3ForCausalLM" ||
         name == "qwen3";
}

[[nodiscard]] ModelShape read_sizes(const JsonReader& config);

/// Refuses an architecture; of one that is nearly a Llama with the file that would plan it.
[[noreturn]] inline void refuse_architecture(const JsonReader& config, const JsonReader& name,
                                             std::string_view rule) {
  if (!is_nearly_llama(name.text())) name.refuse(rule);
  std::string shape = model_to_json(read_sizes(config));
  shape.pop_back();  // the line feed
  const bool biases = name.text().find('2') != std::string::npos;
  name.fail(std::string(rule) + ", found " + in_quotes(name.text()) + "; it is a Llama with " +
            (biases ? "attention biases" : "norms of queries and keys") +
            ", a small part of its work, and a file that holds " + shape +
            " plans it without them");
}

/// The architecture by its name; checked after the features, whose names say more.
inline void check_architecture(const JsonReader& config) {
  if (const auto names = config.find_value("architectures"); names && names->size() > 0) {
    for (std::size_t i = 0; i < names->size(); ++i) {
      const JsonReader name = names->item(i);
      if (name.text() != "LlamaForCausalLM" && name.text() != "LLaMAForCausalLM" &&
          name.text() != "MistralForCausalLM") {
        refuse_architecture(config, name,
                            "the architecture must be LlamaForCausalLM or MistralForCausalLM");
      }
    }
    return;
  }
  const JsonReader type = config.at("model_type");
  if (type.text() != "llama" && type.text() != "mistral") {
    refuse_architecture(config, type, "the architecture must be llama or mistral");
  }
}

[[nodiscard]] inline std::int64_t read_dtype_bytes(const JsonReader& config) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 8> kTypes{{
      {"bfloat16", 2},
      {"float16", 2},
      {"float32", 4},
      {"float64", 8},
      {"torch.bfloat16", 2},
      {"torch.float16", 2},
      {"torch.float32", 4},
      {"torch.float64", 8},
  }};
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (const auto type = config.find_value(key)) return type->choice(kTypes);
  }
  return 2;
}

/// RoPE's base: at the top, or among `rope_parameters`. Scaled positions change no shape and are
/// allowed.
[[nodiscard]] inline double read_rope_theta(const JsonReader& config) {
  if (const auto theta = config.find_value("rope_theta")) return theta->real(1e-30, kLargestTheta);
  if (const auto parameters = config.find_value("rope_parameters")) {
    if (const auto theta = parameters->find_value("rope_theta")) {
      return theta->real(1e-30, kLargestTheta);
    }
  }
  return 10000.0;
}

/// The shape that a Hugging Face config.json has, whatever its architecture. Absent keys have the
/// defaults of the Llama configuration, but a missing dtype is bf16 and the sizes must be there.
inline ModelShape read_sizes(const JsonReader& config) {
  const auto dimension = [&config](std::string_view key) {
    return config.at(key).integer(1, kLargestDimension);
  };
  ModelShape model;
  const auto path = config.find_value("_name_or_path");
  const auto type = config.find_value("model_type");
  model.name = path && !path->text().empty() ? path->text() : type ? type->text() : "llama";
  model.layers = dimension("num_hidden_layers");
  model.hidden = dimension("hidden_size");
  model.heads = dimension("num_attention_heads");
  const bool grouped = config.find_value("num_key_value_heads").has_value();
  model.kv_heads = grouped ? dimension("num_key_value_heads") : model.heads;
  if (config.find_value("head_dim")) {
    model.head_dim = dimension("head_dim");
  } else {
    const JsonReader hidden = config.at("hidden_size");
    if (model.hidden % model.heads != 0) {
      hidden.refuse("must be a multiple of num_attention_heads where head_dim is not given");
    }
    model.head_dim = model.hidden / model.heads;
  }
  model.ffn = dimension("intermediate_size");
  model.vocab = dimension("vocab_size");
  const auto tied = config.find_value("tie_word_embeddings");
  model.tied = tied && tied->boolean();
  model.rope_theta = read_rope_theta(config);
  const auto epsilon = config.find_value("rms_norm_eps");
  model.norm_eps = epsilon ? epsilon->real(0, 1) : 1e-6;
  model.bytes_per_element = read_dtype_bytes(config);
  check_model(config, model);
  return model;
}

/// A Hugging Face config.json of an architecture that is planned.
[[nodiscard]] inline ModelShape read_hugging_face(const JsonReader& config) {
  refuse_other_features(config);
  check_architecture(config);
  return read_sizes(config);
}

}  // namespace detail

inline ModelShape model_from_json(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  const JsonReader object(document, name);
  const bool hugging_face =
      object.find("num_hidden_layers") || object.find("architectures") || object.find("model_type");
  if (hugging_face) return detail::read_hugging_face(object);
  check_known_keys(object, detail::kModelKeys);
  return detail::read_model(object);
}

inline std::string model_to_json(const ModelShape& model) {
  JsonWriter out;
  detail::write_model(out, model);
  return out.take() + "\n";
}

}  // namespace slimpack
