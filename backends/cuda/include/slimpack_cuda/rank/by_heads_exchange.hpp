// SPDX-License-Identifier: Apache-2.0
// Attention of slices by heads in one layer: ranks pass their tokens' heads to each other, attend
// with a part of the heads to all tokens, and pass home what comes of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/columns.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/backward_rows.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/by_heads_memory.hpp"
#include "slimpack_cuda/rank/by_heads_tables.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/pack_places.hpp"
#include "slimpack_cuda/rank/staging.hpp"
#include "slimpack_cuda/rank/tensor_unit.hpp"

namespace slimpack::cuda {

/// A set of slices that travel by heads in one layer: what of a piece of the heads is given,
/// attended to and taken home.
class HeadSetExchange {
 public:
  /// `sums` are the gradients of keys and values that are not kept.
  HeadSetExchange(const PackPlaces& places, const ByHeadsTables& tables, const TableRing& ring,
                  const HeadMemory& memory, DeviceSpan<float> sums, StreamView stream)
      : places_(places),
        tables_(tables),
        ring_(ring),
        stream_(stream),
        sizes_(places),
        memory_(memory),
        sums_(sums),
        q_(places.model.query_width()),
        k_(places.model.key_width()),
        heads_(places.model.heads) {}

  [[nodiscard]] std::size_t pieces() const noexcept { return tables_.pieces.size(); }
  /// What `forward_give` begins; keys that no page will hold travel apart.
  [[nodiscard]] int forward_messages() const noexcept { return tables_.all.loose > 0 ? 3 : 1; }

  /// Gives a piece of queries, keys and values; `key` and `value` hold the call's own rows.
  template <class Link>
  void forward_give(std::size_t i, std::int64_t layer, DeviceSpan<Bf16> key, DeviceSpan<Bf16> value,
                    Link& link) const {
    const auto stored = ring_.span(tables_.stored), loose = ring_.span(tables_.loose);
    const auto to = given(i, HeadWay::forward);
    const HeadMessage first = mine(to, HeadWay::forward, i);
    split(first.query, to, places_.arena.rows<Bf16>(q_), of(tables_.query, layer), q_, i);
    split_keys(first.key, to, key, stored, i);
    split_keys(first.value, to, value, stored, i);
    begin(to, taken(i, HeadWay::forward), link);
    if (tables_.all.loose == 0) return;
    const HeadMemory::Piece& memory = memory_.pieces[i];
    for (const bool values : {false, true}) {
      const auto apart = given_apart(i, values);
      split_keys(elements<Bf16>(apart.front()), apart, values ? value : key, loose, i);
      begin(apart, taken_apart(i, values ? memory.value : memory.key), link);
    }
  }
  /// Attends to a piece that has come, and gives what comes of it.
  template <class Link>
  void forward_attend(std::size_t i, std::int64_t layer, Link& link) const {
    const auto there = taken(i, HeadWay::forward), home = this->home(i, HeadWay::forward_home);
    std::vector<MemoryCopy> copies;
    for_each_rank(there, HeadWay::forward, i, [&](const HeadMessage& one, std::size_t rank) {
      order(copies, one.query, memory_.query, sizes_.query(), rank, i, true);
      if (tables_.pass == Pass::forward && one.key.size > 0) {
        store_keys(places_.arena.rows<Bf16>(sizes_.key()), both(one),
                   ring_.span(tables_.pages[rank]), key_rows(one, i, layer), stream_);
      }
    });
    copy_all(copies, stream_);
    for (const ByHeadsPart& part : tables_.attention) {
      const auto [keys, values] = keys_of(part.kept, i, layer);
      attention_forward(memory_.output, memory_.log_sum, memory_.query, keys, values,
                        part.pieces[i].work(ring_, layer), places_.by_heads.shape,
                        places_.by_heads.path, stream_);
    }
    copies.clear();
    for_each_rank(home, HeadWay::forward_home, i, [&](const HeadMessage& one, std::size_t rank) {
      order(copies, one.query, memory_.output, sizes_.query(), rank, i, false);
      order(copies, one.log_sum, memory_.log_sum, sizes_.statistics(), rank, i, false);
    });
    copy_all(copies, stream_);
    begin(home, given(i, HeadWay::forward_home), link);
  }
  /// Fills the piece's heads of attention outputs and log-sum-exps of own rows, which have come.
  void forward_take(std::size_t i, std::int64_t layer) const {
    const auto from = given(i, HeadWay::forward_home);
    const HeadMessage first = mine(from, HeadWay::forward_home, i);
    join(places_.arena.rows<Bf16>(q_), first.query, from, of(tables_.output, layer), q_, i);
    join(places_.arena.rows<float>(heads_), first.log_sum, from, of(tables_.log_sum, layer), heads_,
         i);
  }

  /// Gives a piece of the queries of B.
  template <class Link>
  void give_ahead(std::size_t i, std::int64_t layer, Link& link) const {
    const auto to = given(i, HeadWay::ahead);
    split(mine(to, HeadWay::ahead, i).query, to, places_.arena.rows<Bf16>(q_),
          of(tables_.query, layer), q_, i);
    begin(to, taken(i, HeadWay::ahead), link);
  }
  /// Gives a piece of gradients of outputs, log-sum-exps and delta.
  template <class Link>
  void backward_give(std::size_t i, std::int64_t layer, const BackwardRows& rows,
                     Link& link) const {
    const auto gradient = ring_.span(tables_.gradient);
    const auto to = given(i, HeadWay::backward);
    const HeadMessage first = mine(to, HeadWay::backward, i);
    split(first.dattention, to, rows.dattention, gradient, q_, i);
    split(first.log_sum, to, places_.arena.rows<float>(heads_), of(tables_.log_sum, layer), heads_,
          i);
    split(first.delta, to, rows.delta, gradient, heads_, i);
    begin(to, taken(i, HeadWay::backward), link);
  }
  /// Attends to a piece that has come, and gives what comes of it.
  template <class Link>
  void backward_attend(std::size_t i, std::int64_t layer, Link& link) const {
    const auto there = taken(i, HeadWay::backward), home = this->home(i, HeadWay::backward_home);
    std::vector<MemoryCopy> copies;
    const HeadWay queries = tables_.again ? HeadWay::forward : HeadWay::ahead;
    for_each_rank(taken(i, queries), queries, i, [&](const HeadMessage& one, std::size_t rank) {
      order(copies, one.query, memory_.query_back, sizes_.query(), rank, i, true);
    });
    for_each_rank(there, HeadWay::backward, i, [&](const HeadMessage& one, std::size_t rank) {
      order(copies, one.dattention, memory_.dattention, sizes_.query(), rank, i, true);
      order(copies, one.log_sum, memory_.log_sum_back, sizes_.statistics(), rank, i, true);
      order(copies, one.delta, memory_.delta, sizes_.statistics(), rank, i, true);
    });
    copy_all(copies, stream_);
    for (const ByHeadsPart& part : tables_.attention) {
      const auto [keys, values] = keys_of(part.kept, i, layer);
      const DeviceSpan<float> sums =
          part.kept.gradients ? places_.arena.rows<float>(sizes_.key()) : sums_;
      attention_backward(memory_.dquery, sums, sums, memory_.query_back, keys, values,
                         memory_.log_sum_back, memory_.delta, memory_.dattention,
                         part.pieces[i].work(ring_, layer), places_.by_heads.shape,
                         places_.by_heads.path, stream_);
    }
    copies.clear();
    for_each_rank(home, HeadWay::backward_home, i, [&](const HeadMessage& one, std::size_t rank) {
      order(copies, one.query, memory_.dquery, sizes_.query(), rank, i, false);
      if (one.key.size == 0) return;
      load_key_gradients(both(one), places_.arena.rows<float>(sizes_.key()),
                         ring_.span(tables_.gradients[rank]), key_rows(one, i, layer), stream_);
    });
    copy_all(copies, stream_);
    begin(home, given(i, HeadWay::backward_home), link);
  }
  /// Fills the piece's heads of gradients of own queries, which have come, and adds those of own
  /// keys and values to the unit's.
  void backward_take(std::size_t i, const BackwardRows& rows) const {
    const auto from = given(i, HeadWay::backward_home);
    const HeadMessage first = mine(from, HeadWay::backward_home, i);
    join(rows.dquery, first.query, from, ring_.span(tables_.gradient), q_, i);
    add(places_.keys.dkey, first.key, from, i);
    add(places_.keys.dvalue, first.value, from, i);
  }

 private:
  using Messages = std::vector<std::span<std::byte>>;

  template <class Link>
  void begin(const Messages& from, const Messages& into, Link& link) const {
    const std::vector<std::span<const std::byte>> parts(from.begin(), from.end());
    link.begin_all_to_all(places_.call.ring, parts, into);
  }

  // --- where messages are ---

  [[nodiscard]] const ByHeadsRows& own_rows() const {
    return tables_.ranks[places_.call.ring.self];
  }
  [[nodiscard]] Messages messages(std::span<std::byte> room, HeadWay way, std::size_t i,
                                  bool own) const {
    std::vector<std::int64_t> sizes;
    for (const ByHeadsRows& rank : tables_.ranks) {
      sizes.push_back(tables_.pieces[i].heads * sizes_.message(own ? own_rows() : rank, way));
    }
    return place_messages(room, sizes);
  }
  /// Of the rank's own rows, by the rank that has their heads.
  [[nodiscard]] Messages given(std::size_t i, HeadWay way) const {
    return messages(behind_queries(memory_.pieces[i].own, way, i, true), way, i, true);
  }
  /// Of the piece's heads, by the rank that owns the rows.
  [[nodiscard]] Messages taken(std::size_t i, HeadWay way) const {
    const HeadMemory::Piece& piece = memory_.pieces[i];
    if (way == HeadWay::forward) return messages(piece.taken, way, i, false);
    return messages(behind_queries(piece.taken_back, way, i, false), way, i, false);
  }
  /// The room for the messages of B that have queries ahead of them.
  [[nodiscard]] std::span<std::byte> behind_queries(std::span<std::byte> room, HeadWay way,
                                                    std::size_t i, bool own) const {
    if (way != HeadWay::backward || tables_.again) return room;
    const std::span<std::byte> last = messages(room, HeadWay::ahead, i, own).back();
    return room.subspan(static_cast<std::size_t>(last.data() + last.size() - room.data()));
  }
  [[nodiscard]] Messages home(std::size_t i, HeadWay way) const {
    const HeadMemory::Piece& piece = memory_.pieces[i];
    return messages(way == HeadWay::backward_home ? piece.taken_back : piece.home, way, i, false);
  }
  /// Keys, or values, that travel apart: behind the queries in what is given.
  [[nodiscard]] Messages given_apart(std::size_t i, bool values) const {
    const std::span<std::byte> last = given(i, HeadWay::forward).back();
    const std::span<std::byte> own = memory_.pieces[i].own;
    const auto ranks = static_cast<std::int64_t>(tables_.ranks.size());
    Carver rest(own.subspan(static_cast<std::size_t>(last.data() + last.size() - own.data())));
    const std::int64_t size = tables_.pieces[i].heads * own_rows().loose * sizes_.key() * 2;
    if (values) static_cast<void>(rest.take_bytes(ranks * size));
    Messages messages;
    for (std::int64_t rank = 0; rank < ranks; ++rank) messages.push_back(rest.take_bytes(size));
    return messages;
  }
  [[nodiscard]] Messages taken_apart(std::size_t i, DeviceSpan<Bf16> matrix) const {
    Carver rest(std::as_writable_bytes(host_span(matrix)));
    Messages messages;
    for (const ByHeadsRows& rank : tables_.ranks) {
      messages.push_back(rest.take_bytes(tables_.pieces[i].heads * rank.loose * sizes_.key() * 2));
    }
    return messages;
  }
  [[nodiscard]] HeadMessage mine(const Messages& messages, HeadWay way, std::size_t i) const {
    return sizes_.cut(messages.front(), own_rows(), way, tables_.pieces[i]);
  }
  template <class Visit>
  void for_each_rank(const Messages& messages, HeadWay way, std::size_t i, Visit visit) const {
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      visit(sizes_.cut(messages[rank], tables_.ranks[rank], way, tables_.pieces[i]), rank);
    }
  }

  // --- what goes into them and comes out ---

  /// One matrix of the messages to or from ranks.
  template <class Element>
  struct Columns {
    DeviceSpan<Element> parts;
    ColumnShape shape;
  };
  /// Of every `step`-th rank from `from` on; `first` is the matrix of the first of all.
  template <class Element>
  [[nodiscard]] Columns<Element> columns(DeviceSpan<Element> first, const Messages& messages,
                                         std::int64_t width, std::size_t i, std::int64_t from = 0,
                                         std::int64_t step = 1) const {
    const HeadPiece& piece = tables_.pieces[i];
    const std::int64_t members = static_cast<std::int64_t>(messages.size()) / step;
    const std::int64_t message =
        (messages[1].data() - messages[0].data()) / static_cast<std::int64_t>(sizeof(Element));
    const std::int64_t stride = step * message, head = first.size / piece.heads;
    return {{first.data + from * message, (members - 1) * stride + first.size},
            {head / (width / members / tables_.heads), width, members, stride, tables_.heads,
             piece.first, piece.heads, head}};
  }
  /// Ranks that have the same keys, one behind the other.
  [[nodiscard]] std::int64_t copies() const {
    return static_cast<std::int64_t>(tables_.ranks.size()) / places_.by_heads_parts();
  }
  template <class Element>
  void split(DeviceSpan<Element> first, const Messages& messages, DeviceSpan<Element> whole,
             DeviceSpan<const std::int32_t> table, std::int64_t width, std::size_t i) const {
    if (first.size == 0) return;
    const Columns<Element> to = columns(first, messages, width, i);
    split_columns(to.parts, whole, table, to.shape, stream_);
  }
  /// The same of keys or values, for all ranks that have a head.
  void split_keys(DeviceSpan<Bf16> first, const Messages& messages, DeviceSpan<Bf16> whole,
                  DeviceSpan<const std::int32_t> table, std::size_t i) const {
    if (first.size == 0) return;
    for (std::int64_t copy = 0; copy < copies(); ++copy) {
      const Columns<Bf16> to = columns(first, messages, k_, i, copy, copies());
      split_columns(to.parts, whole, table, to.shape, stream_);
    }
  }
  template <class Element>
  void join(DeviceSpan<Element> whole, DeviceSpan<Element> first, const Messages& messages,
            DeviceSpan<const std::int32_t> table, std::int64_t width, std::size_t i) const {
    if (first.size == 0) return;
    const Columns<Element> from = columns(first, messages, width, i);
    join_columns(whole, from.parts, table, from.shape, stream_);
  }
  /// To the gradients of the set's own rows; ranks with the same keys have what their queries add.
  void add(DeviceSpan<float> whole, DeviceSpan<Bf16> first, const Messages& messages,
           std::size_t i) const {
    if (first.size == 0) return;
    for (std::int64_t copy = 0; copy < copies(); ++copy) {
      const Columns<Bf16> from = columns(first, messages, k_, i, copy, copies());
      add_columns(rows_at(whole, tables_.first_gradient, from.shape.rows, k_), from.parts,
                  from.shape, stream_);
    }
  }
  /// A matrix of a rank's message into the rows of all ranks, or out of them.
  template <class Element>
  void order(std::vector<MemoryCopy>& copies, DeviceSpan<Element> matrix, DeviceSpan<Element> all,
             std::int64_t width, std::size_t rank, std::size_t i, bool into_all) const {
    const HeadPiece& piece = tables_.pieces[i];
    const ByHeadsRows& of = tables_.ranks[rank];
    const std::int64_t size = of.rows * width;
    for (std::int64_t head = 0; size > 0 && head < piece.heads; ++head) {
      const auto one = matrix.data + head * size;
      const auto there =
          all.data + ((piece.first + head) * tables_.all.rows + of.first_row) * width;
      const std::int64_t bytes = size * static_cast<std::int64_t>(sizeof(Element));
      copies.push_back(into_all ? MemoryCopy{there, one, bytes} : MemoryCopy{one, there, bytes});
    }
  }
  /// Keys and values of a message.
  [[nodiscard]] static DeviceSpan<Bf16> both(const HeadMessage& one) {
    return {one.key.data, one.key.size + one.value.size};
  }
  [[nodiscard]] KeyRowShape key_rows(const HeadMessage& one, std::size_t i,
                                     std::int64_t layer) const {
    const HeadPiece& piece = tables_.pieces[i];
    const std::int64_t head = one.key.size / piece.heads;
    return {head / sizes_.key(), sizes_.key(), tables_.heads, piece.first,
            piece.heads,         head,         one.key.size,  layer};
  }
  /// What attention's tables number rows of.
  [[nodiscard]] std::pair<DeviceSpan<Bf16>, DeviceSpan<Bf16>> keys_of(const KeptKeys& kept,
                                                                      std::size_t i,
                                                                      std::int64_t layer) const {
    if (!kept.pages) return {memory_.pieces[i].key, memory_.pieces[i].value};
    // Of the matrices of a page a layer has two; values of the last one are as many rows from the
    // end as their keys from theirs.
    const std::int64_t page = tables_.heads * places_.page.value * sizes_.key();
    const DeviceSpan<Bf16> all = places_.arena.rows<Bf16>(sizes_.key());
    const std::int64_t size = std::max<std::int64_t>(0, all.size - (2 * layer + 1) * page);
    return {{all.data + 2 * layer * page, size}, {all.data + (2 * layer + 1) * page, size}};
  }
  [[nodiscard]] DeviceSpan<const std::int32_t> of(
      const std::vector<TablePart<std::int32_t>>& tables, std::int64_t layer) const {
    return ring_.span(tables[static_cast<std::size_t>(layer)]);
  }

  const PackPlaces& places_;
  const ByHeadsTables& tables_;
  const TableRing& ring_;
  StreamView stream_;
  HeadSizes sizes_;
  const HeadMemory& memory_;
  DeviceSpan<float> sums_;
  std::int64_t q_, k_, heads_;
};

/// All slices of a pack that travel by heads, set after set, piece by piece of the heads: while one
/// piece is attended to, the next is on its way, and what came of the one before goes home.
class ByHeadsExchange {
 public:
  /// `own` is scratch of F that is free behind the projection: own rows by heads x 2k.
  ByHeadsExchange(const PackPlaces& places, const std::vector<ByHeadsTables>& sets,
                  const TableRing& ring, DeviceSpan<Bf16> own, StreamView stream)
      : places_(places),
        pass_(sets.empty() ? Pass::forward : sets.front().pass),
        again_(!sets.empty() && sets.front().again),
        own_(own),
        stream_(stream),
        memory_(place_head_memory(places, sets)) {
    for (std::size_t set = 0; set < sets.size(); ++set) {
      sets_.emplace_back(places, sets[set], ring, memory_.sets[set], memory_.sums, stream);
      for (std::size_t i = 0; i < sets[set].pieces.size(); ++i) pieces_.push_back({set, i});
    }
  }
  ByHeadsExchange(const ByHeadsExchange&) = delete;
  ByHeadsExchange& operator=(const ByHeadsExchange&) = delete;

  /// What is left of the room of exchanges.
  [[nodiscard]] std::span<std::byte> rest() const noexcept { return memory_.rest; }

  /// Fills attention outputs and log-sum-exps of the slices' own rows. Own keys must be where the
  /// projection puts them (UnitKeys); pages and workspace get them by heads.
  template <class Link>
  void forward(std::int64_t layer, Link& link) const {
    if (sets_.empty()) return;
    DeviceSpan<Bf16> key = places_.keys.key, value = places_.keys.value;
    if (pass_ == Pass::forward) {
      // Messages come to stand where the projection has put the keys.
      key = own_.subspan(0, places_.keys.head_key.size);
      value = own_.subspan(key.size, key.size);
      copy(key, places_.keys.head_key, stream_);
      copy(value, places_.keys.head_value, stream_);
    }
    run([](const HeadSetExchange& set) { return set.forward_messages(); },
        [&](const HeadSetExchange& set, std::size_t i) {
          set.forward_give(i, layer, key, value, link);
        },
        [&](const HeadSetExchange& set, std::size_t i) { set.forward_attend(i, layer, link); },
        [&](const HeadSetExchange& set, std::size_t i) { set.forward_take(i, layer); }, link);
  }

  /// Begins to give the queries of B, which must be there, to whom they are needed by `backward`.
  template <class Link>
  void give_ahead(std::int64_t layer, Link& link) const {
    if (again_) return;
    for (const auto& [set, i] : pieces_) sets_[set].give_ahead(i, layer, link);
  }
  /// Fills the gradients of the slices' own queries, in rows of all blocks, and adds those of own
  /// keys and values to the unit's; `rows` has delta and the gradients of outputs. What
  /// `give_ahead` has begun ends here.
  template <class Link>
  void backward(std::int64_t layer, const BackwardRows& rows, Link& link) const {
    if (sets_.empty()) return;
    fill_zeros(memory_.sums, stream_);
    for (std::size_t left = again_ ? 0 : pieces_.size(); left > 0; --left) link.end_all_to_all();
    run([](const HeadSetExchange&) { return 1; },
        [&](const HeadSetExchange& set, std::size_t i) { set.backward_give(i, layer, rows, link); },
        [&](const HeadSetExchange& set, std::size_t i) { set.backward_attend(i, layer, link); },
        [&](const HeadSetExchange& set, std::size_t i) { set.backward_take(i, rows); }, link);
  }

 private:
  /// Gives the pieces in order, each before the one ahead of it is attended to, and takes them home
  /// when the next has been attended to. `messages(set)` is how many a piece has there.
  template <class Messages, class Give, class Attend, class Take, class Link>
  void run(Messages messages, Give give, Attend attend, Take take, Link& link) const {
    const std::size_t count = pieces_.size();
    const auto with = [&](std::size_t at, const auto& visit) {
      visit(sets_[pieces_[at].first], pieces_[at].second);
    };
    const auto take_home = [&](std::size_t at) {
      link.end_all_to_all();
      with(at, take);
    };
    with(0, give);
    for (std::size_t at = 0; at < count; ++at) {
      if (at >= 2) take_home(at - 2);
      for (int left = messages(sets_[pieces_[at].first]); left > 0; --left) link.end_all_to_all();
      if (at + 1 < count) with(at + 1, give);
      with(at, attend);
    }
    if (count >= 2) take_home(count - 2);
    take_home(count - 1);
  }

  const PackPlaces& places_;
  Pass pass_;
  bool again_;
  DeviceSpan<Bf16> own_;
  StreamView stream_;
  HeadMemories memory_;
  std::vector<HeadSetExchange> sets_;
  std::vector<std::pair<std::size_t, std::size_t>> pieces_;  // set, and piece of its heads
};

}  // namespace slimpack::cuda
