// SPDX-License-Identifier: Apache-2.0
// Attention of a pack in one layer: over the rank's own keys, round the ring of a context-parallel
// group, or by heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/boundary.hpp"
#include "slimpack_cuda/rank/by_heads_exchange.hpp"
#include "slimpack_cuda/rank/layer.hpp"
#include "slimpack_cuda/rank/own_keys.hpp"
#include "slimpack_cuda/rank/pack_tables.hpp"
#include "slimpack_cuda/rows.hpp"

namespace slimpack::cuda {

/// Attention of an F or B on one device. Keys, values and their gradients are in the arena: in
/// pages and sums that are kept, or in the unit's workspace.
class RankAttention {
 public:
  /// `partial` is scratch of a context-parallel group's forward pass: rows x q and rows x heads.
  /// `own_keys` is that of ByHeadsExchange; it may be the same memory.
  RankAttention(const PackPlaces& places, const PackTables& tables, const TableRing& ring,
                AttentionPath path, DeviceSpan<Bf16> partial, DeviceSpan<float> partial_log_sum,
                DeviceSpan<Bf16> own_keys, StreamView stream)
      : places_(places),
        tables_(tables),
        ring_(ring),
        path_(path),
        partial_(partial),
        partial_log_sum_(partial_log_sum),
        stream_(stream),
        by_heads_(places, tables.by_heads, ring, own_keys, stream),
        exchange_(by_heads_.rest()),
        q_(places.model.query_width()),
        k_(places.model.key_width()),
        heads_(places.model.heads) {}

  /// Keys and values of all layers, and their gradients, by rows of the arena.
  [[nodiscard]] DeviceSpan<Bf16> key_rows() const { return places_.arena.rows<Bf16>(k_); }
  [[nodiscard]] DeviceSpan<float> key_gradients() const { return places_.arena.rows<float>(k_); }
  /// The gradients of keys and of values, as rope_rows numbers them in B.
  [[nodiscard]] std::pair<DeviceSpan<float>, DeviceSpan<float>> summed() const {
    if (!places_.keys.summed) return {places_.keys.dkey, places_.keys.dvalue};
    return {key_gradients(), key_gradients()};
  }
  [[nodiscard]] DeviceSpan<Bf16> queries() const { return places_.arena.rows<Bf16>(q_); }

  /// Begins to send what B can before it comes to attention; queries must be there.
  template <class Link>
  void give_ahead(std::int64_t layer, Link& link) const {
    by_heads_.give_ahead(layer, link);
  }
  /// Fills attention outputs and log-sum-exps of the blocks; own keys must be stored.
  template <class Link>
  void forward(std::int64_t layer, Link& link) const {
    const bool in_cp_group = places_.call.in_cp_group();
    for (const auto& [kept, part] : in_cp_group ? tables_.kept : tables_.own) {
      const OwnKeys own = own_keys(places_, kept, layer);
      attention_forward(queries(), log_sums(), queries(), own.key, own.value,
                        part.work(ring_, layer), places_.shape, path_, stream_);
    }
    if (!in_cp_group) return;
    by_heads_.forward(layer, link);
    for (std::size_t i = 0; i < places_.call.segments.size(); ++i) {
      const RingMode mode = places_.call.segments[i].exchange;
      if (mode == RingMode::pass_kv) forward_keys(i, layer, link);
      if (mode == RingMode::pass_q) forward_queries(i, layer, link);
    }
  }

  /// Fills the gradients of queries and adds to those of keys and values, to those of the workspace
  /// from zero on.
  template <class Link>
  void backward(std::int64_t layer, const BackwardRows& rows, Link& link) const {
    if (!places_.keys.summed) {
      fill_zeros(places_.keys.dkey, stream_);
      fill_zeros(places_.keys.dvalue, stream_);
    }
    for (const auto& [kept, part] : tables_.own) {
      attention_delta(rows.delta, queries(), rows.dattention, part.work(ring_, layer),
                      places_.shape, path_, stream_);
    }
    const bool in_cp_group = places_.call.in_cp_group();
    for (const auto& [kept, part] : in_cp_group ? tables_.kept : tables_.own) {
      const OwnKeys own = own_keys(places_, kept, layer);
      attention_backward(rows.dquery, own.dkey, own.dvalue, queries(), own.key, own.value,
                         log_sums(), rows.delta, rows.dattention, part.work(ring_, layer),
                         places_.shape, path_, stream_);
    }
    if (in_cp_group) {
      by_heads_.backward(layer, rows, link);
      ring_backward(layer, rows, link);
    }
    if (!places_.keys.summed) collect_sums(layer);
  }

 private:
  template <class Link>
  void ring_backward(std::int64_t layer, const BackwardRows& rows, Link& link) const {
    for (std::size_t i = 0; i < places_.call.segments.size(); ++i) {
      const RingMode mode = places_.call.segments[i].exchange;
      if (mode == RingMode::pass_kv) backward_keys(i, layer, rows, link);
      if (mode == RingMode::pass_q) backward_queries(i, layer, rows, link);
    }
  }
  /// Copies the sums of slices that keep them to where those of the others are.
  void collect_sums(std::int64_t layer) const {
    for (std::size_t i = 0; i < places_.call.segments.size(); ++i) {
      const runtime::SegmentMemory& segment = places_.segment(i);
      if (!segment.kept.gradients || segment.rows == Tokens{}) continue;
      if (travels_by_heads(segment)) continue;
      const std::int64_t before = segment.shard.before(segment.slice.begin).value;
      const std::int64_t from = places_.gradient_row(i, layer) + before;
      const std::int64_t into = places_.keys.gradient_row[i], count = segment.rows.value;
      copy(rows_at(places_.keys.dkey, into, count, k_), rows_at(key_gradients(), from, count, k_),
           stream_);
      copy(rows_at(places_.keys.dvalue, into, count, k_),
           rows_at(key_gradients(), from + places_.own_tokens(segment), count, k_), stream_);
    }
  }

  /// What travels, and where what comes next is put.
  struct Travelling {
    std::span<std::byte> current, incoming;
  };

  [[nodiscard]] DeviceSpan<float> log_sums() const { return places_.arena.rows<float>(heads_); }
  /// The rank whose rows are here after so many hops.
  [[nodiscard]] std::int64_t owner(std::int64_t hops) const {
    return places_.call.ring.order().owner(static_cast<std::int64_t>(places_.call.ring.self), hops);
  }
  [[nodiscard]] const BlockRows& block_of(const runtime::PieceMemory& piece,
                                          std::int64_t layer) const {
    return places_.layers[static_cast<std::size_t>(layer)][piece.block];
  }
  /// The rows of a piece in a matrix of its block.
  template <class Element>
  static DeviceSpan<Element> rows_of(DeviceSpan<Element> matrix, const runtime::PieceMemory& piece,
                                     std::int64_t width) {
    return rows_at(matrix, piece.row.value, piece.piece.length().value, width);
  }
  /// The rows of a piece in a matrix of all blocks' rows.
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> all_rows_of(DeviceSpan<Element> matrix,
                                                const runtime::PieceMemory& piece,
                                                std::int64_t width) const {
    return rows_at(matrix, places_.row_of(piece), piece.piece.length().value, width);
  }
  /// Two buffers for the largest CP shard of [begin, end of the slice) at `row` bytes a token.
  [[nodiscard]] Travelling travelling(const runtime::SegmentMemory& segment, Tokens begin,
                                      std::int64_t row) const {
    const CpShard& shard = segment.shard;
    const Tokens most = largest_owned(shard.ranks, shard.block, begin, segment.slice.end);
    Carver buffers(exchange_);
    const auto current = buffers.take_bytes(most.value * row);
    buffers.align();
    return {current, buffers.take_bytes(most.value * row)};
  }
  /// Begins to hand bytes [first, last) of each token that is here on, with a hop of the ring, and
  /// to take those that come next; matrices of a token lie apart, each of all tokens.
  template <class Link>
  void begin_to_hand(const Travelling& buffers, const runtime::SegmentMemory& segment,
                     std::int64_t hop, Tokens begin, std::int64_t first, std::int64_t last,
                     Link& link) const {
    const auto part = [&](std::span<std::byte> buffer, std::int64_t rank) {
      const std::int64_t rows = segment.shard.of(rank).between(begin, segment.slice.end).value;
      return buffer.subspan(static_cast<std::size_t>(rows * first),
                            static_cast<std::size_t>(rows * (last - first)));
    };
    link.begin_ring(places_.call.ring, static_cast<std::size_t>(hop),
                    part(buffers.current, owner(hop)), part(buffers.incoming, owner(hop + 1)));
  }
  /// What has come with a hop is what is worked on from here on.
  void take_over(Travelling& buffers, std::int64_t& rank, std::int64_t hop) const {
    std::swap(buffers.current, buffers.incoming);
    rank = owner(hop + 1);
  }
  /// How often a slice's ring meets keys: once where one rank owns the whole sample up to its end,
  /// so that nothing travels.
  [[nodiscard]] std::int64_t rounds(const runtime::SegmentMemory& segment) const {
    const CpShard& shard = segment.shard;
    return segment.slice.end <= shard.block ? 1 : shard.ranks;
  }

  // --- keys and values travel ---

  struct Keys {
    DeviceSpan<Bf16> key, value;
    DeviceSpan<float> dkey, dvalue;
  };
  [[nodiscard]] Keys keys_of(std::span<std::byte> buffer, const runtime::SegmentMemory& segment,
                             std::int64_t rank, bool with_gradients) const {
    const std::int64_t count = segment.shard.of(rank).before(segment.slice.end).value;
    Carver rest(buffer);
    Keys keys;
    keys.key = rest.take<Bf16>(count, k_);
    keys.value = rest.take<Bf16>(count, k_);
    if (!with_gradients) return keys;
    keys.dkey = rest.take<float>(count, k_);
    keys.dvalue = rest.take<float>(count, k_);
    return keys;
  }
  void load_keys(const Keys& keys, std::size_t i, std::int64_t layer) const {
    const auto rows = ring_.span(tables_.ring[i].own_keys);
    const OwnKeys own = own_keys(places_, places_.segment(i).kept, layer);
    gather_rows(keys.key, own.key, rows, {rows.size, k_}, stream_);
    gather_rows(keys.value, own.value, rows, {rows.size, k_}, stream_);
  }

  template <class Link>
  void forward_keys(std::size_t i, std::int64_t layer, Link& link) const {
    const runtime::SegmentMemory& segment = places_.call.segments[i];
    const std::int64_t row = 2 * k_ * 2, all = rounds(segment);
    Travelling buffers = travelling(segment, Tokens{0}, row);
    std::int64_t rank = segment.shard.rank;
    load_keys(keys_of(buffers.current, segment, rank, false), i, layer);
    for (std::int64_t step = 0; step < all; ++step) {
      // The next keys come while these are attended to.
      if (step + 1 < all) begin_to_hand(buffers, segment, step, Tokens{0}, 0, row, link);
      const Keys keys = keys_of(buffers.current, segment, rank, false);
      const bool first = step == 0;
      attention_forward(first ? queries() : partial_, first ? log_sums() : partial_log_sum_,
                        queries(), keys.key, keys.value,
                        tables_.ring[i].forward[static_cast<std::size_t>(step)].work(ring_, layer),
                        places_.shape, path_, stream_);
      for (const runtime::PieceMemory& piece : segment.pieces) {
        if (first) break;
        const BlockRows& block = block_of(piece, layer);
        attention_merge(rows_of(block.attention, piece, q_), rows_of(block.log_sum, piece, heads_),
                        all_rows_of(partial_, piece, q_),
                        all_rows_of(partial_log_sum_, piece, heads_), piece.piece.length().value,
                        places_.shape, stream_);
      }
      if (step + 1 == all) break;
      link.end_ring();
      take_over(buffers, rank, step);
    }
  }

  template <class Link>
  void backward_keys(std::size_t i, std::int64_t layer, const BackwardRows& rows,
                     Link& link) const {
    const runtime::SegmentMemory& segment = places_.call.segments[i];
    const std::int64_t fixed = 2 * k_ * 2, row = fixed + 2 * k_ * 4, all = rounds(segment);
    Travelling buffers = travelling(segment, Tokens{0}, row);
    std::int64_t rank = segment.shard.rank;
    Keys keys = keys_of(buffers.current, segment, rank, true);
    load_keys(keys, i, layer);
    fill_zeros(keys.dkey, stream_);
    fill_zeros(keys.dvalue, stream_);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      fill_zeros(all_rows_of(rows.dquery_sum, piece, q_), stream_);
    }
    for (std::int64_t step = 0; step < all; ++step) {
      // Keys and values go ahead of their gradients; nobody needs them when those come home.
      if (step + 1 < all) begin_to_hand(buffers, segment, step, Tokens{0}, 0, fixed, link);
      keys = keys_of(buffers.current, segment, rank, true);
      attention_backward_partial(
          rows.dquery_sum, keys.dkey, keys.dvalue, queries(), keys.key, keys.value, log_sums(),
          rows.delta, rows.dattention,
          tables_.ring[i].backward[static_cast<std::size_t>(step)].work(ring_, layer),
          places_.shape, path_, stream_);
      if (step + 1 < all) link.end_ring();
      if (all == 1) break;
      begin_to_hand(buffers, segment, step, Tokens{0}, fixed, row, link);
      link.end_ring();
      take_over(buffers, rank, step);
    }
    keys = keys_of(buffers.current, segment, rank, true);
    const OwnKeys own = own_keys(places_, segment.kept, layer);
    const std::int64_t first = places_.gradient_row(i, layer);
    const std::int64_t count = keys.dkey.size / k_;
    add(rows_at(own.dkey, first, count, k_), keys.dkey, stream_);
    add(rows_at(own.dvalue, first + places_.own_tokens(segment), count, k_), keys.dvalue, stream_);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      convert(all_rows_of(rows.dquery, piece, q_), all_rows_of(rows.dquery_sum, piece, q_),
              stream_);
    }
  }

  // --- queries travel ---

  struct Queries {
    DeviceSpan<Bf16> query, attention, dattention;
    DeviceSpan<float> log_sum, delta, dquery;
  };
  [[nodiscard]] Queries queries_of(std::span<std::byte> buffer,
                                   const runtime::SegmentMemory& segment, std::int64_t rank,
                                   bool backward) const {
    const std::int64_t count =
        segment.shard.of(rank).between(segment.slice.begin, segment.slice.end).value;
    Carver rest(buffer);
    Queries queries;
    if (backward) queries.dquery = rest.take<float>(count, q_);
    queries.query = rest.take<Bf16>(count, q_);
    (backward ? queries.dattention : queries.attention) = rest.take<Bf16>(count, q_);
    queries.log_sum = rest.take<float>(count, heads_);
    if (backward) queries.delta = rest.take<float>(count, heads_);
    return queries;
  }
  /// The rows of a piece among its rank's rows of the slice.
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> travelling_rows_of(DeviceSpan<Element> matrix,
                                                       const runtime::SegmentMemory& segment,
                                                       const runtime::PieceMemory& piece,
                                                       std::int64_t width) const {
    const Tokens first = segment.shard.between(segment.slice.begin, piece.piece.begin);
    return rows_at(matrix, first.value, piece.piece.length().value, width);
  }

  template <class Link>
  void forward_queries(std::size_t i, std::int64_t layer, Link& link) const {
    const runtime::SegmentMemory& segment = places_.call.segments[i];
    const std::int64_t row = 2 * q_ * 2 + heads_ * 4, all = rounds(segment);
    Travelling buffers = travelling(segment, segment.slice.begin, row);
    std::int64_t rank = segment.shard.rank;
    const OwnKeys keys = own_keys(places_, segment.kept, layer);
    Queries own = queries_of(buffers.current, segment, rank, false);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      copy(travelling_rows_of(own.query, segment, piece, q_),
           rows_of(block_of(piece, layer).query, piece, q_), stream_);
    }
    for (std::int64_t step = 0; step < all; ++step) {
      const Queries current = queries_of(buffers.current, segment, rank, false);
      // What is computed of them here stands where the next ones will come.
      const Queries made = step == 0 ? current : queries_of(buffers.incoming, segment, rank, false);
      attention_forward(made.attention, made.log_sum, current.query, keys.key, keys.value,
                        tables_.ring[i].forward[static_cast<std::size_t>(step)].work(ring_, layer),
                        places_.shape, path_, stream_);
      if (step > 0) {
        attention_merge(current.attention, current.log_sum, made.attention, made.log_sum,
                        current.log_sum.size / heads_, places_.shape, stream_);
      }
      if (all == 1) break;
      begin_to_hand(buffers, segment, step, segment.slice.begin, 0, row, link);
      link.end_ring();
      take_over(buffers, rank, step);
    }
    own = queries_of(buffers.current, segment, rank, false);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const BlockRows& block = block_of(piece, layer);
      copy(rows_of(block.attention, piece, q_),
           travelling_rows_of(own.attention, segment, piece, q_), stream_);
      copy(rows_of(block.log_sum, piece, heads_),
           travelling_rows_of(own.log_sum, segment, piece, heads_), stream_);
    }
  }

  template <class Link>
  void backward_queries(std::size_t i, std::int64_t layer, const BackwardRows& rows,
                        Link& link) const {
    const runtime::SegmentMemory& segment = places_.call.segments[i];
    const std::int64_t sums = q_ * 4, row = sums + 2 * q_ * 2 + 2 * heads_ * 4;
    const std::int64_t all = rounds(segment);
    Travelling buffers = travelling(segment, segment.slice.begin, row);
    std::int64_t rank = segment.shard.rank;
    const OwnKeys keys = own_keys(places_, segment.kept, layer);
    Queries own = queries_of(buffers.current, segment, rank, true);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      const BlockRows& block = block_of(piece, layer);
      copy(travelling_rows_of(own.query, segment, piece, q_), rows_of(block.query, piece, q_),
           stream_);
      copy(travelling_rows_of(own.dattention, segment, piece, q_),
           all_rows_of(rows.dattention, piece, q_), stream_);
      copy(travelling_rows_of(own.log_sum, segment, piece, heads_),
           rows_of(block.log_sum, piece, heads_), stream_);
      copy(travelling_rows_of(own.delta, segment, piece, heads_),
           all_rows_of(rows.delta, piece, heads_), stream_);
    }
    fill_zeros(own.dquery, stream_);
    for (std::int64_t step = 0; step < all; ++step) {
      const Queries current = queries_of(buffers.current, segment, rank, true);
      if (step + 1 < all) {
        begin_to_hand(buffers, segment, step, segment.slice.begin, sums, row, link);
      }
      attention_backward_partial(
          current.dquery, keys.dkey, keys.dvalue, current.query, keys.key, keys.value,
          current.log_sum, current.delta, current.dattention,
          tables_.ring[i].backward[static_cast<std::size_t>(step)].work(ring_, layer),
          places_.shape, path_, stream_);
      if (step + 1 < all) link.end_ring();
      if (all == 1) break;
      begin_to_hand(buffers, segment, step, segment.slice.begin, 0, sums, link);
      link.end_ring();
      take_over(buffers, rank, step);
    }
    own = queries_of(buffers.current, segment, rank, true);
    for (const runtime::PieceMemory& piece : segment.pieces) {
      convert(all_rows_of(rows.dquery, piece, q_),
              travelling_rows_of(own.dquery, segment, piece, q_), stream_);
    }
  }

  const PackPlaces& places_;
  const PackTables& tables_;
  const TableRing& ring_;
  AttentionPath path_;
  DeviceSpan<Bf16> partial_;
  DeviceSpan<float> partial_log_sum_;
  StreamView stream_;
  ByHeadsExchange by_heads_;
  std::span<std::byte> exchange_;  ///< of rings
  std::int64_t q_, k_, heads_;
};

}  // namespace slimpack::cuda
