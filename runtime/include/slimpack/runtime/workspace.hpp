// SPDX-License-Identifier: Apache-2.0
// Bytes of buffers and workspaces of units, on the device that holds most rows.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Rows of a pack's tokens on one rank that a tensor-parallel device holds. O(pieces).
[[nodiscard]] inline Tokens own_rows(const Program& program, const PackWork& part,
                                     const TensorRows& own) {
  if (own.devices == 1) return part.rows;
  Tokens rows;
  for (const Segment& segment : part.segments) {
    for (const std::size_t place : segment.pieces) {
      const Piece& piece = program.pieces[place];
      rows += own.between(piece.sample, piece.begin, piece.end);
    }
  }
  return rows;
}

/// The bytes of a set of tokens, of which a device holds at most `share` rows, by one of the
/// entries of `split`.
[[nodiscard]] inline std::int64_t split_size(const SplitBytes& split,
                                             std::int64_t LayerBytes::* entry, Tokens tokens,
                                             Tokens share) noexcept {
  return tokens.value * (split.token.*entry) + share.value * (split.row.*entry);
}

/// Workspace of an F, B, W or H of a device of stage `pp` whose elements have `size` and whose
/// layers take `layer`: that of its rows, with the keys and values that B makes again, the largest
/// ring buffers of a slice, those of all slices by heads and, with tensor parallelism, whole rows.
/// O(pieces + slices x ranks).
[[nodiscard]] inline std::int64_t workspace_bytes(const Plan& plan, const Program& program,
                                                  const ElementBytes& size, const SplitBytes& layer,
                                                  const UnitWork& work, std::int32_t pp) {
  const MicroPack& pack = plan.micropacks[index(work.unit.pack)];
  const PackWork& part = program.packs[index(work.unit.pack)][work.rank];
  if (work.unit.kind == UnitKind::head) {
    return head_tile_rows(plan, part.rows, part.share) * head_row_bytes(plan, pp, size);
  }
  const Pass pass = pack.pass;
  const std::int64_t gathered = gathered_bytes(plan, size, part.share);
  if (pass == Pass::weight) {
    return split_size(layer, &LayerBytes::left_apart, part.rows, part.share) + gathered;
  }
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  const auto per_token = [pass](const LayerBytes& of, Recompute mode) {
    return (pass == Pass::forward ? of.forward_workspace
                                  : of.backward_workspace)[static_cast<std::size_t>(mode)];
  };
  std::int64_t rows = gathered, ring = 0;
  for (const std::size_t place : part.shares) {
    const Share& share = program.shares[place];
    const Recompute mode = program.blocks[share.block].recompute;
    rows += share.tokens.value * per_token(layer.token, mode) +
            share.rows.value * per_token(layer.row, mode);
  }
  for (const Segment& segment : part.segments) {
    if (pass == Pass::backward && !program.keys[index(segment.slice.sample)].pages) {
      rows += segment.rows.value * layer.token.kv;
    }
    ring = std::max(ring, ring_buffer_bytes(layer.token, segment.slice, pass, segment.exchange,
                                            ranks, plan.memory.cp_block_tokens));
  }
  return rows + ring + head_buffer_bytes(plan, pack, layer.token);
}

/// The hidden states of one device between stages: buffers are as large as the device needs that
/// holds most rows, what travels are the device's own.
class BoundaryRows {
 public:
  /// What is passed by reference must outlive this.
  BoundaryRows(const Program& program, const SplitBytes& layer, const TensorRows& own)
      : program_(program), layer_(layer), own_(own) {}

  /// Of the tokens of a pack on one rank, or of a block of them.
  template <class Part>
    requires std::same_as<Part, PackWork> || std::same_as<Part, Block>
  [[nodiscard]] std::int64_t bytes(const Part& part) const {
    return split_size(layer_, &LayerBytes::boundary, part.rows, part.share);
  }
  /// What a message brings.
  [[nodiscard]] const PackWork& sent(MessageRef message) const {
    const Message& found = program_.channels[message.channel].messages[message.index];
    return program_.packs[index(found.pack)][found.rank];
  }
  /// The part of its buffer that travels. O(pieces).
  [[nodiscard]] std::span<std::byte> travelling(MessageRef message,
                                                std::span<std::byte> buffer) const {
    if (own_.devices == 1) return buffer;
    const Tokens own = own_rows(program_, sent(message), own_);
    return buffer.first(static_cast<std::size_t>(own.value * layer_.row.boundary));
  }
  /// The channel between devices of this one's part.
  [[nodiscard]] Channel channel(std::size_t channel) const {
    Channel own = program_.channels[channel].channel;
    own.tp = static_cast<std::int32_t>(own_.device);
    return own;
  }

 private:
  const Program& program_;
  const SplitBytes& layer_;
  TensorRows own_;
};

}  // namespace slimpack::runtime
