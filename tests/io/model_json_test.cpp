// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/model_json.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "slimpack/cost/presets.hpp"

namespace model_json_test {

using namespace slimpack;

namespace {

const std::string kLlama2 = R"({
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "_name_or_path": "meta-llama/Llama-2-7b-hf", "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true, "vocab_size": 32000
})";

/// The configuration above with some keys changed; a null removes one.
std::string changed(const std::string& patch) {
  nlohmann::json config = nlohmann::json::parse(kLlama2);
  config.merge_patch(nlohmann::json::parse(patch));
  return config.dump();
}

ModelShape parse(const std::string& text) {
  return model_from_json(text, "config.json");
}

void refused(const std::string& patch, const char* message) {
  CHECK_THROWS_WITH_AS(parse(changed(patch)), message, InvalidInput);
}

}  // namespace

TEST_CASE("model presets: their weights are those of their names") {
  const auto billions = [](const char* name) {
    const ModelShape model = model_preset(name).value();
    const std::int64_t tables = model.tied ? 1 : 2;
    return static_cast<double>(model.layers * model.layer_weights() + model.hidden +
                               tables * model.vocab * model.hidden) *
           1e-9;
  };
  CHECK(billions("llama-7b") == doctest::Approx(6.738).epsilon(0.001));
  CHECK(billions("llama-13b") == doctest::Approx(13.016).epsilon(0.001));
  CHECK(billions("llama-34b") == doctest::Approx(33.744).epsilon(0.002));
  CHECK(billions("llama-70b") == doctest::Approx(68.977).epsilon(0.001));
  CHECK(billions("llama-150b") == doctest::Approx(149).epsilon(0.04));
  CHECK(billions("llama3-8b") == doctest::Approx(8.030).epsilon(0.001));
  CHECK(billions("llama3-70b") == doctest::Approx(70.554).epsilon(0.001));
  CHECK(billions("llama3-405b") == doctest::Approx(405.85).epsilon(0.001));
  CHECK(billions("llama-1b") == doctest::Approx(1.2358).epsilon(0.001));
  CHECK(model_preset("tiny")->vocab == 257);
  CHECK(!model_preset("llama-8b"));
  CHECK(model_presets().size() == 10);
  CHECK(cluster_preset("h200")->memory == Bytes{150'700'000'000});
  CHECK(cluster_preset("a100")->between == Link{22e9, 1e-5});
  CHECK(!cluster_preset("h20"));
  CHECK(cluster_presets().size() == 3);
}

TEST_CASE("models: our own object goes out and comes back the same") {
  for (const ModelShape& model : model_presets()) {
    CHECK(model_from_json(model_to_json(model), "m.json") == model);
  }
  ModelShape odd = model_preset("tiny").value();
  odd.name = "a \"name\"\n\\ \x01 \xc3\xa9";
  odd.rope_theta = 12345.678901234567;
  odd.norm_eps = 0.1 + 0.2;
  CHECK(model_from_json(model_to_json(odd), "m.json") == odd);
  CHECK(model_to_json(model_preset("tiny").value()) ==
        "{\"name\": \"tiny\", \"layers\": 4, \"hidden\": 128, \"heads\": 4, \"kv_heads\": 2, "
        "\"head_dim\": 32, \"ffn\": 384, \"vocab\": 257, \"tied\": false, \"rope_theta\": 10000, "
        "\"norm_eps\": 1e-05, \"bytes_per_element\": 2}\n");
}

TEST_CASE("models: Hugging Face configurations") {
  ModelShape expected = model_preset("llama-7b").value();
  expected.name = "meta-llama/Llama-2-7b-hf";
  CHECK(parse(kLlama2) == expected);

  // Defaults where keys are absent or null.
  ModelShape model = parse(changed(R"({"num_key_value_heads": null, "_name_or_path": null,
      "rms_norm_eps": null, "tie_word_embeddings": null, "torch_dtype": null, "hidden_act": null})"));
  CHECK(model.name == "llama");
  CHECK(model.kv_heads == 32);
  CHECK(model.head_dim == 128);
  CHECK(model.norm_eps == 1e-6);
  CHECK(!model.tied);
  CHECK(model.rope_theta == 10000.0);
  CHECK(model.bytes_per_element == 2);

  model = parse(changed(R"({"num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": true,
      "rope_theta": 500000.0, "torch_dtype": "float32", "architectures": ["MistralForCausalLM"],
      "sliding_window": 4096, "use_sliding_window": false, "attention_bias": false,
      "rope_scaling": {"rope_type": "llama3", "factor": 32.0}, "layer_types": ["full_attention"]})"));
  CHECK(model.kv_heads == 8);
  CHECK(model.head_dim == 64);
  CHECK(model.tied);
  CHECK(model.rope_theta == 5e5);
  CHECK(model.bytes_per_element == 4);

  CHECK(parse(changed(R"({"rope_parameters": {"rope_theta": 250000.0}})")).rope_theta == 25e4);
  CHECK(parse(changed(R"({"torch_dtype": null, "dtype": "float64"})")).bytes_per_element == 8);
  CHECK(parse(changed(R"({"architectures": null, "model_type": "mistral"})")).layers == 32);
  CHECK(parse(changed(R"({"num_local_experts": 1, "num_experts": 0})")).layers == 32);
}

TEST_CASE("models: an architecture that is not planned is refused by name") {
  refused(R"({"num_local_experts": 8, "architectures": ["MixtralForCausalLM"]})",
          "config.json: num_local_experts: experts are not planned, found 8");
  refused(R"({"n_routed_experts": 64})",
          "config.json: n_routed_experts: experts are not planned, found 64");
  refused(R"({"sliding_window": 4096})",
          "config.json: sliding_window: sliding windows are not planned, found 4096");
  refused(R"({"sliding_window": 4096, "use_sliding_window": true})",
          "config.json: sliding_window: sliding windows are not planned, found 4096");
  refused(
      R"({"layer_types": ["full_attention", "sliding_attention"]})",
      "config.json: layer_types[1]: sliding windows are not planned, found 'sliding_attention'");
  refused(R"({"layer_types": ["linear_attention"]})",
          "config.json: layer_types[0]: layers other than full attention are not planned, found "
          "'linear_attention'");
  refused(R"({"kv_lora_rank": 512})",
          "config.json: kv_lora_rank: latent attention layers are not planned, found 512");
  refused(
      R"({"attention_chunk_size": 8192})",
      "config.json: attention_chunk_size: chunked attention layers are not planned, found 8192");
  refused(R"({"attention_bias": true})",
          "config.json: attention_bias: attention biases are not planned, found true");
  refused(R"({"mlp_bias": true})",
          "config.json: mlp_bias: feed-forward biases are not planned, found true");
  refused(R"({"hidden_act": "gelu"})",
          "config.json: hidden_act: activations other than silu are not planned, found 'gelu'");
  refused(R"({"partial_rotary_factor": 0.5})",
          "config.json: partial_rotary_factor: partly rotated heads are not planned, found 0.5");
  refused(R"({"quantization_config": {"bits": 4}})",
          "config.json: quantization_config: quantized weights are not planned, found an object");
  refused(R"({"architectures": ["GemmaForCausalLM"]})",
          "config.json: architectures[0]: the architecture must be LlamaForCausalLM or "
          "MistralForCausalLM, found 'GemmaForCausalLM'");
  refused(R"({"architectures": [], "model_type": "gpt2"})",
          "config.json: model_type: the architecture must be llama or mistral, found 'gpt2'");
  refused(R"({"architectures": null, "model_type": null})",
          "config.json: the key 'model_type' is missing");
}

TEST_CASE("models: a dense Qwen is refused with the file that plans all but a small part of it") {
  const std::string own =
      "{\"name\": \"meta-llama/Llama-2-7b-hf\", \"layers\": 32, \"hidden\": 4096, \"heads\": 32, "
      "\"kv_heads\": 8, \"head_dim\": 128, \"ffn\": 11008, \"vocab\": 32000, \"tied\": false, "
      "\"rope_theta\": 1e+06, \"norm_eps\": 1e-05, \"bytes_per_element\": 2}";
  const std::string sizes = R"("rope_theta": 1000000.0, "num_key_value_heads": 8)";
  refused("{\"architectures\": [\"Qwen2ForCausalLM\"], " + sizes + "}",
          ("config.json: architectures[0]: the architecture must be LlamaForCausalLM or "
           "MistralForCausalLM, found 'Qwen2ForCausalLM'; it is a Llama with attention biases, a "
           "small part of its work, and a file that holds " +
           own + " plans it without them")
              .c_str());
  refused("{\"architectures\": null, \"model_type\": \"qwen3\", \"attention_bias\": false, " +
              sizes + "}",
          ("config.json: model_type: the architecture must be llama or mistral, found 'qwen3'; it "
           "is a Llama with norms of queries and keys, a small part of its work, and a file that "
           "holds " +
           own + " plans it without them")
              .c_str());
  CHECK(parse(own).kv_heads == 8);
  // What makes one no Llama at all is told first.
  refused(R"({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128})",
          "config.json: num_experts: experts are not planned, found 128");
  refused(R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": null})",
          "config.json: the key 'vocab_size' is missing");
}

TEST_CASE("models: an unknown key of the own format is refused, a config.json may have any") {
  const auto own_with = [](const char* patch) {
    nlohmann::json object = nlohmann::json::parse(model_to_json(model_preset("tiny").value()));
    object.merge_patch(nlohmann::json::parse(patch));
    return object.dump();
  };
  CHECK_THROWS_WITH_AS(parse(own_with(R"({"kv_heads": null, "num_kv_heads": 2})")),
                       "config.json: the key 'num_kv_heads' is not known; did you mean 'kv_heads'?",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(parse(own_with(R"({"qk_norm": true})")),
                       "config.json: the key 'qk_norm' is not known; the keys are name, layers, "
                       "hidden, heads, kv_heads, head_dim, ffn, vocab, tied, rope_theta, norm_eps, "
                       "bytes_per_element",
                       InvalidInput);
  CHECK(parse(changed(R"({"num_kv_heads": 5, "layers": 7})")).layers == 32);
  const nlohmann::json object = nlohmann::json::parse(own_with(R"({"qk_norm": true})"));
  CHECK(detail::read_model(JsonReader(object, "plan.json")) == model_preset("tiny").value());
}

TEST_CASE("models: wrong values are named with their key") {
  refused(R"({"vocab_size": null})", "config.json: the key 'vocab_size' is missing");
  refused(R"({"hidden_size": "4096"})",
          "config.json: hidden_size: must be an integer in 1 .. 2147483648, found '4096'");
  refused(R"({"num_hidden_layers": 0})",
          "config.json: num_hidden_layers: must be an integer in 1 .. 2147483648, found 0");
  refused(R"({"num_attention_heads": -32})",
          "config.json: num_attention_heads: must be an integer in 1 .. 2147483648, found -32");
  refused(R"({"num_key_value_heads": 5})",
          "config.json: kv heads must divide heads, found 5 of 32");
  refused(R"({"head_dim": 127})",
          "config.json: the width of a head must be even for rotary positions, found 127");
  refused(
      R"({"hidden_size": 4095})",
      "config.json: hidden_size: must be a multiple of num_attention_heads where head_dim is not "
      "given, found 4095");
  refused(R"({"hidden_size": 2147483648, "intermediate_size": 2147483648})",
          "config.json: the weights and their state must be countable in 63 bits");
  refused(R"({"torch_dtype": "float8_e4m3fn"})",
          "config.json: torch_dtype: must be one of 'bfloat16', 'float16', 'float32', 'float64', "
          "'torch.bfloat16', 'torch.float16', 'torch.float32', 'torch.float64', found "
          "'float8_e4m3fn'");
  refused(R"({"rope_theta": 0})",
          "config.json: rope_theta: must be a number in 1e-30 .. 1e+30, found 0");
  refused(R"({"rms_norm_eps": -1.0})",
          "config.json: rms_norm_eps: must be a number in 0.0 .. 1.0, found -1.0");
  refused(R"({"tie_word_embeddings": 1})",
          "config.json: tie_word_embeddings: must be true or false, found 1");

  const std::string own = model_to_json(model_preset("tiny").value());
  const auto own_refused = [&own](const char* patch, const char* message) {
    nlohmann::json object = nlohmann::json::parse(own);
    object.merge_patch(nlohmann::json::parse(patch));
    CHECK_THROWS_WITH_AS(parse(object.dump()), message, InvalidInput);
  };
  own_refused(R"({"ffn": null})", "config.json: the key 'ffn' is missing");
  own_refused(R"({"bytes_per_element": 3})",
              "config.json: bytes_per_element: must be a power of two, found 3");
  own_refused(R"({"bytes_per_element": 16})",
              "config.json: bytes_per_element: must be an integer in 1 .. 8, found 16");
  own_refused(R"({"name": 7})", "config.json: name: must be a string, found 7");
  CHECK_THROWS_WITH_AS(parse("[1]"), "config.json: must be an object, found an array of 1",
                       InvalidInput);
}

TEST_CASE("JSON: text that is none is refused with its place") {
  CHECK_THROWS_WITH_AS(parse("{\"a\": 1,\n}"),
                       "config.json: not valid JSON: parse error at line 2, column 1: syntax error "
                       "while parsing object key - unexpected '}'; expected string literal",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(parse("{\"a\": 1e999}"),
                       "config.json: not valid JSON: number overflow parsing '1e999'",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(parse("{\"a\": NaN}"),
                       "config.json: not valid JSON: parse error at line 1, column 7: syntax error "
                       "while parsing value - invalid literal; last read: '\"a\": N'",
                       InvalidInput);
  const std::string deep(1000000, '[');
  CHECK_THROWS_WITH_AS(parse(deep), "config.json: byte 64: JSON may be nested at most 64 deep",
                       InvalidInput);
  // Brackets in strings, escaped quotes among them, are no nesting.
  CHECK_THROWS_WITH_AS(
      parse("[\"" + std::string(200, '[') + "\\\"" + std::string(200, '[') + "\"]"),
      "config.json: must be an object, found an array of 1", InvalidInput);
}

}  // namespace model_json_test
