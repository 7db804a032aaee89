// SPDX-License-Identifier: Apache-2.0
// One decoder layer on the blocks of a pack, attention apart: forward, recomputation, backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cuda/gemm.hpp"
#include "slimpack_cuda/norm.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/weights.hpp"
#include "slimpack_cuda/rope.hpp"
#include "slimpack_cuda/swiglu.hpp"

namespace slimpack::cuda {

/// What layers compute with on one device.
struct LayerTools {
  Gemm& gemm;
  DeviceSpan<float> norm_workspace;
  DeviceSpan<const std::uint64_t> frequencies;  ///< of rotary positions
  StreamView stream;
};

/// Scratch of a backward pass: rows of all blocks, block after block. Matrices that are needed at
/// different times share memory, as place_scratch says.
struct BackwardRows {
  std::int64_t rows = 0;
  DeviceSpan<Bf16> gradient;  ///< of the layer's output, then of its input
  DeviceSpan<Bf16> dmid, dnorm, dattention, dquery, dproduct, dgate_up;
  DeviceSpan<Bf16> dqkv;           ///< over dattention, dproduct and dgate_up
  DeviceSpan<float> delta;         ///< over dnorm
  DeviceSpan<float> dquery_sum;    ///< over dproduct and dgate_up
  DeviceSpan<std::int32_t> turns;  ///< of attention, behind dquery_sum as far as there is room
  DeviceSpan<float> dkey, dvalue;  ///< slice after slice (UnitKeys)
};

/// Rows x ((3h + 2q + 3f) x 2 + 2k x 4) bytes of the workspace.
[[nodiscard]] inline BackwardRows place_scratch(Carver& workspace, const ModelShape& model,
                                                std::int64_t rows) {
  const std::int64_t h = model.hidden, q = model.query_width(), k = model.key_width(),
                     f = model.ffn;
  BackwardRows scratch;
  scratch.rows = rows;
  const DeviceSpan<Bf16> wide = workspace.take<Bf16>(rows, q + 3 * f);
  const DeviceSpan<Bf16> forward = wide.subspan(rows * q, rows * 3 * f);
  scratch.dattention = wide.subspan(0, rows * q);
  scratch.dqkv = wide.subspan(0, rows * (q + 2 * k));
  scratch.dquery = workspace.take<Bf16>(rows, q);
  scratch.gradient = workspace.take<Bf16>(rows, h);
  scratch.dmid = workspace.take<Bf16>(rows, h);
  scratch.dnorm = workspace.take<Bf16>(rows, h);
  scratch.dkey = workspace.take<float>(rows, k);
  scratch.dvalue = workspace.take<float>(rows, k);
  scratch.dproduct = forward.subspan(0, rows * f);
  scratch.dgate_up = forward.subspan(rows * f, rows * 2 * f);
  scratch.delta = {reinterpret_cast<float*>(scratch.dnorm.data), rows * model.heads};
  scratch.dquery_sum = {reinterpret_cast<float*>(forward.data), rows * q};
  scratch.turns = {reinterpret_cast<std::int32_t*>(forward.data + 2 * rows * q),
                   std::max<std::int64_t>(0, (forward.size - 2 * rows * q) / 2)};
  return scratch;
}

/// Rows of inputs of a layer's matrix products, and of the gradients of what these make.
struct WeightRows {
  std::int64_t rows = 0;
  DeviceSpan<Bf16> input_norm, attention, mid_norm,
      product;                                     ///< read by q, k, v; o; gate, up; down
  DeviceSpan<Bf16> dqkv, dmid, dgate_up, doutput;  ///< made by the same
};

/// The rows of a block in B, those of one half of the layer at a time: others share their memory.
[[nodiscard]] inline WeightRows weight_rows(const BlockRows& block, const BackwardRows& rows,
                                            const ModelShape& model) {
  const std::int64_t h = model.hidden;
  return {block.rows,
          block.input_norm,
          block.attention,
          block.mid_norm,
          block.product,
          rows_at(rows.dqkv, block, model.query_width() + 2 * model.key_width()),
          rows_at(rows.dmid, block, h),
          rows_at(rows.dgate_up, block, 2 * model.ffn),
          rows_at(rows.gradient, block, h)};
}

class RankLayer {
 public:
  using Blocks = std::span<const BlockRows>;

  RankLayer(const LayerTools& tools, const ModelShape& model,
            const LayerMatrices<const Bf16>& weights)
      : tools_(tools),
        model_(model),
        weights_(weights),
        h_(model.hidden),
        q_(model.query_width()),
        k_(model.key_width()),
        f_(model.ffn) {}

  /// Norm, projection and rotary positions: queries to the blocks' rows of `query`, keys and values
  /// to those of the pages. `projected` is scratch of rows x (q + 2k).
  void project(Blocks blocks, DeviceSpan<Bf16> projected, DeviceSpan<Bf16> query,
               DeviceSpan<Bf16> key, DeviceSpan<Bf16> value, DeviceSpan<const RopeRow> places) {
    for (const BlockRows& block : blocks) normalise_input(block);
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          tools_.gemm.forward(rows_at(projected, run, q_ + 2 * k_), run.input_norm,
                              weights_.query_key_value, {run.rows, h_, q_ + 2 * k_}, tools_.stream);
        },
        &BlockRows::input_norm);
    rope_forward(query, key, value, projected, places, tools_.frequencies,
                 rope_shape(places.size, model_.kv_heads), tools_.stream);
  }

  /// Everything behind attention; `next(block)` is where the layer's output belongs.
  template <class Next>
  void finish(Blocks blocks, Next next) {
    for (const BlockRows& block : blocks) make_mid(block);
    normalise_mid(blocks);
    make_gate_up(blocks);
    make_product(blocks);
    for (const BlockRows& block : blocks) {
      tools_.gemm.forward_add(next(block), block.mid, block.product, weights_.down,
                              {block.rows, f_, h_}, tools_.stream);
    }
  }

  /// What the mode has not kept and what comes before attention. `projected` is scratch of rows x q
  /// and `query` all blocks' queries, where they are not kept; rows of `places` count over both.
  void recompute_before(Blocks blocks, Recompute mode, DeviceSpan<Bf16> projected,
                        DeviceSpan<Bf16> query, DeviceSpan<const RopeRow> places) {
    if (mode == Recompute::none) return;
    for (const BlockRows& block : blocks) normalise_input(block);
    if (mode == Recompute::light) return;
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          tools_.gemm.forward(rows_at(projected, run, q_), run.input_norm, weights_.query,
                              {run.rows, h_, q_}, tools_.stream);
        },
        &BlockRows::input_norm);
    rope_forward(query, {}, {}, projected, places, tools_.frequencies, rope_shape(places.size, 0),
                 tools_.stream);
  }
  /// Keys and values once more, of some rows of blocks. `projected` is scratch of their number x
  /// 2k, run after run; `places` are the rows of `key` and `value`.
  void recompute_keys(Blocks blocks, std::span<const RowRun> runs, DeviceSpan<Bf16> projected,
                      DeviceSpan<Bf16> key, DeviceSpan<Bf16> value,
                      DeviceSpan<const RopeRow> places) {
    if (runs.empty()) return;
    const DeviceSpan<const Bf16> weights = weights_.query_key_value.subspan(q_ * h_, 2 * k_ * h_);
    for (const RowRun& run : runs) {
      tools_.gemm.forward(rows_at(projected, run.into, run.rows, 2 * k_),
                          rows_at(blocks[run.block].input_norm, run.row, run.rows, h_), weights,
                          {run.rows, h_, 2 * k_}, tools_.stream);
    }
    RopeShape shape = rope_shape(places.size, model_.kv_heads);
    shape.heads = 0;
    rope_forward({}, key, value, projected.subspan(0, places.size * 2 * k_), places,
                 tools_.frequencies, shape, tools_.stream);
  }
  /// What comes behind attention, whose output must be there.
  void recompute_behind(Blocks blocks, Recompute mode) {
    if (mode == Recompute::none) return;
    if (mode != Recompute::light) {
      for (const BlockRows& block : blocks) make_mid(block);
    }
    normalise_mid(blocks);
    if (mode != Recompute::light) make_gate_up(blocks);
    make_product(blocks);
  }

  /// From the gradient of the layer's output to those of the residual behind attention and of
  /// attention's output. Matrices get no gradients here, norms do.
  void backward_behind(Blocks blocks, const LayerMatrices<float>& gradients,
                       const BackwardRows& rows) {
    const std::int64_t n = rows.rows;
    tools_.gemm.input_gradient(rows.dproduct, rows.gradient, weights_.down, {n, f_, h_},
                               Into::overwrite, tools_.stream);
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          swiglu_backward(rows_at(rows.dgate_up, run, 2 * f_), rows_at(rows.dproduct, run, f_),
                          run.gate_up, {run.rows, f_}, tools_.stream);
        },
        &BlockRows::gate_up);
    tools_.gemm.input_gradient(rows.dnorm, rows.dgate_up, weights_.gate_up, {n, h_, 2 * f_},
                               Into::overwrite, tools_.stream);
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          rms_norm_backward(rows_at(rows.dmid, run, h_), gradients.mid_norm, tools_.norm_workspace,
                            rows_at(rows.dnorm, run, h_), rows_at(rows.gradient, run, h_), run.mid,
                            weights_.mid_norm, run.mid_inverse, {run.rows, h_}, tools_.stream);
        },
        &BlockRows::mid, &BlockRows::mid_inverse);
    tools_.gemm.input_gradient(rows.dattention, rows.dmid, weights_.output, {n, q_, h_},
                               Into::overwrite, tools_.stream);
  }

  /// From the gradients of queries, in `rows`, and of keys and values, in rows of `dkey` and
  /// `dvalue`, to that of the layer's input. Matrices get no gradients here, norms do.
  void backward_before(Blocks blocks, const LayerMatrices<float>& gradients,
                       const BackwardRows& rows, DeviceSpan<const float> dkey,
                       DeviceSpan<const float> dvalue, DeviceSpan<const RopeRow> places) {
    rope_backward(rows.dqkv, rows.dquery, dkey, dvalue, places, tools_.frequencies,
                  rope_shape(rows.rows, model_.kv_heads), tools_.stream);
    const std::int64_t wide = q_ + 2 * k_;
    tools_.gemm.input_gradient(rows.dnorm, rows.dqkv, weights_.query_key_value,
                               {rows.rows, h_, wide}, Into::overwrite, tools_.stream);
    for (const BlockRows& block : blocks) {
      rms_norm_backward(rows_at(rows.gradient, block, h_), gradients.input_norm,
                        tools_.norm_workspace, rows_at(rows.dnorm, block, h_),
                        rows_at(rows.dmid, block, h_), block.input, weights_.input_norm,
                        block.input_inverse, {block.rows, h_}, tools_.stream);
    }
  }

  /// Adds to the gradients of the matrices behind attention what rows of W make.
  void add_gradients_behind(const LayerMatrices<float>& gradients, const WeightRows& rows) {
    add_gradient(gradients.down, rows.doutput, rows.product, {rows.rows, f_, h_});
    add_gradient(gradients.gate_up, rows.dgate_up, rows.mid_norm, {rows.rows, h_, 2 * f_});
    add_gradient(gradients.output, rows.dmid, rows.attention, {rows.rows, q_, h_});
  }
  /// The same of the matrices before it.
  void add_gradients_before(const LayerMatrices<float>& gradients, const WeightRows& rows) {
    add_gradient(gradients.query_key_value, rows.dqkv, rows.input_norm,
                 {rows.rows, h_, q_ + 2 * k_});
  }
  /// The same of what B has at hand.
  void add_gradients_behind(Blocks blocks, const LayerMatrices<float>& gradients,
                            const BackwardRows& rows) {
    add_gradients(blocks, gradients.down, rows.gradient, h_, &BlockRows::product, f_);
    add_gradients(blocks, gradients.gate_up, rows.dgate_up, 2 * f_, &BlockRows::mid_norm, h_);
    add_gradients(blocks, gradients.output, rows.dmid, h_, &BlockRows::attention, q_);
  }
  void add_gradients_before(Blocks blocks, const LayerMatrices<float>& gradients,
                            const BackwardRows& rows) {
    add_gradients(blocks, gradients.query_key_value, rows.dqkv, q_ + 2 * k_, &BlockRows::input_norm,
                  h_);
  }

 private:
  void add_gradients(Blocks blocks, DeviceSpan<float> gradient, DeviceSpan<const Bf16> dout,
                     std::int64_t outputs, DeviceSpan<Bf16> BlockRows::* in, std::int64_t inputs) {
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          add_gradient(gradient, rows_at(dout, run, outputs), run.*in, {run.rows, inputs, outputs});
        },
        in);
  }
  void add_gradient(DeviceSpan<float> gradient, DeviceSpan<const Bf16> dout,
                    DeviceSpan<const Bf16> in, const LinearShape& shape) {
    tools_.gemm.weight_gradient(gradient, dout, in, shape, Into::add, tools_.stream);
  }
  [[nodiscard]] RopeShape rope_shape(std::int64_t rows, std::int64_t kv_heads) const {
    return {rows, static_cast<std::int32_t>(model_.heads), static_cast<std::int32_t>(kv_heads),
            static_cast<std::int32_t>(model_.head_dim)};
  }
  [[nodiscard]] float epsilon() const { return static_cast<float>(model_.norm_eps); }

  void normalise_input(const BlockRows& block) {
    rms_norm_forward(block.input_norm, block.input_inverse, block.input, weights_.input_norm,
                     {block.rows, h_}, epsilon(), tools_.stream);
  }
  /// The residual behind attention.
  void make_mid(const BlockRows& block) {
    tools_.gemm.forward_add(block.mid, block.input, block.attention, weights_.output,
                            {block.rows, q_, h_}, tools_.stream);
  }
  void normalise_mid(Blocks blocks) {
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          rms_norm_forward(run.mid_norm, run.mid_inverse, run.mid, weights_.mid_norm,
                           {run.rows, h_}, epsilon(), tools_.stream);
        },
        &BlockRows::mid, &BlockRows::mid_norm, &BlockRows::mid_inverse);
  }
  void make_gate_up(Blocks blocks) {
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          tools_.gemm.forward(run.gate_up, run.mid_norm, weights_.gate_up, {run.rows, h_, 2 * f_},
                              tools_.stream);
        },
        &BlockRows::mid_norm, &BlockRows::gate_up);
  }
  void make_product(Blocks blocks) {
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          swiglu_forward(run.product, run.gate_up, {run.rows, f_}, tools_.stream);
        },
        &BlockRows::gate_up, &BlockRows::product);
  }

  const LayerTools& tools_;
  const ModelShape& model_;
  LayerMatrices<const Bf16> weights_;
  std::int64_t h_, q_, k_, f_;
};

}  // namespace slimpack::cuda
