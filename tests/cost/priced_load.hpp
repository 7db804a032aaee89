// SPDX-License-Identifier: Apache-2.0
// The load with which a rank of a group is priced, written down a second time.
#pragma once

#include <algorithm>
#include <cstddef>

#include "slimpack/cost/load.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

/// A rank's own load in F whose keys travel and in W; else with the most attention of its group
/// behind rings, and all that the rank sends by heads that sends most.
[[nodiscard]] inline PackLoad priced_load(const Plan& plan, const PackLoads& loads, PackId pack,
                                          std::size_t rank) {
  const MicroPack& units = plan.micropacks[index(pack)];
  bool home = units.pass == Pass::backward;
  for (const RingMode mode : units.exchange) {
    home = home || (units.pass == Pass::forward && mode != RingMode::pass_kv);
  }
  PackLoad load = loads(pack, rank);
  for (std::size_t other = 0; home && other < loads.ranks(pack); ++other) {
    const PackLoad& its = loads(pack, other);
    load.pairs2 = std::max(load.pairs2, its.pairs2 - its.alone_pairs2 + load.alone_pairs2);
    load.filled_pairs2 = std::max(
        load.filled_pairs2, its.filled_pairs2 - its.alone_filled_pairs2 + load.alone_filled_pairs2);
    load.own_pairs2 =
        std::max(load.own_pairs2, its.own_pairs2 - its.alone_own_pairs2 + load.alone_own_pairs2);
    load.keys = std::max(load.keys, its.keys - its.alone_keys + load.alone_keys);
    load.heads_sent = std::max(load.heads_sent, its.heads_sent);
    if (its.heads_sent > Tokens{}) load.head_sets = its.head_sets;
  }
  return load;
}

}  // namespace slimpack::test
