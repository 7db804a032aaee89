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
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/program.hpp"

namespace slimpack::runtime {

/// The memory in which a device's B leave what its W read: for each chunk and piece, inputs of
/// matrix products and gradients of what they make. A buffer has room for all of it from the start
/// of B. What is counted then is what B makes (`LayerBytes::made_apart`), because the inputs that
/// were kept are counted where they are kept; from the end of B on all of it is. Every function
/// adds what counts to `change`. O(pieces log pieces held).
template <class Device>
class ApartRows {
 public:
  /// What is passed by reference must outlive it.
  ApartRows(Device& backend, const Program& program, const LayerBytes& layer)
      : backend_(backend), program_(program), layer_(layer) {}

  /// Gives the pieces of a B that begins on `layers` layers their memory.
  void begin(PackCall& call, const PackWork& work, std::int64_t layers, Bytes& change) {
    for_each(work, [&](std::size_t segment, std::size_t i, std::size_t piece) {
      const auto mode = static_cast<std::size_t>(program_.pieces[piece].recompute);
      const std::int64_t rows = program_.pieces[piece].length().value * layers;
      const Bytes made{layer_.made_apart[mode] * rows}, left{layer_.left_apart * rows};
      change += made;
      const auto added =
          rows_.insert_or_assign({call.chunk, piece}, Rows{backend_.allocate(left), made, left});
      call.segments[segment].pieces[i].apart = backend_.bytes(added.first->second.buffer);
    });
  }
  /// That B ends.
  void leave(const PackCall& call, const PackWork& work, Bytes& change) const {
    for_each(work, [&](std::size_t, std::size_t, std::size_t piece) {
      const Rows& rows = rows_.at({call.chunk, piece});
      change += rows.left - rows.made;
    });
  }
  /// Gives a W its segments. Throws InvalidInput where B of a piece has not run.
  void fill(PackCall& call, const PackWork& work) {
    for (const Segment& segment : work.segments) {
      call.segments.push_back({segment.slice, segment.exchange, segment.rows, {}, {}, {}, {}});
    }
    for_each(work, [&](std::size_t segment, std::size_t, std::size_t piece) {
      const auto found = rows_.find({call.chunk, piece});
      require(found != rows_.end(), "W must follow B of all its tokens, not so MicroPack",
              static_cast<std::int64_t>(index(program_.pieces[piece].backward)));
      call.segments[segment].pieces.push_back(
          {program_.pieces[piece], 0, Tokens{}, backend_.bytes(found->second.buffer)});
    });
  }
  /// That W ends.
  void free(const PackCall& call, const PackWork& work, Bytes& change) {
    for_each(work, [&](std::size_t, std::size_t, std::size_t piece) {
      const auto found = rows_.find({call.chunk, piece});
      change -= found->second.left;
      rows_.erase(found);
    });
  }
  /// Pieces that are held.
  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }

 private:
  struct Rows {
    typename Device::Buffer buffer;
    Bytes made, left;
  };

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
  const LayerBytes& layer_;
  std::map<std::pair<std::int32_t, std::size_t>, Rows> rows_;  // by chunk and piece
};

}  // namespace slimpack::runtime
