// SPDX-License-Identifier: Apache-2.0
// Time of the all-to-alls of a context-parallel group that splits heads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/picos.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

namespace detail {

/// Bytes of whole heads of this rank's own tokens that pass to parts of heads in one layer of F or,
/// where `back`, of B, and back from them; its own part is among them.
[[nodiscard]] constexpr std::int64_t head_bytes(const RingBytes& each, const PackLoad& load,
                                                bool back) noexcept {
  return load.heads_sent.value * (back ? each.heads_back : each.heads);
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

/// In how many pieces a rank's heads go by an exchange by heads, so that one piece travels while
/// another is attended to: as many as the rank has heads of keys, at most 4.
[[nodiscard]] constexpr std::int64_t head_pieces(const ModelShape& model,
                                                 std::int64_t tensor_parallel,
                                                 std::int64_t ranks) noexcept {
  return std::clamp<std::int64_t>(model.kv_heads / tensor_parallel / ranks, 1, 4);
}

/// The all-to-alls of each layer of a stage, by which `ranks` ranks pass tokens to parts of heads
/// and back, piece by piece (Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509). A rank keeps
/// its own part of `bytes` a layer, those of all its tensor-parallel devices; parts for ranks of
/// its node, over the link `near`, and parts for others, over `far`, travel at the same time. The
/// slowest link is `kept` from them so long. 0 for no bytes. O(1).
[[nodiscard]] inline Picos head_exchange(std::int64_t bytes, std::int64_t ranks,
                                         std::int64_t pieces, const StageLoad& stage,
                                         const LinkPicos& near, const LinkPicos& far,
                                         Picos kept) noexcept {
  if (bytes <= 0 || ranks <= 1 || stage.layers == 0) return 0;
  const std::int64_t here = stage.node_ranks > 0 ? std::min(stage.node_ranks, ranks) : ranks;
  const auto time = [&](std::int64_t peers, const LinkPicos& link) -> Picos {
    if (peers == 0) return 0;
    const double each =
        link.byte / static_cast<double>(ranks) / static_cast<double>(stage.tensor_parallel);
    return picos(bytes * peers, stage.layers, each) +
           picos(2 * pieces, stage.layers, static_cast<double>(link.latency));
  };
  if (here == ranks) return time(here - 1, near) + kept;
  return std::max(time(here - 1, near), time(ranks - here, far) + kept);
}

/// What the exchange by heads of a pack adds to `attention` that waits for no ring: all but one
/// piece of the shorter of both hides behind the longer, from which it takes part of the device.
/// `terms` are those of the cost model. O(1).
template <class Terms>
[[nodiscard]] Picos heads_beside(const Terms& terms, Picos attention, const PackLoad& load,
                                 const StageLoad& stage, bool back, const LinkPicos& near,
                                 const LinkPicos& far, Picos kept) noexcept {
  const std::int64_t pieces = head_pieces(terms.model(), stage.tensor_parallel, load.ranks);
  const Picos exchange = head_exchange(detail::head_bytes(terms.ring(), load, back), load.ranks,
                                       pieces, stage, near, far, kept);
  const Picos shorter = std::min(exchange, attention);
  const Picos hidden = shorter - (shorter + pieces - 1) / pieces;
  return exchange - hidden + terms.taken_by_collective(hidden);
}

}  // namespace slimpack
