// SPDX-License-Identifier: Apache-2.0
// One decoder layer on the pieces of a pack, attention apart: forward, recomputation, backward.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// The same bytes as numbers to write. Buffers of the backend are aligned for them.
template <std::floating_point Number = double>
[[nodiscard]] OutOf<Number> numbers(std::span<std::byte> bytes) {
  return {reinterpret_cast<Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}
/// The same bytes as numbers to read.
template <std::floating_point Number = double>
[[nodiscard]] InOf<Number> numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}

/// Sizes of what is stored: everything in numbers of one type.
template <std::floating_point Number>
[[nodiscard]] constexpr ElementBytes element_bytes_of() noexcept {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Number));
  return {kSize, kSize, kSize};
}

/// Memory handed out from front to back. Running out means that a unit uses more than
/// docs/equations.md grants it: a fault of this backend.
template <std::floating_point Number>
class Workspace {
 public:
  /// What is handed out.
  using Out = OutOf<Number>;
  /// Hands out `all`.
  explicit Workspace(Out all) : all_(all) {}

  /// A matrix of any content. Throws std::logic_error where too little is left.
  [[nodiscard]] Out take(std::int64_t rows, std::int64_t cols) {
    const auto size = static_cast<std::size_t>(rows * cols);
    if (size > all_.size() - used_) throw std::logic_error("the unit's workspace is too small");
    used_ += size;
    return all_.subspan(used_ - size, size);
  }
  /// A matrix of zeros. Throws as `take`.
  [[nodiscard]] Out take_zeros(std::int64_t rows, std::int64_t cols) {
    const Out taken = take(rows, cols);
    std::ranges::fill(taken, Number{0});
    return taken;
  }
  /// How much is handed out, for `rewind`.
  [[nodiscard]] std::size_t mark() const noexcept { return used_; }
  /// Takes back all that was handed out after a mark.
  void rewind(std::size_t mark) noexcept { used_ = mark; }

 private:
  Out all_;
  std::size_t used_ = 0;
};

/// Weights (spans of constant numbers) or gradients of one layer. Matrices are outputs x inputs,
/// row by row.
template <class Span>
struct LayerTensors {
  Span input_norm;  ///< gain of the norm before attention, hidden
  Span query;       ///< query width x hidden
  Span key;         ///< key width x hidden
  Span value;       ///< key width x hidden
  Span output;      ///< hidden x query width
  Span mid_norm;    ///< gain of the norm behind attention, hidden
  Span gate;        ///< ffn x hidden
  Span up;          ///< ffn x hidden
  Span down;        ///< hidden x ffn
};

/// Everything that the forward pass of one layer makes of one piece, keys and values apart: kept
/// from F to B or, where the piece's mode does not keep it, in the workspace.
template <std::floating_point Number>
struct PieceRows {
  Tokens begin;                 ///< position of the first row in the sample
  std::int64_t rows = 0;        ///< tokens of the piece
  std::int64_t first_row = 0;   ///< in the pack
  OutOf<Number> input;          ///< of the layer, rows x hidden
  OutOf<Number> attention;      ///< output of attention, rows x query width
  OutOf<Number> log_sum;        ///< log-sum-exp of attention, rows x heads
  OutOf<Number> query;          ///< rotated queries, rows x query width
  OutOf<Number> mid;            ///< input plus projected attention, rows x hidden
  OutOf<Number> gate;           ///< before the activation, rows x ffn
  OutOf<Number> up;             ///< rows x ffn
  OutOf<Number> input_norm;     ///< output of the norm before attention, rows x hidden
  OutOf<Number> mid_norm;       ///< output of the norm behind attention, rows x hidden
  OutOf<Number> product;        ///< silu(gate) * up, rows x ffn
  OutOf<Number> input_inverse;  ///< inverse RMS of each row of `input`
  OutOf<Number> mid_inverse;    ///< inverse RMS of each row of `mid`
};

/// Keys, values and gradients of a rank's rows of one slice in the workspace of a unit, each rows x
/// key width: what F makes for the pages and B reads from the stored gradients, or all there is.
template <std::floating_point Number>
struct KeyRows {
  OutOf<Number> key;     ///< rotated; empty in B where pages hold it
  OutOf<Number> value;   ///< empty in B where pages hold it
  OutOf<Number> dkey;    ///< of the rotated key; empty in F
  OutOf<Number> dvalue;  ///< empty in F
};

/// Rows of a pack that go through operator after operator before the next ones do: most of what the
/// operators hand on stays in caches, so that a token costs the same in large packs.
inline constexpr std::int64_t kGroupRows = 1024;

/// Calls visit(rows before, rows) for the parts of a piece, none larger than a group.
template <std::invocable<std::int64_t, std::int64_t> Visit>
void for_each_part(std::int64_t rows, Visit visit) {
  for (std::int64_t i = 0; i < rows; i += kGroupRows) {
    visit(i, std::min(kGroupRows, rows - i));
  }
}

/// Rows [i, i + count) of a piece.
template <std::floating_point Number>
[[nodiscard]] PieceRows<Number> part_of(const PieceRows<Number>& piece, std::int64_t i,
                                        std::int64_t count) {
  const auto part = [&](OutOf<Number> all) {
    return detail::rows(all, i, count, static_cast<std::int64_t>(all.size()) / piece.rows);
  };
  return {piece.begin + Tokens{i}, count,
          piece.first_row + i,     part(piece.input),
          part(piece.attention),   part(piece.log_sum),
          part(piece.query),       part(piece.mid),
          part(piece.gate),        part(piece.up),
          part(piece.input_norm),  part(piece.mid_norm),
          part(piece.product),     part(piece.input_inverse),
          part(piece.mid_inverse)};
}

/// Calls visit(first piece, number of pieces) for runs of pieces that together have kGroupRows rows
/// at most, or are one larger piece.
template <std::floating_point Number, std::invocable<std::size_t, std::size_t> Visit>
void for_each_group(std::span<const PieceRows<Number>> pieces, Visit visit) {
  for (std::size_t first = 0; first < pieces.size();) {
    std::size_t end = first;
    for (std::int64_t rows = 0;
         end < pieces.size() && (end == first || rows + pieces[end].rows <= kGroupRows); ++end) {
      rows += pieces[end].rows;
    }
    visit(first, end - first);
    first = end;
  }
}

/// The part of a block's bytes that belongs to the rows of a piece. Pieces share nothing here.
[[nodiscard]] inline std::span<std::byte> part_of(std::span<std::byte> block, Tokens rows,
                                                  const runtime::PieceMemory& piece) {
  const std::size_t row = block.size() / static_cast<std::size_t>(rows.value);
  return block.subspan(row * static_cast<std::size_t>(piece.row.value),
                       row * static_cast<std::size_t>(piece.piece.length().value));
}
/// What is kept of a piece, layer by layer.
[[nodiscard]] inline std::span<std::byte> kept_of(const runtime::PackCall& call,
                                                  const runtime::PieceMemory& piece) {
  const runtime::BlockMemory& block = call.blocks[piece.block];
  return part_of(block.kept, block.rows, piece);
}

/// The rows of a piece in its `layer`-th layer on this stage. What is kept stands in the order of
/// the modes, each of which keeps what the next one does and more.
template <std::floating_point Number>
[[nodiscard]] PieceRows<Number> rows_of(const ModelShape& model, const runtime::PackCall& call,
                                        const runtime::PieceMemory& memory, std::int64_t first_row,
                                        std::int64_t layer, Workspace<Number>& workspace) {
  const Recompute mode = memory.piece.recompute;
  const std::int64_t n = memory.piece.length().value;
  const std::int64_t h = model.hidden, q = model.query_width(), f = model.ffn;
  const std::int64_t kept_row =
      kept_bytes(model, element_bytes_of<Number>())[static_cast<std::size_t>(mode)];
  const auto bytes = static_cast<std::size_t>(kept_row * n);
  Workspace<Number> kept(numbers<Number>(
      kept_of(call, memory).subspan(static_cast<std::size_t>(layer) * bytes, bytes)));
  const auto place = [&](Recompute needed, std::int64_t cols) {
    return (mode <= needed ? kept : workspace).take(n, cols);
  };
  PieceRows<Number> rows;
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

/// Scratch of the backward pass of one piece in the workspace: gradients of what PieceRows holds.
template <std::floating_point Number>
struct PieceGradients {
  OutOf<Number> dmid;        ///< rows x hidden
  OutOf<Number> dnorm;       ///< of `mid_norm`, later of `input_norm`: rows x hidden
  OutOf<Number> dattention;  ///< rows x query width
  OutOf<Number> dquery;      ///< rows x query width
  OutOf<Number> dproduct;    ///< rows x ffn
  OutOf<Number> dgate;       ///< rows x ffn
  OutOf<Number> dup;         ///< rows x ffn
  OutOf<Number> dkey;        ///< of the piece's own keys, rows x key width
  OutOf<Number> dvalue;      ///< of the piece's own values, rows x key width
};

/// What W needs of some rows of a piece in one layer: inputs of matrix products and gradients of
/// what these make, in the memory that B has left to it.
template <std::floating_point Number>
struct WeightRows {
  std::int64_t rows = 0;     ///< tokens
  OutOf<Number> input_norm;  ///< read by query, key and value: rows x hidden
  OutOf<Number> attention;   ///< read by the output projection: rows x query width
  OutOf<Number> mid_norm;    ///< read by gate and up: rows x hidden
  OutOf<Number> product;     ///< read by down: rows x ffn
  OutOf<Number> dquery;      ///< before rotation, rows x query width
  OutOf<Number> dkey;        ///< before rotation, rows x key width
  OutOf<Number> dvalue;      ///< rows x key width
  OutOf<Number> dmid;        ///< of the output projection, rows x hidden
  OutOf<Number> dgate;       ///< rows x ffn
  OutOf<Number> dup;         ///< rows x ffn
  OutOf<Number> doutput;     ///< of down, rows x hidden
};

/// The rows of a piece in its `layer`-th layer on this stage, in parts of at most a group, at the
/// end of `all`.
template <std::floating_point Number>
void add_weight_rows(std::vector<WeightRows<Number>>& all, const ModelShape& model,
                     const runtime::PieceMemory& memory, std::int64_t layer) {
  const std::int64_t n = memory.piece.length().value;
  const std::int64_t h = model.hidden, q = model.query_width(), k = model.key_width();
  const std::int64_t f = model.ffn;
  const auto size =
      static_cast<std::size_t>(layer_bytes(model, element_bytes_of<Number>()).left_apart * n);
  Workspace<Number> left(
      numbers<Number>(memory.apart.subspan(static_cast<std::size_t>(layer) * size, size)));
  const auto take = [&](std::int64_t cols) { return left.take(n, cols); };
  WeightRows<Number> whole;
  whole.input_norm = take(h);
  whole.attention = take(q);
  whole.mid_norm = take(h);
  whole.product = take(f);
  whole.dquery = take(q);
  whole.dkey = take(k);
  whole.dvalue = take(k);
  whole.dmid = take(h);
  whole.dgate = take(f);
  whole.dup = take(f);
  whole.doutput = take(h);
  for_each_part(n, [&](std::int64_t i, std::int64_t count) {
    const auto part = [&](OutOf<Number> rows, std::int64_t cols) {
      return detail::rows(rows, i, count, cols);
    };
    all.push_back({count, part(whole.input_norm, h), part(whole.attention, q),
                   part(whole.mid_norm, h), part(whole.product, f), part(whole.dquery, q),
                   part(whole.dkey, k), part(whole.dvalue, k), part(whole.dmid, h),
                   part(whole.dgate, f), part(whole.dup, f), part(whole.doutput, h)});
  });
}

/// The parts of one layer on some pieces of a pack. Each operator runs on all of them before the
/// next one does, so that a weight is fetched once; pieces are added to gradients in their order.
template <Mathematics Math>
class Layer {
 public:
  /// What is computed in.
  using Number = typename Math::Number;
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;
  /// Pieces of one pack, in the order of its rows.
  using Pieces = std::span<const PieceRows<Number>>;
  /// One entry a piece, in their order.
  using Scratch = std::span<const PieceGradients<Number>>;
  /// One entry a piece where weights are apart, else none.
  using Apart = std::span<const WeightRows<Number>>;

  /// `math` and `model` are kept by reference; `weights` are the layer's.
  Layer(Math& math, const ModelShape& model, const LayerTensors<In>& weights)
      : math_(math), model_(model), weights_(weights) {}

  /// The norm before attention.
  void normalise_input(Pieces pieces) const {
    for (const auto& rows : pieces) {
      math_.rms_norm_forward(rows.input_norm, rows.input_inverse, rows.input, weights_.input_norm,
                             {rows.rows, model_.hidden}, model_.norm_eps);
    }
  }

  /// Queries of the pieces, rotated.
  void project_query(Pieces pieces) const {
    for (const auto& rows : pieces) {
      math_.linear_forward(rows.query, rows.input_norm, weights_.query,
                           {rows.rows, model_.hidden, model_.query_width()});
      math_.rotate(rows.query, rows.begin, {rows.rows, model_.heads, model_.head_dim},
                   model_.rope_theta, Rotation::forward);
    }
  }

  /// Keys, rotated, and values of the pieces, but for those without a place for them.
  void project_key_value(Pieces pieces, std::span<const Out> keys,
                         std::span<const Out> values) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (keys[i].empty()) continue;
      const auto& rows = pieces[i];
      math_.linear_forward(keys[i], rows.input_norm, weights_.key, key_shape(rows));
      math_.rotate(keys[i], rows.begin, {rows.rows, model_.kv_heads, model_.head_dim},
                   model_.rope_theta, Rotation::forward);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (values[i].empty()) continue;
      math_.linear_forward(values[i], pieces[i].input_norm, weights_.value, key_shape(pieces[i]));
    }
  }

  /// Everything behind attention: fills `outputs`, the layer's output by piece, rows x hidden.
  void finish(Pieces pieces, std::span<const Out> outputs) const {
    make_mid(pieces);
    normalise_mid(pieces);
    make_gate_up(pieces);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto& rows = pieces[i];
      math_.swiglu_forward(rows.product, rows.gate, rows.up);
      math_.linear_forward(outputs[i], rows.product, weights_.down,
                           {rows.rows, model_.ffn, model_.hidden});
      math_.add(outputs[i], rows.mid);
    }
  }

  /// Computes again what comes before attention and the mode has not kept.
  void recompute_before(Pieces pieces, Recompute mode) const {
    if (mode == Recompute::none) return;
    normalise_input(pieces);
    if (mode != Recompute::light) project_query(pieces);
  }
  /// Computes again what comes behind attention, whose output must be there, and is not kept.
  void recompute_behind(Pieces pieces, Recompute mode) const {
    if (mode == Recompute::none) return;
    if (mode != Recompute::light) make_mid(pieces);
    normalise_mid(pieces);
    if (mode != Recompute::light) make_gate_up(pieces);
    for (const auto& rows : pieces) math_.swiglu_forward(rows.product, rows.gate, rows.up);
  }

  /// Backward from the layer's output to the attention output: fills dmid and dattention, clears
  /// dquery. `doutput` is that of the whole pack. Fills its part of `apart`, where weights are.
  void backward_behind_attention(const LayerTensors<Out>& gradients, Pieces pieces, Scratch scratch,
                                 In doutput, Apart apart) const {
    const auto dout = [&](std::size_t i) {
      return detail::rows(doutput, pieces[i].first_row, pieces[i].rows, model_.hidden);
    };
    const auto down = [&](std::size_t i) {
      return LinearShape{pieces[i].rows, model_.ffn, model_.hidden};
    };
    const auto wide = [&](std::size_t i) {
      return LinearShape{pieces[i].rows, model_.hidden, model_.ffn};
    };
    const auto projection = [&](std::size_t i) {
      return LinearShape{pieces[i].rows, model_.query_width(), model_.hidden};
    };
    const std::size_t count = pieces.size();
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      for (const Out added : {scratch[i].dnorm, scratch[i].dattention, scratch[i].dquery,
                              scratch[i].dproduct, scratch[i].dgate, scratch[i].dup}) {
        std::ranges::fill(added, Number{0});
      }
      math_.linear_backward_input(scratch[i].dproduct, dout(i), weights_.down, down(i));
      math_.swiglu_backward(scratch[i].dgate, scratch[i].dup, scratch[i].dproduct, rows.gate,
                            rows.up);
    }
    for (std::size_t i = 0; i < count && apart.empty(); ++i) {
      math_.linear_backward_weight(gradients.down, dout(i), pieces[i].product, down(i));
    }
    for (std::size_t i = 0; i < count; ++i) {
      math_.linear_backward_input(scratch[i].dnorm, scratch[i].dgate, weights_.gate, wide(i));
    }
    for (std::size_t i = 0; i < count; ++i) {
      math_.linear_backward_input(scratch[i].dnorm, scratch[i].dup, weights_.up, wide(i));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      if (apart.empty()) {
        math_.linear_backward_weight(gradients.gate, scratch[i].dgate, rows.mid_norm, wide(i));
        math_.linear_backward_weight(gradients.up, scratch[i].dup, rows.mid_norm, wide(i));
      }
      std::ranges::copy(dout(i), scratch[i].dmid.begin());
      math_.rms_norm_backward(scratch[i].dmid, gradients.mid_norm, scratch[i].dnorm, rows.mid,
                              weights_.mid_norm, rows.mid_inverse, {rows.rows, model_.hidden});
    }
    for (std::size_t i = 0; i < count; ++i) {
      math_.linear_backward_input(scratch[i].dattention, scratch[i].dmid, weights_.output,
                                  projection(i));
    }
    for (std::size_t i = 0; i < count && apart.empty(); ++i) {
      math_.linear_backward_weight(gradients.output, scratch[i].dmid, pieces[i].attention,
                                   projection(i));
    }
    for (std::size_t i = 0; i < apart.size(); ++i) {
      std::ranges::copy(pieces[i].attention, apart[i].attention.begin());
      std::ranges::copy(pieces[i].mid_norm, apart[i].mid_norm.begin());
      std::ranges::copy(pieces[i].product, apart[i].product.begin());
      std::ranges::copy(scratch[i].dmid, apart[i].dmid.begin());
      std::ranges::copy(scratch[i].dgate, apart[i].dgate.begin());
      std::ranges::copy(scratch[i].dup, apart[i].dup.begin());
      std::ranges::copy(dout(i), apart[i].doutput.begin());
    }
  }

  /// Backward from dquery, dkey and dvalue (of rotated queries and keys) to the layer's input;
  /// `dinput`, of the whole pack, is overwritten. Fills the rest of `apart`, where weights are.
  void backward_before_attention(const LayerTensors<Out>& gradients, Pieces pieces, Scratch scratch,
                                 Out dinput, Apart apart) const {
    const auto query = [&](std::size_t i) {
      return LinearShape{pieces[i].rows, model_.hidden, model_.query_width()};
    };
    const std::size_t count = pieces.size();
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      math_.rotate(scratch[i].dquery, rows.begin, {rows.rows, model_.heads, model_.head_dim},
                   model_.rope_theta, Rotation::inverse);
      math_.rotate(scratch[i].dkey, rows.begin, {rows.rows, model_.kv_heads, model_.head_dim},
                   model_.rope_theta, Rotation::inverse);
      std::ranges::fill(scratch[i].dnorm, Number{0});
      math_.linear_backward_input(scratch[i].dnorm, scratch[i].dquery, weights_.query, query(i));
    }
    for (std::size_t i = 0; i < count; ++i) {
      math_.linear_backward_input(scratch[i].dnorm, scratch[i].dkey, weights_.key,
                                  key_shape(pieces[i]));
    }
    for (std::size_t i = 0; i < count; ++i) {
      math_.linear_backward_input(scratch[i].dnorm, scratch[i].dvalue, weights_.value,
                                  key_shape(pieces[i]));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      if (apart.empty()) {
        math_.linear_backward_weight(gradients.query, scratch[i].dquery, rows.input_norm, query(i));
        math_.linear_backward_weight(gradients.key, scratch[i].dkey, rows.input_norm,
                                     key_shape(rows));
        math_.linear_backward_weight(gradients.value, scratch[i].dvalue, rows.input_norm,
                                     key_shape(rows));
      } else {
        std::ranges::copy(rows.input_norm, apart[i].input_norm.begin());
        std::ranges::copy(scratch[i].dquery, apart[i].dquery.begin());
        std::ranges::copy(scratch[i].dkey, apart[i].dkey.begin());
        std::ranges::copy(scratch[i].dvalue, apart[i].dvalue.begin());
      }
      const Out dx = detail::rows(dinput, rows.first_row, rows.rows, model_.hidden);
      std::ranges::copy(scratch[i].dmid, dx.begin());
      math_.rms_norm_backward(dx, gradients.input_norm, scratch[i].dnorm, rows.input,
                              weights_.input_norm, rows.input_inverse, {rows.rows, model_.hidden});
    }
  }

  /// Adds the gradients of the layer's matrices, of rows that B has left apart.
  void add_weight_gradients(const LayerTensors<Out>& gradients, Apart apart) const {
    const std::int64_t h = model_.hidden, q = model_.query_width(), k = model_.key_width();
    const std::int64_t f = model_.ffn;
    for (const WeightRows<Number>& left : apart) {
      const std::int64_t n = left.rows;
      math_.linear_backward_weight(gradients.down, left.doutput, left.product, {n, f, h});
      math_.linear_backward_weight(gradients.gate, left.dgate, left.mid_norm, {n, h, f});
      math_.linear_backward_weight(gradients.up, left.dup, left.mid_norm, {n, h, f});
      math_.linear_backward_weight(gradients.output, left.dmid, left.attention, {n, q, h});
      math_.linear_backward_weight(gradients.query, left.dquery, left.input_norm, {n, h, q});
      math_.linear_backward_weight(gradients.key, left.dkey, left.input_norm, {n, h, k});
      math_.linear_backward_weight(gradients.value, left.dvalue, left.input_norm, {n, h, k});
    }
  }

 private:
  [[nodiscard]] LinearShape key_shape(const PieceRows<Number>& rows) const {
    return {rows.rows, model_.hidden, model_.key_width()};
  }

  /// The residual behind attention.
  void make_mid(Pieces pieces) const {
    for (const auto& rows : pieces) {
      math_.linear_forward(rows.mid, rows.attention, weights_.output,
                           {rows.rows, model_.query_width(), model_.hidden});
      math_.add(rows.mid, rows.input);
    }
  }

  void normalise_mid(Pieces pieces) const {
    for (const auto& rows : pieces) {
      math_.rms_norm_forward(rows.mid_norm, rows.mid_inverse, rows.mid, weights_.mid_norm,
                             {rows.rows, model_.hidden}, model_.norm_eps);
    }
  }

  void make_gate_up(Pieces pieces) const {
    const auto shape = [&](const PieceRows<Number>& rows) {
      return LinearShape{rows.rows, model_.hidden, model_.ffn};
    };
    for (const auto& rows : pieces) {
      math_.linear_forward(rows.gate, rows.mid_norm, weights_.gate, shape(rows));
    }
    for (const auto& rows : pieces) {
      math_.linear_forward(rows.up, rows.mid_norm, weights_.up, shape(rows));
    }
  }

  Math& math_;
  const ModelShape& model_;
  LayerTensors<In> weights_;
};

}  // namespace slimpack::cpu
