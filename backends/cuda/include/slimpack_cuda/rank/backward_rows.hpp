// SPDX-License-Identifier: Apache-2.0
// The scratch of a backward pass, and what the gradients of a layer's matrices are made of.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slimpack/plan/model.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

/// Scratch of a backward pass: rows of all blocks, block after block, of hidden states own rows.
/// Matrices that are needed at different times share memory, as place_scratch says.
struct BackwardRows {
  std::int64_t rows = 0, own = 0;
  DeviceSpan<Bf16> gradient;     ///< of the layer's output, then of its input: own rows
  DeviceSpan<Bf16> dmid, dnorm;  ///< own rows
  DeviceSpan<Bf16> dattention, dquery, dproduct, dgate_up;
  DeviceSpan<Bf16> dqkv;           ///< over dattention, dproduct and dgate_up
  DeviceSpan<float> delta;         ///< over dnorm
  DeviceSpan<float> largest;       ///< over dnorm: a number an own row
  DeviceSpan<float> dquery_sum;    ///< in context-parallel groups: over dproduct and dgate_up
  DeviceSpan<float> dkey, dvalue;  ///< slice after slice (UnitKeys)
};

/// Rows x ((2q + 3f) x 2 + 2k x 4) + own rows x 3h x 2 bytes of the workspace, where one device has
/// few rows somewhat more: for heads, of which it has its part, a device has no fewer rows than
/// others. `part` is what the device has of the model.
[[nodiscard]] inline BackwardRows place_scratch(Carver& workspace, const ModelShape& part,
                                                std::int64_t rows, std::int64_t own) {
  const std::int64_t h = part.hidden, q = part.query_width(), k = part.key_width(), f = part.ffn;
  BackwardRows scratch;
  scratch.rows = rows;
  scratch.own = own;
  const DeviceSpan<Bf16> wide = workspace.take<Bf16>(rows, q + 3 * f);
  const DeviceSpan<Bf16> forward = wide.subspan(rows * q, rows * 3 * f);
  scratch.dattention = wide.subspan(0, rows * q);
  scratch.dqkv = wide.subspan(0, rows * (q + 2 * k));
  scratch.dquery = workspace.take<Bf16>(rows, q);
  scratch.gradient = workspace.take<Bf16>(own, h);
  scratch.dmid = workspace.take<Bf16>(own, h);
  // Log-sum-exps are less than a tp-th of the hidden states of as many rows.
  const DeviceSpan<Bf16> norm =
      workspace.take<Bf16>(1, std::max(own * h, (2 * rows * part.heads + 7) / 8 * 8));
  scratch.dnorm = norm.subspan(0, own * h);
  scratch.dkey = workspace.take<float>(rows, k);
  scratch.dvalue = workspace.take<float>(rows, k);
  scratch.dproduct = forward.subspan(0, rows * f);
  scratch.dgate_up = forward.subspan(rows * f, rows * 2 * f);
  scratch.delta = {reinterpret_cast<float*>(norm.data), rows * part.heads};
  scratch.largest = {reinterpret_cast<float*>(norm.data), own};
  scratch.dquery_sum = {reinterpret_cast<float*>(forward.data), rows * q};
  return scratch;
}

/// Rows of inputs of a layer's matrix products, and of the gradients of what these make; of hidden
/// states own rows.
struct WeightRows {
  std::int64_t rows = 0, own = 0;
  DeviceSpan<Bf16> input_norm, attention, mid_norm,
      product;                                     ///< read by q, k, v; o; gate, up; down
  DeviceSpan<Bf16> dqkv, dmid, dgate_up, doutput;  ///< made by the same
};

/// The rows of a block in B, those of one half of the layer at a time: others share their memory.
[[nodiscard]] inline WeightRows weight_rows(const BlockRows& block, const BackwardRows& rows,
                                            const ModelShape& part) {
  const std::int64_t h = part.hidden;
  return {block.rows,
          block.own,
          block.input_norm,
          block.attention,
          block.mid_norm,
          block.product,
          rows_at(rows.dqkv, block, part.query_width() + 2 * part.key_width()),
          own_rows_at(rows.dmid, block, h),
          rows_at(rows.dgate_up, block, 2 * part.ffn),
          own_rows_at(rows.gradient, block, h)};
}

}  // namespace slimpack::cuda
