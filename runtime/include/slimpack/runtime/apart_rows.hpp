// SPDX-License-Identifier: Apache-2.0
// What the B of a device leave to its W, piece by piece.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/workspace.hpp"

namespace slimpack::runtime {

/// The memory in which a device's B leave what its W read: for each chunk and piece, inputs of
/// matrix products and gradients of what they make. A buffer has room for all of it from the start
/// of B. What is counted then is what B makes (`LayerBytes::made_apart`), because the inputs that
/// were kept are counted where they are kept; from the end of B on all of it is. Every function
/// adds what counts to `change`, of rows those of the device that has most. O(pieces log pieces
/// held).
template <class Device>
class ApartRows {
 public:
  /// What is passed by reference must outlive it.
  ApartRows(Device& backend, const Program& program, const SplitBytes& layer, const TensorRows& own)
      : backend_(backend), program_(program), layer_(layer), own_(own) {}

  /// Gives the pieces of a B that begins on `layers` layers their memory.
  void begin(PackCall& call, const PackWork& work, std::int64_t layers, Bytes& change) {
    for_each(work, [&](std::size_t segment, std::size_t i, std::size_t) {
      PieceMemory& memory = call.segments[segment].pieces[i];
      const std::int64_t bytes =
          layers * split_size(layer_, &LayerBytes::left_apart, memory.piece.length(), memory.own);
      const auto added = rows_.insert_or_assign({call.chunk, work.segments[segment].pieces[i]},
                                                Rows{backend_.allocate(Bytes{bytes}), layers});
      memory.apart = backend_.bytes(added.first->second.buffer);
    });
    change += made(work, layers);
  }
  /// That B ends.
  void leave(const PackWork& work, std::int64_t layers, Bytes& change) const {
    change += left(work, layers) - made(work, layers);
  }
  /// Gives a W its segments. Throws InvalidInput where B of a piece has not run.
  void fill(PackCall& call, const PackWork& work) {
    for (const Segment& segment : work.segments) {
      call.segments.push_back(
          {segment.slice, segment.exchange, segment.rows, {}, {}, {}, {}, segment.shard});
    }
    for_each(work, [&](std::size_t segment, std::size_t, std::size_t piece) {
      const auto found = rows_.find({call.chunk, piece});
      require(found != rows_.end(), "W must follow B of all its tokens, not so MicroPack",
              static_cast<std::int64_t>(index(program_.pieces[piece].backward)));
      PieceMemory memory = piece_memory(program_, work, piece, own_);
      memory.block = 0;  // W has no blocks
      memory.apart = backend_.bytes(found->second.buffer);
      call.segments[segment].pieces.push_back(memory);
    });
  }
  /// That W ends.
  void free(const PackCall& call, const PackWork& work, Bytes& change) {
    std::int64_t layers = 0;
    for_each(work, [&](std::size_t, std::size_t, std::size_t piece) {
      const auto found = rows_.find({call.chunk, piece});
      layers = found->second.layers;
      rows_.erase(found);
    });
    change -= left(work, layers);
  }
  /// Pieces that are held.
  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }

 private:
  struct Rows {
    typename Device::Buffer buffer;
    std::int64_t layers = 0;
  };

  [[nodiscard]] Bytes made(const PackWork& work, std::int64_t layers) const {
    Bytes sum;
    for (const std::size_t place : work.shares) {
      const Share& share = program_.shares[place];
      const auto mode = static_cast<std::size_t>(program_.blocks[share.block].recompute);
      sum += Bytes{layers * (share.tokens.value * layer_.token.made_apart[mode] +
                             share.rows.value * layer_.row.made_apart[mode])};
    }
    return sum;
  }
  [[nodiscard]] Bytes left(const PackWork& work, std::int64_t layers) const {
    return Bytes{layers * split_size(layer_, &LayerBytes::left_apart, work.rows, work.share)};
  }

  /// Calls visit(segment, place in it, piece).
  template <std::invocable<std::size_t, std::size_t, std::size_t> Visit>
  static void for_each(const PackWork& work, Visit visit) {
    for (std::size_t segment = 0; segment < work.segments.size(); ++segment) {
      const auto& pieces = work.segments[segment].pieces;
      for (std::size_t i = 0; i < pieces.size(); ++i) visit(segment, i, pieces[i]);
    }
  }

  Device& backend_;
  const Program& program_;
  const SplitBytes& layer_;
  TensorRows own_;
  std::map<std::pair<std::int32_t, std::size_t>, Rows> rows_;  // by chunk and piece
};

}  // namespace slimpack::runtime
