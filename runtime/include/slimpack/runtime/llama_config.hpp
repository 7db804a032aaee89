// SPDX-License-Identifier: Apache-2.0
// A Llama as Hugging Face stores it: the names and shapes of its tensors, and its config.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/element_type.hpp"

namespace slimpack::runtime {

/// A stored tensor. A gain has one dimension, a matrix two: rows are outputs, as in
/// `torch.nn.Linear`.
struct NamedShape {
  std::string name;                 ///< as in `LlamaForCausalLM`
  std::vector<std::int64_t> shape;  ///< sizes of its dimensions, rows first
  friend bool operator==(const NamedShape&, const NamedShape&) = default;

  /// Number of elements.
  [[nodiscard]] std::int64_t elements() const noexcept {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

/// All tensors of a model, named as in `LlamaForCausalLM`; with tied embeddings `lm_head.weight` is
/// not among them. Rotary positions turn element i of a head with element i + head_dim / 2, there
/// as in the backends, so that the rows of queries and keys stand in the same order.
[[nodiscard]] inline std::vector<NamedShape> llama_tensors(const ModelShape& model) {
  const std::int64_t hidden = model.hidden, query = model.query_width(), key = model.key_width();
  std::vector<NamedShape> tensors{{"model.embed_tokens.weight", {model.vocab, hidden}}};
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back({prefix + "input_layernorm.weight", {hidden}});
    tensors.push_back({prefix + "self_attn.q_proj.weight", {query, hidden}});
    tensors.push_back({prefix + "self_attn.k_proj.weight", {key, hidden}});
    tensors.push_back({prefix + "self_attn.v_proj.weight", {key, hidden}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", {hidden, query}});
    tensors.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
    tensors.push_back({prefix + "mlp.gate_proj.weight", {model.ffn, hidden}});
    tensors.push_back({prefix + "mlp.up_proj.weight", {model.ffn, hidden}});
    tensors.push_back({prefix + "mlp.down_proj.weight", {hidden, model.ffn}});
  }
  tensors.push_back({"model.norm.weight", {hidden}});
  if (!model.tied) tensors.push_back({"lm_head.weight", {model.vocab, hidden}});
  return tensors;
}

/// config.json of a model whose weights are stored as `type`, for documents of up to `context`
/// tokens. Read back with model_from_json it is the same model, with the element size of `type`.
/// No token is marked as beginning or end of text: ids mean what the data says. Throws InvalidInput
/// for F16, which weights are not written in.
[[nodiscard]] inline std::string llama_config_json(const ModelShape& model, ElementType type,
                                                   std::int64_t context) {
  require(type != ElementType::f16, "weights are written as F64, F32 or BF16, not as F16");
  JsonWriter out;
  const auto next = [&out](std::string_view key) -> JsonWriter& { return out.line(2).key(key); };
  out.begin_object(JsonLayout::flat);
  next("_name_or_path").text(model.name);
  next("architectures").begin_array().text("LlamaForCausalLM").end_array();
  next("model_type").text("llama");
  next("vocab_size").number(model.vocab);
  next("hidden_size").number(model.hidden);
  next("intermediate_size").number(model.ffn);
  next("num_hidden_layers").number(model.layers);
  next("num_attention_heads").number(model.heads);
  next("num_key_value_heads").number(model.kv_heads);
  next("head_dim").number(model.head_dim);
  next("hidden_act").text("silu");
  next("max_position_embeddings").number(context);
  next("rms_norm_eps").number(model.norm_eps);
  next("rope_theta").number(model.rope_theta);
  next("rope_scaling").null();
  next("attention_bias").boolean(false);
  next("mlp_bias").boolean(false);
  next("tie_word_embeddings").boolean(model.tied);
  next("bos_token_id").null();
  next("eos_token_id").null();
  next("torch_dtype")
      .text(type == ElementType::f64   ? "float64"
            : type == ElementType::f32 ? "float32"
                                       : "bfloat16");
  return out.line(0).end_object().take() + "\n";
}

/// The model of a config.json that can be computed as it is meant: what model_from_json accepts,
/// less rotary positions that are scaled, which leave a plan as it is but not the logits. Throws
/// InvalidInput naming file, key, rule and value.
[[nodiscard]] inline ModelShape trainable_model(std::string_view text, const std::string& name) {
  ModelShape model = model_from_json(text, name);
  const nlohmann::json document = parse_json(text, name);
  const JsonReader config(document, name);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = config.find_value(key);
    if (!rope) continue;
    for (const std::string_view kind : {"rope_type", "type"}) {
      const auto type = rope->find_value(kind);
      if (type && type->text() != "default") type->refuse("scaled positions are not computed");
    }
    if (key == "rope_scaling" && !rope->find_value("rope_type") && !rope->find_value("type")) {
      rope->refuse("scaled positions are not computed");
    }
  }
  return model;
}

}  // namespace slimpack::runtime
