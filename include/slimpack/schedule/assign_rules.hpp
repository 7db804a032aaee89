// SPDX-License-Identifier: Apache-2.0
// What samples cost ranks, and which of them context-parallel groups may share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack::schedule {

/// Which samples go to context-parallel groups: those above a threshold, to groups that lie inside
/// one another; those whose rank would have more than others; or those that need ranks of their
/// own, to groups of any size of which none has a rank of another.
enum class GroupRule : std::uint8_t { threshold, even, disjoint };

/// What a sample costs the rank that holds it alone.
struct SampleNeed {
  std::int64_t time = 0;  ///< forward and backward on one rank, in any unit, > 0
  Bytes bytes;            ///< at its most, on the fullest stage
};

/// Which samples go to a context-parallel group, and how large groups may be.
struct AssignRules {
  std::int32_t ranks = 1;   ///< data-parallel ranks, >= 1
  std::int32_t min_cp = 1;  ///< the ranks that share the smallest sample; a divisor of `ranks`
  std::int32_t max_cp = 1;  ///< the most ranks of a group, >= min_cp
  /// A sample goes to a group if its time exceeds so many thousandths of a rank's mean load, >= 1.
  std::int64_t threshold_permille = 1000;
  Bytes room = Bytes::max();       ///< a sample that needs more bytes on a rank goes to a group
  std::vector<std::int64_t> node;  ///< the node of each rank; empty: all ranks are in one node
  GroupRule groups = GroupRule::threshold;  ///< the threshold has no meaning with the others
  /// Time of each rank of a group that has so many and shares the sample with this index; an even
  /// part where absent.
  std::function<std::int64_t(std::size_t, std::int32_t)> part = {};
  /// What each rank has to do besides, >= 0: samples are placed as if it were load; none if empty.
  std::vector<std::int64_t> besides = {};
};

}  // namespace slimpack::schedule
