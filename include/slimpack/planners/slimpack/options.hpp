// SPDX-License-Identifier: Apache-2.0
// The ideas of the slimpack planner that can be switched off. A header of its own: slimpack.hpp
// ends with all of the planner, which needs these before.
#pragma once

namespace slimpack::planners {

/// Which ideas a planner of the slimpack family uses.
struct SlimpackOptions {
  bool asymmetric = true;   ///< forward and backward packs may be cut apart
  bool slicing = true;      ///< samples may be cut
  bool merging = true;      ///< ranks may share long samples
  bool shard_head = true;   ///< the head may be split over the stages
  bool mixed_modes = true;  ///< long samples may recompute more than others
  bool weights = true;      ///< gradients of weights may be computed apart from B
  /// Packs may be few and large, as other systems have them: equal in tokens, in short blocks of
  /// chunks, of samples that all are on several ranks.
  bool consolidation = true;
  bool equal_chunks = true;   ///< searches may begin at more chunks if these have equal layers
  bool fit_modes = false;     ///< on one stage packs that lack memory keep less than others
  bool spread = false;        ///< on one stage samples begin on the rank of their group with least
  bool group_blocks = false;  ///< where blocks end with samples, those of groups are packed so, too
  friend bool operator==(const SlimpackOptions&, const SlimpackOptions&) = default;
};

}  // namespace slimpack::planners
