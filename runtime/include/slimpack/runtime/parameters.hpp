// SPDX-License-Identifier: Apache-2.0
// The decoder's weights as named tensors, and which of them a device holds.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::runtime {

/// A weight, named as in Hugging Face's Llama. A gain has one row.
struct TensorShape {
  std::string name;       ///< such as "model.layers.0.self_attn.q_proj.weight"
  std::int64_t rows = 0;  ///< outputs; of the embedding and the head the vocabulary
  std::int64_t cols = 0;  ///< inputs; of the embedding the hidden width
};

/// Name of the embedding, vocabulary x hidden; with tied embeddings the head's table too.
inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
/// Name of the gain of the norm behind the last layer.
inline constexpr std::string_view kFinalNorm = "model.norm.weight";
/// Name of the vocabulary projection, vocabulary x hidden; there is none with tied embeddings.
inline constexpr std::string_view kHead = "lm_head.weight";

/// The tensors of one layer, in the order in which a device holds them.
enum class LayerTensor : std::uint8_t {
  input_norm,
  query,
  key,
  value,
  output,
  mid_norm,
  gate,
  up,
  down
};

/// The tensors of a layer, in the order of LayerTensor.
[[nodiscard]] inline std::vector<TensorShape> layer_tensors(const ModelShape& model,
                                                            std::int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::int64_t h = model.hidden, q = model.query_width(), k = model.key_width();
  return {{prefix + "input_layernorm.weight", 1, h},
          {prefix + "self_attn.q_proj.weight", q, h},
          {prefix + "self_attn.k_proj.weight", k, h},
          {prefix + "self_attn.v_proj.weight", k, h},
          {prefix + "self_attn.o_proj.weight", h, q},
          {prefix + "post_attention_layernorm.weight", 1, h},
          {prefix + "mlp.gate_proj.weight", model.ffn, h},
          {prefix + "mlp.up_proj.weight", model.ffn, h},
          {prefix + "mlp.down_proj.weight", h, model.ffn}};
}

/// All tensors of a model; with tied embeddings there is no head of its own.
[[nodiscard]] inline std::vector<TensorShape> model_tensors(const ModelShape& model) {
  std::vector<TensorShape> tensors{{std::string(kEmbedding), model.vocab, model.hidden}};
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    for (TensorShape& tensor : layer_tensors(model, layer)) tensors.push_back(std::move(tensor));
  }
  tensors.push_back({std::string(kFinalNorm), 1, model.hidden});
  if (!model.tied) tensors.push_back({std::string(kHead), model.vocab, model.hidden});
  return tensors;
}

/// Fills rows [first_row, first_row + values.size() / cols) of a tensor. A row depends on seed,
/// name and row number only, so that every partition of a model begins with the same weights:
/// matrices normal with variance 1 / cols, gains uniform in [0.9, 1.1) lest a wrong gain go unseen.
inline void initialise(std::span<double> values, const TensorShape& tensor, std::int64_t first_row,
                       std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char letter : tensor.name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  }
  const auto cols = static_cast<std::size_t>(tensor.cols);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(tensor.cols));
  for (std::size_t row = 0; row * cols < values.size(); ++row) {
    Random mixer(seed ^ hash);
    Random random(mixer.bits() + static_cast<std::uint64_t>(first_row) + row);
    for (double& value : values.subspan(row * cols, cols)) {
      value = tensor.rows == 1 ? 0.9 + 0.2 * random.unit() : deviation * random.normal();
    }
  }
}

/// Rows [first_row, first_row + shape.rows) of the named tensor, which lie at `offset` of a
/// device's weights.
struct HeldTensor {
  TensorShape shape;            ///< name of the whole tensor, rows of the part that is held
  std::int64_t first_row = 0;   ///< of the part in the named tensor
  std::int64_t whole_rows = 0;  ///< of the named tensor
  std::size_t offset = 0;       ///< element of the device's weights at which the part begins
  /// Elements of the part.
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(shape.rows * shape.cols);
  }
};

/// What a device holds, chunk after chunk. Embedding, head and final norm belong to chunk 0, and a
/// tied table, whole or a shard, comes first.
struct ParameterLayout {
  std::vector<HeldTensor> tensors;       ///< by offset, without gaps
  std::vector<std::size_t> chunk_begin;  ///< offset by chunk, and the end
  std::size_t table = 0;                 ///< elements of the tied table, 0 if none or not tied
  /// Position in `tensors` of a layer's first, by layer of the model; 0 for layers not held.
  std::vector<std::size_t> layer;
  /// Position in `tensors` of the embedding: one on stage 0, else none.
  std::vector<std::size_t> embedding;
  /// Position of the vocabulary projection or of the stage's rows of it, none where the stage has
  /// none; that of the embedding where the two are tied and the whole table is held.
  std::vector<std::size_t> head;
  /// Position of the norm behind the last layer: one on the last stage, else none.
  std::vector<std::size_t> final_norm;
  /// Elements of all tensors.
  [[nodiscard]] std::size_t size() const noexcept { return chunk_begin.back(); }
};

/// What the devices of stage `pp` hold, and where in their memory. The plan must have passed
/// `check_executable`. O(tensors).
[[nodiscard]] inline ParameterLayout layout_of(const Plan& plan, std::int32_t pp) {
  const ModelShape& model = plan.model;
  ParameterLayout layout;
  layout.layer.resize(static_cast<std::size_t>(model.layers), 0);
  std::size_t offset = 0;
  const auto hold = [&](TensorShape shape, std::int64_t first_row, std::int64_t whole_rows) {
    layout.tensors.push_back({std::move(shape), first_row, whole_rows, offset});
    offset += layout.tensors.back().size();
    return layout.tensors.size() - 1;
  };
  const bool last = pp + 1 == plan.parallel.pp;
  const bool sharded = plan.parallel.head == LmHead::shard;
  const VocabularyShard shard = sharded ? vocabulary_shard(model.vocab, pp, plan.parallel.pp)
                                        : VocabularyShard{0, last ? model.vocab : 0};
  for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
    layout.chunk_begin.push_back(offset);
    const Stage& stage =
        plan.stages[static_cast<std::size_t>(virtual_stages_of(plan).index(pp, chunk))];
    if (stage.embedding) {
      layout.embedding.push_back(
          hold({std::string(kEmbedding), model.vocab, model.hidden}, 0, model.vocab));
    }
    if (chunk == 0 && (sharded || last)) {
      if (model.tied && stage.embedding) {
        layout.head = layout.embedding;  // the whole table is here, shard 0 its first rows
      } else {
        layout.head.push_back(
            hold({std::string(model.tied ? kEmbedding : kHead), shard.size(), model.hidden},
                 shard.first, model.vocab));
      }
    }
    if (chunk == 0 && model.tied) layout.table = offset;
    if (chunk == 0 && last) {
      layout.final_norm.push_back(hold({std::string(kFinalNorm), 1, model.hidden}, 0, 1));
    }
    for (std::int64_t i = stage.first_layer; i < stage.end_layer; ++i) {
      layout.layer[static_cast<std::size_t>(i)] = layout.tensors.size();
      for (TensorShape& shape : layer_tensors(model, i)) {
        const std::int64_t rows = shape.rows;
        hold(std::move(shape), 0, rows);
      }
    }
  }
  layout.chunk_begin.push_back(offset);
  return layout;
}

}  // namespace slimpack::runtime
