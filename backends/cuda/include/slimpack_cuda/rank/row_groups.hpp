// SPDX-License-Identifier: Apache-2.0
// Which rows of a unit the tensor-parallel devices of a stage make whole together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

/// Rows [first, first + rows) of a unit, which a collective makes whole at one time. In the order
/// of devices each device has room for as many rows as the one with most has.
struct RowGroup {
  std::int64_t first = 0, rows = 0;
  std::int64_t first_own = 0, own = 0;  ///< those of them that this device holds, among its own
  std::int64_t padded = 0;              ///< rows of the device that has most
};

/// The groups of a unit, one behind the other.
struct RowGroups {
  std::vector<RowGroup> groups;  ///< none of a unit without rows
  /// By row: its place among the rows of its group in the order of devices. Empty where the device
  /// is alone.
  std::vector<std::int32_t> places;
  std::int64_t devices = 1;
  std::int64_t self = 0;

  /// The most rows that a group has, and has room for in the order of devices.
  [[nodiscard]] std::int64_t most_rows() const noexcept {
    std::int64_t most = 0;
    for (const RowGroup& group : groups) most = std::max(most, group.rows);
    return most;
  }
  [[nodiscard]] std::int64_t most_padded() const noexcept {
    std::int64_t most = 0;
    for (const RowGroup& group : groups) most = std::max(most, devices * group.padded);
    return most;
  }
};

/// Rows that a device brings to a collective at most (docs/equations.md, "Memory").
[[nodiscard]] constexpr std::int64_t most_gathered(Tokens head_tile,
                                                   std::int64_t devices) noexcept {
  return (head_tile.value + devices - 1) / devices;
}

/// As many groups as the rows of a unit are cut into for the sake of collectives beside products.
inline constexpr std::int64_t kPieces = 4;

/// The same of a unit that is cut so, into pieces of at least `smallest` rows of all devices.
/// `share` are the rows of the device that has most.
[[nodiscard]] constexpr std::int64_t most_of_piece(std::int64_t share, Tokens head_tile,
                                                   std::int64_t devices,
                                                   std::int64_t smallest) noexcept {
  const auto part = [](std::int64_t rows, std::int64_t parts) {
    return (rows + parts - 1) / parts;
  };
  return std::min(most_gathered(head_tile, devices),
                  std::max({part(share, kPieces), part(smallest, devices), std::int64_t{1}}));
}

/// Groups of rows that `owners` hold, each as long as no device has more than `most` of it; alone a
/// device has one. O(rows).
[[nodiscard]] inline RowGroups row_groups(std::span<const std::int32_t> owners,
                                          const TensorRows& own, std::int64_t most) {
  RowGroups made;
  made.devices = own.devices;
  made.self = own.device;
  const auto rows = static_cast<std::int64_t>(owners.size());
  if (own.devices == 1) {
    if (rows > 0) made.groups.push_back({0, rows, 0, rows, rows});
    return made;
  }
  std::vector<std::int64_t> held(static_cast<std::size_t>(own.devices));
  std::vector<std::int64_t> within(owners.size());  // of its device's rows in its group
  std::int64_t first_own = 0;
  RowGroup group;
  const auto close = [&] {
    if (group.rows == 0) return;
    group.own = held[static_cast<std::size_t>(own.device)];
    group.padded = *std::ranges::max_element(held);
    for (std::int64_t row = group.first; row < group.first + group.rows; ++row) {
      const auto i = static_cast<std::size_t>(row);
      made.places.push_back(to_table(owners[i] * group.padded + within[i]));
    }
    first_own += group.own;
    made.groups.push_back(group);
    std::ranges::fill(held, 0);
    group = {group.first + group.rows, 0, first_own, 0, 0};
  };
  for (std::size_t row = 0; row < owners.size(); ++row) {
    std::int64_t& count = held[static_cast<std::size_t>(owners[row])];
    if (count == most) close();
    within[row] = held[static_cast<std::size_t>(owners[row])]++;
    ++group.rows;
  }
  close();
  return made;
}

/// Rows of the device that holds most.
[[nodiscard]] inline std::int64_t largest_share(std::span<const std::int32_t> owners,
                                                std::int64_t devices) {
  std::vector<std::int64_t> held(static_cast<std::size_t>(devices));
  for (const std::int32_t owner : owners) ++held[static_cast<std::size_t>(owner)];
  return *std::ranges::max_element(held);
}

/// The devices that hold the rows of the pieces; `row_of(piece)` is the first row of one.
template <class RowOf>
[[nodiscard]] std::vector<std::int32_t> owners_of(std::span<const runtime::PieceMemory> pieces,
                                                  const TensorRows& own, Tokens rows,
                                                  RowOf row_of) {
  std::vector<std::int32_t> owners(static_cast<std::size_t>(rows.value));
  for (const runtime::PieceMemory& memory : pieces) {
    const auto first = static_cast<std::size_t>(row_of(memory));
    const Tokens begin = memory.piece.begin;
    for (std::int64_t r = 0; r < memory.piece.length().value; ++r) {
      owners[first + static_cast<std::size_t>(r)] =
          static_cast<std::int32_t>(own.owner(memory.piece.sample, begin + Tokens{r}));
    }
  }
  return owners;
}
/// The same by the rows of blocks.
[[nodiscard]] inline std::vector<std::int32_t> owners_of(
    std::span<const runtime::PieceMemory> pieces, std::span<const BlockRows> blocks,
    const TensorRows& own, Tokens rows) {
  return owners_of(pieces, own, rows, [&](const runtime::PieceMemory& piece) {
    return blocks[piece.block].first + piece.row.value;
  });
}

/// The blocks of a unit, or parts of them, whose rows are those of a group.
struct BlockGroup {
  RowGroup rows;
  std::vector<BlockRows> blocks;
};

/// Cuts the blocks of a unit at the borders of groups. `part` is what the device has of the model.
/// O(groups + blocks).
[[nodiscard]] inline std::vector<BlockGroup> cut_blocks(std::span<const BlockRows> blocks,
                                                        const RowGroups& groups,
                                                        std::span<const std::int32_t> owners,
                                                        const ModelShape& part) {
  std::vector<BlockGroup> cut;
  for (const RowGroup& group : groups.groups) {
    BlockGroup& made = cut.emplace_back();
    made.rows = group;
    if (groups.devices == 1) {
      made.blocks.assign(blocks.begin(), blocks.end());
      continue;
    }
    std::int64_t own = group.first_own;
    for (const BlockRows& block : blocks) {
      const std::int64_t begin = std::max(block.first, group.first);
      const std::int64_t end = std::min(block.first + block.rows, group.first + group.rows);
      if (begin >= end) continue;
      const auto held = std::count(owners.begin() + begin, owners.begin() + end,
                                   static_cast<std::int32_t>(groups.self));
      made.blocks.push_back(rows_between(block, part, begin, end, own, own + held));
      own += held;
    }
  }
  return cut;
}

}  // namespace slimpack::cuda
