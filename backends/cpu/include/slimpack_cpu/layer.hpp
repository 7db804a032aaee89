// SPDX-License-Identifier: Apache-2.0
// One decoder layer on one piece of a sample, attention apart: forward, recomputation, backward.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// The same bytes as numbers. Buffers of the backend are aligned for them.
[[nodiscard]] inline Out numbers(std::span<std::byte> bytes) {
  return {reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
}
[[nodiscard]] inline In numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)};
}

/// Memory handed out from front to back. Running out means that a unit uses more than
/// docs/equations.md grants it: a fault of this backend.
class Arena {
 public:
  explicit Arena(Out all) : all_(all) {}

  /// A matrix with whatever is there.
  [[nodiscard]] Out take(std::int64_t rows, std::int64_t cols) {
    const auto size = static_cast<std::size_t>(rows * cols);
    if (size > all_.size() - used_) throw std::logic_error("the unit's workspace is too small");
    used_ += size;
    return all_.subspan(used_ - size, size);
  }
  [[nodiscard]] Out take_zeros(std::int64_t rows, std::int64_t cols) {
    const Out taken = take(rows, cols);
    std::ranges::fill(taken, 0.0);
    return taken;
  }
  [[nodiscard]] std::size_t mark() const noexcept { return used_; }
  void rewind(std::size_t mark) noexcept { used_ = mark; }

 private:
  Out all_;
  std::size_t used_ = 0;
};

/// Weights or gradients of one layer.
template <class Span>
requires std::same_as<Span, In> || std::same_as<Span, Out>
struct LayerTensors {
  Span input_norm, query, key, value, output, mid_norm, gate, up, down;
};

/// Everything that the forward pass of one layer makes of one piece, keys and values apart: kept
/// from F to B or, where the piece's mode does not keep it, in the workspace.
struct PieceRows {
  Tokens begin;  ///< position of the first row in the sample
  std::int64_t rows = 0;
  std::int64_t first_row = 0;  ///< in the pack
  Out input, attention, log_sum, query, mid, gate, up, input_norm, mid_norm, product;
  Out input_inverse, mid_inverse;  ///< inverse RMS
};

/// The rows of a piece in its `layer`-th layer on this stage. What is kept stands in the order of
/// the modes, each of which keeps what the next one does and more.
[[nodiscard]] inline PieceRows rows_of(const ModelShape& model, const exec::PieceMemory& memory,
                                       std::int64_t first_row, std::int64_t layer, Arena& arena) {
  const Recompute mode = memory.piece.recompute;
  const std::int64_t n = memory.piece.length().value;
  const std::int64_t h = model.hidden, q = model.query_width(), f = model.ffn;
  const auto bytes =
      static_cast<std::size_t>(exec::kept_bytes(model, mode, exec::ElementBytes{}) * n);
  Arena kept(numbers(memory.kept.subspan(static_cast<std::size_t>(layer) * bytes, bytes)));
  const auto place = [&](Recompute needed, std::int64_t cols) {
    return (mode <= needed ? kept : arena).take(n, cols);
  };
  PieceRows rows;
  rows.begin = memory.piece.begin;
  rows.rows = n;
  rows.first_row = first_row;
  rows.input = place(Recompute::full, h);
  rows.attention = place(Recompute::layer, q);
  rows.log_sum = place(Recompute::layer, model.heads);
  rows.query = place(Recompute::light, q);
  rows.mid = place(Recompute::light, h);
  rows.gate = place(Recompute::light, f);
  rows.up = place(Recompute::light, f);
  rows.input_norm = place(Recompute::none, h);
  rows.mid_norm = place(Recompute::none, h);
  rows.product = place(Recompute::none, f);
  rows.input_inverse = place(Recompute::none, 1);
  rows.mid_inverse = place(Recompute::none, 1);
  return rows;
}

inline void normalise_input(const ModelShape& model, const LayerTensors<In>& weights,
                            const PieceRows& rows) {
  rms_norm_forward(rows.input_norm, rows.input_inverse, rows.input, weights.input_norm,
                   {rows.rows, model.hidden}, model.norm_eps);
}

inline void project_query(const ModelShape& model, const LayerTensors<In>& weights,
                          const PieceRows& rows) {
  linear_forward(rows.query, rows.input_norm, weights.query,
                 {rows.rows, model.hidden, model.query_width()});
  rotate(rows.query, rows.begin, {rows.rows, model.heads, model.head_dim}, model.rope_theta,
         Rotation::forward);
}

inline void project_key_value(const ModelShape& model, const LayerTensors<In>& weights,
                              const PieceRows& rows, Out key, Out value) {
  const LinearShape shape{rows.rows, model.hidden, model.key_width()};
  linear_forward(key, rows.input_norm, weights.key, shape);
  linear_forward(value, rows.input_norm, weights.value, shape);
  rotate(key, rows.begin, {rows.rows, model.kv_heads, model.head_dim}, model.rope_theta,
         Rotation::forward);
}

/// The residual behind attention.
inline void make_mid(const ModelShape& model, const LayerTensors<In>& weights,
                     const PieceRows& rows) {
  linear_forward(rows.mid, rows.attention, weights.output,
                 {rows.rows, model.query_width(), model.hidden});
  add(rows.mid, rows.input);
}

inline void normalise_mid(const ModelShape& model, const LayerTensors<In>& weights,
                          const PieceRows& rows) {
  rms_norm_forward(rows.mid_norm, rows.mid_inverse, rows.mid, weights.mid_norm,
                   {rows.rows, model.hidden}, model.norm_eps);
}

inline void make_gate_up(const ModelShape& model, const LayerTensors<In>& weights,
                         const PieceRows& rows) {
  const LinearShape shape{rows.rows, model.hidden, model.ffn};
  linear_forward(rows.gate, rows.mid_norm, weights.gate, shape);
  linear_forward(rows.up, rows.mid_norm, weights.up, shape);
}

/// Everything behind attention; `output` is the layer's.
inline void finish_layer(const ModelShape& model, const LayerTensors<In>& weights,
                         const PieceRows& rows, Out output) {
  make_mid(model, weights, rows);
  normalise_mid(model, weights, rows);
  make_gate_up(model, weights, rows);
  swiglu_forward(rows.product, rows.gate, rows.up);
  linear_forward(output, rows.product, weights.down, {rows.rows, model.ffn, model.hidden});
  add(output, rows.mid);
}

/// What the mode has not kept, except the attention output of `full`, which must be there.
inline void recompute(const ModelShape& model, const LayerTensors<In>& weights,
                      const PieceRows& rows, Recompute mode) {
  if (mode == Recompute::layer || mode == Recompute::full) {
    make_mid(model, weights, rows);
    normalise_mid(model, weights, rows);
    make_gate_up(model, weights, rows);
  }
  if (mode == Recompute::light) normalise_mid(model, weights, rows);
  if (mode != Recompute::none) swiglu_forward(rows.product, rows.gate, rows.up);
}

/// Scratch of the backward pass of one piece, rows of the workspace.
struct PieceGradients {
  Out dmid, dnorm, dattention, dquery, dproduct, dgate, dup, dkey, dvalue;
};

/// Backward from the layer's output to the attention output: fills dmid and dattention.
inline void backward_behind_attention(const ModelShape& model, const LayerTensors<In>& weights,
                                      const LayerTensors<Out>& gradients, const PieceRows& rows,
                                      const PieceGradients& scratch, In doutput) {
  const std::int64_t n = rows.rows;
  const LinearShape down{n, model.ffn, model.hidden}, wide{n, model.hidden, model.ffn},
      projection{n, model.query_width(), model.hidden};
  linear_backward_input(scratch.dproduct, doutput, weights.down, down);
  linear_backward_weight(gradients.down, doutput, rows.product, down);
  swiglu_backward(scratch.dgate, scratch.dup, scratch.dproduct, rows.gate, rows.up);
  linear_backward_input(scratch.dnorm, scratch.dgate, weights.gate, wide);
  linear_backward_input(scratch.dnorm, scratch.dup, weights.up, wide);
  linear_backward_weight(gradients.gate, scratch.dgate, rows.mid_norm, wide);
  linear_backward_weight(gradients.up, scratch.dup, rows.mid_norm, wide);
  std::ranges::copy(doutput, scratch.dmid.begin());
  rms_norm_backward(scratch.dmid, gradients.mid_norm, scratch.dnorm, rows.mid, weights.mid_norm,
                    rows.mid_inverse, {n, model.hidden});
  linear_backward_input(scratch.dattention, scratch.dmid, weights.output, projection);
  linear_backward_weight(gradients.output, scratch.dmid, rows.attention, projection);
}

/// Backward from dquery, dkey and dvalue (of rotated queries and keys) to the layer's input;
/// `dinput` is overwritten.
inline void backward_before_attention(const ModelShape& model, const LayerTensors<In>& weights,
                                      const LayerTensors<Out>& gradients, const PieceRows& rows,
                                      const PieceGradients& scratch, Out dinput) {
  const std::int64_t n = rows.rows;
  const LinearShape query{n, model.hidden, model.query_width()},
      key{n, model.hidden, model.key_width()};
  rotate(scratch.dquery, rows.begin, {n, model.heads, model.head_dim}, model.rope_theta,
         Rotation::inverse);
  rotate(scratch.dkey, rows.begin, {n, model.kv_heads, model.head_dim}, model.rope_theta,
         Rotation::inverse);
  std::ranges::fill(scratch.dnorm, 0.0);
  linear_backward_input(scratch.dnorm, scratch.dquery, weights.query, query);
  linear_backward_input(scratch.dnorm, scratch.dkey, weights.key, key);
  linear_backward_input(scratch.dnorm, scratch.dvalue, weights.value, key);
  linear_backward_weight(gradients.query, scratch.dquery, rows.input_norm, query);
  linear_backward_weight(gradients.key, scratch.dkey, rows.input_norm, key);
  linear_backward_weight(gradients.value, scratch.dvalue, rows.input_norm, key);
  std::ranges::copy(scratch.dmid, dinput.begin());
  rms_norm_backward(dinput, gradients.input_norm, scratch.dnorm, rows.input, weights.input_norm,
                    rows.input_inverse, {n, model.hidden});
}

}  // namespace slimpack::cpu
