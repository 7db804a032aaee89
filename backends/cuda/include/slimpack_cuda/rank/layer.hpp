// SPDX-License-Identifier: Apache-2.0
// One decoder layer on the blocks of a pack, attention apart: forward, recomputation, backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/gemm.hpp"
#include "slimpack_cuda/norm.hpp"
#include "slimpack_cuda/rank/backward_rows.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/tensor_unit.hpp"
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

/// Keys and values that B makes again, of some rows of blocks.
struct KeysToMake {
  std::span<const RowRun> runs;      ///< which rows
  DeviceSpan<Bf16> projected;        ///< scratch of their number x 2k, run after run
  DeviceSpan<Bf16> key, value;       ///< rotated keys, and values
  DeviceSpan<const RopeRow> places;  ///< their rows in `key` and `value`
};

/// Where the layer's output of a block's own rows belongs: to the next layer, whose norm is made in
/// the same pass, or out of the unit.
struct LayerOutput {
  DeviceSpan<Bf16> rows;
  DeviceSpan<Bf16> norm = {};  ///< nothing, and so what follows, where the rows leave
  DeviceSpan<float> inverse = {};
  DeviceSpan<const Bf16> gain = {};
};

/// A layer's operators on groups of rows; of tensor-parallel devices each comes to every call with
/// the same groups.
template <class Link>
class RankLayer {
 public:
  using Groups = std::span<const BlockGroup>;
  using Blocks = std::span<const BlockRows>;

  /// `part` is what the device has of the model, `weights` the layer's.
  RankLayer(const LayerTools& tools, const ModelShape& part,
            const LayerMatrices<const Bf16>& weights, TensorUnit<Link>& tensor)
      : tools_(tools),
        model_(part),
        weights_(weights),
        tensor_(tensor),
        h_(part.hidden),
        q_(part.query_width()),
        k_(part.key_width()),
        f_(part.ffn) {}

  /// The norms of the blocks' inputs, as `project` wants them: of a layer whose input is not the
  /// output of another one's `finish`.
  void normalise_inputs(Groups groups) {
    for (const BlockGroup& group : groups) {
      for (const BlockRows& block : group.blocks) normalise_input(block);
    }
  }
  /// Projection of the norms and rotary positions: queries to the blocks' rows of `query`, keys and
  /// values to those of the pages. `projected` is scratch of rows x (q + 2k).
  void project(Groups groups, DeviceSpan<Bf16> projected, DeviceSpan<Bf16> query,
               DeviceSpan<Bf16> key, DeviceSpan<Bf16> value, DeviceSpan<const RopeRow> places) {
    for (const BlockGroup& group : groups) {
      with_whole(
          group, &BlockRows::input_norm, [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
            tools_.gemm.forward(rows_at(projected, run, q_ + 2 * k_), normed,
                                weights_.query_key_value, {run.rows, h_, q_ + 2 * k_}, stream());
          });
    }
    rope_forward(query, key, value, projected, places, tools_.frequencies,
                 rope_shape(places.size, model_.kv_heads), stream());
  }

  /// Everything behind attention; `output_of(group, block)` is a LayerOutput, by their numbers.
  /// Where a device is alone the product adds the residual, and the norm reads the sum; behind a
  /// collective one kernel does both.
  template <class OutputOf>
  void finish(Groups groups, OutputOf output_of) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const BlockGroup& group = groups[g];
      make_mid_and_norm(group);
      make_gate_up(group);
      make_product(group.blocks);
      if (!tensor_.several()) {
        for (std::size_t i = 0; i < group.blocks.size(); ++i) {
          const BlockRows& block = group.blocks[i];
          const LayerOutput output = output_of(g, i);
          tools_.gemm.forward_add(output.rows, block.mid, block.product, weights_.down,
                                  {block.rows, f_, h_}, stream());
          if (output.gain.size == 0) continue;
          rms_norm_forward(output.norm, output.inverse, output.rows, output.gain, {block.own, h_},
                           epsilon(), stream());
        }
        continue;
      }
      const auto sums = sum_of(group, &BlockRows::product, weights_.down, f_);
      for (std::size_t i = 0; i < group.blocks.size(); ++i) {
        const BlockRows& block = group.blocks[i];
        const LayerOutput output = output_of(g, i);
        const DeviceSpan<const Bf16> sum = sums_of(group, block, sums);
        if (output.gain.size == 0) {
          add(output.rows, sum, block.mid, stream());
        } else {
          rms_norm_forward_residual(output.norm, output.inverse, output.rows, sum, block.mid,
                                    output.gain, {block.own, h_}, epsilon(), stream());
        }
      }
    }
  }

  /// What the mode has not kept and what comes before attention. `projected` is scratch of rows x q
  /// and `query` all blocks' queries, where they are not kept; rows of `places` count over both.
  /// Then keys and values once more, of some rows of blocks.
  void recompute_before(Groups groups, Recompute mode, DeviceSpan<Bf16> projected,
                        DeviceSpan<Bf16> query, DeviceSpan<const RopeRow> places,
                        const KeysToMake& keys) {
    if (mode == Recompute::none) return;
    const bool queries = mode != Recompute::light;
    for (const BlockGroup& group : groups) {
      for (const BlockRows& block : group.blocks) normalise_input(block);
      if (!queries && keys.runs.empty()) continue;
      with_whole(group, &BlockRows::input_norm,
                 [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
                   if (queries) {
                     tools_.gemm.forward(rows_at(projected, run, q_), normed, weights_.query,
                                         {run.rows, h_, q_}, stream());
                   }
                   project_keys(run, normed, keys);
                 });
    }
    if (queries) {
      rope_forward(query, {}, {}, projected, places, tools_.frequencies, rope_shape(places.size, 0),
                   stream());
    }
    if (keys.runs.empty()) return;
    RopeShape shape = rope_shape(keys.places.size, model_.kv_heads);
    shape.heads = 0;
    rope_forward({}, keys.key, keys.value, keys.projected.subspan(0, keys.places.size * 2 * k_),
                 keys.places, tools_.frequencies, shape, stream());
  }
  /// What comes behind attention, whose output must be there.
  void recompute_behind(Groups groups, Recompute mode) {
    if (mode == Recompute::none) return;
    for (const BlockGroup& group : groups) {
      if (mode == Recompute::light) {
        normalise_mid(group.blocks);
      } else {
        make_mid_and_norm(group);
        make_gate_up(group);
      }
      make_product(group.blocks);
    }
  }

  /// From the gradient of the layer's output to those of the residual behind attention and of
  /// attention's output. Norms get gradients here, matrices unless these are left apart.
  void backward_behind(Groups groups, const LayerMatrices<float>& gradients,
                       const BackwardRows& rows, WeightGradients matrices) {
    const bool with = matrices == WeightGradients::with;
    for (const BlockGroup& group : groups) {
      const std::int64_t n = group.rows.rows;
      const DeviceSpan<const Bf16> doutput = tensor_.gather(group.rows, rows.gradient);
      tools_.gemm.input_gradient(of_group(rows.dproduct, group, f_), doutput, weights_.down,
                                 {n, f_, h_}, Into::overwrite, stream());
      if (with) add_gradients(group, gradients.down, doutput, &BlockRows::product, f_);
      for_each_run(
          Blocks(group.blocks),
          [&](const BlockRows& run) {
            swiglu_backward(rows_at(rows.dgate_up, run, 2 * f_), rows_at(rows.dproduct, run, f_),
                            run.gate_up, {run.rows, f_}, stream());
          },
          &BlockRows::gate_up);
      if (with) {
        with_whole(group, &BlockRows::mid_norm,
                   [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
                     add_gradient(gradients.gate_up, rows_at(rows.dgate_up, run, 2 * f_), normed,
                                  {run.rows, h_, 2 * f_});
                   });
      }
      const auto dnorm =
          tensor_.sum(group.rows, own_of_group(rows.dnorm, group), [&](DeviceSpan<Bf16> sums) {
            tools_.gemm.input_gradient(sums, of_group(rows.dgate_up, group, 2 * f_),
                                       weights_.gate_up, {n, h_, 2 * f_}, Into::overwrite,
                                       stream());
          });
      for_each_run(
          Blocks(group.blocks),
          [&](const BlockRows& run) {
            rms_norm_backward(own_rows_at(rows.dmid, run, h_), gradients.mid_norm,
                              tools_.norm_workspace, sums_of(group, run, dnorm),
                              own_rows_at(rows.gradient, run, h_), run.mid, weights_.mid_norm,
                              run.mid_inverse, {run.own, h_}, stream());
          },
          &BlockRows::mid, &BlockRows::mid_inverse);
      const DeviceSpan<const Bf16> dmid = tensor_.gather(group.rows, rows.dmid);
      tools_.gemm.input_gradient(of_group(rows.dattention, group, q_), dmid, weights_.output,
                                 {n, q_, h_}, Into::overwrite, stream());
      if (with) add_gradients(group, gradients.output, dmid, &BlockRows::attention, q_);
    }
  }

  /// From the gradients of queries, in `rows`, and of keys and values, in rows of `dkey` and
  /// `dvalue`, to that of the layer's input. Norms get gradients here, matrices unless these are
  /// left apart.
  void backward_before(Groups groups, const LayerMatrices<float>& gradients,
                       const BackwardRows& rows, DeviceSpan<const float> dkey,
                       DeviceSpan<const float> dvalue, DeviceSpan<const RopeRow> places,
                       WeightGradients matrices) {
    rope_backward(rows.dqkv, rows.dquery, dkey, dvalue, places, tools_.frequencies,
                  rope_shape(rows.rows, model_.kv_heads), stream());
    const std::int64_t wide = q_ + 2 * k_;
    for (const BlockGroup& group : groups) {
      if (matrices == WeightGradients::with) {
        with_whole(group, &BlockRows::input_norm,
                   [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
                     add_gradient(gradients.query_key_value, rows_at(rows.dqkv, run, wide), normed,
                                  {run.rows, h_, wide});
                   });
      }
      const auto dnorm =
          tensor_.sum(group.rows, own_of_group(rows.dnorm, group), [&](DeviceSpan<Bf16> sums) {
            tools_.gemm.input_gradient(sums, of_group(rows.dqkv, group, wide),
                                       weights_.query_key_value, {group.rows.rows, h_, wide},
                                       Into::overwrite, stream());
          });
      for (const BlockRows& block : group.blocks) {
        rms_norm_backward(own_rows_at(rows.gradient, block, h_), gradients.input_norm,
                          tools_.norm_workspace, sums_of(group, block, dnorm),
                          own_rows_at(rows.dmid, block, h_), block.input, weights_.input_norm,
                          block.input_inverse, {block.own, h_}, stream());
      }
    }
  }

  /// Adds to the gradients of the matrices what rows of W make.
  void add_weight_gradients(std::span<const RowGroup> groups, const LayerMatrices<float>& gradients,
                            const WeightRows& rows) {
    const std::int64_t wide = q_ + 2 * k_;
    for (const RowGroup& group : groups) {
      const std::int64_t n = group.rows;
      const auto all = [&](DeviceSpan<Bf16> matrix, std::int64_t width) {
        return rows_at(matrix, group.first, n, width);
      };
      add_gradient(gradients.down, tensor_.gather(group, rows.doutput), all(rows.product, f_),
                   {n, f_, h_});
      add_gradient(gradients.gate_up, all(rows.dgate_up, 2 * f_),
                   tensor_.gather(group, rows.mid_norm), {n, h_, 2 * f_});
      add_gradient(gradients.output, tensor_.gather(group, rows.dmid), all(rows.attention, q_),
                   {n, q_, h_});
      add_gradient(gradients.query_key_value, all(rows.dqkv, wide),
                   tensor_.gather(group, rows.input_norm), {n, h_, wide});
    }
  }

 private:
  /// Calls visit(run, its whole rows) for a matrix of which blocks have own rows, `all` being those
  /// that the work writes to or reads beside it.
  template <class Visit, class... Element>
  void with_whole(const BlockGroup& group, DeviceSpan<Bf16> BlockRows::* matrix, Visit visit,
                  DeviceSpan<Element> BlockRows::*... all) {
    const Blocks blocks(group.blocks);
    if (!tensor_.several()) {
      return for_each_run(
          blocks, [&](const BlockRows& run) { visit(run, DeviceSpan<const Bf16>(run.*matrix)); },
          matrix, all...);
    }
    const DeviceSpan<const Bf16> whole = tensor_.gather(group.rows, [&](DeviceSpan<Bf16> place) {
      for_each_run(
          blocks,
          [&](const BlockRows& run) { copy(sums_of(group, run, place), run.*matrix, stream()); },
          matrix);
    });
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          visit(run, rows_at(whole, run.first - group.rows.first, run.rows, h_));
        },
        all...);
  }
  /// The sums of own rows that the products of an all-rows matrix make.
  [[nodiscard]] DeviceSpan<const Bf16> sum_of(const BlockGroup& group,
                                              DeviceSpan<Bf16> BlockRows::* in,
                                              DeviceSpan<const Bf16> weights, std::int64_t inputs) {
    return tensor_.sum(group.rows, {}, [&](DeviceSpan<Bf16> sums) {
      for_each_run(
          Blocks(group.blocks),
          [&](const BlockRows& run) {
            tools_.gemm.forward(rows_at(sums, run.first - group.rows.first, run.rows, h_), run.*in,
                                weights, {run.rows, inputs, h_}, stream());
          },
          in);
    });
  }
  [[nodiscard]] StreamView stream() const noexcept { return tools_.stream; }
  /// The rows of a group in a matrix of all rows, or of all own rows.
  template <class Element>
  [[nodiscard]] static DeviceSpan<Element> of_group(DeviceSpan<Element> matrix,
                                                    const BlockGroup& group, std::int64_t width) {
    return rows_at(matrix, group.rows.first, group.rows.rows, width);
  }
  [[nodiscard]] DeviceSpan<Bf16> own_of_group(DeviceSpan<Bf16> matrix,
                                              const BlockGroup& group) const {
    return rows_at(matrix, group.rows.first_own, group.rows.own, h_);
  }
  /// The own rows of a block among those of its group.
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> sums_of(const BlockGroup& group, const BlockRows& block,
                                            DeviceSpan<Element> matrix) const {
    return rows_at(matrix, block.first_own - group.rows.first_own, block.own, h_);
  }

  /// `dout` are whole rows of the group.
  void add_gradients(const BlockGroup& group, DeviceSpan<float> gradient,
                     DeviceSpan<const Bf16> dout, DeviceSpan<Bf16> BlockRows::* in,
                     std::int64_t inputs) {
    for_each_run(
        Blocks(group.blocks),
        [&](const BlockRows& run) {
          add_gradient(gradient, rows_at(dout, run.first - group.rows.first, run.rows, h_), run.*in,
                       {run.rows, inputs, h_});
        },
        in);
  }
  void add_gradient(DeviceSpan<float> gradient, DeviceSpan<const Bf16> dout,
                    DeviceSpan<const Bf16> in, const LinearShape& shape) {
    tools_.gemm.weight_gradient(gradient, dout, in, shape, Into::add, stream());
  }
  /// Projects those rows of a run whose keys and values are wanted; `normed` has all of its rows.
  void project_keys(const BlockRows& run, DeviceSpan<const Bf16> normed, const KeysToMake& keys) {
    const auto weights = weights_.query_key_value.subspan(q_ * h_, 2 * k_ * h_);
    for (const RowRun& wanted : keys.runs) {
      const std::int64_t begin = std::max(run.first, wanted.first);
      const std::int64_t rows = std::min(run.first + run.rows, wanted.first + wanted.rows) - begin;
      if (rows <= 0) continue;
      tools_.gemm.forward(rows_at(keys.projected, wanted.into + begin - wanted.first, rows, 2 * k_),
                          rows_at(normed, begin - run.first, rows, h_), weights, {rows, h_, 2 * k_},
                          stream());
    }
  }
  [[nodiscard]] RopeShape rope_shape(std::int64_t rows, std::int64_t kv_heads) const {
    return {rows, static_cast<std::int32_t>(model_.heads), static_cast<std::int32_t>(kv_heads),
            static_cast<std::int32_t>(model_.head_dim)};
  }
  [[nodiscard]] float epsilon() const { return static_cast<float>(model_.norm_eps); }

  void normalise_input(const BlockRows& block) {
    rms_norm_forward(block.input_norm, block.input_inverse, block.input, weights_.input_norm,
                     {block.own, h_}, epsilon(), stream());
  }
  /// The residual behind attention, and its norm.
  void make_mid_and_norm(const BlockGroup& group) {
    if (!tensor_.several()) {
      for (const BlockRows& block : group.blocks) {
        tools_.gemm.forward_add(block.mid, block.input, block.attention, weights_.output,
                                {block.rows, q_, h_}, stream());
      }
      return normalise_mid(group.blocks);
    }
    const auto sums = sum_of(group, &BlockRows::attention, weights_.output, q_);
    for (const BlockRows& block : group.blocks) {
      rms_norm_forward_residual(block.mid_norm, block.mid_inverse, block.mid,
                                sums_of(group, block, sums), block.input, weights_.mid_norm,
                                {block.own, h_}, epsilon(), stream());
    }
  }
  void normalise_mid(Blocks blocks) {
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          rms_norm_forward(run.mid_norm, run.mid_inverse, run.mid, weights_.mid_norm, {run.own, h_},
                           epsilon(), stream());
        },
        &BlockRows::mid, &BlockRows::mid_norm, &BlockRows::mid_inverse);
  }
  void make_gate_up(const BlockGroup& group) {
    with_whole(
        group, &BlockRows::mid_norm,
        [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
          tools_.gemm.forward(run.gate_up, normed, weights_.gate_up, {run.rows, h_, 2 * f_},
                              stream());
        },
        &BlockRows::gate_up);
  }
  void make_product(Blocks blocks) {
    for_each_run(
        blocks,
        [&](const BlockRows& run) {
          swiglu_forward(run.product, run.gate_up, {run.rows, f_}, stream());
        },
        &BlockRows::gate_up, &BlockRows::product);
  }

  const LayerTools& tools_;
  const ModelShape& model_;
  LayerMatrices<const Bf16> weights_;
  TensorUnit<Link>& tensor_;
  std::int64_t h_, q_, k_, f_;
};

}  // namespace slimpack::cuda
