// SPDX-License-Identifier: Apache-2.0
// Attention of one slice in a context-parallel group, each rank of which has a part of the heads.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/workspace.hpp"

namespace slimpack::cpu {

/// One slice in one layer (Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509). What the rank has
/// of the slice, and its keys before the slice's end, pass to the ranks that have their heads; each
/// attends with its heads to all rows of the slice, and what comes of it passes home.
template <Mathematics Math>
class HeadsAttention {
 public:
  /// What is computed in.
  using Number = typename Math::Number;
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;
  /// Pieces of the slice that the rank owns, ascending.
  using Pieces = std::span<const PieceRows<Number>>;
  /// One entry a piece, in their order.
  using Scratch = std::span<const PieceGradients<Number>>;

  /// `model` is the device's part, `shard` the rank's of the slice's sample. The ranks of `group`
  /// must divide the heads of keys. What is passed by reference must outlive this.
  HeadsAttention(Math& math, const ModelShape& model, const CpShard& shard, const Slice& slice,
                 const runtime::ProcessGroup& group)
      : math_(math),
        shard_(shard),
        slice_(slice),
        group_(group),
        most_(attention_rows(model)),
        heads_(model.heads / shard.ranks),
        kv_heads_(model.kv_heads / shard.ranks),
        head_dim_(model.head_dim) {}

  /// Fills attention output and log-sum-exp of the pieces. each_key(visit) calls
  /// visit(number among the rank's tokens, keys, values) for runs of its keys before the slice's
  /// end.
  template <class EachKey, runtime::Transport<Number> Link>
  void forward(Pieces pieces, EachKey each_key, Workspace<Number>& workspace, Link& link) const {
    const Buffers buffers = take(workspace, Pass::forward);
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const Part to = buffers.there(rank);
      for (const PieceRows<Number>& rows : pieces) {
        pack(of_piece(to.query, rows, query_width()), rows.query, rank, query_width());
      }
      pack_keys(to, each_key, rank);
    }
    buffers.go(group_, link);
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      math_.attention_begin(buffers.here(rank).attention, buffers.here(rank).log_sum);
    }
    for_each_pair(buffers, [&](const Part& rows, const Part& keys, const AttentionShape& shape) {
      math_.attention_forward(rows.attention, rows.log_sum, rows.query, keys.key, keys.value,
                              shape);
    });
    buffers.come(group_, link);
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const Part from = buffers.home(rank);
      for (const PieceRows<Number>& rows : pieces) {
        unpack(rows.attention, of_piece(from.attention, rows, query_width()), rank, query_width());
        unpack(rows.log_sum, of_piece(from.log_sum, rows, heads_), rank, heads_);
      }
    }
  }

  /// Adds to `dquery` of the pieces' scratch and to `dkey` and `dvalue` of the rank's keys before
  /// the slice's end.
  template <class EachKey, runtime::Transport<Number> Link>
  void backward(Pieces pieces, Scratch scratch, EachKey each_key, Out dkey, Out dvalue,
                Workspace<Number>& workspace, Link& link) const {
    const Buffers buffers = take(workspace, Pass::backward);
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const Part to = buffers.there(rank);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const PieceRows<Number>& rows = pieces[i];
        pack(of_piece(to.query, rows, query_width()), rows.query, rank, query_width());
        pack(of_piece(to.dattention, rows, query_width()), scratch[i].dattention, rank,
             query_width());
        pack(of_piece(to.log_sum, rows, heads_), rows.log_sum, rank, heads_);
        make_delta(of_piece(to.delta, rows, heads_), rows, scratch[i].dattention, rank);
      }
      pack_keys(to, each_key, rank);
    }
    buffers.go(group_, link);
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const Part here = buffers.here(rank);
      for (const Out sums : {here.dquery, here.dkey, here.dvalue}) {
        std::ranges::fill(sums, Number{0});
      }
    }
    for_each_pair(buffers, [&](const Part& rows, const Part& keys, const AttentionShape& shape) {
      math_.attention_backward_from(rows.dquery, keys.dkey, keys.dvalue, rows.query, keys.key,
                                    keys.value, rows.delta, rows.log_sum, rows.dattention, shape);
    });
    buffers.come(group_, link);
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const Part from = buffers.home(rank);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        unpack_added(scratch[i].dquery, of_piece(from.dquery, pieces[i], query_width()), rank,
                     query_width());
      }
      unpack_added(dkey, from.dkey, rank, key_width());
      unpack_added(dvalue, from.dvalue, rank, key_width());
    }
  }

 private:
  /// One rank's rows of the slice and keys before its end, of one rank's heads. What does not
  /// travel the way that it goes, or in the pass, is empty.
  struct Part {
    Out query, attention, log_sum, dattention, delta, dquery;  ///< of rows
    Out key, value, dkey, dvalue;                              ///< of keys
  };

  /// What passes between ranks. `own` has one part for each rank's heads, of this rank's tokens: on
  /// the way out, and then, in the same memory, on the way home. Of all ranks' tokens this rank has
  /// a part of the heads: `taken` is what has come, `made` what goes home.
  struct Buffers {
    const HeadsAttention& attention;
    Pass pass;
    Out own;
    std::vector<Out> taken, made;  ///< by rank

    [[nodiscard]] Part there(std::int64_t rank) const {
      const std::size_t size = attention.out_size(pass, attention.shard_.rank);
      return attention.out_part(pass, attention.shard_.rank,
                                own.subspan(static_cast<std::size_t>(rank) * size, size));
    }
    [[nodiscard]] Part home(std::int64_t rank) const {
      const std::size_t size = attention.home_size(pass, attention.shard_.rank);
      Part part;
      attention.add_home(part, pass, attention.shard_.rank,
                         own.subspan(static_cast<std::size_t>(rank) * size, size));
      return part;
    }
    [[nodiscard]] Part here(std::int64_t rank) const {
      const auto i = static_cast<std::size_t>(rank);
      Part part = attention.out_part(pass, rank, taken[i]);
      attention.add_home(part, pass, rank, made[i]);
      return part;
    }
    template <class Link>
    void go(const runtime::ProcessGroup& group, Link& link) const {
      exchange(group, link, cut(attention.out_size(pass, attention.shard_.rank)), taken);
    }
    template <class Link>
    void come(const runtime::ProcessGroup& group, Link& link) const {
      exchange(group, link, made, cut(attention.home_size(pass, attention.shard_.rank)));
    }

   private:
    /// The parts of `own`, of so many numbers each.
    [[nodiscard]] std::vector<Out> cut(std::size_t size) const {
      std::vector<Out> parts;
      for (std::size_t i = 0; i < taken.size(); ++i) parts.push_back(own.subspan(i * size, size));
      return parts;
    }
    template <class Link>
    static void exchange(const runtime::ProcessGroup& group, Link& link,
                         const std::vector<Out>& from, const std::vector<Out>& into) {
      std::vector<std::span<const std::byte>> given;
      std::vector<std::span<std::byte>> taken;
      for (const Out part : from) given.push_back(std::as_bytes(part));
      for (const Out part : into) taken.push_back(std::as_writable_bytes(part));
      link.all_to_all(group, given, taken);
    }
  };

  /// Widths of a rank's part of the heads.
  [[nodiscard]] std::int64_t query_width() const { return heads_ * head_dim_; }
  [[nodiscard]] std::int64_t key_width() const { return kv_heads_ * head_dim_; }
  /// Rows of the slice that a rank owns, and its keys before the slice's end.
  [[nodiscard]] std::int64_t rows(std::int64_t rank) const {
    return shard_.of(rank).between(slice_.begin, slice_.end).value;
  }
  [[nodiscard]] std::int64_t keys(std::int64_t rank) const {
    return shard_.of(rank).before(slice_.end).value;
  }

  /// Numbers of a rank's tokens that pass to one part of the heads, and that come home from it.
  [[nodiscard]] std::size_t out_size(Pass pass, std::int64_t rank) const {
    const std::int64_t row = pass == Pass::forward ? query_width() : 2 * (query_width() + heads_);
    return static_cast<std::size_t>(rows(rank) * row + keys(rank) * 2 * key_width());
  }
  [[nodiscard]] std::size_t home_size(Pass pass, std::int64_t rank) const {
    return static_cast<std::size_t>(pass == Pass::forward ? rows(rank) * (query_width() + heads_)
                                                          : rows(rank) * query_width() +
                                                                keys(rank) * 2 * key_width());
  }
  [[nodiscard]] Part out_part(Pass pass, std::int64_t rank, Out buffer) const {
    Workspace<Number> left(buffer);
    Part part;
    part.query = left.take(rows(rank), query_width());
    if (pass == Pass::backward) {
      part.dattention = left.take(rows(rank), query_width());
      part.log_sum = left.take(rows(rank), heads_);
      part.delta = left.take(rows(rank), heads_);
    }
    part.key = left.take(keys(rank), key_width());
    part.value = left.take(keys(rank), key_width());
    return part;
  }
  void add_home(Part& part, Pass pass, std::int64_t rank, Out buffer) const {
    Workspace<Number> left(buffer);
    if (pass == Pass::forward) {
      part.attention = left.take(rows(rank), query_width());
      part.log_sum = left.take(rows(rank), heads_);
      return;
    }
    part.dquery = left.take(rows(rank), query_width());
    part.dkey = left.take(keys(rank), key_width());
    part.dvalue = left.take(keys(rank), key_width());
  }

  [[nodiscard]] Buffers take(Workspace<Number>& workspace, Pass pass) const {
    const auto numbers = [&](std::size_t count) {
      return workspace.take(static_cast<std::int64_t>(count), 1);
    };
    const std::size_t own = std::max(out_size(pass, shard_.rank), home_size(pass, shard_.rank));
    Buffers buffers{*this, pass, numbers(static_cast<std::size_t>(shard_.ranks) * own), {}, {}};
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      buffers.taken.push_back(numbers(out_size(pass, rank)));
      buffers.made.push_back(numbers(home_size(pass, rank)));
    }
    return buffers;
  }

  /// The rows of a piece among those of its rank, `width` numbers each.
  [[nodiscard]] Out of_piece(Out all, const PieceRows<Number>& piece, std::int64_t width) const {
    return detail::rows(all, shard_.between(slice_.begin, piece.begin).value, piece.rows, width);
  }

  /// Where the part of one rank's heads, of `width` numbers, lies in a row of all heads.
  template <class Rows>
  [[nodiscard]] Rows part_of_row(Rows all, std::int64_t row, std::int64_t rank,
                                 std::int64_t width) const {
    return detail::row(detail::row(all, row, shard_.ranks * width), rank, width);
  }
  /// Copies a rank's heads out of rows of all heads.
  void pack(Out part, In all, std::int64_t rank, std::int64_t width) const {
    const auto count = static_cast<std::int64_t>(part.size()) / width;
    for (std::int64_t r = 0; r < count; ++r) {
      std::ranges::copy(part_of_row(all, r, rank, width), detail::row(part, r, width).begin());
    }
  }
  /// Copies a rank's heads into rows of all heads.
  void unpack(Out all, In part, std::int64_t rank, std::int64_t width) const {
    const auto count = static_cast<std::int64_t>(part.size()) / width;
    for (std::int64_t r = 0; r < count; ++r) {
      std::ranges::copy(detail::row(part, r, width), part_of_row(all, r, rank, width).begin());
    }
  }
  /// Adds a rank's heads to rows of all heads.
  void unpack_added(Out all, In part, std::int64_t rank, std::int64_t width) const {
    const auto count = static_cast<std::int64_t>(part.size()) / width;
    for (std::int64_t r = 0; r < count; ++r) {
      math_.add(part_of_row(all, r, rank, width), detail::row(part, r, width));
    }
  }
  template <class EachKey>
  void pack_keys(const Part& to, EachKey& each_key, std::int64_t rank) const {
    each_key([&](std::int64_t own, In key, In value) {
      const auto count = static_cast<std::int64_t>(key.size()) / (shard_.ranks * key_width());
      pack(detail::rows(to.key, own, count, key_width()), key, rank, key_width());
      pack(detail::rows(to.value, own, count, key_width()), value, rank, key_width());
    });
  }
  /// The sums of output times its gradient of one rank's heads, row by row: they have no place in
  /// memory for all heads.
  void make_delta(Out delta, const PieceRows<Number>& rows, In dattention,
                  std::int64_t rank) const {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      math_.attention_delta(
          detail::row(delta, r, heads_), part_of_row(In(rows.attention), r, rank, query_width()),
          part_of_row(dattention, r, rank, query_width()),
          {1, 0, rows.begin + Tokens{r}, Tokens{0}, heads_, kv_heads_, head_dim_});
    }
  }

  /// Rows [i, i + count) of what a rank has rows of, alike.
  [[nodiscard]] Part cut_rows(const Part& all, std::int64_t i, std::int64_t count) const {
    const auto cut = [&](Out rows, std::int64_t width) {
      return rows.empty() ? rows : detail::rows(rows, i, count, width);
    };
    Part part;
    part.query = cut(all.query, query_width());
    part.attention = cut(all.attention, query_width());
    part.log_sum = cut(all.log_sum, heads_);
    part.dattention = cut(all.dattention, query_width());
    part.delta = cut(all.delta, heads_);
    part.dquery = cut(all.dquery, query_width());
    return part;
  }
  /// The same of what it has of keys.
  [[nodiscard]] Part cut_keys(const Part& all, std::int64_t i, std::int64_t count) const {
    const auto cut = [&](Out keys) {
      return keys.empty() ? keys : detail::rows(keys, i, count, key_width());
    };
    Part part;
    part.key = cut(all.key);
    part.value = cut(all.value);
    part.dkey = cut(all.dkey);
    part.dvalue = cut(all.dvalue);
    return part;
  }

  /// Calls visit(rows, keys, shape) for all rows of the slice, whoever owns them, and the runs of
  /// keys that they see, with this rank's heads.
  template <std::invocable<const Part&, const Part&, const AttentionShape&> Visit>
  void for_each_pair(const Buffers& buffers, Visit visit) const {
    std::vector<Part> parts;
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) parts.push_back(buffers.here(rank));
    const auto meet_keys = [&](Tokens first_row, std::int64_t count, const Part& rows) {
      for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
        const CpShard owner = shard_.of(rank);
        const Part& all = parts[static_cast<std::size_t>(rank)];
        owner.for_each_run(
            Tokens{0}, first_row + Tokens{count}, [&](Tokens first_key, Tokens end_key) {
              const std::int64_t keys = (end_key - first_key).value;
              visit(rows, cut_keys(all, owner.before(first_key).value, keys),
                    {count, keys, first_row, first_key, heads_, kv_heads_, head_dim_});
            });
      }
    };
    for (std::int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const CpShard owner = shard_.of(rank);
      const Part& all = parts[static_cast<std::size_t>(rank)];
      owner.for_each_run(slice_.begin, slice_.end, [&](Tokens begin, Tokens end) {
        const std::int64_t before = owner.between(slice_.begin, begin).value;
        for_each_part((end - begin).value, most_, [&](std::int64_t i, std::int64_t count) {
          meet_keys(begin + Tokens{i}, count, cut_rows(all, before + i, count));
        });
      });
    }
  }

  Math& math_;
  CpShard shard_;
  Slice slice_;
  const runtime::ProcessGroup& group_;
  std::int64_t most_;              ///< rows that meet all keys before the next rows do
  std::int64_t heads_, kv_heads_;  ///< of a part
  std::int64_t head_dim_;
};

}  // namespace slimpack::cpu
