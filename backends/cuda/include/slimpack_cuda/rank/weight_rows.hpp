// SPDX-License-Identifier: Apache-2.0
// What the gradients of a layer's matrices are made of, in B or left by B to W.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/boundary.hpp"
#include "slimpack_cuda/rank/layer.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

/// The matrices whose gradients B knows when it has passed the layer's second half, and those of
/// its first.
enum class LayerHalf : std::uint8_t { behind_attention, before_attention };

/// Calls visit(matrix, its width) for what one half has of `WeightRows`, in the order in which they
/// lie in memory: that of `behind_attention`, then the other.
template <class Visit>
void for_each_weight_matrix(LayerHalf half, const ModelShape& model, Visit visit) {
  const std::int64_t h = model.hidden, q = model.query_width(), f = model.ffn;
  switch (half) {
    case LayerHalf::behind_attention:
      visit(&WeightRows::attention, q);
      visit(&WeightRows::mid_norm, h);
      visit(&WeightRows::product, f);
      visit(&WeightRows::dmid, h);
      visit(&WeightRows::dgate_up, 2 * f);
      visit(&WeightRows::doutput, h);
      break;
    case LayerHalf::before_attention:
      visit(&WeightRows::input_norm, h);
      visit(&WeightRows::dqkv, q + 2 * model.key_width());
      break;
  }
}

/// Matrices of so many rows, one behind the other.
[[nodiscard]] inline WeightRows place_weight_rows(Carver& memory, const ModelShape& model,
                                                  std::int64_t rows) {
  WeightRows placed;
  placed.rows = rows;
  for (const LayerHalf half : {LayerHalf::behind_attention, LayerHalf::before_attention}) {
    for_each_weight_matrix(half, model,
                           [&](DeviceSpan<Bf16> WeightRows::* matrix, std::int64_t width) {
                             placed.*matrix = memory.take<Bf16>(rows, width);
                           });
  }
  return placed;
}

/// What B has left of a piece in its `layer`-th layer on this stage; layers lie one behind the
/// other.
[[nodiscard]] inline WeightRows left_of(const runtime::PieceMemory& piece, const ModelShape& model,
                                        std::int64_t layer) {
  const std::int64_t rows = piece.piece.length().value;
  const auto size = static_cast<std::size_t>(layer_bytes(model, kRankElements).left_apart * rows);
  Carver memory(piece.apart.subspan(static_cast<std::size_t>(layer) * size, size));
  return place_weight_rows(memory, model, rows);
}

/// Rows [row, row + to.rows) of what `from` has of one half, copied.
inline void copy_weight_rows(const WeightRows& to, std::int64_t to_row, const WeightRows& from,
                             std::int64_t from_row, std::int64_t rows, LayerHalf half,
                             const ModelShape& model, StreamView stream) {
  for_each_weight_matrix(half, model,
                         [&](DeviceSpan<Bf16> WeightRows::* matrix, std::int64_t width) {
                           copy(rows_at(to.*matrix, to_row, rows, width),
                                rows_at(from.*matrix, from_row, rows, width), stream);
                         });
}

/// Leaves what one half of B's `layer`-th layer has made to W, piece by piece.
inline void leave_weight_rows(const runtime::PackCall& call, std::span<const BlockRows> blocks,
                              const BackwardRows& rows, LayerHalf half, const ModelShape& model,
                              std::int64_t layer, StreamView stream) {
  for (const runtime::SegmentMemory& segment : call.segments) {
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const WeightRows left = left_of(piece, model, layer);
      copy_weight_rows(left, 0, weight_rows(blocks[piece.block], rows, model), piece.row.value,
                       left.rows, half, model, stream);
    }
  }
}

/// The rows of a W in its `layer`-th layer: those of its pieces, one behind the other in
/// `gathered`, or where they lie if there is only one.
[[nodiscard]] inline WeightRows gather_weight_rows(const runtime::PackCall& call,
                                                   const WeightRows& gathered,
                                                   const ModelShape& model, std::int64_t layer,
                                                   StreamView stream) {
  const std::vector<runtime::PieceMemory> pieces = pieces_of(call);
  if (pieces.size() == 1) return left_of(pieces.front(), model, layer);
  std::int64_t row = 0;
  for (const runtime::PieceMemory& piece : pieces) {
    const WeightRows left = left_of(piece, model, layer);
    for (const LayerHalf half : {LayerHalf::behind_attention, LayerHalf::before_attention}) {
      copy_weight_rows(gathered, row, left, 0, left.rows, half, model, stream);
    }
    row += left.rows;
  }
  return gathered;
}

}  // namespace slimpack::cuda
