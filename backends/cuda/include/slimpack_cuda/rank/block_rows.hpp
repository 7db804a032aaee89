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

/// Everything that the forward pass of a layer makes of a block, keys and values apart.
struct BlockRows {
  std::int64_t rows = 0;
  std::int64_t first = 0;  ///< of its rows among those of all blocks of the call, block by block
  Recompute mode = Recompute::none;
  DeviceSpan<Bf16> query, attention, input, mid, gate_up, input_norm, mid_norm, product;
  DeviceSpan<float> log_sum, input_inverse, mid_inverse;  ///< inverse RMS
};

/// Where a matrix stands in a buffer: rows that attention's tables number must come first, single
/// numbers a row, which are not aligned to 16 bytes, last.
enum class BlockPart : std::uint8_t { numbered, matrices, numbers };

/// Calls visit(matrix, the last mode that keeps it, its width) for the matrices of one part, in the
/// order in which they lie in memory.
template <class Visit>
void for_each_matrix(BlockPart part, const ModelShape& model, Visit visit) {
  const std::int64_t h = model.hidden, q = model.query_width(), f = model.ffn;
  switch (part) {
    case BlockPart::numbered:
      visit(&BlockRows::query, Recompute::light, q);
      visit(&BlockRows::attention, Recompute::layer, q);
      visit(&BlockRows::log_sum, Recompute::layer, model.heads);
      break;
    case BlockPart::matrices:
      visit(&BlockRows::input, Recompute::full, h);
      visit(&BlockRows::mid, Recompute::light, h);
      visit(&BlockRows::gate_up, Recompute::light, 2 * f);
      visit(&BlockRows::input_norm, Recompute::none, h);
      visit(&BlockRows::mid_norm, Recompute::none, h);
      visit(&BlockRows::product, Recompute::none, f);
      break;
    case BlockPart::numbers:
      visit(&BlockRows::input_inverse, Recompute::none, std::int64_t{1});
      visit(&BlockRows::mid_inverse, Recompute::none, std::int64_t{1});
      break;
  }
}
inline constexpr BlockPart kBlockParts[] = {BlockPart::numbered, BlockPart::matrices,
                                            BlockPart::numbers};

/// The blocks of a call, block after block.
[[nodiscard]] inline std::vector<BlockRows> rows_of_blocks(
    std::span<const runtime::BlockMemory> memories) {
  std::vector<BlockRows> blocks;
  std::int64_t first = 0;
  for (const runtime::BlockMemory& memory : memories) {
    BlockRows& block = blocks.emplace_back();
    block.rows = memory.rows.value;
    block.first = first;
    block.mode = memory.recompute;
    first += block.rows;
  }
  return blocks;
}

/// Takes what no block's mode keeps from the workspace, matrix by matrix.
inline void place_missing(std::span<BlockRows> blocks, BlockPart part, const ModelShape& model,
                          Carver& workspace) {
  for_each_matrix(part, model,
                  [&]<class Element>(DeviceSpan<Element> BlockRows::* matrix, Recompute last,
                                     std::int64_t width) {
                    for (BlockRows& block : blocks) {
                      if (block.mode > last)
                        block.*matrix = workspace.take<Element>(block.rows, width);
                    }
                  });
}

/// Takes what follows a unit's scratch: first the rest of what is missing, last single numbers a
/// row. Gives what is between them, the room of exchanges.
[[nodiscard]] inline std::span<std::byte> place_rest(std::span<BlockRows> blocks,
                                                     const ModelShape& model, Carver& workspace) {
  place_missing(blocks, BlockPart::matrices, model, workspace);
  std::int64_t numbers = 0;
  for (const BlockRows& block : blocks) {
    if (block.mode != Recompute::none) numbers += 2 * block.rows * kRankElements.statistic;
  }
  const auto left = static_cast<std::int64_t>(workspace.rest().size());
  const std::span<std::byte> exchange = workspace.take_bytes(left - numbers);
  place_missing(blocks, BlockPart::numbers, model, workspace);
  return exchange;
}

/// Finds what is kept of layer `layer` of `layers`; a kept matrix has its layers one behind the
/// other.
inline void place_kept(std::span<BlockRows> blocks, const ModelShape& model,
                       const runtime::PackCall& call, std::int64_t layers, std::int64_t layer) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    BlockRows& block = blocks[i];
    Carver kept(call.blocks[i].kept);
    for (const BlockPart part : kBlockParts) {
      for_each_matrix(
          part, model,
          [&]<class Element>(DeviceSpan<Element> BlockRows::* matrix, Recompute last,
                             std::int64_t width) {
            if (block.mode > last) return;
            const std::int64_t size = block.rows * width;
            block.*matrix =
                kept.take<Element>(layers * block.rows, width).subspan(layer * size, size);
          });
    }
  }
}

/// Rows of one block that stand behind each other in another matrix too.
struct RowRun {
  std::size_t block = 0;
  std::int64_t row = 0;   ///< of the block
  std::int64_t into = 0;  ///< of the other matrix
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
    const auto goes_on = [&](auto matrix) {
      return (blocks[i].*matrix).data == (run.*matrix).data + (run.*matrix).size;
    };
    for (++i; i < blocks.size() && (goes_on(matrices) && ...); ++i) {
      run.rows += blocks[i].rows;
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

}  // namespace slimpack::cuda
