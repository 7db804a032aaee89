// SPDX-License-Identifier: Apache-2.0
// Time of the all-to-alls of a context-parallel group that splits heads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "slimpack/core/int128.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/picos.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/head_pieces.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

namespace detail {

/// Bytes of whole heads of this rank's own tokens that pass to parts of heads in one layer of F or,
/// where `back`, of B beside attention, and back from them; its own part is among them. `copies`
/// ranks have the same keys.
[[nodiscard]] constexpr std::int64_t head_bytes(const RingBytes& each, const PackLoad& load,
                                                bool back, std::int64_t copies) noexcept {
  return load.heads_sent.value * ((back ? each.heads_back : each.heads) + copies * each.kv);
}

/// Pieces of a pack's slices by heads: so many of the heads of each set.
[[nodiscard]] inline std::int64_t pieces_of(const PackLoad& load, std::int64_t of_heads) noexcept {
  const std::int64_t sets = std::ranges::count_if(load.head_sets.tokens, std::identity{});
  return of_heads * std::max<std::int64_t>(sets, 1);
}

/// The sum of two times that depend on how long each waits, of which one waits for `wait`: the one
/// by which the sum is larger, so that neither takes less where the other has work. O(1).
template <class First, class Second>
[[nodiscard]] Picos with_one_wait(const First& first, const Second& second, Picos wait) noexcept {
  const Picos sum = first(wait) + second(0);
  return wait == 0 ? sum : std::max(sum, first(0) + second(wait));
}

}  // namespace detail

/// What a link takes, in picoseconds.
struct LinkPicos {
  double byte = 0;    ///< for each byte
  Picos latency = 0;  ///< for each collective
};
/// The same from its rate and latency.
[[nodiscard]] inline LinkPicos link_picos(const Link& link) noexcept {
  return {picos_each(1, link.bytes_per_s), picos(1, link.latency_s * 1e12)};
}

/// The all-to-alls of each layer of a stage, by which `ranks` ranks pass tokens to parts of heads
/// and back, piece by piece (Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509). A rank keeps
/// its own part of `bytes` a layer, those of all its tensor-parallel devices; parts for ranks of
/// its node, over the link `near`, and parts for others, over `far`, travel at the same time. The
/// slowest link is `kept` from them so long. `collectives` of them wait for the link's latency.
/// 0 for no bytes. O(1).
[[nodiscard]] inline Picos head_exchange(std::int64_t bytes, std::int64_t ranks,
                                         std::int64_t collectives, const StageLoad& stage,
                                         const LinkPicos& near, const LinkPicos& far,
                                         Picos kept) noexcept {
  if (bytes <= 0 || ranks <= 1 || stage.layers == 0) return 0;
  const std::int64_t here = stage.node_ranks > 0 ? std::min(stage.node_ranks, ranks) : ranks;
  const auto time = [&](std::int64_t peers, const LinkPicos& link) -> Picos {
    if (peers == 0) return 0;
    const double each =
        link.byte / static_cast<double>(ranks) / static_cast<double>(stage.tensor_parallel);
    return picos(bytes * peers, stage.layers, each) +
           picos(collectives, stage.layers, static_cast<double>(link.latency));
  };
  if (here == ranks) return time(here - 1, near) + kept;
  return std::max(time(here - 1, near), time(ranks - here, far) + kept);
}

/// How long attention that takes `attention` and its exchange that takes `exchange` last together.
/// Each set of slices goes in `pieces` of the heads. A piece's first half travels while the piece
/// before is attended to, its second half, which goes home, behind its attention; the link takes
/// one half at a time, in the order in which they are begun. O(sets x pieces).
[[nodiscard]] inline Picos heads_pipeline(Picos attention, Picos exchange, const HeadSets& sets,
                                          std::int64_t pieces) noexcept {
  struct Piece {
    Picos half, attention;
  };
  const auto part = [&](Picos whole, std::uint32_t amount) {
    return static_cast<Picos>(Int128{whole} * amount / (Int128{HeadSets::kWhole} * pieces));
  };
  std::array<Piece, kHeadPieces> of_set{};
  std::size_t count = 0;
  for (std::size_t set = 0; set < of_set.size(); ++set) {
    if (sets.tokens[set] == 0) continue;
    of_set[count++] = {part(exchange, sets.tokens[set]) / 2, part(attention, sets.pairs[set])};
  }
  if (count == 0) of_set[count++] = {exchange / (2 * pieces), attention / pieces};
  const auto all = count * static_cast<std::size_t>(pieces);
  const auto piece = [&](std::size_t i) { return of_set[i / static_cast<std::size_t>(pieces)]; };
  Picos link = piece(0).half, arrived = link, device = 0;
  std::array<Picos, 2> home{};  // of the last two pieces
  for (std::size_t i = 0; i < all; ++i) {
    const Picos start = std::max({device, arrived, home[i % 2]});
    if (i + 1 < all) arrived = link = std::max(link, start) + piece(i + 1).half;
    device = start + piece(i).attention;
    home[i % 2] = link = std::max(link, device) + piece(i).half;
  }
  return std::max(device, link);
}

/// What the exchange by heads of a pack adds to `attention` that waits for no ring; what of it
/// hides takes part of the device. `terms` are those of the cost model. O(1).
template <class Terms>
[[nodiscard]] Picos heads_beside(const Terms& terms, Picos attention, const PackLoad& load,
                                 const StageLoad& stage, bool back, const LinkPicos& near,
                                 const LinkPicos& far, Picos kept) noexcept {
  const std::int64_t pieces = head_pieces(terms.model(), stage.tensor_parallel, load.ranks);
  const std::int64_t copies = key_copies(terms.model(), stage.tensor_parallel, load.ranks);
  const Picos exchange =
      head_exchange(detail::head_bytes(terms.ring(), load, back, copies), load.ranks,
                    2 * detail::pieces_of(load, pieces), stage, near, far, kept);
  if (exchange == 0) return 0;
  const Picos together = heads_pipeline(attention, exchange, load.head_sets, pieces);
  const Picos hidden = std::min({exchange + attention - together, exchange, attention});
  return exchange - hidden + terms.taken_by_collective(hidden);
}

/// What the queries of slices by heads add to B: they go ahead of its other messages, before it
/// comes to attention, behind its `work` on rows. Nothing where attention is made again, for which
/// they have come. O(1).
template <class Terms>
[[nodiscard]] Picos queries_ahead(const Terms& terms, Picos work, const PackLoad& load,
                                  const StageLoad& stage, Recompute recompute,
                                  const LinkPicos& near, const LinkPicos& far) noexcept {
  if (recompute == Recompute::full) return 0;
  const std::int64_t pieces = head_pieces(terms.model(), stage.tensor_parallel, load.ranks);
  const Picos exchange = head_exchange(load.heads_sent.value * terms.ring().heads_query, load.ranks,
                                       detail::pieces_of(load, pieces), stage, near, far, 0);
  const Picos hidden = std::min(exchange, work);
  return exchange - hidden + terms.taken_by_collective(hidden);
}
/// The same over the cluster's links.
template <class Terms>
[[nodiscard]] Picos queries_ahead(const Terms& terms, Picos work, const PackLoad& load,
                                  const StageLoad& stage, Recompute recompute) noexcept {
  return queries_ahead(terms, work, load, stage, recompute, link_picos(terms.cluster().inside),
                       link_picos(stage.exchange_link));
}

}  // namespace slimpack
