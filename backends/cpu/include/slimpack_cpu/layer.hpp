// SPDX-License-Identifier: Apache-2.0
// One decoder layer on the pieces of a pack, attention apart: forward, recomputation, backward.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/tensor.hpp"
#include "slimpack_cpu/workspace.hpp"

namespace slimpack::cpu {

/// Weights (spans of constant numbers) or gradients of one layer. Matrices are outputs x inputs,
/// row by row; widths are the device's part.
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
/// from F to B or, where the piece's mode does not keep it, in the workspace. Hidden states and
/// norms are those of the device's own rows, everything else of all rows and its part in width.
template <std::floating_point Number>
struct PieceRows {
  Tokens begin;                 ///< position of the first row in the sample
  std::int64_t rows = 0;        ///< tokens of the piece
  std::int64_t own = 0;         ///< own rows
  std::int64_t first_own = 0;   ///< of the first of them among the own rows of the pack
  std::int64_t holder = 0;      ///< tensor-parallel device that holds the first row
  OutOf<Number> input;          ///< of the layer, own rows x hidden
  OutOf<Number> attention;      ///< output of attention, rows x query width
  OutOf<Number> log_sum;        ///< log-sum-exp of attention, rows x heads
  OutOf<Number> query;          ///< rotated queries, rows x query width
  OutOf<Number> mid;            ///< input plus projected attention, own rows x hidden
  OutOf<Number> gate;           ///< before the activation, rows x ffn
  OutOf<Number> up;             ///< rows x ffn
  OutOf<Number> input_norm;     ///< output of the norm before attention, own rows x hidden
  OutOf<Number> mid_norm;       ///< output of the norm behind attention, own rows x hidden
  OutOf<Number> product;        ///< silu(gate) * up, rows x ffn
  OutOf<Number> input_inverse;  ///< inverse RMS of each row of `input`
  OutOf<Number> mid_inverse;    ///< inverse RMS of each row of `mid`
};

/// Keys, values and their gradients of some tokens in the workspace of a unit, each rows x key
/// width.
template <std::floating_point Number>
struct KeyRows {
  OutOf<Number> key;     ///< rotated; empty in B where pages hold it
  OutOf<Number> value;   ///< empty in B where pages hold it
  OutOf<Number> dkey;    ///< of the rotated key; empty in F
  OutOf<Number> dvalue;  ///< empty in F
};

/// What one slice has of them on a rank.
template <std::floating_point Number>
struct SegmentKeys {
  /// Of the rank's rows: what F makes for the pages and B reads from the stored gradients, or all
  /// there is.
  KeyRows<Number> own;
  /// By heads, of all tokens of the sample and the rank's part of the heads: in B what the
  /// segment's memory does not keep; empty otherwise.
  KeyRows<Number> by_heads;
  /// By heads, queries of all tokens of the slice, slice x part of the query width: in B that makes
  /// attention again, for which they have come; empty otherwise.
  OutOf<Number> queries;
};

/// Rows of a pack that go through operator after operator before the next ones do: most of what the
/// operators hand on stays in caches, so that a token costs the same in large packs.
inline constexpr std::int64_t kGroupRows = 1024;

/// Rows of a group at most: with tensor parallelism no more than collectives make whole at once.
[[nodiscard]] inline std::int64_t group_rows(const TensorRows& own, Tokens head_tile) noexcept {
  return own.devices == 1 ? kGroupRows : std::min(kGroupRows, head_tile.value);
}

/// Calls visit(rows before, rows) for the parts of a piece, none larger than `most` rows.
template <std::invocable<std::int64_t, std::int64_t> Visit>
void for_each_part(std::int64_t rows, std::int64_t most, Visit visit) {
  for (std::int64_t i = 0; i < rows; i += most) visit(i, std::min(most, rows - i));
}

/// Rows [i, i + count) of a piece on the device of `own`.
template <std::floating_point Number>
[[nodiscard]] PieceRows<Number> part_of(const PieceRows<Number>& piece, const TensorRows& own,
                                        std::int64_t i, std::int64_t count) {
  PieceRows<Number> part = piece;
  part.begin += Tokens{i};
  part.rows = count;
  part.holder = (piece.holder + i) % own.devices;
  const std::int64_t before = own.among(piece.holder, i);
  part.own = own.among(part.holder, count);
  part.first_own += before;
  for (OutOf<Number> PieceRows<Number>::* all :
       {&PieceRows<Number>::attention, &PieceRows<Number>::log_sum, &PieceRows<Number>::query,
        &PieceRows<Number>::gate, &PieceRows<Number>::up, &PieceRows<Number>::product}) {
    part.*all = detail::rows(piece.*all, i, count,
                             static_cast<std::int64_t>((piece.*all).size()) / piece.rows);
  }
  for (OutOf<Number> PieceRows<Number>::* rows :
       {&PieceRows<Number>::input, &PieceRows<Number>::mid, &PieceRows<Number>::input_norm,
        &PieceRows<Number>::mid_norm, &PieceRows<Number>::input_inverse,
        &PieceRows<Number>::mid_inverse}) {
    if (piece.own == 0) continue;
    part.*rows = detail::rows(piece.*rows, before, part.own,
                              static_cast<std::int64_t>((piece.*rows).size()) / piece.own);
  }
  return part;
}

/// Calls visit(first piece, number of pieces) for runs of `count` pieces, of rows(piece) each, that
/// together have at most `most` rows, or are one larger piece.
template <std::invocable<std::size_t> Rows, std::invocable<std::size_t, std::size_t> Visit>
void for_each_group(std::size_t count, Rows rows, std::int64_t most, Visit visit) {
  for (std::size_t first = 0; first < count;) {
    std::size_t end = first;
    for (std::int64_t all = 0; end < count && (end == first || all + rows(end) <= most); ++end) {
      all += rows(end);
    }
    visit(first, end - first);
    first = end;
  }
}

/// Bytes that each token and each own row has of something.
struct RowBytes {
  std::int64_t token = 0;  ///< of every token
  std::int64_t row = 0;    ///< of every own row
};

/// The part of a block's bytes that belongs to the rows of a piece, with so many bytes each. Pieces
/// share nothing here.
[[nodiscard]] inline std::span<std::byte> part_of(std::span<std::byte> block, RowBytes each,
                                                  const runtime::PieceMemory& piece) {
  const auto size = [&](Tokens tokens, Tokens rows) {
    return static_cast<std::size_t>(tokens.value * each.token + rows.value * each.row);
  };
  return block.subspan(size(piece.row, piece.own_row), size(piece.piece.length(), piece.own));
}
/// What is kept of a piece in its `layer`-th of `layers` layers on this stage.
template <std::floating_point Number>
[[nodiscard]] std::span<std::byte> kept_of(const ModelShape& part, const runtime::PackCall& call,
                                           const runtime::PieceMemory& piece, std::int64_t layer,
                                           std::int64_t layers) {
  const auto mode = static_cast<std::size_t>(piece.piece.recompute);
  const TokenWidths all = token_widths(part);
  const ElementBytes size = element_bytes_of<Number>();
  const RowBytes each{kept_bytes(all.without_rows(), size)[mode],
                      kept_bytes(all.rows(), size)[mode]};
  const auto of_piece =
      part_of(call.blocks[piece.block].kept, {layers * each.token, layers * each.row}, piece);
  const std::size_t of_layer = of_piece.size() / static_cast<std::size_t>(layers);
  return of_piece.subspan(static_cast<std::size_t>(layer) * of_layer, of_layer);
}

/// The rows of a piece in its `layer`-th of `layers` layers on this stage; `part` is what the
/// device has of the model. What is kept stands in the order of the modes, each of which keeps what
/// the next one does and more.
template <std::floating_point Number>
[[nodiscard]] PieceRows<Number> rows_of(const ModelShape& part, const runtime::PackCall& call,
                                        const runtime::PieceMemory& memory, std::int64_t first_own,
                                        std::int64_t layer, std::int64_t layers,
                                        Workspace<Number>& workspace) {
  const Recompute mode = memory.piece.recompute;
  const std::int64_t n = memory.piece.length().value, own = memory.own.value;
  const std::int64_t h = part.hidden, q = part.query_width(), f = part.ffn;
  Workspace<Number> kept(numbers<Number>(kept_of<Number>(part, call, memory, layer, layers)));
  const auto place = [&](Recompute needed, std::int64_t count, std::int64_t cols) {
    return (mode <= needed ? kept : workspace).take(count, cols);
  };
  PieceRows<Number> rows;
  rows.begin = memory.piece.begin;
  rows.rows = n;
  rows.own = own;
  rows.first_own = first_own;
  rows.holder = call.own.owner(memory.piece.sample, memory.piece.begin);
  rows.input = place(Recompute::full, own, h);
  rows.attention = place(Recompute::layer, n, q);
  rows.log_sum = place(Recompute::layer, n, part.heads);
  rows.query = place(Recompute::light, n, q);
  rows.mid = place(Recompute::light, own, h);
  rows.gate = place(Recompute::light, n, f);
  rows.up = place(Recompute::light, n, f);
  rows.input_norm = place(Recompute::none, own, h);
  rows.mid_norm = place(Recompute::none, own, h);
  rows.product = place(Recompute::none, n, f);
  rows.input_inverse = place(Recompute::none, own, 1);
  rows.mid_inverse = place(Recompute::none, own, 1);
  return rows;
}

/// Scratch of the backward pass of one piece in the workspace: gradients of what PieceRows holds.
template <std::floating_point Number>
struct PieceGradients {
  OutOf<Number> dmid;        ///< own rows x hidden
  OutOf<Number> dnorm;       ///< of `mid_norm`, later of `input_norm`: own rows x hidden
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
  RowRun run;                ///< tokens, and who holds the first row
  OutOf<Number> input_norm;  ///< read by query, key and value: own rows x hidden
  OutOf<Number> attention;   ///< read by the output projection: rows x query width
  OutOf<Number> mid_norm;    ///< read by gate and up: own rows x hidden
  OutOf<Number> product;     ///< read by down: rows x ffn
  OutOf<Number> dquery;      ///< before rotation, rows x query width
  OutOf<Number> dkey;        ///< before rotation, rows x key width
  OutOf<Number> dvalue;      ///< rows x key width
  OutOf<Number> dmid;        ///< of the output projection, own rows x hidden
  OutOf<Number> dgate;       ///< rows x ffn
  OutOf<Number> dup;         ///< rows x ffn
  OutOf<Number> doutput;     ///< of down, own rows x hidden
};

/// The rows of all of them, which one device holds, one behind the other in matrices of the
/// workspace: one product each, where short pieces would have many.
template <std::floating_point Number>
[[nodiscard]] WeightRows<Number> gathered_weight_rows(std::span<const WeightRows<Number>> all,
                                                      Workspace<Number>& workspace) {
  using Rows = WeightRows<Number>;
  Rows gathered;
  for (const Rows& rows : all) gathered.run.rows += rows.run.rows;
  for (const auto matrix :
       {&Rows::input_norm, &Rows::attention, &Rows::mid_norm, &Rows::product, &Rows::dquery,
        &Rows::dkey, &Rows::dvalue, &Rows::dmid, &Rows::dgate, &Rows::dup, &Rows::doutput}) {
    std::size_t size = 0;
    for (const Rows& rows : all) size += (rows.*matrix).size();
    gathered.*matrix = workspace.take(static_cast<std::int64_t>(size), 1);
    auto into = (gathered.*matrix).begin();
    for (const Rows& rows : all) into = std::ranges::copy(rows.*matrix, into).out;
  }
  return gathered;
}

/// The rows of a piece in its `layer`-th of `layers` layers on this stage, in parts of at most
/// `most` rows, at the end of `all`.
template <std::floating_point Number>
void add_weight_rows(std::vector<WeightRows<Number>>& all, const ModelShape& part,
                     const TensorRows& own, std::int64_t most, const runtime::PieceMemory& memory,
                     std::int64_t layer, std::int64_t layers) {
  const std::int64_t n = memory.piece.length().value;
  const std::int64_t h = part.hidden, q = part.query_width(), k = part.key_width();
  const std::int64_t f = part.ffn;
  const auto size = memory.apart.size() / static_cast<std::size_t>(layers);
  Workspace<Number> left(
      numbers<Number>(memory.apart.subspan(static_cast<std::size_t>(layer) * size, size)));
  const auto take = [&](std::int64_t cols) { return left.take(n, cols); };
  const auto take_own = [&] { return left.take(memory.own.value, h); };
  WeightRows<Number> whole;
  whole.input_norm = take_own();
  whole.attention = take(q);
  whole.mid_norm = take_own();
  whole.product = take(f);
  whole.dquery = take(q);
  whole.dkey = take(k);
  whole.dvalue = take(k);
  whole.dmid = take_own();
  whole.dgate = take(f);
  whole.dup = take(f);
  whole.doutput = take_own();
  const std::int64_t holder = own.owner(memory.piece.sample, memory.piece.begin);
  for_each_part(n, most, [&](std::int64_t i, std::int64_t count) {
    const std::int64_t first = (holder + i) % own.devices;
    const auto of_all = [&](OutOf<Number> rows, std::int64_t cols) {
      return detail::rows(rows, i, count, cols);
    };
    const auto of_own = [&](OutOf<Number> rows) {
      return detail::rows(rows, own.among(holder, i), own.among(first, count), h);
    };
    all.push_back({{count, first},
                   of_own(whole.input_norm),
                   of_all(whole.attention, q),
                   of_own(whole.mid_norm),
                   of_all(whole.product, f),
                   of_all(whole.dquery, q),
                   of_all(whole.dkey, k),
                   of_all(whole.dvalue, k),
                   of_own(whole.dmid),
                   of_all(whole.dgate, f),
                   of_all(whole.dup, f),
                   of_own(whole.doutput)});
  });
}

/// The parts of one layer on some pieces of a pack. Each operator runs on all of them before the
/// next one does, so that a weight is fetched once; pieces are added to gradients in their order.
/// Tensor-parallel devices come to every function alike.
template <Mathematics Math, runtime::Transport<typename Math::Number> Link>
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

  /// `part` is what the device has of the model, `weights` the layer's; what is passed by reference
  /// must outlive this.
  Layer(Math& math, const ModelShape& part, const LayerTensors<In>& weights,
        TensorGroup<Number, Link>& tensor)
      : math_(math), model_(part), weights_(weights), tensor_(tensor) {}

  /// The norm before attention.
  void normalise_input(Pieces pieces) const {
    for (const auto& rows : pieces) {
      math_.rms_norm_forward(rows.input_norm, rows.input_inverse, rows.input, weights_.input_norm,
                             {rows.own, model_.hidden}, model_.norm_eps);
    }
  }

  /// Queries of the pieces, rotated, keys, rotated, and values, but for those without a place.
  void project(Pieces pieces, std::span<const Out> keys, std::span<const Out> values) const {
    const auto normed = gather(pieces, &PieceRows<Number>::input_norm);
    project_query(pieces, normed);
    project_key_value(pieces, normed, keys, values);
  }

  /// Everything behind attention: fills `outputs`, the layer's output by piece, own rows x hidden.
  void finish(Pieces pieces, std::span<const Out> outputs) const {
    make_mid(pieces);
    normalise_mid(pieces);
    make_gate_up(pieces);
    for (const auto& rows : pieces) math_.swiglu_forward(rows.product, rows.gate, rows.up);
    tensor_.sum(runs_of(pieces), outputs, [&](std::span<const Out> sums) {
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        math_.linear_forward(sums[i], pieces[i].product, weights_.down, down(pieces[i].rows));
      }
    });
    for (std::size_t i = 0; i < pieces.size(); ++i) math_.add(outputs[i], pieces[i].mid);
  }

  /// Computes again what comes before attention and the mode has not kept, with keys and values
  /// where they have a place.
  void recompute_before(Pieces pieces, Recompute mode, std::span<const Out> keys,
                        std::span<const Out> values) const {
    if (mode != Recompute::none) normalise_input(pieces);
    const bool again = mode == Recompute::layer || mode == Recompute::full;
    const bool places = std::ranges::any_of(keys, [](Out key) { return !key.empty(); });
    if (!again && !places) return;
    const auto normed = gather(pieces, &PieceRows<Number>::input_norm);
    if (again) project_query(pieces, normed);
    project_key_value(pieces, normed, keys, values);
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
                                 Out doutput, Apart apart) const {
    const auto runs = runs_of(pieces);
    const std::size_t count = pieces.size();
    std::vector<Out> dout, dnorm, dmid;
    for (std::size_t i = 0; i < count; ++i) {
      dout.push_back(detail::rows(doutput, pieces[i].first_own, pieces[i].own, model_.hidden));
      dnorm.push_back(scratch[i].dnorm);
      dmid.push_back(scratch[i].dmid);
    }
    const std::vector<In> whole_dout = tensor_.gather(runs, dout);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      for (const Out added : {scratch[i].dattention, scratch[i].dquery, scratch[i].dproduct,
                              scratch[i].dgate, scratch[i].dup}) {
        std::ranges::fill(added, Number{0});
      }
      math_.linear_backward_input(scratch[i].dproduct, whole_dout[i], weights_.down,
                                  down(rows.rows));
      math_.swiglu_backward(scratch[i].dgate, scratch[i].dup, scratch[i].dproduct, rows.gate,
                            rows.up);
    }
    for (std::size_t i = 0; i < count && apart.empty(); ++i) {
      math_.linear_backward_weight(gradients.down, whole_dout[i], pieces[i].product,
                                   down(pieces[i].rows));
    }
    tensor_.sum(runs, dnorm, [&](std::span<const Out> sums) {
      for (std::size_t i = 0; i < count; ++i) {
        std::ranges::fill(sums[i], Number{0});
        math_.linear_backward_input(sums[i], scratch[i].dgate, weights_.gate, wide(pieces[i].rows));
      }
      for (std::size_t i = 0; i < count; ++i) {
        math_.linear_backward_input(sums[i], scratch[i].dup, weights_.up, wide(pieces[i].rows));
      }
    });
    if (apart.empty()) {
      const auto mid_norm = gather(pieces, &PieceRows<Number>::mid_norm);
      for (std::size_t i = 0; i < count; ++i) {
        const LinearShape shape = wide(pieces[i].rows);
        math_.linear_backward_weight(gradients.gate, scratch[i].dgate, mid_norm[i], shape);
        math_.linear_backward_weight(gradients.up, scratch[i].dup, mid_norm[i], shape);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      std::ranges::copy(dout[i], scratch[i].dmid.begin());
      math_.rms_norm_backward(scratch[i].dmid, gradients.mid_norm, scratch[i].dnorm, rows.mid,
                              weights_.mid_norm, rows.mid_inverse, {rows.own, model_.hidden});
    }
    const std::vector<In> whole_dmid = tensor_.gather(runs, dmid);
    for (std::size_t i = 0; i < count; ++i) {
      math_.linear_backward_input(scratch[i].dattention, whole_dmid[i], weights_.output,
                                  projection(pieces[i].rows));
    }
    for (std::size_t i = 0; i < count && apart.empty(); ++i) {
      math_.linear_backward_weight(gradients.output, whole_dmid[i], pieces[i].attention,
                                   projection(pieces[i].rows));
    }
    for (std::size_t i = 0; i < apart.size(); ++i) {
      std::ranges::copy(pieces[i].attention, apart[i].attention.begin());
      std::ranges::copy(pieces[i].mid_norm, apart[i].mid_norm.begin());
      std::ranges::copy(pieces[i].product, apart[i].product.begin());
      std::ranges::copy(scratch[i].dmid, apart[i].dmid.begin());
      std::ranges::copy(scratch[i].dgate, apart[i].dgate.begin());
      std::ranges::copy(scratch[i].dup, apart[i].dup.begin());
      std::ranges::copy(dout[i], apart[i].doutput.begin());
    }
  }

  /// Backward from dquery, dkey and dvalue (of rotated queries and keys) to the layer's input;
  /// `dinput`, of the whole pack, is overwritten. Fills the rest of `apart`, where weights are.
  void backward_before_attention(const LayerTensors<Out>& gradients, Pieces pieces, Scratch scratch,
                                 Out dinput, Apart apart) const {
    const std::size_t count = pieces.size();
    std::vector<Out> dnorm;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      math_.rotate(scratch[i].dquery, rows.begin, {rows.rows, model_.heads, model_.head_dim},
                   model_.rope_theta, Rotation::inverse);
      math_.rotate(scratch[i].dkey, rows.begin, {rows.rows, model_.kv_heads, model_.head_dim},
                   model_.rope_theta, Rotation::inverse);
      dnorm.push_back(scratch[i].dnorm);
    }
    tensor_.sum(runs_of(pieces), dnorm, [&](std::span<const Out> sums) {
      for (std::size_t i = 0; i < count; ++i) {
        std::ranges::fill(sums[i], Number{0});
        math_.linear_backward_input(sums[i], scratch[i].dquery, weights_.query,
                                    query(pieces[i].rows));
      }
      for (std::size_t i = 0; i < count; ++i) {
        math_.linear_backward_input(sums[i], scratch[i].dkey, weights_.key, key(pieces[i].rows));
      }
      for (std::size_t i = 0; i < count; ++i) {
        math_.linear_backward_input(sums[i], scratch[i].dvalue, weights_.value,
                                    key(pieces[i].rows));
      }
    });
    if (apart.empty()) {
      const auto normed = gather(pieces, &PieceRows<Number>::input_norm);
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t n = pieces[i].rows;
        math_.linear_backward_weight(gradients.query, scratch[i].dquery, normed[i], query(n));
        math_.linear_backward_weight(gradients.key, scratch[i].dkey, normed[i], key(n));
        math_.linear_backward_weight(gradients.value, scratch[i].dvalue, normed[i], key(n));
      }
    }
    for (std::size_t i = 0; i < apart.size(); ++i) {
      std::ranges::copy(pieces[i].input_norm, apart[i].input_norm.begin());
      std::ranges::copy(scratch[i].dquery, apart[i].dquery.begin());
      std::ranges::copy(scratch[i].dkey, apart[i].dkey.begin());
      std::ranges::copy(scratch[i].dvalue, apart[i].dvalue.begin());
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto& rows = pieces[i];
      const Out dx = detail::rows(dinput, rows.first_own, rows.own, model_.hidden);
      std::ranges::copy(scratch[i].dmid, dx.begin());
      math_.rms_norm_backward(dx, gradients.input_norm, scratch[i].dnorm, rows.input,
                              weights_.input_norm, rows.input_inverse, {rows.own, model_.hidden});
    }
  }

  /// Adds the gradients of the layer's matrices, of rows that B has left apart and that one group
  /// may have.
  void add_weight_gradients(const LayerTensors<Out>& gradients, Apart apart) const {
    std::vector<RowRun> runs;
    for (const WeightRows<Number>& left : apart) runs.push_back(left.run);
    const auto gather_left = [&](Out WeightRows<Number>::* matrix) {
      std::vector<Out> own;
      for (const WeightRows<Number>& left : apart) own.push_back(left.*matrix);
      return tensor_.gather(runs, own);
    };
    const auto for_each = [&](const auto& visit) {
      for (std::size_t i = 0; i < apart.size(); ++i) visit(i, apart[i], apart[i].run.rows);
    };
    const auto doutput = gather_left(&WeightRows<Number>::doutput);
    for_each([&](std::size_t i, const auto& left, std::int64_t n) {
      math_.linear_backward_weight(gradients.down, doutput[i], left.product, down(n));
    });
    const auto mid_norm = gather_left(&WeightRows<Number>::mid_norm);
    for_each([&](std::size_t i, const auto& left, std::int64_t n) {
      math_.linear_backward_weight(gradients.gate, left.dgate, mid_norm[i], wide(n));
      math_.linear_backward_weight(gradients.up, left.dup, mid_norm[i], wide(n));
    });
    const auto dmid = gather_left(&WeightRows<Number>::dmid);
    for_each([&](std::size_t i, const auto& left, std::int64_t n) {
      math_.linear_backward_weight(gradients.output, dmid[i], left.attention, projection(n));
    });
    const auto normed = gather_left(&WeightRows<Number>::input_norm);
    for_each([&](std::size_t i, const auto& left, std::int64_t n) {
      math_.linear_backward_weight(gradients.query, left.dquery, normed[i], query(n));
      math_.linear_backward_weight(gradients.key, left.dkey, normed[i], key(n));
      math_.linear_backward_weight(gradients.value, left.dvalue, normed[i], key(n));
    });
  }

 private:
  [[nodiscard]] LinearShape query(std::int64_t rows) const {
    return {rows, model_.hidden, model_.query_width()};
  }
  [[nodiscard]] LinearShape key(std::int64_t rows) const {
    return {rows, model_.hidden, model_.key_width()};
  }
  [[nodiscard]] LinearShape projection(std::int64_t rows) const {
    return {rows, model_.query_width(), model_.hidden};
  }
  [[nodiscard]] LinearShape wide(std::int64_t rows) const {
    return {rows, model_.hidden, model_.ffn};
  }
  [[nodiscard]] LinearShape down(std::int64_t rows) const {
    return {rows, model_.ffn, model_.hidden};
  }

  [[nodiscard]] static std::vector<RowRun> runs_of(Pieces pieces) {
    std::vector<RowRun> runs;
    for (const auto& rows : pieces) runs.push_back({rows.rows, rows.holder});
    return runs;
  }
  /// All rows of a matrix of the pieces.
  [[nodiscard]] std::vector<In> gather(Pieces pieces, Out PieceRows<Number>::* matrix) const {
    std::vector<Out> own;
    for (const auto& rows : pieces) own.push_back(rows.*matrix);
    return tensor_.gather(runs_of(pieces), own);
  }

  void project_query(Pieces pieces, std::span<const In> normed) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto& rows = pieces[i];
      math_.linear_forward(rows.query, normed[i], weights_.query, query(rows.rows));
      math_.rotate(rows.query, rows.begin, {rows.rows, model_.heads, model_.head_dim},
                   model_.rope_theta, Rotation::forward);
    }
  }
  void project_key_value(Pieces pieces, std::span<const In> normed, std::span<const Out> keys,
                         std::span<const Out> values) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (keys[i].empty()) continue;
      const auto& rows = pieces[i];
      math_.linear_forward(keys[i], normed[i], weights_.key, key(rows.rows));
      math_.rotate(keys[i], rows.begin, {rows.rows, model_.kv_heads, model_.head_dim},
                   model_.rope_theta, Rotation::forward);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (values[i].empty()) continue;
      math_.linear_forward(values[i], normed[i], weights_.value, key(pieces[i].rows));
    }
  }

  /// The residual behind attention.
  void make_mid(Pieces pieces) const {
    std::vector<Out> mid;
    for (const auto& rows : pieces) mid.push_back(rows.mid);
    tensor_.sum(runs_of(pieces), mid, [&](std::span<const Out> sums) {
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        math_.linear_forward(sums[i], pieces[i].attention, weights_.output,
                             projection(pieces[i].rows));
      }
    });
    for (const auto& rows : pieces) math_.add(rows.mid, rows.input);
  }

  void normalise_mid(Pieces pieces) const {
    for (const auto& rows : pieces) {
      math_.rms_norm_forward(rows.mid_norm, rows.mid_inverse, rows.mid, weights_.mid_norm,
                             {rows.own, model_.hidden}, model_.norm_eps);
    }
  }

  void make_gate_up(Pieces pieces) const {
    const auto normed = gather(pieces, &PieceRows<Number>::mid_norm);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      math_.linear_forward(pieces[i].gate, normed[i], weights_.gate, wide(pieces[i].rows));
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      math_.linear_forward(pieces[i].up, normed[i], weights_.up, wide(pieces[i].rows));
    }
  }

  Math& math_;
  const ModelShape& model_;
  LayerTensors<In> weights_;
  TensorGroup<Number, Link>& tensor_;
};

}  // namespace slimpack::cpu
