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
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/boundary.hpp"
#include "slimpack_cuda/rank/layer.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

/// The matrices whose gradients B knows when it has passed the layer's second half, and those of
/// its first.
enum class LayerHalf : std::uint8_t { behind_attention, before_attention };

/// Calls visit(matrix, its width, its rows) for what one half has of `WeightRows`, in the order in
/// which they lie in memory: that of `behind_attention`, then the other.
template <class Visit>
void for_each_weight_matrix(LayerHalf half, const ModelShape& part, Visit visit) {
  const std::int64_t h = part.hidden, q = part.query_width(), f = part.ffn;
  switch (half) {
    case LayerHalf::behind_attention:
      visit(&WeightRows::attention, q, RowsOf::all);
      visit(&WeightRows::mid_norm, h, RowsOf::own);
      visit(&WeightRows::product, f, RowsOf::all);
      visit(&WeightRows::dmid, h, RowsOf::own);
      visit(&WeightRows::dgate_up, 2 * f, RowsOf::all);
      visit(&WeightRows::doutput, h, RowsOf::own);
      break;
    case LayerHalf::before_attention:
      visit(&WeightRows::input_norm, h, RowsOf::own);
      visit(&WeightRows::dqkv, q + 2 * part.key_width(), RowsOf::all);
      break;
  }
}

/// Some rows of WeightRows, or a place for as many.
struct WeightPlace {
  std::int64_t row = 0, own = 0;  ///< first row, first own row
};

/// Matrices of so many rows and own rows, one behind the other.
[[nodiscard]] inline WeightRows place_weight_rows(Carver& memory, const ModelShape& part,
                                                  std::int64_t rows, std::int64_t own) {
  WeightRows placed;
  placed.rows = rows;
  placed.own = own;
  for (const LayerHalf half : {LayerHalf::behind_attention, LayerHalf::before_attention}) {
    for_each_weight_matrix(half, part, [&](auto matrix, std::int64_t width, RowsOf which) {
      placed.*matrix = memory.take<Bf16>(which == RowsOf::all ? rows : own, width);
    });
  }
  return placed;
}

/// What B has left of a piece in its `layer`-th of `layers` layers on this stage; layers lie one
/// behind the other.
[[nodiscard]] inline WeightRows left_of(const runtime::PieceMemory& piece, const ModelShape& part,
                                        std::int64_t layer, std::int64_t layers) {
  const std::size_t size = piece.apart.size() / static_cast<std::size_t>(layers);
  Carver memory(piece.apart.subspan(static_cast<std::size_t>(layer) * size, size));
  return place_weight_rows(memory, part, piece.piece.length().value, piece.own.value);
}

/// Lists copies of what `from` has of one half, as many rows as `count` has, from `first` on to
/// `to_first`.
inline void list_weight_rows(std::vector<MemoryCopy>& copies, const WeightRows& to,
                             const WeightPlace& to_first, const WeightRows& from,
                             const WeightPlace& first, const WeightRows& count, LayerHalf half,
                             const ModelShape& part) {
  for_each_weight_matrix(half, part, [&](auto matrix, std::int64_t width, RowsOf which) {
    const bool all = which == RowsOf::all;
    const std::int64_t rows = all ? count.rows : count.own;
    const auto into = rows_at(to.*matrix, all ? to_first.row : to_first.own, rows, width);
    const auto read = rows_at(from.*matrix, all ? first.row : first.own, rows, width);
    copies.push_back({into.data, read.data, into.size * std::int64_t{sizeof(Bf16)}});
  });
}

/// Leaves what one half of B's `layer`-th of `layers` layers has made to W, piece by piece.
inline void leave_weight_rows(const runtime::PackCall& call, std::span<const BlockRows> blocks,
                              const BackwardRows& rows, LayerHalf half, const ModelShape& part,
                              std::int64_t layer, std::int64_t layers, StreamView stream) {
  std::vector<MemoryCopy> copies;  // as many as there are slices and matrices
  for (const runtime::SegmentMemory& segment : call.segments) {
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const WeightRows left = left_of(piece, part, layer, layers);
      list_weight_rows(copies, left, {}, weight_rows(blocks[piece.block], rows, part),
                       {piece.row.value, piece.own_row.value}, left, half, part);
    }
  }
  copy_all(copies, stream);
}

/// The rows of a W in its `layer`-th of `layers` layers: those of its pieces, one behind the other
/// in `gathered`, or where they lie if there is only one.
[[nodiscard]] inline WeightRows gather_weight_rows(std::span<const runtime::PieceMemory> pieces,
                                                   const WeightRows& gathered,
                                                   const ModelShape& part, std::int64_t layer,
                                                   std::int64_t layers, StreamView stream) {
  if (pieces.size() == 1) return left_of(pieces.front(), part, layer, layers);
  std::vector<MemoryCopy> copies;
  WeightPlace next;
  for (const runtime::PieceMemory& piece : pieces) {
    const WeightRows left = left_of(piece, part, layer, layers);
    for (const LayerHalf half : {LayerHalf::behind_attention, LayerHalf::before_attention}) {
      list_weight_rows(copies, gathered, next, left, {}, left, half, part);
    }
    next.row += left.rows;
    next.own += left.own;
  }
  copy_all(copies, stream);
  return gathered;
}

}  // namespace slimpack::cuda
