// SPDX-License-Identifier: Apache-2.0
// Time of the all-to-alls of a context-parallel group that splits heads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/picos.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/memory.hpp"

namespace slimpack {

namespace detail {

/// Bytes of whole heads of this rank's own tokens that pass to parts of heads in one layer of F or,
/// where `back`, of B, and back from them; its own part is among them.
[[nodiscard]] constexpr std::int64_t head_bytes(const RingBytes& each, const PackLoad& load,
                                                bool back) noexcept {
  return load.heads_sent.value * (back ? each.heads_back : each.heads);
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

/// The two all-to-alls of each layer of a stage, by which `ranks` ranks pass tokens to parts of
/// heads and back (Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509). A rank keeps its own part
/// of `bytes` a layer, those of all its tensor-parallel devices; parts for ranks of its node, over
/// the link `near`, and parts for others, over `far`, travel at the same time. Nothing hides them,
/// and the slowest link is `kept` from them so long. 0 for no bytes. O(1).
[[nodiscard]] inline Picos head_exchange(std::int64_t bytes, std::int64_t ranks,
                                         const StageLoad& stage, const LinkPicos& near,
                                         const LinkPicos& far, Picos kept) noexcept {
  if (bytes <= 0 || ranks <= 1 || stage.layers == 0) return 0;
  const std::int64_t here = stage.node_ranks > 0 ? std::min(stage.node_ranks, ranks) : ranks;
  const auto time = [&](std::int64_t peers, const LinkPicos& link) -> Picos {
    const double each =
        link.byte / static_cast<double>(ranks) / static_cast<double>(stage.tensor_parallel);
    return peers == 0 ? 0
                      : picos(bytes * peers, stage.layers, each) + 2 * stage.layers * link.latency;
  };
  const Picos outside = time(ranks - here, far);
  return std::max(time(here - 1, near) + (outside > 0 ? 0 : kept),
                  outside + (outside > 0 ? kept : 0));
}

}  // namespace slimpack
