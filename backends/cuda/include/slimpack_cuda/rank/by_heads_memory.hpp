// SPDX-License-Identifier: Apache-2.0
// Where an exchange by heads has its messages, and what attention reads and makes of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rank/by_heads_tables.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"

namespace slimpack::cuda {

/// What travels: to the ranks of heads, and home. In F keys and values that no page will hold
/// travel apart, and so they do where B makes attention again. Queries of B go ahead of what it has
/// to make first, but for those of attention that is made again, which are there.
enum class HeadWay : std::uint8_t { forward, forward_home, ahead, backward, backward_home };

/// What one rank brings to another or takes home of a piece of the heads: matrix after matrix, in
/// each head after head, in each the rank's rows. `query` is a query, an output or a query's
/// gradient, `key` whatever has its width.
struct HeadMessage {
  DeviceSpan<Bf16> query, dattention, key, value;
  DeviceSpan<float> log_sum, delta;
};

/// Bytes of messages, of a head of keys with its heads of queries.
class HeadSizes {
 public:
  explicit HeadSizes(const PackPlaces& places)
      : query_(places.by_heads.shape.heads * places.model.head_dim),
        key_(places.model.head_dim),
        group_(places.by_heads.shape.heads) {}

  /// Elements of a row: of queries, of keys or values, and numbers of log-sum-exps.
  [[nodiscard]] std::int64_t query() const noexcept { return query_; }
  [[nodiscard]] std::int64_t key() const noexcept { return key_; }
  [[nodiscard]] std::int64_t statistics() const noexcept { return group_; }

  [[nodiscard]] std::int64_t message(const ByHeadsRows& of, HeadWay way) const noexcept {
    return 2 * (of.rows * query_ + 2 * keys(of, way) * key_) + 4 * numbers(way) * of.rows * group_;
  }
  [[nodiscard]] HeadMessage cut(std::span<std::byte> bytes, const ByHeadsRows& of, HeadWay way,
                                const HeadPiece& piece) const {
    Carver rest(bytes);
    HeadMessage one;
    const bool back = way == HeadWay::backward;
    (back ? one.dattention : one.query) = rest.take<Bf16>(piece.heads * of.rows, query_);
    one.key = rest.take<Bf16>(piece.heads * keys(of, way), key_);
    one.value = rest.take<Bf16>(piece.heads * keys(of, way), key_);
    // Single numbers, which are not aligned to 16 bytes, come last.
    if (numbers(way) > 0) one.log_sum = rest.take<float>(piece.heads * of.rows, group_);
    if (numbers(way) > 1) one.delta = rest.take<float>(piece.heads * of.rows, group_);
    return one;
  }

 private:
  [[nodiscard]] static std::int64_t keys(const ByHeadsRows& of, HeadWay way) noexcept {
    return way == HeadWay::forward ? of.stored : way == HeadWay::backward_home ? of.rows : 0;
  }
  [[nodiscard]] static std::int64_t numbers(HeadWay way) noexcept {
    return way == HeadWay::backward ? 2 : way == HeadWay::forward_home ? 1 : 0;
  }

  std::int64_t query_, key_, group_;
};

/// Messages one behind the other, each at a multiple of kMatrixAlignment where there is room.
[[nodiscard]] inline std::vector<std::span<std::byte>> place_messages(
    std::span<std::byte> room, std::span<const std::int64_t> sizes) {
  const auto place = [&](std::size_t alignment) {
    std::vector<std::span<std::byte>> messages;
    std::size_t at = 0;
    for (const std::int64_t size : sizes) {
      at = (at + alignment - 1) / alignment * alignment;
      const auto bytes = static_cast<std::size_t>(size);
      if (at + bytes > room.size()) return std::vector<std::span<std::byte>>{};
      messages.push_back(room.subspan(at, bytes));
      at += bytes;
    }
    return messages;
  };
  std::vector<std::span<std::byte>> messages = place(kMatrixAlignment);
  if (messages.empty()) messages = place(1);
  if (messages.empty()) throw std::logic_error("the room for messages by heads is too small");
  return messages;
}

/// The memory of a set's exchange in a layer. What a rank sends and takes home take turns, and so
/// do what arrives and what is sent home but for keys that are needed later.
struct HeadMemory {
  /// Of a piece of the heads.
  struct Piece {
    std::span<std::byte> own;          ///< what the rank gives, then what comes home
    std::span<std::byte> taken, home;  ///< F, and where B repeats it
    DeviceSpan<Bf16> key, value;       ///< of all ranks' rows whose keys no page holds
    std::span<std::byte>
        taken_back;  ///< B: queries, if they go ahead, what arrives; what goes home
  };
  std::vector<Piece> pieces;
  /// All heads, head after head, each with the rows of all ranks.
  DeviceSpan<Bf16> query, output;                   ///< F, and where B repeats it
  DeviceSpan<float> log_sum;                        ///< the same
  DeviceSpan<Bf16> query_back, dattention, dquery;  ///< B
  DeviceSpan<float> log_sum_back, delta;            ///< B
};

/// The memory of all sets, within head_buffer_bytes.
struct HeadMemories {
  std::vector<HeadMemory> sets;
  DeviceSpan<float> sums;     ///< B: gradients of keys and values that are not kept
  std::span<std::byte> rest;  ///< room that rings have at the same time
};

/// Cuts the room of exchanges up. Of B's, keys that no page holds stay beside rings of the layer.
[[nodiscard]] inline HeadMemories place_head_memory(const PackPlaces& places,
                                                    std::span<const ByHeadsTables> sets) {
  HeadMemories made;
  made.rest = places.exchange;
  if (sets.empty()) return made;
  const HeadSizes sizes(places);
  const bool back = sets.front().pass == Pass::backward, forth = !back || sets.front().again;
  const std::int64_t heads = sets.front().heads;
  const auto aligned = [](std::int64_t bytes) {
    constexpr auto kTo = static_cast<std::int64_t>(kMatrixAlignment);
    return (bytes + kTo - 1) / kTo * kTo;
  };
  /// Room for the messages of all ranks, all of which are aligned.
  const auto of_all = [&](const ByHeadsTables& tables, HeadWay way, const HeadPiece& piece) {
    std::int64_t bytes = 0;
    for (const ByHeadsRows& rank : tables.ranks) {
      bytes += aligned(piece.heads * sizes.message(rank, way));
    }
    return bytes;
  };
  Carver rest(places.exchange);
  made.sums = rest.take<float>(2 * heads * sets.back().sums, sizes.key());
  for (const ByHeadsTables& tables : sets) {
    HeadMemory& memory = made.sets.emplace_back();
    const auto ranks = static_cast<std::int64_t>(tables.ranks.size());
    const ByHeadsRows& mine = tables.ranks[places.call.ring.self];
    for (const HeadPiece& piece : tables.pieces) {
      const auto bytes = [&](HeadWay way) {
        return ranks * aligned(piece.heads * sizes.message(mine, way));
      };
      // Keys that travel apart with queries are no more than those of backward_home.
      const std::int64_t home = bytes(HeadWay::backward_home);
      const std::int64_t there = bytes(HeadWay::backward) + (forth ? 0 : bytes(HeadWay::ahead));
      memory.pieces.emplace_back().own = rest.take_bytes(back ? std::max(there, home) : home);
    }
  }
  const auto for_each_piece = [&](const auto& visit) {
    for (std::size_t set = 0; set < sets.size(); ++set) {
      for (std::size_t i = 0; i < sets[set].pieces.size(); ++i) {
        visit(sets[set], sets[set].pieces[i], made.sets[set].pieces[i]);
      }
    }
  };
  // Single numbers, which are not aligned to 16 bytes, come behind the matrices of all sets.
  const auto for_each_set = [&](const auto& visit) {
    for (std::size_t set = 0; set < sets.size(); ++set) {
      visit(made.sets[set], heads * sets[set].all.rows);
    }
  };
  if (forth) {
    for_each_piece(
        [&](const ByHeadsTables& tables, const HeadPiece& piece, HeadMemory::Piece& one) {
          const std::span<std::byte> begin = rest.rest();
          one.taken = rest.take_bytes(piece.heads * sizes.message(tables.all, HeadWay::forward));
          one.key = rest.take<Bf16>(piece.heads * tables.all.loose, sizes.key());
          one.value = rest.take<Bf16>(piece.heads * tables.all.loose, sizes.key());
          // Behind attention nothing of this is needed in F.
          if (!back) one.home = begin.first(begin.size() - rest.rest().size());
        });
  }
  Carver more(rest);
  if (forth) {
    if (back) {
      for_each_piece(
          [&](const ByHeadsTables& tables, const HeadPiece& piece, HeadMemory::Piece& one) {
            one.home = more.take_bytes(of_all(tables, HeadWay::forward_home, piece));
          });
    }
    for_each_set([&](HeadMemory& memory, std::int64_t rows) {
      memory.query = more.take<Bf16>(rows, sizes.query());
      memory.output = more.take<Bf16>(rows, sizes.query());
    });
    for_each_set([&](HeadMemory& memory, std::int64_t rows) {
      memory.log_sum = more.take<float>(rows, sizes.statistics());
    });
  }
  if (back) {
    for_each_piece(
        [&](const ByHeadsTables& tables, const HeadPiece& piece, HeadMemory::Piece& one) {
          const std::int64_t there = of_all(tables, HeadWay::backward, piece) +
                                     (forth ? 0 : of_all(tables, HeadWay::ahead, piece));
          one.taken_back =
              rest.take_bytes(std::max(there, of_all(tables, HeadWay::backward_home, piece)));
        });
    for_each_set([&](HeadMemory& memory, std::int64_t rows) {
      memory.query_back = rest.take<Bf16>(rows, sizes.query());
      memory.dattention = rest.take<Bf16>(rows, sizes.query());
      memory.dquery = rest.take<Bf16>(rows, sizes.query());
    });
    for_each_set([&](HeadMemory& memory, std::int64_t rows) {
      memory.log_sum_back = rest.take<float>(rows, sizes.statistics());
      memory.delta = rest.take<float>(rows, sizes.statistics());
    });
  }
  if (more.rest().size() < rest.rest().size()) rest = more;
  rest.align();
  made.rest = rest.rest();
  return made;
}

}  // namespace slimpack::cuda
