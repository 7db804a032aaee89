// SPDX-License-Identifier: Apache-2.0
// Attention of slices by heads in one layer: ranks pass their tokens' heads to each other, attend
// with a part of the heads to all tokens, and pass home what comes of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/columns.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/backward_rows.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/by_heads_tables.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/own_keys.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"
#include "slimpack_cuda/rank/staging.hpp"

namespace slimpack::cuda {

/// All slices of a pack that travel by heads, together. What a rank sends and what it attends to
/// take turns in one buffer, `own`, and what it receives and what attention makes in another one,
/// `all`: two messages and two results of a layer never need more than head_buffer_bytes counts.
class ByHeadsExchange {
 public:
  ByHeadsExchange(const PackPlaces& places, const ByHeadsTables& tables, const TableRing& ring,
                  std::span<std::byte> exchange, StreamView stream)
      : places_(places),
        tables_(tables),
        ring_(ring),
        exchange_(exchange),
        stream_(stream),
        ranks_(static_cast<std::int64_t>(places.call.ring.members.size())),
        q_(places.model.query_width()),
        k_(places.model.key_width()),
        heads_(places.model.heads) {}

  /// Fills attention outputs and log-sum-exps of the slices' own rows; own keys must be stored.
  template <class Link>
  void forward(std::int64_t layer, Link& link) const {
    if (tables_.empty()) return;
    const std::int64_t rows = tables_.all.rows, keys = tables_.all.keys;
    Carver buffers(exchange_);
    // Single numbers a row, which are not aligned to 16 bytes, come last.
    const auto all = buffers.take_bytes(bytes(2 * rows * q_ + 2 * keys * k_, sizeof(Bf16)));
    const auto own = buffers.take_bytes(own_bytes(Way::forward, Way::forward_home));
    const DeviceSpan<float> log_sum =
        elements<float>(buffers.take_bytes(bytes(rows * heads_, sizeof(float))));
    const DeviceSpan<Bf16> query = places_.arena.rows<Bf16>(q_);

    const Message first = message(own, mine(), Way::forward);
    split(first.query, query, ring_.span(by_layer(tables_.query, layer)), q_, Way::forward);
    split_keys(first, layer, Way::forward);
    exchange(own, all, Way::forward, false, link);
    const Message whole = message(own, tables_.all, Way::forward);
    order(all, whole, Way::forward, true);

    Carver made(all);
    Message output;
    output.query = made.take<Bf16>(rows, q_ / ranks_);
    output.log_sum = log_sum;
    attention_forward(output.query, output.log_sum, whole.query, whole.key, whole.value,
                      tables_.attention.work(ring_, 0), places_.by_heads.shape,
                      places_.by_heads.path, stream_);
    order(made.rest(), output, Way::forward_home, false);
    exchange(made.rest(), own, Way::forward_home, true, link);
    const Message home = message(own, mine(), Way::forward_home);
    join(query, home.query, ring_.span(by_layer(tables_.output, layer)), q_, Way::forward_home);
    join(places_.arena.rows<float>(heads_), home.log_sum,
         ring_.span(by_layer(tables_.log_sum, layer)), heads_, Way::forward_home);
  }

  /// Fills the gradients of the slices' own queries, in rows of all blocks, and adds to those of
  /// keys and values; `rows` has delta and the gradients of outputs.
  template <class Link>
  void backward(std::int64_t layer, const BackwardRows& rows, Link& link) const {
    if (tables_.empty()) return;
    const std::int64_t all_rows = tables_.all.rows, all_keys = tables_.all.keys;
    Carver buffers(exchange_);
    const auto all = buffers.take_bytes(bytes(4 * all_rows * q_ + 6 * all_keys * k_, sizeof(Bf16)));
    const auto own = buffers.take_bytes(own_bytes(Way::backward, Way::backward_home));
    const auto gradient = ring_.span(tables_.gradient);

    const Message first = message(own, mine(), Way::backward);
    split(first.query, places_.arena.rows<Bf16>(q_), ring_.span(by_layer(tables_.query, layer)), q_,
          Way::backward);
    split(first.dattention, rows.dattention, gradient, q_, Way::backward);
    split_keys(first, layer, Way::backward);
    split(first.log_sum, places_.arena.rows<float>(heads_),
          ring_.span(by_layer(tables_.log_sum, layer)), heads_, Way::backward);
    split(first.delta, rows.delta, gradient, heads_, Way::backward);
    exchange(own, all, Way::backward, false, link);
    const Message whole = message(own, tables_.all, Way::backward);
    order(all, whole, Way::backward, true);

    Carver made(all);
    Message gradients;
    gradients.query = made.take<Bf16>(all_rows, q_ / ranks_);
    const auto dkey = made.take<float>(all_keys, k_ / ranks_);
    const auto dvalue = made.take<float>(all_keys, k_ / ranks_);
    fill_zeros(dkey, stream_);
    fill_zeros(dvalue, stream_);
    attention_backward(gradients.query, dkey, dvalue, whole.query, whole.key, whole.value,
                       whole.log_sum, whole.delta, whole.dattention,
                       tables_.attention.work(ring_, 0), places_.by_heads.shape,
                       places_.by_heads.path, stream_);
    order(made.rest(), gradients, Way::backward_home, false);
    round_keys(made.rest(), dkey, dvalue);
    exchange(made.rest(), own, Way::backward_home, true, link);
    const Message home = message(own, mine(), Way::backward_home);
    join(rows.dquery, home.query, gradient, q_, Way::backward_home);
    add_keys(home, layer);
  }

 private:
  /// What travels: to the ranks of heads, and home.
  enum class Way : std::uint8_t { forward, forward_home, backward, backward_home };

  /// What one rank brings to another or takes home, of a part of the heads, in the order of its
  /// matrices; or the same of all ranks. `query` and `key` are whatever has their width.
  struct Message {
    DeviceSpan<Bf16> query, dattention, key, value;
    DeviceSpan<float> log_sum, delta;
  };
  [[nodiscard]] static bool has_keys(Way way) noexcept { return way != Way::forward_home; }
  [[nodiscard]] static std::int64_t statistics(Way way) noexcept {
    return way == Way::backward ? 2 : way == Way::forward_home ? 1 : 0;
  }

  /// Bytes of a rank's part of so many elements of whole heads.
  [[nodiscard]] std::int64_t bytes(std::int64_t count, std::size_t size) const noexcept {
    return count / ranks_ * static_cast<std::int64_t>(size);
  }
  /// Of a part of the heads.
  [[nodiscard]] std::int64_t message_bytes(const ByHeadsRows& of, Way way) const noexcept {
    return bytes((way == Way::backward ? 2 : 1) * of.rows * q_ +
                     (has_keys(way) ? 2 * of.keys * k_ : 0),
                 sizeof(Bf16)) +
           bytes(statistics(way) * of.rows * heads_, sizeof(float));
  }
  /// Room for what the rank sends and takes home, and for what it attends to in between.
  [[nodiscard]] std::int64_t own_bytes(Way there, Way home) const {
    return std::max({ranks_ * message_bytes(mine(), there), ranks_ * message_bytes(mine(), home),
                     message_bytes(tables_.all, there)});
  }
  [[nodiscard]] Message message(std::span<std::byte> bytes, const ByHeadsRows& of, Way way) const {
    Carver rest(bytes);
    Message one;
    one.query = rest.take<Bf16>(of.rows, q_ / ranks_);
    if (way == Way::backward) one.dattention = rest.take<Bf16>(of.rows, q_ / ranks_);
    if (has_keys(way)) {
      one.key = rest.take<Bf16>(of.keys, k_ / ranks_);
      one.value = rest.take<Bf16>(of.keys, k_ / ranks_);
    }
    if (statistics(way) > 0) one.log_sum = rest.take<float>(of.rows, heads_ / ranks_);
    if (statistics(way) > 1) one.delta = rest.take<float>(of.rows, heads_ / ranks_);
    return one;
  }
  [[nodiscard]] const ByHeadsRows& mine() const { return tables_.ranks[places_.call.ring.self]; }
  /// The messages of all ranks in a buffer: as large as this one's where `equal`, else each as its
  /// rank's tokens are.
  [[nodiscard]] std::vector<std::span<std::byte>> messages(std::span<std::byte> buffer, Way way,
                                                           bool equal) const {
    std::vector<std::span<std::byte>> parts;
    Carver rest(buffer);
    for (const ByHeadsRows& rank : tables_.ranks) {
      parts.push_back(rest.take_bytes(message_bytes(equal ? mine() : rank, way)));
    }
    return parts;
  }

  template <class Rows>
  [[nodiscard]] static const Rows& by_layer(const std::vector<Rows>& rows, std::int64_t layer) {
    return rows[static_cast<std::size_t>(layer)];
  }

  /// One matrix of the messages to or from all ranks, of which `first` is that of rank 0: the
  /// messages are one behind the other.
  template <class Element>
  struct Columns {
    DeviceSpan<Element> parts;
    ColumnShape shape;
  };
  template <class Element>
  [[nodiscard]] Columns<Element> columns(DeviceSpan<Element> first, std::int64_t width,
                                         Way way) const {
    const std::int64_t stride =
        message_bytes(mine(), way) / static_cast<std::int64_t>(sizeof(Element));
    return {{first.data, (ranks_ - 1) * stride + first.size},
            {first.size / (width / ranks_), width, ranks_, stride}};
  }
  template <class Element>
  void split(DeviceSpan<Element> first, DeviceSpan<Element> whole,
             DeviceSpan<const std::int32_t> table, std::int64_t width, Way way) const {
    if (first.size == 0) return;
    const Columns<Element> to = columns(first, width, way);
    split_columns(to.parts, whole, table, to.shape, stream_);
  }
  template <class Element>
  void join(DeviceSpan<Element> whole, DeviceSpan<Element> first,
            DeviceSpan<const std::int32_t> table, std::int64_t width, Way way) const {
    if (first.size == 0) return;
    const Columns<Element> from = columns(first, width, way);
    join_columns(whole, from.parts, table, from.shape, stream_);
  }
  /// Own keys [first, first + count) of a matrix of a message.
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> keys_at(DeviceSpan<Element> matrix, std::int64_t first,
                                            std::int64_t count) const {
    return rows_at(matrix, first, count, k_ / ranks_);
  }
  void split_keys(const Message& first, std::int64_t layer, Way way) const {
    const auto table = ring_.span(tables_.keys);
    const auto begin_of = [&](std::size_t i) {
      return i < tables_.slices.size() ? tables_.slices[i].first_key : table.size;
    };
    // Neighbouring slices whose keys are in the same memory go together.
    for (std::size_t i = 0; i < tables_.slices.size();) {
      const KeptKeys kept = places_.segment(tables_.slices[i].segment).kept;
      const std::int64_t begin = begin_of(i);
      for (++i; i < tables_.slices.size(); ++i) {
        if (places_.segment(tables_.slices[i].segment).kept.pages != kept.pages) break;
      }
      const std::int64_t count = begin_of(i) - begin;
      const OwnKeys own = own_keys(places_, kept, layer);
      const auto rows = table.subspan(begin, count);
      split(keys_at(first.key, begin, count), own.key, rows, k_, way);
      split(keys_at(first.value, begin, count), own.value, rows, k_, way);
    }
  }
  void add_keys(const Message& home, std::int64_t layer) const {
    for (const ByHeadsSlice& slice : tables_.slices) {
      const runtime::SegmentMemory& segment = places_.segment(slice.segment);
      const std::int64_t count = segment.shard.before(segment.slice.end).value;
      if (count == 0) continue;
      const OwnKeys own = own_keys(places_, segment.kept, layer);
      const std::int64_t row = places_.gradient_row(slice.segment, layer);
      const auto add = [&](DeviceSpan<float> into, DeviceSpan<Bf16> matrix) {
        const Columns<Bf16> from =
            columns(keys_at(matrix, slice.first_key, count), k_, Way::backward_home);
        add_columns(into, from.parts, from.shape, stream_);
      };
      add(rows_at(own.dkey, row, count, k_), home.key);
      add(rows_at(own.dvalue, row + places_.own_tokens(segment), count, k_), home.value);
    }
  }

  /// Each rank gets its message of `from` and fills its own in `into`. Messages home are of one
  /// size where they arrive, those to the ranks of heads where they are sent.
  template <class Link>
  void exchange(std::span<std::byte> from, std::span<std::byte> into, Way way, bool home,
                Link& link) const {
    const auto sent = messages(from, way, !home), taken = messages(into, way, home);
    const std::vector<std::span<const std::byte>> parts(sent.begin(), sent.end());
    link.all_to_all(places_.call.ring, parts, taken);
  }

  /// Copies the matrices of all ranks' messages in a buffer to those of `whole`, where ranks stand
  /// one behind the other, if `into_whole`; else back.
  void order(std::span<std::byte> buffer, const Message& whole, Way way, bool into_whole) const {
    const auto parts = messages(buffer, way, false);
    std::vector<MemoryCopy> copies;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const ByHeadsRows& of = tables_.ranks[rank];
      const Message one = message(parts[rank], of, way);
      const auto add = [&](auto matrix, auto all, std::int64_t first, std::int64_t width) {
        if (matrix.size == 0 || all.size == 0) return;
        const auto there = all.data + first * (width / ranks_);
        const std::int64_t size = matrix.size * static_cast<std::int64_t>(sizeof(*matrix.data));
        if (into_whole) {
          copies.push_back({there, matrix.data, size});
        } else {
          copies.push_back({matrix.data, there, size});
        }
      };
      add(one.query, whole.query, of.first_row, q_);
      add(one.dattention, whole.dattention, of.first_row, q_);
      add(one.key, whole.key, of.first_key, k_);
      add(one.value, whole.value, of.first_key, k_);
      add(one.log_sum, whole.log_sum, of.first_row, heads_);
      add(one.delta, whole.delta, of.first_row, heads_);
    }
    copy_all(copies, stream_);
  }
  /// Rounds gradients of keys and values, which stand slice after slice, into the messages home.
  void round_keys(std::span<std::byte> buffer, DeviceSpan<const float> dkey,
                  DeviceSpan<const float> dvalue) const {
    const auto parts = messages(buffer, Way::backward_home, false);
    const auto order = ring_.span(tables_.key_order);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const ByHeadsRows& of = tables_.ranks[rank];
      if (of.keys == 0) continue;
      const Message one = message(parts[rank], of, Way::backward_home);
      const auto rows = order.subspan(of.first_key, of.keys);
      gather_converted(one.key, dkey, rows, {of.keys, k_ / ranks_}, stream_);
      gather_converted(one.value, dvalue, rows, {of.keys, k_ / ranks_}, stream_);
    }
  }

  const PackPlaces& places_;
  const ByHeadsTables& tables_;
  const TableRing& ring_;
  std::span<std::byte> exchange_;
  StreamView stream_;
  std::int64_t ranks_, q_, k_, heads_;
};

}  // namespace slimpack::cuda
