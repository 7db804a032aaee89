// SPDX-License-Identifier: Apache-2.0
// One decoder layer on the blocks of a pack, attention apart: forward, recomputation, backward.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
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
/// the same groups. Each operator passes all groups before the next begins, so that one group's
/// rows travel while another's are multiplied.
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
    with_whole(
        groups, &BlockRows::input_norm, [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
          tools_.gemm.forward(rows_at(projected, run, q_ + 2 * k_), normed,
                              weights_.query_key_value, {run.rows, h_, q_ + 2 * k_}, stream());
        });
    rope_forward(query, key, value, projected, places, tools_.frequencies,
                 rope_shape(places.size, model_.kv_heads), stream());
  }

  /// Everything behind attention; `output_of(group, block)` is a LayerOutput, by their numbers.
  /// Where a device is alone the product adds the residual, and the norm reads the sum; behind a
  /// collective one kernel does both.
  template <class OutputOf>
  void finish(Groups groups, OutputOf output_of) {
    make_mid_and_norm(groups);
    make_gate_up(groups);
    for (const BlockGroup& group : groups) make_product(group.blocks);
    if (!tensor_.several()) {
      for (std::size_t g = 0; g < groups.size(); ++g) {
        for (std::size_t i = 0; i < groups[g].blocks.size(); ++i) {
          const BlockRows& block = groups[g].blocks[i];
          const LayerOutput output = output_of(g, i);
          tools_.gemm.forward_add(output.rows, block.mid, block.product, weights_.down,
                                  {block.rows, f_, h_}, stream());
          if (output.gain.size == 0) continue;
          rms_norm_forward(output.norm, output.inverse, output.rows, output.gain, {block.own, h_},
                           epsilon(), stream());
        }
      }
      return;
    }
    sum_each(groups, &BlockRows::product, weights_.down, f_,
             [&](std::size_t g, DeviceSpan<const Bf16> sums) {
               for (std::size_t i = 0; i < groups[g].blocks.size(); ++i) {
                 const BlockRows& block = groups[g].blocks[i];
                 const LayerOutput output = output_of(g, i);
                 const DeviceSpan<const Bf16> sum = sums_of(groups[g], block, sums);
                 if (output.gain.size == 0) {
                   add(output.rows, sum, block.mid, stream());
                 } else {
                   rms_norm_forward_residual(output.norm, output.inverse, output.rows, sum,
                                             block.mid, output.gain, {block.own, h_}, epsilon(),
                                             stream());
                 }
               }
             });
  }

  /// What the mode has not kept and what comes before attention. `projected` is scratch of rows x q
  /// and `query` all blocks' queries, where they are not kept; rows of `places` count over both.
  /// Then keys and values once more, of some rows of blocks.
  void recompute_before(Groups groups, Recompute mode, DeviceSpan<Bf16> projected,
                        DeviceSpan<Bf16> query, DeviceSpan<const RopeRow> places,
                        const KeysToMake& keys) {
    if (mode == Recompute::none) return;
    const bool queries = mode != Recompute::light;
    normalise_inputs(groups);
    if (!queries && keys.runs.empty()) return;
    with_whole(groups, &BlockRows::input_norm,
               [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
                 if (queries) {
                   tools_.gemm.forward(rows_at(projected, run, q_), normed, weights_.query,
                                       {run.rows, h_, q_}, stream());
                 }
                 project_keys(run, normed, keys);
               });
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
    if (mode == Recompute::light) {
      for (const BlockGroup& group : groups) normalise_mid(group.blocks);
    } else {
      make_mid_and_norm(groups);
      make_gate_up(groups);
    }
    for (const BlockGroup& group : groups) make_product(group.blocks);
  }

  /// From the gradient of the layer's output to those of the residual behind attention and of
  /// attention's output. Norms get gradients here, matrices unless these are left apart.
  void backward_behind(Groups groups, const LayerMatrices<float>& gradients,
                       const BackwardRows& rows, WeightGradients matrices) {
    const bool with = matrices == WeightGradients::with;
    const auto down = [&](const BlockGroup& group, DeviceSpan<const Bf16> doutput) {
      tools_.gemm.input_gradient(of_group(rows.dproduct, group, f_), doutput, weights_.down,
                                 {group.rows.rows, f_, h_}, Into::overwrite, stream());
      if (with) add_gradients(group, gradients.down, doutput, &BlockRows::product, f_);
      for_each_run(
          Blocks(group.blocks),
          [&](const BlockRows& run) {
            swiglu_backward(rows_at(rows.dgate_up, run, 2 * f_), rows_at(rows.dproduct, run, f_),
                            run.gate_up, {run.rows, f_}, stream());
          },
          &BlockRows::gate_up);
    };
    const auto gate_up = [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
      add_gradient(gradients.gate_up, rows_at(rows.dgate_up, run, 2 * f_), normed,
                   {run.rows, h_, 2 * f_});
    };
    if (!tensor_.several()) {
      own_as_whole(groups, rows.gradient, down);
      if (with) with_whole(groups, &BlockRows::mid_norm, gate_up);
    } else {
      // Gradients of outputs, then norms: these come beside the last products of those.
      const std::size_t n = groups.size();
      tensor_.gather_each(
          with ? 2 * n : n, [&](std::size_t i) -> const RowGroup& { return groups[i % n].rows; },
          [&](std::size_t i, DeviceSpan<Bf16> place) {
            if (i < n) return copy(place, own_of_group(rows.gradient, groups[i]), stream());
            bring(groups[i - n], &BlockRows::mid_norm, place);
          },
          [&](std::size_t i, DeviceSpan<const Bf16> whole) {
            if (i < n) return down(groups[i], whole);
            for_each_whole(groups[i - n], whole, gate_up);
          });
    }
    sum_gradients(
        groups, rows.dnorm,
        [&](const BlockGroup& group, DeviceSpan<Bf16> sums) {
          tools_.gemm.input_gradient(sums, of_group(rows.dgate_up, group, 2 * f_), weights_.gate_up,
                                     {group.rows.rows, h_, 2 * f_}, Into::overwrite, stream());
        },
        [&](const BlockGroup& group, DeviceSpan<const Bf16> dnorm) {
          for_each_run(
              Blocks(group.blocks),
              [&](const BlockRows& run) {
                rms_norm_backward(own_rows_at(rows.dmid, run, h_), gradients.mid_norm,
                                  tools_.norm_workspace, sums_of(group, run, dnorm),
                                  own_rows_at(rows.gradient, run, h_), run.mid, weights_.mid_norm,
                                  run.mid_inverse, {run.own, h_}, stream());
              },
              &BlockRows::mid, &BlockRows::mid_inverse);
        });
    own_as_whole(groups, rows.dmid, [&](const BlockGroup& group, DeviceSpan<const Bf16> dmid) {
      tools_.gemm.input_gradient(of_group(rows.dattention, group, q_), dmid, weights_.output,
                                 {group.rows.rows, q_, h_}, Into::overwrite, stream());
      if (with) add_gradients(group, gradients.output, dmid, &BlockRows::attention, q_);
    });
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
    if (matrices == WeightGradients::with) {
      with_whole(groups, &BlockRows::input_norm,
                 [&](const BlockRows& run, DeviceSpan<const Bf16> normed) {
                   add_gradient(gradients.query_key_value, rows_at(rows.dqkv, run, wide), normed,
                                {run.rows, h_, wide});
                 });
    }
    sum_gradients(
        groups, rows.dnorm,
        [&](const BlockGroup& group, DeviceSpan<Bf16> sums) {
          tools_.gemm.input_gradient(sums, of_group(rows.dqkv, group, wide),
                                     weights_.query_key_value, {group.rows.rows, h_, wide},
                                     Into::overwrite, stream());
        },
        [&](const BlockGroup& group, DeviceSpan<const Bf16> dnorm) {
          for (const BlockRows& block : group.blocks) {
            rms_norm_backward(own_rows_at(rows.gradient, block, h_), gradients.input_norm,
                              tools_.norm_workspace, sums_of(group, block, dnorm),
                              own_rows_at(rows.dmid, block, h_), block.input, weights_.input_norm,
                              block.input_inverse, {block.own, h_}, stream());
          }
        });
  }

  /// Adds to the gradients of the matrices what rows of W make.
  void add_weight_gradients(std::span<const RowGroup> groups, const LayerMatrices<float>& gradients,
                            const WeightRows& rows) {
    const std::int64_t wide = q_ + 2 * k_;
    const DeviceSpan<Bf16> gathered[] = {rows.doutput, rows.mid_norm, rows.dmid, rows.input_norm};
    constexpr std::size_t kMatrices = std::size(gathered);
    const auto group_of = [&](std::size_t i) -> const RowGroup& { return groups[i / kMatrices]; };
    const auto own = [&](std::size_t i) {
      return rows_at(gathered[i % kMatrices], group_of(i).first_own, group_of(i).own, h_);
    };
    const auto use = [&](std::size_t i, DeviceSpan<const Bf16> whole) {
      const RowGroup& group = group_of(i);
      const std::int64_t n = group.rows;
      const auto all = [&](DeviceSpan<Bf16> matrix, std::int64_t width) {
        return rows_at(matrix, group.first, n, width);
      };
      switch (i % kMatrices) {
        case 0:
          return add_gradient(gradients.down, whole, all(rows.product, f_), {n, f_, h_});
        case 1:
          return add_gradient(gradients.gate_up, all(rows.dgate_up, 2 * f_), whole,
                              {n, h_, 2 * f_});
        case 2:
          return add_gradient(gradients.output, whole, all(rows.attention, q_), {n, q_, h_});
        default:
          return add_gradient(gradients.query_key_value, all(rows.dqkv, wide), whole,
                              {n, h_, wide});
      }
    };
    const std::size_t count = kMatrices * groups.size();
    if (!tensor_.several()) {
      for (std::size_t i = 0; i < count; ++i) use(i, own(i));
      return;
    }
    tensor_.gather_each(
        count, group_of,
        [&](std::size_t i, DeviceSpan<Bf16> place) { copy(place, own(i), stream()); }, use);
  }

 private:
  /// Calls visit(run, its whole rows) for a matrix of which blocks have own rows, `all` being those
  /// that the work writes to or reads beside it.
  template <class Visit, class... Element>
  void with_whole(Groups groups, DeviceSpan<Bf16> BlockRows::* matrix, Visit visit,
                  DeviceSpan<Element> BlockRows::*... all) {
    if (!tensor_.several()) {
      for (const BlockGroup& group : groups) {
        for_each_run(
            Blocks(group.blocks),
            [&](const BlockRows& run) { visit(run, DeviceSpan<const Bf16>(run.*matrix)); }, matrix,
            all...);
      }
      return;
    }
    tensor_.gather_each(
        groups.size(), rows_of(groups),
        [&](std::size_t g, DeviceSpan<Bf16> place) { bring(groups[g], matrix, place); },
        [&](std::size_t g, DeviceSpan<const Bf16> whole) {
          for_each_whole(groups[g], whole, visit, all...);
        });
  }
  /// Copies the own rows of a group's blocks to a place for all own rows of the group.
  void bring(const BlockGroup& group, DeviceSpan<Bf16> BlockRows::* matrix,
             DeviceSpan<Bf16> place) {
    for_each_run(
        Blocks(group.blocks),
        [&](const BlockRows& run) { copy(sums_of(group, run, place), run.*matrix, stream()); },
        matrix);
  }
  /// Calls visit(run, its rows in `whole`, which are those of the group).
  template <class Visit, class... Element>
  void for_each_whole(const BlockGroup& group, DeviceSpan<const Bf16> whole, Visit visit,
                      DeviceSpan<Element> BlockRows::*... all) {
    for_each_run(
        Blocks(group.blocks),
        [&](const BlockRows& run) {
          visit(run, rows_at(whole, run.first - group.rows.first, run.rows, h_));
        },
        all...);
  }
  /// Calls visit(group, its whole rows) where own rows stand in a matrix of all own rows.
  template <class Visit>
  void own_as_whole(Groups groups, DeviceSpan<Bf16> matrix, Visit visit) {
    if (!tensor_.several()) {
      for (const BlockGroup& group : groups) visit(group, own_of_group(matrix, group));
      return;
    }
    tensor_.gather_each(
        groups.size(), rows_of(groups),
        [&](std::size_t g, DeviceSpan<Bf16> place) {
          copy(place, own_of_group(matrix, groups[g]), stream());
        },
        [&](std::size_t g, DeviceSpan<const Bf16> whole) { visit(groups[g], whole); });
  }
  /// Calls take(group's number, the sums of its own rows that the products of an all-rows matrix
  /// make). Of several devices alone.
  template <class Take>
  void sum_each(Groups groups, DeviceSpan<Bf16> BlockRows::* in, DeviceSpan<const Bf16> weights,
                std::int64_t inputs, Take take) {
    tensor_.sum_each(
        groups.size(), rows_of(groups),
        [&](std::size_t g, DeviceSpan<Bf16> sums) {
          for_each_run(
              Blocks(groups[g].blocks),
              [&](const BlockRows& run) {
                tools_.gemm.forward(rows_at(sums, run.first - groups[g].rows.first, run.rows, h_),
                                    run.*in, weights, {run.rows, inputs, h_}, stream());
              },
              in);
        },
        take);
  }
  /// Calls fill(group, place) for this device's part of all rows, and take(group, sums of own
  /// rows); alone a device fills rows of `alone`.
  template <class Fill, class Take>
  void sum_gradients(Groups groups, DeviceSpan<Bf16> alone, Fill fill, Take take) {
    if (!tensor_.several()) {
      for (const BlockGroup& group : groups) {
        const DeviceSpan<Bf16> sums = own_of_group(alone, group);
        fill(group, sums);
        take(group, DeviceSpan<const Bf16>(sums));
      }
      return;
    }
    tensor_.sum_each(
        groups.size(), rows_of(groups),
        [&](std::size_t g, DeviceSpan<Bf16> sums) { fill(groups[g], sums); },
        [&](std::size_t g, DeviceSpan<const Bf16> sums) { take(groups[g], sums); });
  }
  [[nodiscard]] static auto rows_of(Groups groups) {
    return [groups](std::size_t g) -> const RowGroup& { return groups[g].rows; };
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
  void make_mid_and_norm(Groups groups) {
    if (!tensor_.several()) {
      for (const BlockGroup& group : groups) {
        for (const BlockRows& block : group.blocks) {
          tools_.gemm.forward_add(block.mid, block.input, block.attention, weights_.output,
                                  {block.rows, q_, h_}, stream());
        }
        normalise_mid(group.blocks);
      }
      return;
    }
    sum_each(groups, &BlockRows::attention, weights_.output, q_,
             [&](std::size_t g, DeviceSpan<const Bf16> sums) {
               for (const BlockRows& block : groups[g].blocks) {
                 rms_norm_forward_residual(block.mid_norm, block.mid_inverse, block.mid,
                                           sums_of(groups[g], block, sums), block.input,
                                           weights_.mid_norm, {block.own, h_}, epsilon(), stream());
               }
             });
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
  void make_gate_up(Groups groups) {
    with_whole(
        groups, &BlockRows::mid_norm,
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
