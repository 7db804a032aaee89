// SPDX-License-Identifier: Apache-2.0
// The decoder's weights as named tensors, and which of them a device holds.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
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

/// What one of `devices` tensor-parallel devices has of a model's layers: its part of the heads and
/// of ffn. Hidden states are as wide as the model's; of their rows it has its own (`TensorRows`).
[[nodiscard]] inline ModelShape part_of(ModelShape model, std::int64_t devices) {
  model.heads /= devices;
  model.kv_heads /= devices;
  model.ffn /= devices;
  return model;
}

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

/// Fills rows [first_row, first_row + values.size() / cols) of a tensor, of them columns
/// [first_col, first_col + cols), by default all. A row depends on seed, name and row number only,
/// so that every partition of a model begins with the same weights: matrices normal with variance
/// 1 / columns of the tensor, gains uniform in [0.9, 1.1) lest a wrong gain go unseen. Large
/// tensors are drawn on all cores; a row's numbers do not depend on how many.
inline void initialise(std::span<double> values, const TensorShape& tensor, std::int64_t first_row,
                       std::uint64_t seed, std::int64_t first_col = 0,
                       std::optional<std::int64_t> held_cols = std::nullopt) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char letter : tensor.name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  }
  const auto cols = static_cast<std::size_t>(held_cols.value_or(tensor.cols));
  const double deviation = 1.0 / std::sqrt(static_cast<double>(tensor.cols));
  const auto draw_row = [&](std::size_t row) {
    Random mixer(seed ^ hash);
    Random random(mixer.bits() + static_cast<std::uint64_t>(first_row) + row);
    const auto draw = [&] {
      return tensor.rows == 1 ? 0.9 + 0.2 * random.unit() : deviation * random.normal();
    };
    for (std::int64_t col = 0; col < first_col; ++col) static_cast<void>(draw());
    for (double& value : values.subspan(row * cols, cols)) value = draw();
  };
  constexpr std::size_t kAtOnce = std::size_t{1} << 16U;  // numbers that are worth a thread
  const std::size_t rows = cols == 0 ? 0 : values.size() / cols;
  const std::size_t at_once = std::max<std::size_t>(1, kAtOnce / std::max<std::size_t>(1, cols));
  const auto cores = static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  parallel_for((rows + at_once - 1) / at_once, cores, [&](std::size_t part) {
    const std::size_t end = std::min(rows, (part + 1) * at_once);
    for (std::size_t row = part * at_once; row < end; ++row) draw_row(row);
  });
}

/// Rows [first_row, first_row + shape.rows) of the named tensor, of them columns [first_col,
/// first_col + shape.cols), which lie row by row at `offset` of a device's weights.
struct HeldTensor {
  TensorShape shape;            ///< name of the whole tensor, rows and columns that are held
  std::int64_t first_row = 0;   ///< of the part in the named tensor
  std::int64_t whole_rows = 0;  ///< of the named tensor
  std::size_t offset = 0;       ///< element of the device's weights at which the part begins
  std::int64_t first_col = 0;   ///< of the part in the named tensor
  std::int64_t whole_cols = 0;  ///< of the named tensor
  /// Elements of the part.
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(shape.rows * shape.cols);
  }
  /// The named tensor.
  [[nodiscard]] TensorShape whole() const { return {shape.name, whole_rows, whole_cols}; }
  /// Calls visit(first, begin, count) for elements [begin, begin + count) of [from, to) of the part
  /// that are elements [first, first + count) of the named tensor, counted row by row: all at once
  /// where whole rows are held, else row by row. O(rows).
  template <std::invocable<std::size_t, std::size_t, std::size_t> Visit>
  void for_each_run(std::size_t from, std::size_t to, Visit visit) const {
    const auto cols = static_cast<std::size_t>(shape.cols);
    const auto all = static_cast<std::size_t>(whole_cols);
    const auto first =
        static_cast<std::size_t>(first_row) * all + static_cast<std::size_t>(first_col);
    if (from < to && cols == all) return visit(first + from, from, to - from);
    for (std::size_t i = from; i < to;) {
      const std::size_t row = i / cols, end = std::min(to, (row + 1) * cols);
      visit(first + row * all + i % cols, i, end - i);
      i = end;
    }
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

namespace detail {

/// Which elements of a layer's tensor the tensor-parallel part tp of n holds: query, key and value
/// rows of its heads and rows of gate and up, of the matrices behind them the columns, of gains
/// all.
[[nodiscard]] inline HeldTensor tensor_part(TensorShape shape, LayerTensor tensor, std::int32_t tp,
                                            std::int32_t n) {
  HeldTensor held{std::move(shape), 0, 0, 0, 0, 0};
  held.whole_rows = held.shape.rows;
  held.whole_cols = held.shape.cols;
  switch (tensor) {
    case LayerTensor::input_norm:
    case LayerTensor::mid_norm:
      break;
    case LayerTensor::output:
    case LayerTensor::down:
      held.shape.cols /= n;
      held.first_col = tp * held.shape.cols;
      break;
    default:
      held.shape.rows /= n;
      held.first_row = tp * held.shape.rows;
  }
  return held;
}

}  // namespace detail

/// What the devices of stage `pp` and tensor-parallel part `tp` hold, and where in their memory.
/// The plan must have passed `check_executable`. O(tensors).
[[nodiscard]] inline ParameterLayout layout_of(const Plan& plan, std::int32_t pp,
                                               std::int32_t tp = 0) {
  const ModelShape& model = plan.model;
  ParameterLayout layout;
  layout.layer.resize(static_cast<std::size_t>(model.layers), 0);
  std::size_t offset = 0;
  const auto hold = [&](HeldTensor tensor) {
    tensor.offset = offset;
    offset += tensor.size();
    layout.tensors.push_back(std::move(tensor));
    return layout.tensors.size() - 1;
  };
  const auto hold_rows = [&](std::string_view name, VocabularyShard rows) {
    return hold({{std::string(name), rows.size(), model.hidden},
                 rows.first,
                 model.vocab,
                 0,
                 0,
                 model.hidden});
  };
  const bool last = pp + 1 == plan.parallel.pp;
  const bool sharded = plan.parallel.head == LmHead::shard;
  for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
    layout.chunk_begin.push_back(offset);
    const Stage& stage =
        plan.stages[static_cast<std::size_t>(virtual_stages_of(plan).index(pp, chunk))];
    if (stage.embedding) {
      layout.embedding.push_back(
          hold_rows(kEmbedding, vocabulary_shard(model.vocab, tp, plan.parallel.tp)));
    }
    if (chunk == 0 && (sharded || last)) {
      if (model.tied && stage.embedding) {
        layout.head = layout.embedding;  // the part's whole table is here, its shard the first rows
      } else {
        layout.head.push_back(hold_rows(model.tied ? kEmbedding : kHead,
                                        head_shard(model.vocab, plan.parallel, pp, tp)));
      }
    }
    if (chunk == 0 && model.tied) layout.table = offset;
    if (chunk == 0 && last) {
      layout.final_norm.push_back(
          hold({{std::string(kFinalNorm), 1, model.hidden}, 0, 1, 0, 0, model.hidden}));
    }
    for (std::int64_t i = stage.first_layer; i < stage.end_layer; ++i) {
      layout.layer[static_cast<std::size_t>(i)] = layout.tensors.size();
      auto tensor = LayerTensor::input_norm;
      for (TensorShape& shape : layer_tensors(model, i)) {
        hold(detail::tensor_part(std::move(shape), tensor, tp, plan.parallel.tp));
        tensor = static_cast<LayerTensor>(static_cast<std::uint8_t>(tensor) + 1);
      }
    }
  }
  layout.chunk_begin.push_back(offset);
  return layout;
}

}  // namespace slimpack::runtime
