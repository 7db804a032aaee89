// SPDX-License-Identifier: Apache-2.0
// The matrices of a block in one layer: kept from F to B, or in the unit's workspace.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

/// Everything that the forward pass of a layer makes of a block, keys and values apart. Of hidden
/// states and norms a device has its own rows (`TensorRows`), of everything else all rows and its
/// part of the width.
struct BlockRows {
  std::int64_t rows = 0;
  std::int64_t first = 0;  ///< of its rows among those of all blocks of the call, block by block
  std::int64_t own = 0;    ///< own rows
  std::int64_t first_own = 0;  ///< of these among the own rows of all blocks
  Recompute mode = Recompute::none;
  DeviceSpan<Bf16> query, attention, gate_up, product;
  DeviceSpan<Bf16> input, mid, input_norm, mid_norm;  ///< own rows
  DeviceSpan<float> log_sum;
  DeviceSpan<float> input_inverse, mid_inverse;  ///< inverse RMS of own rows
};

/// Which rows a matrix has.
enum class RowsOf : std::uint8_t { all, own };

/// How many rows a block has of such a matrix, and the first of them among those of all blocks.
[[nodiscard]] inline std::int64_t count_of(const BlockRows& block, RowsOf rows) noexcept {
  return rows == RowsOf::all ? block.rows : block.own;
}
[[nodiscard]] inline std::int64_t first_of(const BlockRows& block, RowsOf rows) noexcept {
  return rows == RowsOf::all ? block.first : block.first_own;
}

/// Where a matrix stands in a buffer: rows that attention's tables number must come first, single
/// numbers a row, which are not aligned to 16 bytes, last.
enum class BlockPart : std::uint8_t { numbered, matrices, numbers };

/// Calls visit(matrix, the last mode that keeps it, its width, its rows) for the matrices of one
/// part, in the order in which they lie in memory; `part` is what the device has of the model.
template <class Visit>
void for_each_matrix(BlockPart block_part, const ModelShape& part, Visit visit) {
  const std::int64_t h = part.hidden, q = part.query_width(), f = part.ffn;
  switch (block_part) {
    case BlockPart::numbered:
      visit(&BlockRows::query, Recompute::light, q, RowsOf::all);
      visit(&BlockRows::attention, Recompute::layer, q, RowsOf::all);
      visit(&BlockRows::log_sum, Recompute::layer, part.heads, RowsOf::all);
      break;
    case BlockPart::matrices:
      visit(&BlockRows::input, Recompute::full, h, RowsOf::own);
      visit(&BlockRows::mid, Recompute::light, h, RowsOf::own);
      visit(&BlockRows::gate_up, Recompute::light, 2 * f, RowsOf::all);
      visit(&BlockRows::input_norm, Recompute::none, h, RowsOf::own);
      visit(&BlockRows::mid_norm, Recompute::none, h, RowsOf::own);
      visit(&BlockRows::product, Recompute::none, f, RowsOf::all);
      break;
    case BlockPart::numbers:
      visit(&BlockRows::input_inverse, Recompute::none, std::int64_t{1}, RowsOf::own);
      visit(&BlockRows::mid_inverse, Recompute::none, std::int64_t{1}, RowsOf::own);
      break;
  }
}
inline constexpr BlockPart kBlockParts[] = {BlockPart::numbered, BlockPart::matrices,
                                            BlockPart::numbers};

/// The blocks of a call, block after block; `pieces` are all that lie in them.
[[nodiscard]] inline std::vector<BlockRows> rows_of_blocks(
    std::span<const runtime::BlockMemory> memories, std::span<const runtime::PieceMemory> pieces) {
  std::vector<BlockRows> blocks;
  std::int64_t first = 0;
  for (const runtime::BlockMemory& memory : memories) {
    BlockRows& block = blocks.emplace_back();
    block.rows = memory.rows.value;
    block.first = first;
    block.mode = memory.recompute;
    first += block.rows;
  }
  for (const runtime::PieceMemory& piece : pieces) blocks[piece.block].own += piece.own.value;
  first = 0;
  for (BlockRows& block : blocks) {
    block.first_own = first;
    first += block.own;
  }
  return blocks;
}

/// The own rows of all blocks.
[[nodiscard]] inline std::int64_t own_rows(std::span<const BlockRows> blocks) noexcept {
  return blocks.empty() ? 0 : blocks.back().first_own + blocks.back().own;
}

/// Takes what no block's mode keeps from the workspace, matrix by matrix.
inline void place_missing(std::span<BlockRows> blocks, BlockPart block_part, const ModelShape& part,
                          Carver& workspace) {
  for_each_matrix(block_part, part,
                  [&]<class Element>(DeviceSpan<Element> BlockRows::* matrix, Recompute last,
                                     std::int64_t width, RowsOf rows) {
                    for (BlockRows& block : blocks) {
                      if (block.mode > last)
                        block.*matrix = workspace.take<Element>(count_of(block, rows), width);
                    }
                  });
  if (block_part == BlockPart::numbered) workspace.align();
}

/// Takes what follows a unit's scratch: first the rest of what is missing, last single numbers a
/// row. Gives what is between them, the room of exchanges.
[[nodiscard]] inline std::span<std::byte> place_rest(std::span<BlockRows> blocks,
                                                     const ModelShape& part, Carver& workspace) {
  place_missing(blocks, BlockPart::matrices, part, workspace);
  std::int64_t numbers = 0;
  for (const BlockRows& block : blocks) {
    if (block.mode != Recompute::none) numbers += 2 * block.own * kRankElements.statistic;
  }
  const auto left = static_cast<std::int64_t>(workspace.rest().size());
  const std::span<std::byte> exchange = workspace.take_bytes(left - numbers);
  place_missing(blocks, BlockPart::numbers, part, workspace);
  return exchange;
}

/// Finds what is kept of layer `layer` of `layers`; a kept matrix has its layers one behind the
/// other.
inline void place_kept(std::span<BlockRows> blocks, const ModelShape& part,
                       const runtime::PackCall& call, std::int64_t layers, std::int64_t layer) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    BlockRows& block = blocks[i];
    Carver kept(call.blocks[i].kept, bytes_behind(part));
    for (const BlockPart block_part : kBlockParts) {
      for_each_matrix(block_part, part,
                      [&]<class Element>(DeviceSpan<Element> BlockRows::* matrix, Recompute last,
                                         std::int64_t width, RowsOf rows) {
                        if (block.mode > last) return;
                        const std::int64_t count = count_of(block, rows), size = count * width;
                        block.*matrix =
                            kept.take<Element>(layers * count, width).subspan(layer * size, size);
                      });
      if (block_part == BlockPart::numbered && !kept.rest().empty()) kept.align();
    }
  }
}

/// Rows [begin, end) of a block, counted over all blocks, of whose own rows there are [own_begin,
/// own_end).
[[nodiscard]] inline BlockRows rows_between(const BlockRows& block, const ModelShape& part,
                                            std::int64_t begin, std::int64_t end,
                                            std::int64_t own_begin, std::int64_t own_end) {
  BlockRows cut = block;
  cut.first = begin;
  cut.rows = end - begin;
  cut.first_own = own_begin;
  cut.own = own_end - own_begin;
  for (const BlockPart block_part : kBlockParts) {
    for_each_matrix(block_part, part,
                    [&]<class Element>(DeviceSpan<Element> BlockRows::* matrix, Recompute,
                                       std::int64_t width, RowsOf rows) {
                      if ((block.*matrix).size == 0) return;
                      cut.*matrix =
                          (block.*matrix)
                              .subspan((first_of(cut, rows) - first_of(block, rows)) * width,
                                       count_of(cut, rows) * width);
                    });
  }
  return cut;
}

/// Rows of all blocks that stand behind each other in another matrix too.
struct RowRun {
  std::int64_t first = 0;  ///< among the rows of all blocks
  std::int64_t into = 0;   ///< of the first one in the other matrix
  std::int64_t rows = 0;
};

/// The blocks of a call in each of its layers.
[[nodiscard]] inline std::vector<std::vector<BlockRows>> rows_by_layer(
    std::span<const BlockRows> blocks, const ModelShape& model, const runtime::PackCall& call,
    std::int64_t layers) {
  std::vector<std::vector<BlockRows>> all;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    place_kept(all.emplace_back(blocks.begin(), blocks.end()), model, call, layers, layer);
  }
  return all;
}

/// Calls visit(run) for runs of neighbouring blocks whose rows go on from one to the next in each
/// of `matrices`, as what no block keeps does; in `run` these are of all its rows. Work is for many
/// rows at a time: a product of few leaves multiprocessors idle, and one that adds to the gradient
/// of weights reads and writes all of it. O(blocks).
template <class Visit, class... Element>
void for_each_run(std::span<const BlockRows> blocks, Visit visit,
                  DeviceSpan<Element> BlockRows::*... matrices) {
  for (std::size_t i = 0; i < blocks.size();) {
    BlockRows run = blocks[i];
    [[maybe_unused]] const auto goes_on = [&](auto matrix) {
      return (blocks[i].*matrix).data == (run.*matrix).data + (run.*matrix).size;
    };
    for (++i; i < blocks.size() && (goes_on(matrices) && ...); ++i) {
      run.rows += blocks[i].rows;
      run.own += blocks[i].own;
      (((run.*matrices).size += (blocks[i].*matrices).size), ...);
    }
    visit(std::as_const(run));
  }
}

/// Rows [row, row + rows) of a matrix.
template <class Element>
[[nodiscard]] DeviceSpan<Element> rows_at(DeviceSpan<Element> matrix, std::int64_t row,
                                          std::int64_t rows, std::int64_t width) {
  return matrix.subspan(row * width, rows * width);
}
/// The rows of a block in a matrix of all blocks' rows.
template <class Element>
[[nodiscard]] DeviceSpan<Element> rows_at(DeviceSpan<Element> matrix, const BlockRows& block,
                                          std::int64_t width) {
  return rows_at(matrix, block.first, block.rows, width);
}
/// The own rows of a block in a matrix of all blocks' own rows.
template <class Element>
[[nodiscard]] DeviceSpan<Element> own_rows_at(DeviceSpan<Element> matrix, const BlockRows& block,
                                              std::int64_t width) {
  return rows_at(matrix, block.first_own, block.own, width);
}

}  // namespace slimpack::cuda
